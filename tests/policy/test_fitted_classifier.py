"""Propensities estimated from features, on the other folds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import reweigh as rw
from reweigh.policy.fitted_classifier import logistic, softmax


def log_of(n: int, seed: int = 0) -> tuple[rw.EpisodeLog, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3, 2))
    score = np.stack([0 * x[..., 0], 0.8 * x[..., 0], x[..., 1] ** 2 - 1], axis=-1)
    p = np.exp(score) / np.exp(score).sum(axis=-1, keepdims=True)
    a = (np.cumsum(p, axis=-1) < rng.random((n, 3, 1))).sum(axis=-1)
    mu = np.take_along_axis(p, a[..., None], axis=-1)[..., 0]
    made = rw.log_from_arrays(None, a, x[..., 0] + a, None, features=x)
    return made, mu[made.steps.episode[made.steps.episode_index], made.steps.step]


def test_the_logistic_regression_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(400, 2))
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    a = rng.integers(0, 3, 400) * (z[:, 0] > 0) + (z[:, 1] > 1)
    a = np.unique(a, return_inverse=True)[1]
    phi, k = np.column_stack([np.ones(400), z]), int(a.max()) + 1
    own = softmax(phi @ logistic(phi, a, k))
    assert np.allclose(own, LogisticRegression(tol=1e-8).fit(z, a).predict_proba(z), atol=2e-3)


@pytest.mark.parametrize("classifier", [None, LogisticRegression()])
def test_estimated_propensities_are_close_and_of_other_folds(classifier: Any) -> None:
    log, mu = log_of(1500)
    behavior = rw.fit_behavior(log, classifier=classifier)
    found = behavior.probabilities(log)
    # a linear score cannot follow x²
    assert np.abs(found - mu).mean() < (0.03 if classifier is None else 0.16)
    fold = (log.steps.episode_hash % 5)[log.steps.episode_index]
    only = log.select(log.steps.episode_hash % 5 != 0)
    changed = rw.fit_behavior(only, classifier=classifier).probabilities(only)
    assert not np.allclose(changed, found[fold != 0])  # each fold leans on the others
    assert log.with_behavior(behavior).behavior_source.startswith("estimated (")
    with pytest.raises(rw.UsageError, match="log of its fit"):
        behavior.probabilities(only)


@pytest.mark.filterwarnings("ignore::reweigh.LowOverlapWarning")
def test_a_log_with_features_alone_is_evaluated_without_propensities() -> None:
    log, mu = log_of(800)
    target = rw.FunctionPolicy(lambda x, action, step: np.where(action == 1, 0.6, 0.2))
    fitted = rw.evaluate(log.with_behavior(rw.fit_behavior(log)), target, rw.wis())
    assert fitted.standard_error is not None
    assert "estimated propensities" in {gate.name for gate in fitted.verdict.gates}
    steps = replace(log.steps, behavior_prob=mu)
    known = rw.evaluate(replace(log, steps=steps, _cache={}), target, rw.wis())
    assert abs(fitted.value - known.value) < 2 * (known.standard_error or 0)


def test_what_is_refused() -> None:
    log, _ = log_of(60)
    with pytest.raises(rw.UsageError, match="smoothing"):
        rw.fit_behavior(log, smoothing=1.0)
    with pytest.raises(rw.UsageError, match="predict_proba"):
        rw.fit_behavior(log, classifier="logistic")
    with pytest.raises(rw.InputError, match="probability 0"):
        rw.fit_behavior(log, classifier=DecisionTreeClassifier(random_state=0))
