"""scikit-learn: classifiers as policies, clusterers and transformers as states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError, check, nearest
from reweigh.log.log import EpisodeLog
from reweigh.policy import Floats
from reweigh.policy.behavior import refuse_zeros
from reweigh.policy.classifier import ClassifierPolicy, features_of, frame_of
from reweigh.system import optional_module


@dataclass(frozen=True, eq=False)
class ClassifierBehavior:
    """Estimated μ(a|x) of a classifier, for `log.with_behavior`; made by `behavior_classifier`."""

    policy: ClassifierPolicy

    def describe(self) -> str:
        return f"estimated ({self.policy.name})"

    def probabilities(self, log: EpisodeLog) -> Floats:
        mu = self.policy.probabilities(log)
        refuse_zeros(
            log,
            mu,
            f"{self.policy.name} gives probability 0 to an action that was taken",
            "use a classifier that gives every action a positive probability, such as logistic "
            "regression, or a calibrated or smoothed one",
        )
        return mu


def behavior_classifier(
    log: EpisodeLog, classifier: Any, columns: Sequence[str] | None = None, *, fit: bool = True
) -> ClassifierBehavior:
    """The behavior's probabilities from a classifier of the logged actions.

    A copy of `classifier` is fitted to the log (`fit=False` takes it as it is). Use it as
    `log.with_behavior(behavior_classifier(log, LogisticRegression()))`; later standard errors
    ignore that the propensities were estimated.
    """
    check(
        isinstance(log, EpisodeLog),
        "log",
        "in memory: read_log(…, engine='arrays')",
        type(log).__name__,
    )
    if log.actions is None:
        raise UsageError("a classifier has no densities, and the log's actions are continuous")
    if fit:
        base = optional_module("sklearn.base", "sklearn", "a classifier of the behavior")
        classifier = base.clone(classifier).fit(features_of(log, columns), log.raw_actions())
    return ClassifierBehavior(ClassifierPolicy(classifier, columns))


@dataclass(frozen=True, eq=False)
class StateCodes:
    """States from a fitted clusterer or transformer, for `read_log(…, abstraction=…)`.

    A clusterer's `predict` gives a state's number; without `predict`, `transform` must give
    whole numbers, as KBinsDiscretizer does. `names[k]` is the name of state k.
    """

    estimator: Any
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check(
            hasattr(self.estimator, "predict") or hasattr(self.estimator, "transform"),
            "estimator",
            "a clusterer or a transformer",
            self.estimator,
        )
        optional_module(
            "sklearn.utils.validation", "sklearn", "a state abstraction"
        ).check_is_fitted(self.estimator)
        check(
            self.names is None or len(set(self.names)) == len(self.names),
            "names",
            "different for every state",
            self.names,
        )

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        fitted = getattr(self.estimator, "feature_names_in_", None)
        features = values if fitted is None else frame_of(list(fitted), values.T)
        predict = getattr(self.estimator, "predict", None) or self.estimator.transform
        states = predict(features)
        states = np.asarray(states.toarray() if hasattr(states, "toarray") else states)
        if states.ndim == 2 and states.shape[1] == 1:
            states = states[:, 0]
        if self.names is None:
            return states
        code = states.astype(np.int64)
        if code.ndim != 1 or np.any((code < 0) | (code >= len(self.names))):
            raise UsageError(
                f"there are {len(self.names)} names and states up to {int(code.max())}, or a state "
                "of several columns; give a name for each state 0, 1, 2, …"
            )
        return np.array(self.names, object)[code]

    def __repr__(self) -> str:
        return f"StateCodes({type(self.estimator).__name__})"


def fit_states(
    estimator: Any, data: Any, columns: Sequence[str], names: Sequence[str] | None = None
) -> StateCodes:
    """States from a copy of `estimator` fitted to columns of a file or a table.

        states = fit_states(KMeans(20, random_state=0), "log.parquet", ["bp", "hr"])
        log = read_log("log.parquet", state=["bp", "hr"], abstraction=states)

    Fitted to the log that it then reads, the states depend on the same draw of episodes; other
    episodes are better, and clusters must not be chosen by looking at the rewards.
    """
    from reweigh.log.csv_files import CsvFormat
    from reweigh.log.roles import numbers
    from reweigh.log.sources import open_source

    source = open_source(data, CsvFormat())
    absent = [name for name in columns if name not in source.names]
    if absent:
        raise UsageError(f"there is no column {absent[0]!r}{nearest(absent[0], source.names)}")
    table = source.read(list(columns), ())
    values = np.stack([numbers(table.column(name), name) for name in columns], axis=1)
    if not np.all(np.isfinite(values)):
        row, column = (int(index[0]) for index in np.nonzero(~np.isfinite(values)))
        raise UsageError(
            f"column {columns[column]!r}, row {row + 1}: not a finite number; states are "
            "fitted to complete rows"
        )
    base = optional_module("sklearn.base", "sklearn", "a state abstraction")
    return StateCodes(base.clone(estimator).fit(values), names)
