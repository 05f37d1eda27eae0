"""Estimating the behavior policy when its probabilities were not logged."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import Fault, InputWarning, RefusedError, UsageError, check, input_error
from reweigh.kernels import tally
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
        smoothing = f", smoothing {self.smoothing:g}" if self.smoothing else ""
        folds = f", cross-fitted in {self.folds} folds" if self.folds > 1 else ""
        return f"estimated ({how}{smoothing}{folds})"

    def probabilities(self, log: EpisodeLog) -> Floats:
        """(N,) μ̂(a_t|s_t); cross-fitted, each episode uses the counts of the other folds."""
        if self.folds > 1 and log.digest() != self.log_digest:
            raise UsageError(
                "a cross-fitted behavior can only be used with the log it was fitted on"
            )
        _, cell = _cells(log, self.states, self.actions, self.per_step)
        in_cell, in_row = self._counts(log)
        # μ̂(a|s) = (n(s,a) + α) / (n(s) + α A)
        with np.errstate(invalid="ignore", divide="ignore"):
            mu = (in_cell + self.smoothing) / (in_row + self.smoothing * len(self.actions))
        mu = np.where(cell == NEW_ACTION, 0.0, mu)  # smoothing covers the known actions only
        refuse_zeros(
            log,
            mu,
            "the episodes used for the estimate do not have this action in this state",
            "fit on a log that has it; or use smoothing=1.0 (for a known action), or no "
            "cross-fitting",
        )
        return np.asarray(mu, np.float64)

    def _counts(self, log: EpisodeLog) -> tuple[Ints, Ints]:
        """(N,) of each row's cell and of its state, cross-fitted those of the other folds."""
        row, cell = _cells(log, self.states, self.actions, self.per_step)
        in_cell = _count(self.cell, self.cell_count, cell)
        in_row = _count(self.row, self.row_count, row)
        if self.folds > 1:
            fold = (log.steps.episode_hash % self.folds)[log.steps.episode_index]
            in_cell = in_cell - _rows_with_key(cell * self.folds + fold)
            in_row = in_row - _rows_with_key(row * self.folds + fold)
        return in_cell, in_row

    def fitted_on(self, log: EpisodeLog) -> bool:
        """Whether these are the episodes that it was estimated from."""
        return log.digest() == self.log_digest

    def cells(self, log: EpisodeLog) -> tuple[Ints, Ints]:
        """(N,) the key of each row's state, or step and state, and that with its action."""
        return _cells(log, self.states, self.actions, self.per_step)

    def influence(self, log: EpisodeLog, slopes: Floats) -> Floats:
        """(n,) how much each episode of the fit moves, through μ̂, an estimate that log ρ of the
        rows moves by `slopes`/n:

            Σ_{rows of i} Σ_f [G_f(s)/(n_f(s) + αA) - G_f(s,a)/(n_f(s,a) + α)]

        with G_f the sums of the slopes over the rows that use the counts n_f: those of all
        episodes, or cross-fitted for a fold f other than the episode's those without f.
        """
        row, cell = self.cells(log)
        smoothing = self.smoothing * len(self.actions), self.smoothing
        fold = np.zeros(len(row), np.int64)
        if self.folds > 1:
            fold = (log.steps.episode_hash % self.folds)[log.steps.episode_index]
        found = np.zeros(len(row))
        for sign, key, count, alpha in zip(
            (1, -1), (row, cell), self._counts(log)[::-1], smoothing, strict=True
        ):
            of, place = np.unique(key, return_inverse=True)
            by_fold = np.zeros((self.folds, len(of)))
            np.add.at(by_fold, (fold, place), slopes / (count + alpha))
            others = by_fold.sum(axis=0)[place]
            if self.folds > 1:
                others = others - by_fold[fold, place]
            found += sign * others
        return tally(log.steps.episode_index, found, log.n_episodes)


def refuse_zeros(log: EpisodeLog, mu: Floats, rule: str, fix: str) -> None:
    """A logged action must have a positive probability under the estimated behavior."""
    rows = np.flatnonzero(~(mu > 0))
    if len(rows):
        first = int(rows[0])
        assert log.actions is not None
        action = log.actions.values[int(log.steps.action[first])]
        places = (log.place(first, log.columns.action, action),)
        fault = Fault("behavior-zero", rule, fix, places, len(rows), len(mu))
        raise input_error("the estimated behavior", [fault])


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

    Use the result as `log.with_behavior(mu)`. Later standard errors include that counts were taken
    from these episodes; those of resampling, of saved sums and of a classifier ignore it.
    """
    check(
        isinstance(log, EpisodeLog),
        "log",
        "in memory: read_log(…, engine='arrays')",
        type(log).__name__,
    )
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
    check(
        isinstance(smoothing, int | float) and 0 <= smoothing < np.inf,
        "smoothing",
        "a number from 0 on",
        smoothing,
    )
    check(
        isinstance(cross_fit, int) and cross_fit >= 1,
        "cross_fit",
        "a whole number of folds from 1 on",
        cross_fit,
    )
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
