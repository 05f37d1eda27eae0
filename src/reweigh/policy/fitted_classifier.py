"""The behavior's probabilities from the features of a log, where propensities were not logged.

Each episode has them from a classifier that was fitted to the other folds. Without one of the
user's own it is a logistic regression on the columns, their squares and products, with the ridge
penalty |W|²/2 on standardized columns (that of scikit-learn's C=1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import Fault, RefusedError, UsageError, input_error, must_be
from reweigh.kernels import Floats, Ints
from reweigh.log.feature_maps import Polynomial
from reweigh.log.log import EpisodeLog
from reweigh.system import optional_module

FOLDS, MOST_SQUARED = 5, 12  # columns whose products are taken


@dataclass(frozen=True, eq=False)
class ClassifiedBehavior:
    """Estimated μ(a|x) of the rows of one log; use it through `log.with_behavior`."""

    values: Floats
    how: str
    log_digest: str

    def describe(self) -> str:
        return f"estimated ({self.how})"

    def probabilities(self, log: EpisodeLog) -> Floats:
        if log.digest() != self.log_digest:
            raise UsageError("a behavior of other folds can only be used with the log of its fit")
        return self.values


def classified_behavior(log: EpisodeLog, classifier: Any, folds: int) -> ClassifiedBehavior:
    """μ of every row, by the classifier of the other folds."""
    assert log.actions is not None
    if classifier is not None and not hasattr(classifier, "predict_proba"):
        raise must_be("classifier", "a classifier with predict_proba", classifier)
    steps, x = log.steps, log.features
    fold = (steps.episode_hash % folds)[steps.episode_index]
    mu, actions = np.zeros(steps.n_rows), np.asarray(steps.action, np.int64)
    for k in range(folds):
        here, others = fold == k, fold != k
        if not here.any():
            continue
        if not others.any():
            text = f"all episodes fall into one of {folds} folds, so none is left to fit the "
            raise RefusedError("empty-half", f"{text}behavior to: use more episodes")
        shares = _fitted(classifier, x[others], actions[others], len(log.actions))(x[here])
        mu[here] = shares[np.arange(int(here.sum())), actions[here]]
    bad = ~(mu > 0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        place = log.place(first, log.columns.action, log.raw_actions()[first])
        fix = "use a classifier that gives every action a positive probability, or leave the rows "
        rule = "the classifier of the other folds gives probability 0 to an action that was taken"
        count = int(bad.sum())
        fault = Fault(
            "behavior-zero", rule, f"{fix}of such an action out", (place,), count, len(mu)
        )
        raise input_error("the estimated behavior", [fault])
    how = "logistic regression" if classifier is None else type(classifier).__name__
    named = f"{how} of {', '.join(log.feature_names[:5])}{', …' * (len(log.feature_names) > 5)}"
    return ClassifiedBehavior(mu, f"{named}, on the other of {folds} folds", log.digest())


def _fitted(classifier: Any, x: Floats, action: Ints, actions: int) -> Any:
    """x ↦ (m, actions) probabilities."""
    if classifier is not None:
        base = optional_module("sklearn.base", "sklearn", "a classifier of the behavior")
        made = base.clone(classifier).fit(x, action)

        def predicted(z: Floats) -> Floats:
            shares = np.zeros((len(z), actions))
            shares[:, np.asarray(made.classes_, np.int64)] = made.predict_proba(z)
            return shares

        return predicted
    phi = Polynomial(2 if x.shape[1] <= MOST_SQUARED else 1).fit(x)
    weights = logistic(phi(x), action, actions)
    return lambda z: softmax(phi(z) @ weights)


def logistic(phi: Floats, action: Ints, actions: int) -> Floats:
    """(d, actions) W that minimizes -Σ log softmax(φ W)_a + |W|²/2, the constant's left free."""
    from scipy.optimize import minimize

    hot = np.zeros((len(phi), actions))
    hot[np.arange(len(phi)), action] = 1.0
    scale = np.maximum(phi.std(axis=0), 1e-9)
    scale[0] = 1.0
    z, penalty = phi / scale, np.ones((phi.shape[1], 1))
    penalty[0] = 1e-6

    def loss(flat: Floats) -> tuple[float, Floats]:
        W = flat.reshape(phi.shape[1], actions)
        p = softmax(z @ W)
        value = -np.log(np.maximum(p[np.arange(len(z)), action], 1e-300)).sum()
        slope = z.T @ (p - hot) + penalty * W
        return float(value + (penalty * W * W).sum() / 2), slope.ravel()

    start = np.zeros(phi.shape[1] * actions)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(found.x.reshape(phi.shape[1], actions) / scale[:, None])


def softmax(scores: Floats) -> Floats:
    shares: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
