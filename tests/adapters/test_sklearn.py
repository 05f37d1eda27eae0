"""scikit-learn's classifiers as policies, its clusterers and transformers as states."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from worlds.extras import needs

import reweigh as rw
from reweigh.adapters import ClassifierPolicy, StateCodes, behavior_classifier, fit_states

pytestmark = needs("sklearn")
H, N = 4, 400
NAMES = np.array(["drug", "none", "watch"])


def frame(seed: int = 0) -> pd.DataFrame:
    """Two measurements, three actions drawn by a logistic rule of them."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, N * H)).round(2)
    p = soft(x, y)
    action = (rng.random(N * H)[:, None] > np.cumsum(p, axis=1)).sum(axis=1)
    return pd.DataFrame(
        {
            "episode": np.repeat(np.arange(N), H),
            "step": np.tile(np.arange(H), N),
            "x": x,
            "y": y,
            "action": NAMES[action],
            "reward": x + (action == 1),
            "mu": p[np.arange(N * H), action],
        }
    )


def soft(x: Any, y: Any) -> Any:
    z = np.exp(np.stack([0 * x, x, 0.5 * y], axis=1))
    return z / z.sum(axis=1, keepdims=True)


def read(data: pd.DataFrame, **options: Any) -> Any:
    options = {"state": ["x", "y"], "abstraction": rw.Rounding(1.0)} | options
    return rw.read_log(data, behavior_prob="mu", **options)


def fitted(data: pd.DataFrame, by_name: bool = False) -> Any:
    from sklearn.linear_model import LogisticRegression

    x = data[["x", "y"]] if by_name else data[["x", "y"]].to_numpy()
    return LogisticRegression().fit(x, data["action"])


@pytest.mark.parametrize("by_name", [False, True])
def test_a_classifier_is_a_target(by_name: bool) -> None:
    data = frame()
    log = read(data)
    classifier = fitted(frame(1), by_name)
    policy = ClassifierPolicy(classifier)
    given = data[["x", "y"]] if by_name else data[["x", "y"]].to_numpy()
    table = classifier.predict_proba(given)
    rows = log.steps.source_row
    code = np.searchsorted(classifier.classes_, data["action"])
    expected = table[np.arange(len(data)), code][rows]
    assert np.array_equal(policy.probabilities(log), expected)
    for k, action in enumerate(classifier.classes_):
        assert np.array_equal(policy.of_action(log, action), table[rows, k])
    assert policy.all_actions(log).values == tuple(classifier.classes_)
    logged = rw.read_log(
        data.assign(pi=expected[np.argsort(rows)]), behavior_prob="mu", state=["x", "y"],
        abstraction=rw.Rounding(1.0),
    )  # fmt: skip
    values = [
        rw.evaluate_all(one, target, [rw.is_()])[0].value  # type: ignore[union-attr]
        for one, target in ((log, policy), (logged, rw.ColumnPolicy("pi")))
    ]
    assert values[0] == values[1]


def test_columns_are_chosen_by_name() -> None:
    data = frame()
    log = read(data, state="x")
    assert ClassifierPolicy(fitted(data, True)).probabilities(log) == pytest.approx(
        ClassifierPolicy(fitted(data), columns=["x", "y"]).probabilities(log)
    )
    with pytest.raises(rw.UsageError, match="takes a column 'z', which the log does not have"):
        ClassifierPolicy(fitted(data), columns=["x", "z"]).probabilities(log)


def test_classes_meet_actions_by_their_text() -> None:
    """Classes 0.0, 1.0 of an array of floats are the actions 0, 1; a class that the log lacks is
    an action all the same, and an action that is no class has probability 0."""
    from sklearn.dummy import DummyClassifier

    data = frame()
    numbers = data.assign(action=(data["action"] == "none").astype(int) + 1)  # 1 or 2
    log = read(numbers)
    x = data[["x", "y"]].to_numpy()
    floats = DummyClassifier(strategy="prior").fit(x[:4], [1.0, 2.0, 2.0, 3.0])
    policy = ClassifierPolicy(floats)
    chosen = log.raw_actions()
    assert np.array_equal(policy.probabilities(log), np.where(chosen == 1, 0.25, 0.5))
    assert policy.unlogged_actions(log) == {"3": 0.25}
    only = ClassifierPolicy(DummyClassifier(strategy="prior").fit(x[:2], [2, 2]))
    assert np.array_equal(only.probabilities(log), (chosen == 2).astype(float))
    assert np.array_equal(only.of_action(log, 1), np.zeros(len(data)))
    with pytest.raises(
        rw.UsageError, match=r"none of the classifier's classes \(drug, none, watch"
    ):
        ClassifierPolicy(fitted(data)).probabilities(log)


def test_a_classifier_estimates_the_behavior() -> None:
    """Its probabilities are near the true ones (mean absolute error below 0.03 of 1,600 rows), and
    the log says where they came from."""
    from sklearn.linear_model import LogisticRegression

    data = frame()
    log = rw.read_log(data, behavior_prob=None, state=["x", "y"], abstraction=rw.Rounding(1.0))
    estimate = behavior_classifier(log, LogisticRegression())
    made = log.with_behavior(estimate)
    assert made.steps.behavior_prob is not None
    true = data["mu"].to_numpy()[log.steps.source_row]
    assert np.abs(made.steps.behavior_prob - true).mean() < 0.03
    assert made.describe()["behavior_prob_from"] == "estimated (classifier LogisticRegression)"
    before = behavior_classifier(log, fitted(data), fit=False)
    # the rows come in another order, so the fit differs by rounding
    assert before.probabilities(log) == pytest.approx(estimate.probabilities(log), rel=1e-3)


def test_a_behavior_that_rules_out_what_was_done() -> None:
    from sklearn.dummy import DummyClassifier

    log = read(frame())
    never = DummyClassifier(strategy="most_frequent")
    with pytest.raises(rw.InputError, match=r"probability 0 to an action that was taken"):
        log.with_behavior(behavior_classifier(log, never))


def test_what_is_no_policy() -> None:
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression

    with pytest.raises(rw.UsageError, match="a classifier with predict_proba"):
        ClassifierPolicy(KMeans())
    with pytest.raises(rw.UsageError, match="is not fitted"):
        ClassifierPolicy(LogisticRegression())


def test_clusters_are_states() -> None:
    from sklearn.cluster import KMeans

    data = frame()
    kmeans = KMeans(5, n_init=1, random_state=0).fit(data[["x", "y"]].to_numpy())
    log = read(data, abstraction=StateCodes(kmeans))
    assert np.array_equal(log.raw_states(), data[["x", "y"]].to_numpy()[log.steps.source_row])
    label = np.array(log.states.values)[log.steps.state]
    assert np.array_equal(label, kmeans.labels_[log.steps.source_row])
    assert str(log.abstraction).startswith("StateCodes(KMeans) (")
    same = fit_states(KMeans(5, n_init=1, random_state=0), data, ["x", "y"], names=list("abcde"))
    named = read(data, abstraction=same)
    assert named.states.values == ("a", "b", "c", "d", "e")
    values = [rw.evaluate_all(one, uniform(one), [rw.mis()])[0] for one in (log, named)]
    assert values[0].value == pytest.approx(values[1].value)  # type: ignore[union-attr]


def uniform(log: Any) -> Any:
    return rw.TablePolicy(
        {state: dict.fromkeys(NAMES.tolist(), 1 / 3) for state in log.states.values}
    )


@pytest.mark.parametrize("encode", ["ordinal", "onehot", "onehot-dense"])
def test_transformers_are_states(encode: str) -> None:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, StandardScaler

    data = frame()
    bins = KBinsDiscretizer(3, encode=encode, quantile_method="linear")
    states = fit_states(make_pipeline(StandardScaler(), bins), data, ["x", "y"])
    log = read(data, abstraction=states)
    assert len(log.states) == 9
    edges = np.quantile(data["x"], [1 / 3, 2 / 3])
    cell = np.searchsorted(edges, data["x"].to_numpy()[log.steps.source_row], side="right")
    # states tell the thirds of x apart
    assert all(len(set(cell[log.steps.state == s])) == 1 for s in range(9))


def test_transformers_that_were_fitted_to_a_frame() -> None:
    from sklearn.preprocessing import KBinsDiscretizer

    data = frame()
    bins = KBinsDiscretizer(3, encode="ordinal", quantile_method="linear").fit(data[["x", "y"]])
    assert len(read(data, abstraction=StateCodes(bins)).states) == 9


def test_states_that_do_not_work() -> None:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import NotFittedError
    from sklearn.preprocessing import StandardScaler

    data = frame()
    with pytest.raises(rw.UsageError, match="a clusterer or a transformer"):
        StateCodes(3)
    with pytest.raises((rw.UsageError, NotFittedError), match="not fitted"):
        StateCodes(KMeans())
    with pytest.raises(rw.UsageError, match="fractions, not finite or too large"):
        read(data, abstraction=fit_states(StandardScaler(), data, ["x", "y"]))
    with pytest.raises(rw.UsageError, match="there are 2 names and states up to 2"):
        read(data, abstraction=fit_states(KMeans(3, n_init=1), data, ["x", "y"], names="ab"))
    with pytest.raises(rw.UsageError, match="no column 'z'"):
        fit_states(KMeans(2), data, ["z"])
    with pytest.raises(rw.UsageError, match="column 'x', row 1: not a finite number"):
        fit_states(KMeans(2), data.assign(x=np.nan), ["x", "y"])
    with pytest.raises(rw.UsageError, match="different for every state"):
        fit_states(KMeans(2, n_init=1), data, ["x"], names="aa")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(rw.UsageError, match=r"scikit-learn: pip install 'reweigh\[sklearn\]'"):
        behavior_classifier(read(frame()), object())
