"""Classifiers of scikit-learn as policies, and reading them from files of skops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from reweigh.errors import InputError, ResourceError, UsageError, check, nearest
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Label, Labels, label_text, plain_label
from reweigh.policy import Floats, check_rows, role_after_action
from reweigh.system import optional_module
from reweigh.system.files import digest_of
from reweigh.system.fingerprint import digest_of_callable


@dataclass(frozen=True, eq=False)
class ClassifierPolicy:
    """π(a|x) = the classifier's `predict_proba`, with its `classes_` as actions.

    `columns` are the columns of the log that the classifier takes, in its order; without them the
    columns that it was fitted on by name, or else the logged state before any abstraction. As a
    target give it to `evaluate`; as the behavior, to `log.with_behavior(behavior_classifier(…))`.
    """

    classifier: Any
    columns: Sequence[str] | None = None
    name: str = ""
    files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        check(
            hasattr(self.classifier, "predict_proba"),
            "classifier",
            "a classifier with predict_proba",
            self.classifier,
        )
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
    def reads(self) -> tuple[str, ...]:
        """The columns that the classifier takes; none where it takes the state."""
        fitted = getattr(self.classifier, "feature_names_in_", ())
        return tuple(map(str, fitted if self.columns is None else self.columns))

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
                f"none of the classifier's classes {_listed(actions)} is an action of the "
                f"log {_listed(log.actions)}: fit it on the logged actions"
            )
        fitted = getattr(self.classifier, "feature_names_in_", None)
        features = features_of(log, self.reads or None, by_name=fitted is not None)
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


def features_of(log: EpisodeLog, names: Sequence[str] | None, *, by_name: bool = False) -> Any:
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
        role = role_after_action(name, log.columns)
        if role is not None:
            raise UsageError(
                f"the classifier takes the column {name!r}, the log's {role}, which is known only "
                "after the action is chosen: a policy cannot use it"
            )
    rows = log.steps.source_row
    parts = [log.source.column(name).to_numpy(zero_copy_only=False)[rows] for name in names]
    return frame_of(list(names), parts) if by_name else np.stack(parts, axis=1)


def frame_of(names: list[str], parts: Any) -> Any:
    """A frame, for what was fitted to one: it checks the names of its columns."""
    pandas = optional_module("pandas", "sklearn", "a model that was fitted to a frame")
    return pandas.DataFrame(dict(zip(names, parts, strict=True)))


def read_classifier(path: Path, name: str | None = None) -> ClassifierPolicy:
    """A classifier that skops saved, as a policy.

    Types that skops itself trusts are loaded: those of scikit-learn, NumPy, SciPy and Python's own
    plain ones. Any other is refused by name: it could run code when it is loaded.
    """
    skops = optional_module("skops.io", "skops", "a scikit-learn model as a target")
    try:
        with path.open("rb") as stream:
            is_zip = stream.read(4) == b"PK\x03\x04"
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if not is_zip:
        refuse_pickle(path)
    try:
        untrusted = skops.get_untrusted_types(file=path)
        classifier = None if untrusted else skops.load(path, trusted=[])
    except Exception as error:  # whatever a damaged file makes of it
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{str(path)!r} cannot be read as a skops file: {reason}") from error
    if untrusted:
        raise InputError(
            f"{str(path)!r} holds types that are not trusted, because loading them could run code: "
            f"{', '.join(untrusted)}. If you trust them, load the model in Python with "
            "skops.io.load(path, trusted=[…]) and give reweigh.adapters.ClassifierPolicy(model) as "
            "the target"
        )
    if not hasattr(classifier, "predict_proba"):
        raise InputError(
            f"{str(path)!r} holds a {type(classifier).__name__}, which has no predict_proba: a "
            "policy needs the probability of every action"
        )
    return ClassifierPolicy(classifier, name=name or str(path), files=(path,))


def refuse_pickle(path: Path) -> NoReturn:
    raise InputError(
        f"{str(path)!r} is no skops file. A pickle or joblib file can run code when it is loaded: "
        "reweigh reads neither. Save the model with skops.io.dump(model, 'model.skops')"
    )


def _listed(labels: Labels) -> str:
    shown = ", ".join(labels.name(code) for code in range(min(5, len(labels))))
    return f"({shown}{', …' if len(labels) > 5 else ''})"
