"""The header of saved sums: what they are of, as JSON with a checksum over header and content."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from reweigh.errors import InputError, UsageError
from reweigh.log.states import Labels, label_text
from reweigh.sums.diagnostic_tables import BITS, EARLIER, UNORDERED, VERSIONS
from reweigh.sums.moments import About, Moments
from reweigh.sums.tables import Table
from reweigh.system.files import parse_object, sealed, unsealed

FORMAT = 2
READ = (1, FORMAT)  # 1 had no checksum
SCALARS: dict[str, tuple[str, ...]] = {  # of the extras: what is no column
    "lagged": ("level",),
    "ordered": ("shift",),
    "paced": ("shift",),
    "largest": ("floor", "n"),
}


@dataclass(frozen=True)
class Rule:
    """What a value of the header must be, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]

    def or_null(self) -> Rule:
        return Rule(f"{self.words}, or null", lambda value: value is None or self.fits(value))


def _is_whole(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_range(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    return bool(pair and value[0] <= value[1])


def _is_label(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return value is None or all(type(part) in (int, str) for part in parts)


def _are_labels(values: Any) -> bool:
    if not (isinstance(values, list) and all(map(_is_label, values))):
        return False
    return len({label_text(value) for value in values}) == len(values)


def _is_table(value: Any) -> bool:
    """What declares a table of a user's own."""
    try:
        return bool(table_of(value).described() == value)
    except (KeyError, TypeError, AttributeError, UsageError):
        return False


def table_of(value: Any) -> Table:
    return Table(**value | {"keys": tuple(value["keys"])})


def whole(low: int, high: int = 2**63 - 1) -> Rule:
    upper = "on" if high == 2**63 - 1 else f"to {high}"
    return Rule(f"a whole number from {low} {upper}", lambda value: _is_whole(value, low, high))


def all_of(words: str, fits: Callable[[Any], bool]) -> Rule:
    return Rule(words, lambda values: isinstance(values, list) and all(map(fits, values)))


TEXT = Rule("a text", _is_text)
TRUTH = Rule("true or false", lambda value: type(value) is bool)
TEXTS = all_of("a list of texts", _is_text)
LABELS = Rule("a list of different whole numbers and texts", _are_labels)
OBJECT = Rule("an object", lambda value: isinstance(value, dict))
ABOUT: dict[str, Rule] = {
    "horizon": whole(1),
    "discount": Rule("a number in (0, 1]", lambda value: _is_number(value) and 0 < value <= 1),
    "target": TEXT,
    "target_has_steps": TRUTH,
    "abstraction": TEXT.or_null(),
    "state_columns": TEXTS,
    "continuous_actions": TRUTH,
    "behavior": TEXT,
    "max_ratio": Rule("a number above 0", lambda v: _is_number(v) and v > 0).or_null(),
    "control": TEXT.or_null(),
    "blocks": whole(1),
    "sources": TEXTS,
}
HEADER: dict[str, Rule] = {
    "about": OBJECT,
    "states": LABELS,
    "actions": LABELS.or_null(),
    "truncated": whole(0),
    "hidden": TRUTH,
    "kinds": TEXTS,
}
LATER: dict[str, tuple[Rule, Any]] = {  # what the first files lack, and what it is then
    "left_out": (
        Rule(
            "texts by kind",
            lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
        ),
        {},
    ),
    "unchecked": (TEXTS, []),
    "rewards": (
        Rule(
            "two numbers, the smaller first",
            _is_range,
        ).or_null(),
        None,
    ),
    "extras": (
        Rule(
            "objects by kind",
            lambda value: isinstance(value, dict)
            and all(isinstance(part, dict) and "version" in part for part in value.values()),
        ),
        {},
    ),
    "tables": (
        Rule("objects", lambda value: isinstance(value, list) and all(map(_is_table, value))),
        [],
    ),
    "content": (TEXT, ""),
}  # fmt: skip
SCALAR: dict[str, Rule] = {
    "level": whole(0, BITS),
    "shift": whole(0, UNORDERED),
    "floor": Rule("a number", _is_number).or_null(),
    "n": whole(0),
}


@dataclass(frozen=True)
class Header:
    """A header that was read and checked.

    content  the checksum of the tables; None in files of the first format
    extras   scalars by kind, of the versions that this version knows
    tables   those that were declared outside of the package
    rows_of  the names of all kinds that the tables may hold, other versions' extras too
    """

    about: About
    states: Labels
    actions: Labels | None
    truncated: int
    hidden: bool
    kinds: tuple[str, ...]
    left_out: dict[str, str]
    unchecked: tuple[str, ...]
    rewards: tuple[float, float] | None
    extras: dict[str, dict[str, Any]]
    tables: dict[str, Table]
    rows_of: frozenset[str]
    content: str | None


def header_text(moments: Moments, tables: Mapping[str, Any], content: str) -> bytes:
    """The header of these sums; `content` is the checksum of their tables."""
    return json.dumps(
        sealed(
            {
                "format": FORMAT,
                "about": asdict(moments.about),
                "states": moments.states.values,
                "actions": None if moments.actions is None else moments.actions.values,
                "truncated": moments.truncated,
                "hidden": moments.hidden,
                "left_out": moments.left_out,
                "unchecked": moments.unchecked,
                "rewards": moments.rewards,
                "kinds": [k for k in tables if k not in VERSIONS and k not in moments.tables],
                "tables": [part.table.described() for part in moments.tables.values()],
                "extras": {
                    kind: {"version": VERSIONS[kind]} | _scalars(kind, part)
                    for kind, part in tables.items()
                    if kind in VERSIONS
                },
                "content": content,
            }
        ),
        allow_nan=False,
    ).encode()


def _scalars(kind: str, part: Any) -> dict[str, Any]:
    """JSON has no infinity: a floor of -inf is null."""
    values = {name: getattr(part, name) for name in SCALARS.get(kind, ())}
    return {name: None if value == -math.inf else value for name, value in values.items()}


def read_header(raw: bytes, what: str) -> Header:
    """Parse and check a header; InputError, which names `what`, where it breaks a rule."""
    found = parse_object(raw, f"the header of {what}")
    version = found.get("format")
    if type(version) is not int or version not in READ:
        raise InputError(f"{what} has format {version!r}, and this version reads {FORMAT}")
    found = unsealed(found, what, required=version > 1)
    found = {key: default for key, (_, default) in LATER.items()} | found
    _check(found, HEADER | {key: rule for key, (rule, _) in LATER.items()}, what)
    about = found["about"]
    optional = {f.name for f in fields(About) if f.default is not MISSING}
    _check(about, {k: rule for k, rule in ABOUT.items() if k in about or k not in optional}, what)
    if set(about) > set(ABOUT):
        raise InputError(f"{what} has an unknown field {min(set(about) - set(ABOUT))!r}")
    if (None in found["states"]) != found["hidden"]:
        raise InputError(f"{what} is damaged: 'hidden' and its states contradict each other")
    known = {
        kind: EARLIER.get((kind, part["version"]), {}) | part
        for kind, part in found["extras"].items()
        if part["version"] == VERSIONS.get(kind) or (kind, part["version"]) in EARLIER
    }
    for kind, part in known.items():
        _check(part, {name: SCALAR[name] for name in SCALARS.get(kind, ())}, what)
    tables = {value["name"]: table_of(value) for value in found["tables"]}
    return Header(
        about=About(
            **about
            | {
                "state_columns": tuple(about["state_columns"]),
                "sources": tuple(about["sources"]),
            }
        ),
        states=_labels(found["states"]),
        actions=None if found["actions"] is None else _labels(found["actions"]),
        truncated=found["truncated"],
        hidden=found["hidden"],
        kinds=tuple(found["kinds"]),
        left_out=found["left_out"],
        unchecked=tuple(found["unchecked"]),
        rewards=None if found["rewards"] is None else tuple(found["rewards"]),
        extras={
            kind: {n: -math.inf if part[n] is None else part[n] for n in SCALARS.get(kind, ())}
            for kind, part in known.items()
        },
        tables=tables,
        rows_of=frozenset(found["kinds"]) | frozenset(found["extras"]) | frozenset(tables),
        content=found["content"] if version > 1 else None,
    )


def _check(values: Mapping[str, Any], rules: Mapping[str, Rule], what: str) -> None:
    for key, rule in rules.items():
        if key not in values:
            raise InputError(f"{what} is damaged: its header lacks {key!r}")
        if not rule.fits(values[key]):
            shown = repr(values[key])
            shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
            raise InputError(f"{what} is damaged: {key!r} must be {rule.words}; it is {shown}")


def _labels(values: list[Any]) -> Labels:
    return Labels(tuple(tuple(v) if isinstance(v, list) else v for v in values))
