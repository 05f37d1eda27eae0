"""The in-memory engine: a log is one batch of the compiled scan, or goes through the NumPy scan.

The tables hold the observed cells only; beyond them a row takes a few dozen bytes while its table
is made. Sums are taken in the order of the rows, the same for any chunking.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Labels
from reweigh.policy.base import Policy
from reweigh.sums import products
from reweigh.sums.diagnostic_tables import too_long
from reweigh.sums.engines.base import Request, about, named
from reweigh.sums.moments import Moments
from reweigh.sums.numpy_scan import NumpyScan
from reweigh.sums.policy import policy_moments
from reweigh.sums.scan import CELLS, NO_BLOCKS, NO_CODES, Batch, CompiledScan, Shape, why_not
from reweigh.system.files import files_behind
from reweigh.system.process import each

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


SCANNED = frozenset({*CELLS, "lagged", "ordered", "paced", "largest"})


def propensities(log: EpisodeLog) -> Floats:
    """(N,) μ(a|s)."""
    if log.steps.behavior_prob is None:
        raise UsageError(
            "the log has no behaviour probabilities; name their column with behavior_prob=…, or "
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
        # The hidden state is a state of its own in the model's cells.
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
                tables["policy"] = policy_moments(log, target, block, len(states) - 1)
        if "trajectories" in kinds:
            tables["trajectories"] = products.trajectories(log.steps, block, scan.rho, log.discount)
        wanted = sorted(kinds & SCANNED)
        if wanted and why_not(log) is None:
            shape = Shape(
                kinds & SCANNED, states, len(log.actions or ()), log.horizon, log.discount,
                int(block.max()) + 1, request.max_ratio,
            )  # fmt: skip
            compiled = CompiledScan(shape)
            compiled.add(as_batch(log, pi, block, scan.ids))
            tables |= compiled.tables()
        else:
            made = each("sums", wanted, lambda kind: _by_numpy(scan, kind, states))
            tables |= dict(zip(wanted, made, strict=True))
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


def _by_numpy(scan: NumpyScan, kind: str, states: Labels) -> Any:
    if kind in CELLS:
        return scan.cells(kind)
    return scan.lagged(states) if kind == "lagged" else getattr(scan, kind)()


def as_batch(log: EpisodeLog, pi: Floats, block: Ints, ids: Ints | None) -> Batch:
    """The rows of a log for the compiled scan; `block` (n,) of the episodes, `ids` if they are
    whole numbers."""
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
