"""The interface of policies, π(a|s) for the rows of a log; policies that are a logged column or a
function of the rows; policies that cache another one's probabilities; and policies from files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from reweigh.errors import InputError, RefusedError, ResourceError, UsageError, check
from reweigh.log.log import Columns, EpisodeLog
from reweigh.log.rules import Faults
from reweigh.log.states import Label, Labels
from reweigh.system.files import digest_of, files_behind

Floats = npt.NDArray[np.float64]
Scope = Literal["state", "row", "logged action"]
BatchFunction = Callable[[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]], Any]
MOST_KEPT = 1 << 25  # numbers: 256 MiB
RULE, SKOPS = ".rule", ".skops"
RULE_BEGINS = re.compile(rb"(\xef\xbb\xbf)?(\s|#[^\n]*\n)*(if\b|[^,\n]*=)")
PICKLES = (".pkl", ".pickle", ".joblib")
LARGEST_RULE = 1 << 20  # bytes


@runtime_checkable
class Policy(Protocol):
    """A target policy. All arrays are in the order of the log's steps."""

    @property
    def name(self) -> str: ...

    def probabilities(self, log: EpisodeLog) -> Floats:
        """(N,) π(a_t|s_t) of the logged actions, checked."""
        ...

    def all_actions(self, log: EpisodeLog) -> Labels:
        """Every action that the policy may take, if it lists them."""
        ...

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        """(N,) π(a|s_t) of one action in every row's state."""
        ...

    @property
    def has_steps(self) -> bool:
        """True where the policy is known to depend on the step."""
        ...

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        """Actions the policy is known to take that are not in the log: how often."""
        ...

    def fingerprint(self) -> str:
        """Equal for equal policies, if that can be determined."""
        ...


def scope_of(policy: Policy) -> Scope:
    """The inputs of a policy (`scope`): the state as logged, with the step; or everything in a row
    (the default); or only the logged action's probability.
    """
    scope: Scope = getattr(policy, "scope", "row")
    return scope


def columns_read(policy: Policy) -> tuple[str, ...]:
    """The columns of the log that a policy names itself, beside those that have a role."""
    names: tuple[str, ...] = getattr(policy, "reads", ())
    return names


OUTCOMES = ("action", "reward", "behavior_prob", "next_state", "terminated", "truncated")


def role_after_action(name: str, columns: Columns) -> str | None:
    """The role of a column that is known only when the action was chosen: a policy that looks at it
    would know the outcome. None of others."""
    roles = [role for role, column in columns.by_role() if column == name]
    return roles[0] if roles and all(role in OUTCOMES for role in roles) else None


def refuse_stateless(log: Any, target: Policy) -> None:
    """UsageError if the target is a table of states and the log names features alone."""
    columns = getattr(getattr(log, "reading", log), "columns", None)
    if isinstance(columns, Columns) and not columns.state and scope_of(target) == "state":
        raise UsageError(
            f"the target {target.name} lists states, and the log names features alone: give a "
            "function of the features, a rule or a classifier, or name a state (state=…)"
        )


def dense_of(policy: Policy, log: EpisodeLog, actions: Labels) -> Floats | None:
    """(T, S + 1, A) π of these actions by step (or T = 1) and state of the log, see
    `TablePolicy.dense`; None where a policy has no such table."""
    while isinstance(policy, WrappedPolicy):
        policy = policy.policy
    dense = getattr(policy, "dense", None)
    return None if dense is None else dense(log, actions)


class _RowPolicy:
    """A policy known only by its probabilities for rows."""

    has_steps = False

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        return {}


def no_other_actions(name: str) -> RefusedError:
    return RefusedError(
        "target-probabilities",
        f"the policy {name} has probabilities only for logged actions, but your own Q "
        "function needs those of all actions: give the target as a table or a function",
    )


@dataclass(frozen=True)
class ColumnPolicy(_RowPolicy):
    """π(a_t|s_t) of the logged action is the column `column` of the log."""

    column: str = "target_prob"
    scope: ClassVar[Scope] = "logged action"

    def __post_init__(self) -> None:
        check(
            isinstance(self.column, str) and self.column,
            "column",
            "the name of a column",
            self.column,
        )

    @property
    def name(self) -> str:
        return f"column {self.column!r}"

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def probabilities(self, log: EpisodeLog) -> Floats:
        values = log.column(self.column)
        log._once(f"checked {self.column}", lambda: check_rows(log, self.column, values))
        return values

    def all_actions(self, log: EpisodeLog) -> Labels:
        raise no_other_actions(self.name)

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        raise no_other_actions(self.name)

    def fingerprint(self) -> str:
        return f"column:{self.column}"


@dataclass(frozen=True)
class FunctionPolicy(_RowPolicy):
    """π(action|state) from `f(state, action, step)`, called with arrays of one length.

    `state` holds the logged states, before any abstraction: (N,), or (N, k) for k columns, with
    None where hidden; or the log's features (N, k), if it has no states or with `features=True`.
    `f` returns N probabilities (densities for continuous actions).
    """

    f: BatchFunction
    name: str = ""
    features: bool = False

    def __post_init__(self) -> None:
        check(callable(self.f), "f", "callable as f(state, action, step)", self.f)
        if not self.name:
            label = getattr(self.f, "__qualname__", type(self.f).__qualname__)
            object.__setattr__(self, "name", f"function {label}")

    def probabilities(self, log: EpisodeLog) -> Floats:
        return self._called(log, log.raw_actions())

    def all_actions(self, log: EpisodeLog) -> Labels:
        """A function cannot list its actions: those of the log."""
        assert log.actions is not None
        return log.actions

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        return self._called(log, np.full(log.steps.n_rows, action))

    def _called(self, log: EpisodeLog, actions: npt.NDArray[Any]) -> Floats:
        seen = log.features if self.features else None
        values = call_batch(self.f, self.name, log, actions, seen)
        check_rows(log, self.name, values)
        return values

    def fingerprint(self) -> str:
        from reweigh.system.fingerprint import digest_of_callable

        of = "features" if self.features else ""
        return f"function:{digest_of(self.name, digest_of_callable(self.f))}{of}"


def call_batch(
    f: BatchFunction,
    name: str,
    log: EpisodeLog,
    actions: npt.NDArray[Any],
    seen: npt.NDArray[Any] | None = None,
) -> Floats:
    """Call a batch function on the rows of a log (their states, or what is `seen` instead) and
    check the shape of its result."""
    states = log.raw_states() if seen is None else seen
    try:
        result = np.asarray(f(states, actions, log.steps.step), np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} failed; it is called as f(state, action, step) with arrays and must "
            f"return one number per row: {error}"
        ) from error
    if result.shape != (log.steps.n_rows,):
        raise UsageError(
            f"{name} returned shape {result.shape} for {log.steps.n_rows} rows; it must return "
            "one number per row"
        )
    return result


def check_rows(log: EpisodeLog, column: str, values: Floats) -> None:
    """Probabilities (or densities) of the logged actions, one per row."""
    density = log.continuous_actions
    if np.all((values >= 0) & (values < np.inf if density else values <= 1)):
        return
    order = np.argsort(log.steps.source_row, kind="stable")  # faults are listed as the log is
    values = values[order]
    faults = Faults(lambda row: log.place(int(order[row]), column, None), len(values))
    faults.numbers("target_prob", column, values, density=density)
    faults.raise_if_any(f"the target policy ({column})")


class WrappedPolicy:
    """All that does not concern the rows is the policy's own."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name, self.has_steps = policy.name, policy.has_steps
        self.scope: Scope = scope_of(policy)
        self.reads = columns_read(policy)
        self.files: tuple[Path, ...] = files_behind(policy)

    def probabilities(self, log: EpisodeLog) -> Floats:
        return self.policy.probabilities(log)

    def all_actions(self, log: EpisodeLog) -> Labels:
        return self.policy.all_actions(log)

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        return self.policy.of_action(log, action)

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        return self.policy.unlogged_actions(log)

    def fingerprint(self) -> str:
        return self.policy.fingerprint()


class RememberedPolicy(WrappedPolicy):
    """The same policy. π(a_t|s_t) of the last log's rows is looked up once, and so is π(a|s_t) of
    as many actions as fit; a log with other rewards has the same rows."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.forget()

    def forget(self) -> None:
        """Give the memory back."""
        self._rows: object = None
        self._logged: Floats | None = None
        self._of_action: dict[Label, Floats] = {}

    def _look_at(self, log: EpisodeLog) -> None:
        if self._rows is not log.steps.state:
            self.forget()
            self._rows = log.steps.state

    def probabilities(self, log: EpisodeLog) -> Floats:
        self._look_at(log)
        if self._logged is None:
            self._logged = self.policy.probabilities(log)
        return self._logged

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        self._look_at(log)
        if action in self._of_action:
            return self._of_action[action]
        values = self.policy.of_action(log, action)
        if (len(self._of_action) + 1) * len(values) <= MOST_KEPT:
            self._of_action[action] = values
        return values


class RowsPolicy(RememberedPolicy):
    """A policy with known probabilities for a log's rows, for logs of copies of these rows."""

    def __init__(self, policy: Policy, log: EpisodeLog) -> None:
        super().__init__(policy)
        self.log, self.known = log, policy.probabilities(log)

    def probabilities(self, log: EpisodeLog) -> Floats:
        return _copied(self.known, log)

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        return _copied(super().of_action(self.log, action), log)


def _copied(known: Floats, log: EpisodeLog) -> Floats:
    rows = log.steps.source_rows
    return known if rows is None else known[rows]


def read_policy(
    path: Any,
    *,
    state: str | Sequence[str] = "state",
    action: str = "action",
    prob: str = "prob",
    step: str = "step",
    name: str | None = None,
) -> Policy:
    """A policy from a file (or a table), by the ending of its name.

    A CSV or Parquet file has the columns state, action, prob. A column `step` makes it depend on
    the step. An empty state is the hidden state. `state` may name several columns. A file ending
    in .rule, or in .txt unless it is a table, holds the text of a `RulePolicy`, one ending in
    .skops a scikit-learn classifier. `name` is what outputs call the policy, else the file's.
    """
    is_path = isinstance(path, str | os.PathLike)
    ending = Path(path).suffix.lower() if is_path else ""
    is_rule = is_path and holds_rule(Path(path))
    if is_rule or ending in (SKOPS, *PICKLES):
        if (state, action, prob, step) != ("state", "action", "prob", "step"):
            raise UsageError(
                f"state, action, prob and step name the columns of a table; {str(path)!r} is none"
            )
        if is_rule:
            return _read_rule(Path(path), name)
        from reweigh.policy.classifier import read_classifier, refuse_pickle

        if ending != SKOPS:
            refuse_pickle(Path(path))
        return read_classifier(Path(path), name)
    from reweigh.policy.table import TablePolicy

    named = name or (str(path) if is_path else "table")
    return TablePolicy(path, state=state, action=action, prob=prob, step=step, name=named)


def policy_from(given: Any, state: Sequence[str], action: str) -> Policy:
    """A policy from a file or frame, whose columns may carry the log's names for them."""
    from reweigh.log.csv_files import CsvFormat
    from reweigh.log.sources import open_source

    if isinstance(given, str | os.PathLike) and not has_columns(Path(given)):
        return read_policy(given)
    given = str(given) if isinstance(given, os.PathLike) else given
    names = open_source(given, CsvFormat()).names
    if len(state) == 1 and state[0] not in names:
        state = ["state"]
    return read_policy(
        given,
        state=state[0] if len(state) == 1 else list(state),
        action=action if action in names else "action",
    )


def has_columns(path: Path) -> bool:
    """Whether a policy file is a table, whose columns have names."""
    return not holds_rule(path) and path.suffix.lower() not in (SKOPS, *PICKLES)


def holds_rule(path: Path) -> bool:
    """Whether a file holds the text of a rule: by its ending, or a .txt that begins like one."""
    ending = path.suffix.lower()
    if ending != ".txt" or not path.is_file():
        return ending == RULE
    with path.open("rb") as stream:
        return RULE_BEGINS.match(stream.read(LARGEST_RULE)) is not None


def _read_rule(path: Path, name: str | None) -> Policy:
    from reweigh.policy.rule import RulePolicy

    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_RULE)
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{str(path)!r}, line {line}: save the file as UTF-8") from error
    return RulePolicy(text, name=name or str(path), path=path)
