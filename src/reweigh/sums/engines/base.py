"""What an engine is: the only code that sees rows. It answers requests for sums, and names them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError
from reweigh.kernels.groups import group_by
from reweigh.log.states import label_text
from reweigh.log.steps import Identity
from reweigh.sums.moments import About, Moments
from reweigh.sums.tables import BUILT_IN, OWN_KINDS, Table
from reweigh.system.files import digest_of

if TYPE_CHECKING:
    from reweigh.log.log import EpisodeLog
    from reweigh.policy.base import Policy

Floats = npt.NDArray[np.float64]
SPARE_CELLS = 1 << 20


@dataclass(frozen=True)
class Request:
    """Which sums an estimator asks for. Requests merge with `|`: one scan serves all of them."""

    # of "transitions", "model", "trajectories", "lagged", "ordered", "paced", "largest"
    kinds: frozenset[str] = frozenset()
    blocks: int = 1
    max_ratio: float | None = None
    control: str | None = None
    policy: bool = False  # with "model": for all actions, where the target can be asked for them
    named: bool = True  # False: the sums' source is not named, since that reads the whole log
    # kinds that a scan of a large log may leave out where they would take more than SPARE_CELLS
    spare: frozenset[str] = frozenset()
    tables: tuple[Table, ...] = ()  # declared outside of the package

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        for table in self.tables:
            if table.name in (*BUILT_IN, "trajectories") or names.count(table.name) > 1:
                raise UsageError(f"there is another table {table.name!r}; choose another name")
            if table.rows not in OWN_KINDS or "bucket" in table.keys or table.merge != "sum":
                raise UsageError(
                    f"the table {table.name!r} must add up over rows, stretches or episodes, and "
                    "not by bucket"
                )

    @property
    def all_kinds(self) -> frozenset[str]:
        return self.kinds | {table.name for table in self.tables}

    def __or__(self, other: Request) -> Request:
        if (self.max_ratio, self.control) != (other.max_ratio, other.control):
            raise ValueError("requests with different ratios or rewards need separate scans")
        return replace(
            self,
            kinds=self.kinds | other.kinds,
            blocks=int(np.lcm(self.blocks, other.blocks)),
            policy=self.policy or other.policy,
            tables=tuple(dict.fromkeys((*self.tables, *other.tables))),
            spare=(self.spare - other.kinds)
            | (other.spare - self.kinds)
            | self.spare & other.spare,
        )

    def without_spare(self) -> Request:
        return replace(self, kinds=self.kinds - self.spare, spare=frozenset())

    def left_out(self) -> dict[str, str]:
        """What is said of spare kinds that are too large."""
        return dict.fromkeys(
            sorted(self.spare),
            f"they would take more than {SPARE_CELLS:,} cells, and no estimator asked for them",
        )


class Engine(Protocol):
    """Produces the sums of a log. Nothing above an engine knows which one it was."""

    name: str

    def moments(self, log: EpisodeLog, target: Policy, request: Request) -> Moments:
        """All sums of the request, in one scan."""
        ...


def about(log: EpisodeLog, target: Policy, request: Request) -> About:
    """What the sums of this log, target and request are of, but for the names of their sources,
    since naming them reads the log (`named`)."""
    return About(
        horizon=log.horizon,
        discount=log.discount,
        target=target.fingerprint(),
        target_has_steps=target.has_steps,
        abstraction=log.abstraction,
        state_columns=log.columns.state,
        continuous_actions=log.continuous_actions,
        behavior=log.behavior_source,
        max_ratio=request.max_ratio,
        control=request.control,
        blocks=request.blocks,
        sources=(),
    )


def named(moments: Moments, identity: Identity) -> Moments:
    """The sums of one log with the name of what they are of: sums of the same episodes must not be
    added twice.

    The name is made of which rows these are (`log/steps.py`) and of how often the log shows each
    state at each step. Both are whole numbers on which all engines agree, whatever the order of the
    rows, their format and their division into files.
    """
    source = digest_of(identity.digest(), _visits(moments))
    return replace(moments, about=replace(moments.about, sources=(source,)))


def _visits(moments: Moments) -> bytes:
    """Rows by block, step and state, the states in the order of their texts."""
    cells = moments.model if moments.model is not None else moments.transitions
    if cells is None:
        block, s, n = moments.start.block, moments.start.s, moments.start.n
        t = np.zeros(len(s), np.int64)
    else:
        block, t, s, n = cells.block, cells.t, cells.s, cells.n
    # cells of one state stand together: add up the runs before anything is sorted
    changes = (block[1:] != block[:-1]) | (t[1:] != t[:-1]) | (s[1:] != s[:-1])
    begins = np.flatnonzero(np.concatenate([[True], changes]))[: len(s)]
    block, t, s = block[begins], t[begins], s[begins]
    n = np.add.reduceat(n, begins) if len(begins) else n
    used, place = np.unique(s, return_inverse=True)
    labels = moments.states.values
    texts = [
        f"\0{code}" if code < 0 or labels[code] is None else str(label_text(labels[code]))
        for code in used.tolist()
    ]
    rank = np.argsort(np.argsort(np.array(texts, object), kind="stable"), kind="stable")
    groups = group_by([block, t, rank[place]])
    table = np.stack([*groups.keys, groups.sum(n)]).astype(np.int64)
    return "\0\0".join(sorted(texts)).encode("utf-8", "surrogatepass") + table.tobytes()
