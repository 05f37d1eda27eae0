"""scikit-learn: classifiers as policies, clusterers and transformers as states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import Fault, UsageError, input_error, must_be, nearest
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Label, Labels, label_text, plain_label
from reweigh.policy import Floats, check_rows
from reweigh.system.entry_points import optional_module
from reweigh.system.files import digest_of
from reweigh.system.fingerprint import digest_of_callable


@dataclass(frozen=True, eq=False)
class ClassifierPolicy:
    """π(a|x) = the classifier's `predict_proba`, with its `classes_` as actions.

    `columns` are the columns of the log that the classifier takes, in its order; without them the
    columns that it was fitted on by name, or else the logged state before any abstraction. As a
    target give it to `evaluate`; as the behaviour, to `log.with_behavior(behavior_classifier(…))`.
    """

    classifier: Any
    columns: Sequence[str] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not hasattr(self.classifier, "predict_proba"):
            raise must_be("classifier", "a classifier with predict_proba", self.classifier)
        if not hasattr(self.classifier, "classes_"):
            raise UsageError(
                f"the classifier {type(self.classifier).__name__} is not fitted: call its fit first"
            )
        if np.ndim(self.classifier.classes_) != 1:
            raise UsageError("the classifier has several outputs; a policy has one action")
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", (self.columns,))
        if not self.name:
            object.__setattr__(self, "name", f"classifier {type(self.classifier).__name__}")

    @property
    def actions(self) -> Labels:
        """The classes as labels: 1.0 of an array of floats is the action 1."""
        classes = np.asarray(self.classifier.classes_)
        if classes.dtype.kind == "f" and np.all(np.rint(classes) == classes):
            classes = classes.astype(np.int64)
        return Labels(tuple(plain_label(value) for value in classes.tolist()))

    def table(self, log: EpisodeLog) -> Floats:
        """(N, classes) π(a|x) of every row."""
        return log._once(f"{self.fingerprint()} {self.columns}", lambda: self._predicted(log))

    def _predicted(self, log: EpisodeLog) -> Floats:
        actions = self.actions
        if log.actions is None:
            raise UsageError("a classifier has no densities, and the log's actions are continuous")
        known = {label_text(value) for value in actions.values}
        if not known & {label_text(value) for value in log.actions.values}:
            raise UsageError(
                f"none of the classifier's classes {_listed(actions)} is an action of the log "
                f"{_listed(log.actions)}: fit it on the actions as they are logged"
            )
        fitted = getattr(self.classifier, "feature_names_in_", None)
        names = fitted if self.columns is None else self.columns
        features = _features(log, names, by_name=fitted is not None)
        probabilities = np.asarray(self.classifier.predict_proba(features), float)
        expected = (log.steps.n_rows, len(actions))
        if probabilities.shape != expected:
            raise UsageError(
                f"{self.name} gave probabilities of shape {probabilities.shape}; expected "
                f"{expected}"
            )
        return probabilities

    def probabilities(self, log: EpisodeLog) -> Floats:
        table = self.table(log)
        assert log.actions is not None
        code = self.actions.translate(log.actions)[log.steps.action]
        # an action that is no class has probability 0
        values = np.where(code >= 0, table[np.arange(len(code)), code], 0.0)
        check_rows(log, self.name, values)
        return values

    def all_actions(self, log: EpisodeLog) -> Labels:
        return self.actions

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        code = self.actions.code_of.get(label_text(action))
        table = self.table(log)
        return np.zeros(len(table)) if code is None else table[:, code]

    @property
    def has_steps(self) -> bool:
        return False

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        """Classes that the policy takes in the log's states and the log never shows: how often."""
        assert log.actions is not None
        share = self.table(log).mean(axis=0)
        return {
            self.actions.name(code): float(share[code])
            for code, value in enumerate(self.actions.values)
            if label_text(value) not in log.actions.code_of and share[code] > 0
        }

    def fingerprint(self) -> str:
        held = digest_of_callable(self.classifier.predict_proba)
        return f"classifier:{digest_of(held, repr(self.columns))}"


@dataclass(frozen=True, eq=False)
class ClassifierBehavior:
    """Estimated μ(a|x) of a classifier, for `log.with_behavior`; made by `behavior_classifier`."""

    policy: ClassifierPolicy

    def describe(self) -> str:
        return f"estimated ({self.policy.name})"

    def probabilities(self, log: EpisodeLog) -> Floats:
        mu = self.policy.probabilities(log)
        bad = ~(mu > 0)
        if np.any(bad):
            first = int(np.flatnonzero(bad)[0])
            raise input_error(
                "the estimated behaviour",
                [
                    Fault(
                        "behavior-zero",
                        f"{self.policy.name} gives probability 0 to an action that was taken",
                        "use a classifier that gives every action a chance, such as logistic "
                        "regression, or a calibrated or smoothed one",
                        (log.place(first, log.columns.action, log.raw_actions()[first]),),
                        int(bad.sum()),
                        len(bad),
                    )
                ],
            )
        return mu


def behavior_classifier(
    log: EpisodeLog, classifier: Any, columns: Sequence[str] | None = None, *, fit: bool = True
) -> ClassifierBehavior:
    """The behaviour's probabilities from a classifier of the logged actions.

    A copy of `classifier` is fitted to the log (`fit=False` takes it as it is). Use it as
    `log.with_behavior(behavior_classifier(log, LogisticRegression()))`; the standard errors that
    follow take the estimate for the truth.
    """
    if not isinstance(log, EpisodeLog):
        raise must_be("log", "in memory: read_log(…, engine='arrays')", type(log).__name__)
    if log.actions is None:
        raise UsageError("a classifier has no densities, and the log's actions are continuous")
    if fit:
        base = optional_module("sklearn.base", "sklearn", "a classifier of the behaviour")
        classifier = base.clone(classifier).fit(_features(log, columns), log.raw_actions())
    return ClassifierBehavior(ClassifierPolicy(classifier, columns))


@dataclass(frozen=True, eq=False)
class StateCodes:
    """States from a fitted clusterer or transformer, for `read_log(…, abstraction=…)`.

    A clusterer's `predict` gives a state's number; of what has no `predict`, `transform` must give
    whole numbers, as KBinsDiscretizer does. `names[k]` is what state k is called.
    """

    estimator: Any
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not (hasattr(self.estimator, "predict") or hasattr(self.estimator, "transform")):
            raise must_be("estimator", "a clusterer or a transformer", self.estimator)
        optional_module(
            "sklearn.utils.validation", "sklearn", "a state abstraction"
        ).check_is_fitted(self.estimator)
        if self.names is not None and len(set(self.names)) != len(self.names):
            raise must_be("names", "different for every state", self.names)

    def __call__(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        fitted = getattr(self.estimator, "feature_names_in_", None)
        features = values if fitted is None else _frame(list(fitted), values.T)
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
            f"column {columns[column]!r}, row {row + 1}: no finite number; states are fitted to "
            "complete rows"
        )
    base = optional_module("sklearn.base", "sklearn", "a state abstraction")
    return StateCodes(base.clone(estimator).fit(values), names)


def _features(log: EpisodeLog, names: Sequence[str] | None, *, by_name: bool = False) -> Any:
    """What a classifier is called with, (N, k): these columns, by their names if it wants them so,
    or the logged state."""
    if names is None:
        states = log.raw_states()
        return states[:, None] if states.ndim == 1 else states
    known = log.source.names
    for name in names:
        if name not in known:
            raise UsageError(
                f"the classifier takes a column {name!r}, which the log does not have"
                f"{nearest(name, known)} (columns: {', '.join(map(repr, known))})"
            )
    rows = log.steps.source_row
    parts = [log.source.column(name).to_numpy(zero_copy_only=False)[rows] for name in names]
    return _frame(list(names), parts) if by_name else np.stack(parts, axis=1)


def _frame(names: list[str], parts: Any) -> Any:
    """A frame, for what was fitted to one: it checks the names of its columns."""
    pandas = optional_module("pandas", "sklearn", "a model that was fitted to a frame")
    return pandas.DataFrame(dict(zip(names, parts, strict=True)))


def _listed(labels: Labels) -> str:
    shown = ", ".join(labels.name(code) for code in range(min(5, len(labels))))
    return f"({shown}{', …' if len(labels) > 5 else ''})"
