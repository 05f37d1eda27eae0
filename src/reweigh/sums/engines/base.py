"""What an engine is: the only code that sees rows. It answers requests for sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError
from reweigh.sums.moments import About, Moments
from reweigh.sums.tables import BUILT_IN, OWN_KINDS, Table

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
    since naming them reads the log (`sums/sources.py`)."""
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
