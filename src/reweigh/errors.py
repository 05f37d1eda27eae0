"""All exceptions, warnings and message builders of reweigh.

An exception class has the exit code that the command line returns for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

MOST_PLACES = 5
KEPT_PLACES = 20
LONGEST_HORIZON = 2**31 - 1
MOST_REPLICATES = 10_000_000
MOST_BLOCKS = 1 << 16
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
CALLED_HERE = {
    "gamma": "discount",
    "discount_factor": "discount",
    "behaviour_prob": "behavior_prob",
    "behavior_policy": "behavior_prob",
    "propensity": "behavior_prob",
    "pscore": "behavior_prob",
    "mu": "behavior_prob",
    "done": "terminated",
    "terminal": "terminated",
    "observation": "state",
    "trajectory": "episode",
    "policy": "target",
    "evaluation_policy": "target",
    "estimators": "estimator",
    "estimator": "estimators",
    "n_bootstrap": "replicates",
    "confidence": "level",
}
QUOTED = 72  # characters of the line that a message quotes


class ReweighError(Exception):
    """Base of all errors that reweigh raises on purpose."""

    exit_code = 1


class UsageError(ReweighError, ValueError):
    """An argument or an option is wrong; the data was not read."""

    exit_code = 2


class UnknownArgument(UsageError, TypeError):
    """An argument that the function does not have; the message names the one that was meant."""


class InputError(ReweighError, ValueError):
    """The data breaks the contract; `faults` lists every violation."""

    exit_code = 3

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class RefusedError(ReweighError):
    """The data is valid, but it cannot answer the question."""

    exit_code = 4

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class SupportError(RefusedError):
    """The log has no data on what the target policy would do."""


class PartialError(ReweighError):
    """Some cells of a study failed; the rest is done and kept."""

    exit_code = 5


class ResourceError(ReweighError, OSError):
    """A file, disk space or memory is not available."""

    exit_code = 6


class ReweighWarning(UserWarning):
    """Base of all warnings of reweigh."""


class InputWarning(ReweighWarning):
    """The input was accepted, but the user should read this."""


class LowOverlapWarning(ReweighWarning):
    """The estimate effectively rests on few logged episodes."""


class SelectionWarning(ReweighWarning):
    """Episodes were left out, which may select on the outcome."""


class StationaryWarning(ReweighWarning):
    """A stationary distribution is used for one that is not stationary."""


class PlaceboWarning(ReweighWarning):
    """The estimate of a known quantity is wrong."""


class SmallSampleWarning(ReweighWarning):
    """Too few episodes for a reliable standard error."""


@dataclass(frozen=True)
class Place:
    """The place of a fault; only the known parts are printed."""

    value: object
    column: str | None = None
    row: int | None = None  # 1-based data row
    line: int | None = None  # line of a text file
    file: str | None = None
    episode: object = None
    step: int | None = None
    note: str = ""

    def __str__(self) -> str:
        at_line = "" if self.line is None else f" (line {self.line})"
        parts = (
            (self.column, f"column {self.column!r}"),
            (self.file, f"file {self.file!r}"),
            (self.row, f"row {self.row}{at_line}"),
            (self.episode, f"episode {self.episode!r}"),
            (self.step, f"step {self.step}"),
        )
        where = ", ".join(text for value, text in parts if value is not None)
        return f"{where}{': ' if where else ''}value {self.value!r}{self.note}"


@dataclass(frozen=True)
class Fault:
    """One broken rule of the contract, with its places."""

    code: str
    rule: str
    fix: str
    places: tuple[Place, ...] = field(default=())
    count: int = 0
    total: int = 0
    unit: str = "rows"

    def __str__(self) -> str:
        how_many = f" ({self.count:,} of {self.total:,} {self.unit})" if self.total else ""
        lines = [f"{self.code}: {self.rule}{how_many}"]
        lines += [str(place) for place in self.places[:MOST_PLACES]]
        if len(self.places) > MOST_PLACES:
            lines.append("…")
        return "\n      ".join([*lines, f"fix: {self.fix}"])


def input_error(what: str, faults: Iterable[Fault]) -> InputError:
    """All faults of one input in one error."""
    faults = tuple(faults)
    head = f"{what}: {len(faults)} broken rule{'s' if len(faults) != 1 else ''}"
    return InputError("\n  ".join([head, *(str(fault) for fault in faults)]), faults)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` if a known name is close, else nothing."""
    by_lower = {other.lower().strip(): other for other in known}
    wanted = name.lower().strip()
    close = difflib.get_close_matches(wanted, list(by_lower), n=1, cutoff=0.7)
    if not close and len(wanted) > 2:  # 'prob' for 'probability'
        close = [other for other in by_lower if other.startswith(wanted)][:1]
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def no_column(name: str, known: Sequence[str]) -> UsageError:
    """The message for a column that a log does not have."""
    listed = ", ".join(map(repr, known))
    return UsageError(f"the log has no column {name!r}{nearest(name, known)} (columns: {listed})")


def must_be(parameter: str, rule: str, got: object) -> UsageError:
    """The message for a wrong argument, in one form for all."""
    return UsageError(f"the parameter {parameter!r} must be {rule}; got {got!r} instead")


def check(holds: object, parameter: str, rule: str, got: object) -> None:
    """UsageError unless the rule of an argument holds."""
    if not holds:
        raise must_be(parameter, rule, got)


def check_whole(parameter: str, given: object, least: int, most: int | None = None) -> int:
    """A whole number that fits into 64 bits; NumPy integers count, True does not."""
    if isinstance(given, Integral) and not isinstance(given, bool):
        number = int(given)
        if least <= number <= (2**63 - 1 if most is None else most):
            return number
    upto = "on" if most is None else f"to {most:,}"
    raise must_be(parameter, f"a whole number from {least} {upto}", given)


def check_fraction(parameter: str, given: Any, rule: str = "a number between 0 and 1") -> float:
    """A number strictly between 0 and 1, NumPy's too."""
    if isinstance(given, Real) and 0 < float(given) < 1:
        return float(given)
    raise must_be(parameter, rule, given)


def check_horizon(horizon: object) -> int:
    """A number of steps; with it, (step, state) pairs of 32-bit codes fit into 64 bits."""
    return check_whole("horizon", horizon, 1, LONGEST_HORIZON)


def check_threads(threads: object) -> int:
    """The number of threads to use; checked first, even if there is nothing to do."""
    return check_whole("threads", threads, 1)


# ---- arguments that a function does not have


def hints(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """The same function, which says what an argument that it does not have is called here."""
    code: Any = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = frozenset(names)

    @wraps(function)
    def checked(*args: Arguments.args, **given: Arguments.kwargs) -> Answer:
        refuse_unknown(function.__name__, given, known)
        return function(*args, **given)

    return checked


def refuse_unknown(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """UnknownArgument for the first argument that is not known."""
    names = [name for name in known if name != "self"]
    for name in given:
        if name not in names:
            raise UnknownArgument(f"{function}() has no argument {name!r}{_hint(name, names)}")


def _hint(name: str, known: list[str]) -> str:
    if name == "alpha" and "level" in known:
        return "; use level=, which is 1 - alpha: 0.95, not 0.05"
    if name in ("alpha", "ci") and "level" not in known:
        return "; the level belongs to the interval: est.interval(0.95)"
    here = CALLED_HERE.get(name)
    return f"; use {here}=" if here in known else nearest(name, known)


def text_fault(text: str, where: str, place: int, message: str) -> UsageError:
    """The message under the line that it is about, with a caret below the place."""
    place = min(place, len(text))
    start = text.rfind("\n", 0, place) + 1
    line, column = text.count("\n", 0, place) + 1, place - start
    shown = text[start:].partition("\n")[0]
    skipped = max(0, column - QUOTED * 2 // 3)
    shown = "".join(c if c.isprintable() else " " for c in shown[skipped : skipped + QUOTED])
    head = f"{where}, line {line}, column {column + 1}: {message}"
    return UsageError(f"{head}\n    {shown}\n    {' ' * (column - skipped)}^")
