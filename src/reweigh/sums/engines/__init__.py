"""Engines: the only code that reads rows. An engine computes the requested sums, and names them.

The in-memory engine is here too: a log is one batch of the compiled scan, or goes through the NumPy
scan. The tables hold the observed cells only; beyond them a row takes a few dozen bytes while its
table is made. Sums are taken in the order of the rows, the same for any chunking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh import kernels
from reweigh.errors import UsageError
from reweigh.kernels import group_by
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, Labels, label_text
from reweigh.log.steps import Identity
from reweigh.policy import Policy
from reweigh.sums.diagnostic_tables import too_long
from reweigh.sums.keyed import StartMoments
from reweigh.sums.moments import About, Moments
from reweigh.sums.numpy_scan import NumpyScan
from reweigh.sums.tables import BUILT_IN, ROW_KINDS, Table
from reweigh.system.files import digest_of, files_behind
from reweigh.system.process import each

if TYPE_CHECKING:
    from reweigh.sums.scan import Batch

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CELLS = frozenset({"transitions", "model", "choices"})
SCANNED = CELLS | {"lagged", "ordered", "paced", "largest"}
SPARE_CELLS = 1 << 20


@dataclass(frozen=True)
class Request:
    """The sums that an estimator needs. Requests merge with `|`: one scan serves all of them."""

    # of "transitions", "model", "trajectories", "lagged", "ordered", "paced", "largest"
    kinds: frozenset[str] = frozenset()
    blocks: int = 1
    max_ratio: float | None = None
    control: str | None = None
    policy: bool = False  # with "model": for all actions, if the target has their probabilities
    named: bool = True  # False: the sums' source is not named, since that reads the whole log
    # kinds that a scan of a large log may leave out where they would take more than SPARE_CELLS
    spare: frozenset[str] = frozenset()
    tables: tuple[Table, ...] = ()  # declared outside of the package

    def __post_init__(self) -> None:
        names = [table.name for table in self.tables]
        for table in self.tables:
            if table.name in (*BUILT_IN, "trajectories") or names.count(table.name) > 1:
                raise UsageError(f"there is already a table {table.name!r}; choose another name")
            if table.rows not in ROW_KINDS or "bucket" in table.keys or table.merge != "sum":
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

    def left_out(self) -> dict[str, str]:
        """The reason for leaving out optional kinds that are too large."""
        return dict.fromkeys(
            sorted(self.spare),
            f"they would take more than {SPARE_CELLS:,} cells, and no estimator needs them",
        )


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
        ordered_by=log.columns.ordered_by,
        cluster=log.columns.cluster,
    )


def named(moments: Moments, identity: Identity) -> Moments:
    """The sums of one log with the log's identity: sums of the same episodes must not be
    added twice.

    The name is made of the identity of the rows (`log/steps.py`) and of the counts of each
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
    # cells of one state are adjacent: add up the runs before anything is sorted
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


def propensities(log: EpisodeLog) -> Floats:
    """(N,) μ(a|s)."""
    if log.steps.behavior_prob is None:
        raise UsageError(
            "the log has no behavior probabilities; name their column with behavior_prob=…, or "
            "estimate them: log.with_behavior(fit_behavior(log))"
        )
    return log.steps.behavior_prob


def ratios(log: EpisodeLog, target: Policy, max_ratio: float | None) -> tuple[Floats, Floats]:
    """(N,) π(a|s) and ρ = π/μ, clipped at `max_ratio` if given."""
    mu, pi = propensities(log), target.probabilities(log)
    rho = pi / mu
    return pi, rho if max_ratio is None else np.minimum(rho, max_ratio)


class ArraysEngine:
    """Sums of a log that is in memory."""

    name = "arrays"

    def moments(
        self, log: EpisodeLog, target: Policy, request: Request, block: Ints | None = None
    ) -> Moments:
        """The sums by the request's blocks, or by the `block` (n,) of each episode."""
        propensities(log)  # a log without any is refused first
        pi = target.probabilities(log)
        block = log.steps.blocks(request.blocks) if block is None else block
        if log.steps.weight is not None:
            from reweigh.sums.weights import weighted_moments

            return weighted_moments(self, log, target, request, block)
        # The hidden state is a separate state in the model's cells.
        states = Labels((*log.states.values, None)) if log.has_hidden else log.states
        scan, kinds = NumpyScan(log, pi, request.max_ratio, block), request.kinds
        left_out = too_long(log.horizon) if "paced" in kinds else {}
        kinds = kinds - left_out.keys()
        if log.n_truncated:  # a return that was cut off is not known
            kinds = kinds - {"ordered", "paced"}
        tables: dict[str, Any] = {"start": scan.starts("start")}
        if "model" in kinds:
            tables["start_model"] = scan.starts("start_model")
            if request.policy:
                from reweigh.sums.policy import policy_moments

                tables["policy"] = policy_moments(log, target, block, len(states) - 1)
        if "trajectories" in kinds:
            from reweigh.sums.products import trajectories

            tables["trajectories"] = trajectories(log.steps, block, scan.rho, log.discount)
        wanted = kinds & SCANNED
        tables |= _by_compiled(scan, wanted, states) or _by_numpy(scan, wanted, states)
        sums = Moments(
            about=about(log, target, request),
            states=states,
            actions=log.actions,
            tables={table.name: scan.declared(table) for table in request.tables},
            truncated=log.n_truncated,
            hidden=log.has_hidden,
            left_out=left_out,
            rewards=log.reward_range,
            files=files_behind(log, target),
            **tables,
        )
        return named(sums, log.identity()) if request.named else sums


def _by_compiled(scan: NumpyScan, kinds: frozenset[str], states: Labels) -> dict[str, Any]:
    """The tables from the compiled scan; none where it is not for this log (`scan.why_not`)."""
    log = scan.log
    kernels.advise_numba(log.steps.n_rows)
    if not kinds or log.steps.n_rows < kernels.COMPILED_FROM:
        return {}
    from reweigh.sums.scan import CompiledScan, Shape, why_not

    if why_not(log) is not None:
        return {}
    shape = Shape(
        kinds, states, len(log.actions or ()), log.horizon, log.discount,
        int(scan.block.max()) + 1, scan.max_ratio,
    )  # fmt: skip
    compiled = CompiledScan(shape)
    compiled.add(as_batch(log, scan.pi, scan.block, scan.ids))
    return compiled.tables()


def _by_numpy(scan: NumpyScan, kinds: frozenset[str], states: Labels) -> dict[str, Any]:
    def table(kind: str) -> Any:
        if kind in CELLS:
            return scan.cells(kind)
        return scan.lagged(states) if kind == "lagged" else getattr(scan, kind)()

    names = sorted(kinds)
    return dict(zip(names, each("sums", names, table), strict=True))


def as_batch(log: EpisodeLog, pi: Floats, block: Ints, ids: Ints | None) -> Batch:
    """The rows of a log for the compiled scan; `block` (n,) of the episodes, `ids` if they are
    whole numbers."""
    from reweigh.sums.scan import NO_BLOCKS, NO_CODES, Batch

    steps = log.steps

    def plain(values: npt.NDArray[Any], kind: type = np.float64) -> npt.NDArray[Any]:
        # another kind of array would be another kernel to compile
        return np.require(values, kind, ["C", "W"])

    return Batch(
        steps.offsets,
        plain(steps.state, np.int32),
        NO_CODES if log.continuous_actions else plain(steps.action, np.int32),
        plain(steps.reward),
        plain(propensities(log)),
        plain(pi),
        plain(steps.ending, np.int32),
        block if block.any() else NO_BLOCKS,
        ids,
    )


def mean_return(log: EpisodeLog) -> float:
    """What the behavior itself earned, of a log without cut-off episodes."""
    steps = log.steps
    earned = [float(steps.reward[steps.rows(t)].sum()) for t in range(steps.horizon)]
    omega = steps.relative_weight
    if omega is not None:
        rows = map(steps.rows, range(steps.horizon))
        earned = [float(steps.reward[r] @ omega[: r.stop - r.start]) for r in rows]
    return float(log.discount ** np.arange(steps.horizon) @ np.array(earned)) / log.n_episodes


def bare_moments(log: EpisodeLog, target: Policy, request: Request) -> Moments:
    """Moments with only the starts: an estimate's description of its log. They have no sources,
    because naming them reads the whole log; do not add them."""
    states = Labels((*log.states.values, None)) if log.has_hidden else log.states
    state = log.steps.first_states()
    if log.has_hidden:
        state = np.where(state == HIDDEN, len(log.states), state)
    count = np.bincount(state)
    seen = np.flatnonzero(count)
    zero = np.zeros(len(seen))
    start = StartMoments(zero.astype(np.int64), seen, count[seen], zero, zero)
    return Moments(
        about(log, target, request),
        states,
        log.actions,
        start,
        truncated=log.n_truncated,
        hidden=log.has_hidden,
    )
