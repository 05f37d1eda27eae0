"""Where in a configuration something stands: errors name the file and the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADER = re.compile(r"^\s*\[\s*([\w-]+)\s*\]")
KEY = re.compile(r"""^\s*(["']?)([\w-]+)\1\s*=""")
OFF = re.compile(r"""^\s*#\s*([\w-]+)\s*=\s*(.*\S)""")
ROLE = re.compile(r"for the role (\w+)")
MISSING = "missing-column"
MOST_LINES = 1000


@dataclass(frozen=True)
class Places:
    """The lines of a configuration, from 1, by (table, key); the table of all commands is "".

    off  keys that are written behind a #: {key: lines}
    """

    path: Path
    at: Mapping[tuple[str, str], int] = field(default_factory=dict)
    off: Mapping[str, list[int]] = field(default_factory=dict)

    def where(self, key: str, table: str = "") -> str:
        """Such as "'reweigh.toml', line 3"; without the line where it is not known."""
        line = self.at.get((table, key))
        return repr(str(self.path)) + ("" if line is None else f", line {line}")


def places_of(path: Path, text: str) -> Places:
    """Where the keys of a valid configuration stand. A line holds a key where all before it is
    TOML by itself: what looks like one inside a text of several lines is none."""
    lines = text.splitlines()
    if len(lines) > MOST_LINES:  # every prefix is read again
        return Places(path)
    at: dict[tuple[str, str], int] = {}
    off: dict[str, list[int]] = {}
    table = ""
    for number, line in enumerate(lines, 1):
        header, key, comment = HEADER.match(line), KEY.match(line), OFF.match(line)
        if not (header or key or comment) or not _whole(lines[: number - 1]):
            continue
        if header:
            table = header[1]
            at[("", table)] = number
        elif key:
            at[(table, key[2])] = number
        elif comment:
            off.setdefault(comment[1], []).append(number)
    return Places(path, at, off)


def _whole(lines: Iterable[str]) -> bool:
    try:
        tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return False
    return True


@dataclass(frozen=True)
class Taken:
    """What a command took from its configuration: {key: (table, value in the file, value)}."""

    places: Places
    values: Mapping[str, tuple[str, Any, Any]]

    def notes(self, error: Exception) -> list[str]:
        """What the configuration has to do with this error, each with its line."""
        faults = getattr(error, "faults", ())
        text = "\n".join(map(str, faults)) if faults else str(error)  # without the heading
        found = [
            f"{self.places.where(key, table)} says {key} = {_shown(raw)}"
            for key, (table, raw, value) in self.values.items()
            if _about(text, key, [*_texts(raw), *_texts(value)])
        ]
        missing = [fault for fault in faults if fault.code == MISSING]
        roles = [role for fault in missing for role in ROLE.findall(fault.rule)]
        return found + [self._unnamed(role) for role in roles if role not in self.values]

    def _unnamed(self, role: str) -> str:
        lines = self.places.off.get(role, [])
        path = str(self.places.path)
        if not lines:
            return f'{path!r} names no column for {role}: add {role} = "COLUMN"'
        listed = ", ".join(map(str, lines))
        many = f"line {listed}" if len(lines) == 1 else f"one of the lines {listed}"
        return f"{path!r} leaves {role} undecided: remove the # before {many}"


def _about(text: str, key: str, values: Iterable[str]) -> bool:
    """Whether a message speaks of this option: by its name as an option, or by its value."""
    flag = "--" + key.replace("_", "-")
    named = rf"{re.escape(flag)}(?![\w-])|'{key}'|\b{key}=|for the role {key}\b"
    return bool(re.search(named, text)) or any(repr(value) in text for value in values if value)


def _texts(value: Any) -> list[str]:
    """The texts that a message could quote."""
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, Path):
        return [str(value)]
    if isinstance(value, str):
        return [value, *(part.strip() for part in value.split(","))]
    return []


def _shown(value: Any) -> str:
    from reweigh.cli.toml import toml_value

    return toml_value(value) if isinstance(value, str | bool | int | float | list) else repr(value)
