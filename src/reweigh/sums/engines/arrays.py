"""The in-memory engine: time-major arrays, one pass per table.

The tables hold the observed cells only; beyond them a row takes a few dozen bytes while its table
is made. Sums are taken in the order of the rows, the same for any chunking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, START, Labels
from reweigh.policy.base import Policy
from reweigh.sums import cells, products
from reweigh.sums.diagnostic_tables import (
    BITS,
    MOST_LAGGED,
    UNORDERED,
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
    places_of,
    thinned,
    too_long,
)
from reweigh.sums.engines.base import Request, about, named
from reweigh.sums.moments import Moments
from reweigh.sums.numpy_scan import Scan, buckets_of, log_weights, summed_rows
from reweigh.sums.policy import policy_moments
from reweigh.system.files import files_behind
from reweigh.system.process import each

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def ratios(log: EpisodeLog, target: Policy, max_ratio: float | None) -> tuple[Floats, Floats]:
    """(N,) π(a|s) and ρ = π/μ, clipped at `max_ratio` if given."""
    mu = log.steps.behavior_prob
    if mu is None:
        raise UsageError(
            "the log has no behaviour probabilities; name their column with behavior_prob=…, or "
            "estimate them: log.with_behavior(fit_behavior(log))"
        )
    pi = target.probabilities(log)
    rho = pi / mu
    return pi, rho if max_ratio is None else np.minimum(rho, max_ratio)


def _ordered(scan: Scan) -> OrderedMoments | None:
    """Logged returns by the episodes' ids; None where an episode was cut off: its return is not
    known. Ids that are no whole numbers have no order: all are in one bucket."""
    if scan.log.n_truncated:
        return None
    ids = scan.ids
    shift, bucket = (UNORDERED, None) if ids is None else buckets_of(ids, OrderedMoments)
    return OrderedMoments(shift=shift, **scan.sums(OrderedMoments.TABLE, bucket=bucket))


def _paced(scan: Scan) -> PacedMoments | None:
    """Logged rewards by the episodes' ids and the step; None where an episode was cut off, or an
    id is no whole number, or there are too many steps."""
    if scan.log.n_truncated or scan.ids is None or too_long(scan.log.horizon):
        return None
    shift, bucket = buckets_of(scan.ids, PacedMoments)
    return PacedMoments(shift=shift, **scan.sums(PacedMoments.TABLE, bucket=bucket))


def _lagged(scan: Scan, states: Labels) -> LaggedMoments:
    """At most MOST_LAGGED cells, as `thinned` holds them. Of many rows those of few (t, s) are
    summed first, and of twice as many while their cells fit: most cells would be made in vain."""
    table = LaggedMoments.TABLE
    rows = scan.rows(table, table.keys)
    place = places_of(states, rows["s"], rows["t"])
    level, held = 0, None
    while np.count_nonzero(place < 2 ** (BITS - level)) > 2 * MOST_LAGGED:
        level += 1
    while True:
        chosen = np.flatnonzero(place < 2 ** (BITS - level))
        some = {name: values[chosen] for name, values in rows.items()} if level else rows
        sums = LaggedMoments(**summed_rows(table, some, table.keys), level=level)
        if held is not None and len(sums) > MOST_LAGGED:
            return held
        held = thinned(sums, states)
        if level == 0 or held.level > level:
            return held
        level -= 1


class ArraysEngine:
    """Sums of a log that is in memory."""

    name = "arrays"

    def moments(
        self, log: EpisodeLog, target: Policy, request: Request, block: Ints | None = None
    ) -> Moments:
        """The sums by the request's blocks, or by the `block` (n,) of each episode."""
        pi, rho = ratios(log, target, request.max_ratio)
        steps = log.steps
        block = steps.blocks(request.blocks) if block is None else block
        scan = Scan(log, pi, rho, block)
        hidden = log.has_hidden
        # The hidden state is a state of its own in the model's cells.
        states = Labels((*log.states.values, None)) if hidden else log.states
        start = np.where(steps.state[steps.rows(0)] == HIDDEN, START, steps.state[steps.rows(0)])

        def transitions() -> dict[str, Any]:
            if hidden:
                return {"transitions": cells.stretch_cells(steps, block, rho, log.discount)}
            return {"transitions": cells.one_step_cells(steps, block, pi, rho, None, HIDDEN)}

        def model() -> dict[str, Any]:
            as_state = len(states) - 1 if hidden else HIDDEN
            action = None if log.continuous_actions else steps.action
            first = np.where(start == START, as_state, start)
            policy = policy_moments(log, target, block, as_state) if request.policy else None
            return {
                "model": cells.one_step_cells(steps, block, pi, rho, action, as_state),
                "start_model": cells.starts(steps, block, first),
                "policy": policy,
            }

        kinds: dict[str, Callable[[], dict[str, Any]]] = {
            "transitions": transitions,
            "model": model,
            "trajectories": lambda: {
                "trajectories": products.trajectories(steps, block, rho, log.discount)
            },
            "lagged": lambda: {"lagged": _lagged(scan, states)},
            "ordered": lambda: {"ordered": _ordered(scan)},
            "paced": lambda: {"paced": _paced(scan), "left_out": too_long(log.horizon)},
            "largest": lambda: {
                "largest": LargestWeights.of(LargestWeights.even(log_weights(log, rho)))
            },
        } | {
            table.name: lambda table=table: {"tables": {table.name: scan.declared(table)}}
            for table in request.tables
        }
        made: dict[str, Any] = {"start": cells.starts(steps, block, start)}
        requested = [make for kind, make in kinds.items() if kind in request.all_kinds]
        for part in each("sums", requested, lambda make: make()):
            for joined in ("left_out", "tables"):
                part[joined] = made.get(joined, {}) | part.get(joined, {})
            made |= part
        sums = Moments(
            about=about(log, target, request),
            states=states,
            actions=log.actions,
            truncated=log.n_truncated,
            hidden=hidden,
            rewards=log.reward_range,
            files=files_behind(log, target),
            **made,
        )
        return named(sums, log.identity()) if request.named else sums
