"""The diagnostics' own sums of a log in memory (`sums/diagnostic_tables.py`)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import group_by, tally
from reweigh.log.identity import NUMBER
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, UNKNOWN
from reweigh.log.steps import Steps
from reweigh.sums.diagnostic_tables import (
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
)
from reweigh.sums.transitions import NO_ACTION

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def lagged(log: EpisodeLog, rho: Floats) -> LaggedMoments:
    """Cells of the rows from step 1 on whose state, and the one before, were observed.

    Row k of a step belongs to episode k, so what came before row k stands at row k of the step
    before.
    """
    steps = log.steps
    later = np.arange(int(steps.offsets[1]), steps.n_rows)
    before = _row_before(steps)[later]
    s, s_before, s_next = steps.state[later], steps.state[before], steps.next_state[later]
    shown = (s != HIDDEN) & (s_before != HIDDEN)
    later, before = later[shown], before[shown]
    r, y = rho[later], steps.reward[later]
    z = r * y
    actions = np.full(len(before), NO_ACTION) if log.continuous_actions else steps.action[before]
    keys: dict[str, npt.NDArray[Any]] = {
        "t": steps.step[later],
        "s_before": s_before[shown],
        "a_before": actions,
        "s": s[shown],
        "s_next": np.where(s_next[shown] == HIDDEN, UNKNOWN, s_next[shown]),
    }
    groups = group_by(list(keys.values()))
    sums = {"rho": r, "rho2": r * r, "z": z, "rhoz": r * z, "z2": z * z}
    columns: dict[str, Any] = dict(zip(keys, groups.keys, strict=True))
    columns |= {name: groups.sum(values) for name, values in sums.items()}
    return LaggedMoments(n=groups.count(), **columns)


def _row_before(steps: Steps) -> npt.NDArray[np.int64]:
    """(N,) the row of the step before, of rows from step 1 on."""
    t = steps.step
    return steps.offsets[np.maximum(t - 1, 0)] + steps.episode_index


def ordered(log: EpisodeLog, ids: Ints | None) -> OrderedMoments | None:
    """Logged returns by the episodes' ids (`whole_numbers`); None where an episode was cut off: its
    return is not known."""
    steps = log.steps
    if log.n_truncated:
        return None
    powers = log.discount ** steps.step.astype(np.float64)
    returns = tally(steps.episode_index, powers * steps.reward, steps.n_episodes)
    return OrderedMoments.of(ids, returns)


def paced(log: EpisodeLog, ids: Ints | None) -> PacedMoments | None:
    """Logged rewards by the episodes' ids and the step; None where an episode was cut off, or an
    id is no whole number."""
    steps, horizon = log.steps, log.horizon
    if log.n_truncated or ids is None:
        return None
    shift = PacedMoments.shift_of(int(ids.min()), int(ids.max()))
    bucket, row = np.unique(ids >> shift, return_inverse=True)
    code, y = row[steps.episode_index] * horizon + steps.step, steps.reward
    size = len(bucket) * horizon
    n = np.bincount(code, minlength=size)
    return PacedMoments.dense(shift, bucket, n, tally(code, y, size), tally(code, y * y, size))


def whole_numbers(ids: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """Ids that are whole numbers, or texts of such, as `log/identity.py` has them."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64) if ids.dtype.kind == "i" or np.all(ids < 2**63) else None
    is_number = re.compile(NUMBER).fullmatch
    texts = [str(value) for value in ids.tolist()]
    if not all(map(is_number, texts)):
        return None
    return np.array(texts, object).astype(np.int64)


def largest(log: EpisodeLog, rho: Floats) -> LargestWeights:
    """The largest whole products of the episodes."""
    return LargestWeights.of(LargestWeights.even(log_weights(log, rho)))


def log_weights(log: EpisodeLog, rho: Floats) -> Floats:
    """(n,) the logarithms of the episodes' whole products."""
    steps = log.steps
    with np.errstate(divide="ignore"):
        log_rho = np.log(rho)
    # Σ log ρ by episode; a ratio of 0 makes it -inf
    return tally(steps.episode_index, log_rho, steps.n_episodes)
