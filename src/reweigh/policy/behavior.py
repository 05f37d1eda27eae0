"""Estimating the behavior policy when its probabilities were not logged."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import Fault, InputWarning, RefusedError, UsageError, input_error, must_be
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Labels
from reweigh.policy import Floats

if TYPE_CHECKING:
    from reweigh.policy.fitted_classifier import ClassifiedBehavior

Ints = npt.NDArray[np.int64]
NEW_ACTION = -2  # the cell of an action that the fit has never seen


@dataclass(frozen=True, eq=False)
class FittedBehavior:
    """Estimated μ(a|s): one table, or one per fold when cross-fitted.

    Counts of ([step,] state) rows and (row, action) cells, keys in increasing order. Use it
    through `log.with_behavior(mu)`.
    """

    smoothing: float
    folds: int
    per_step: bool
    states: Labels
    actions: Labels
    cell: Ints
    cell_count: Ints
    row: Ints
    row_count: Ints
    log_digest: str

    def describe(self) -> str:
        how = "counts per step and state" if self.per_step else "counts per state"
        if self.smoothing:
            how += f", smoothing {self.smoothing:g}"
        if self.folds > 1:
            how += f", cross-fitted in {self.folds} folds"
        return f"estimated ({how})"

    def probabilities(self, log: EpisodeLog) -> Floats:
        """(N,) μ̂(a_t|s_t); cross-fitted, each episode uses the counts of the other folds."""
        if self.folds > 1 and log.digest() != self.log_digest:
            raise UsageError(
                "a cross-fitted behavior can only be used with the log it was fitted on"
            )
        row, cell = _cells(log, self.states, self.actions, self.per_step)
        in_cell = _count(self.cell, self.cell_count, cell)
        in_row = _count(self.row, self.row_count, row)
        if self.folds > 1:
            fold = (log.steps.episode_hash % self.folds)[log.steps.episode_index]
            in_cell = in_cell - _rows_with_key(cell * self.folds + fold)
            in_row = in_row - _rows_with_key(row * self.folds + fold)
        # μ̂(a|s) = (n(s,a) + α) / (n(s) + α A)
        with np.errstate(invalid="ignore", divide="ignore"):
            mu = (in_cell + self.smoothing) / (in_row + self.smoothing * len(self.actions))
        mu = np.where(cell == NEW_ACTION, 0.0, mu)  # smoothing covers the known actions only
        bad = ~(mu > 0)
        if np.any(bad):
            first = int(np.flatnonzero(bad)[0])
            assert log.actions is not None
            action = log.actions.values[int(log.steps.action[first])]
            place = log.place(first, log.columns.action, action)
            raise input_error(
                "the estimated behavior",
                [
                    Fault(
                        "behavior-zero",
                        "the episodes used for the estimate do not have this action in this state",
                        "fit on a log that has it; or use smoothing=1.0 (for a known "
                        "action), or no cross-fitting",
                        (place,),
                        int(bad.sum()),
                        len(bad),
                    )
                ],
            )
        return np.asarray(mu, np.float64)


def fit_behavior(
    log: EpisodeLog,
    *,
    smoothing: float = 0.0,
    cross_fit: int = 1,
    per_step: bool = False,
    classifier: Any = None,
) -> FittedBehavior | ClassifiedBehavior:
    """Estimate μ(a|s) by counts per state (a hidden state counts as one state).

    `smoothing` adds that many pseudo-counts to every action; `cross_fit=K` estimates the
    probabilities of an episode from the other K-1 folds (by the hash of its id); `per_step` counts
    each step separately. Of a log with features alone, or with a `classifier` of scikit-learn, the
    probabilities are those of a classifier of the features on the other folds (5, or `cross_fit`);
    without a classifier that of a logistic regression.

    Use the result as `log.with_behavior(mu)`. Later standard errors ignore that μ̂ was estimated.
    """
    if not isinstance(log, EpisodeLog):
        raise must_be("log", "in memory: read_log(…, engine='arrays')", type(log).__name__)
    if log.actions is None:
        raise RefusedError(
            "continuous-actions",
            "counts cannot estimate a density of continuous actions; log the densities",
        )
    if log.steps.weight is not None:
        raise RefusedError(
            "weights",
            f"counts do not take sampling weights ({log.columns.weight}): log the propensities, or "
            "read the log without weight= if its episodes are to count alike",
        )
    if not isinstance(smoothing, int | float) or not 0 <= smoothing < np.inf:
        raise must_be("smoothing", "a number from 0 on", smoothing)
    if not isinstance(cross_fit, int) or cross_fit < 1:
        raise must_be("cross_fit", "a whole number of folds from 1 on", cross_fit)
    if classifier is not None or not log.columns.state:
        if smoothing or per_step:
            raise UsageError("smoothing and per_step are for counts per state, not for features")
        from reweigh.policy.fitted_classifier import FOLDS, classified_behavior

        return classified_behavior(log, classifier, FOLDS if cross_fit == 1 else cross_fit)
    row, cell = _cells(log, log.states, log.actions, per_step)
    cells, cell_count = np.unique(cell, return_counts=True)
    rows, row_count = np.unique(row, return_counts=True)
    if np.all(cell_count == _count(rows, row_count, cells // max(len(log.actions), 1))):
        warnings.warn(
            "every state of the log has only one action: the estimated behavior is "
            "deterministic, and no other policy can be evaluated from this log",
            InputWarning,
            stacklevel=2,
        )
    return FittedBehavior(
        float(smoothing),
        cross_fit,
        per_step,
        log.states,
        log.actions,
        cells,
        cell_count,
        rows,
        row_count,
        log.digest(),
    )


def _cells(log: EpisodeLog, states: Labels, actions: Labels, per_step: bool) -> tuple[Ints, Ints]:
    """(N,) row key ([step,] state) and cell key (row, action); the unknown get a negative key."""
    assert log.actions is not None
    steps = log.steps
    # 0 is the hidden state; a state that the fit did not know gets -1
    code = states.translate(log.states)
    code = np.append(np.where(code < 0, -1, code + 1), 0)
    row = code[steps.state]
    if per_step:
        row = np.where(row < 0, -1, steps.step * (len(states) + 1) + row)
    action = actions.translate(log.actions)[steps.action]
    cell = np.where(row < 0, -1, row * len(actions) + action)
    cell = np.where(action < 0, NEW_ACTION, cell)
    return row, cell


def _count(keys: Ints, counts: Ints, wanted: Ints) -> Ints:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, counts[at], 0)


def _rows_with_key(key: Ints) -> Ints:
    """(N,) how many rows share this row's key."""
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse], np.int64)
