"""Options from a TOML file: `--config reweigh.toml`.

    log = ["episodes.csv"]        # the files of the log, as seen from the folder of this file
    episode = "patient"           # every option of the log and of the target, by its own name
    target = "policy.csv"

    [evaluate]                    # options of one command
    estimators = "mis,wis"

What is given on the command line wins.
"""

from __future__ import annotations

import glob
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer

from reweigh.cli.config_lines import Places, Taken, places_of
from reweigh.errors import ResourceError, UsageError, nearest

LARGEST = 1 << 20  # bytes; a configuration is written by hand
FILES = "log"  # the key of the argument LOG
# What is given of one side on the command line replaces what the file says of the other.
RIVALS = (
    ({"target"}, {"target_prob"}),
    ({"behavior_prob"}, {"fit_behavior", "smoothing"}),
    ({"round"}, {"grid"}),
    ({"half_width"}, {"difference", "power"}),
)
NOT_HERE = {"config", "help", "version"}


@dataclass(frozen=True)
class Option:
    """A parameter of a command: its key in the file, its name in Python and its type."""

    key: str
    name: str
    kind: Any


@dataclass(frozen=True)
class Config:
    """A file's keys: those for every command, and those of each command's own table; and where
    they stand."""

    path: Path
    shared: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]
    places: Places


def fill(
    path: Path, context: typer.Context, given: Mapping[str, Any], hints: Mapping[str, Any]
) -> tuple[dict[str, Any], Taken]:
    """A command's parameters, with those that were not given taken from the file; and which.

    `hints` are the types of the command's parameters; keys of other commands are checked by name.
    """
    own = _options(context.command, hints)
    commands = getattr(getattr(context.parent, "command", None), "commands", {})
    command = str(context.info_name)
    known = {command: own}  # the first, also where hints are looked for
    known |= {name: _options(c, {}) for name, c in commands.items() if name != command}
    config = read_config(path, _shared_keys(known.values()), known)

    typed = {name for name in given if _on_command_line(context, name)}
    losing = _losing({option.key for option in own.values() if option.name in typed})
    filled = dict(given)
    taken: dict[str, tuple[str, Any, Any]] = {}
    for values, table in ((config.shared, ""), (config.tables.get(command, {}), command)):
        for key, value in values.items():
            option = own.get(key)
            if option is None or option.name in typed or key in losing:
                continue
            if table == "" and (command, key) == ("check", "target") and not given["diagnose"]:
                continue  # a file for all commands names it; check needs it for --diagnose alone
            where = config.places.where(key, table)
            label = f"[{table}] {key}" if table else key
            filled[option.name] = made = converted(value, option.kind, label, path, where)
            taken[key] = (table, value, made)
    return filled, Taken(config.places, taken)


def read_config(path: Path, shared: Iterable[str], commands: Mapping[str, Iterable[str]]) -> Config:
    """The file's content; every key must be one of `shared`, or of a command in its table."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(LARGEST + 1)
    except OSError as error:
        raise ResourceError(f"cannot read the configuration {str(path)!r}: {error.strerror}") from (
            error
        )
    if len(raw) > LARGEST:
        raise UsageError(f"{str(path)!r} is larger than 1 MB: this is no configuration")
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
        found = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        last = f"at the end, line {len(raw.splitlines())}"
        why = str(error).replace("at end of document", last)
        raise UsageError(f"the configuration {str(path)!r} is no TOML: {why}") from error
    places = places_of(path, text)
    allowed = [*shared, *commands]
    tables: dict[str, Mapping[str, Any]] = {}
    wrong = []
    for key, value in found.items():
        if key in commands:
            if not isinstance(value, dict):
                wrong.append(f"{places.where(key)}: {key!r} must be a table of options: [{key}]")
                continue
            tables[key] = value
            wrong += [
                f"{places.where(inner, key)}: [{key}] has no option {inner!r}"
                f"{_near(inner, commands[key])}"
                for inner in value
                if inner not in commands[key]
            ]
        elif key not in allowed:
            near = _near(key, allowed, commands)
            wrong.append(f"{places.where(key)}: there is no option {key!r}{near}")
    if wrong:
        raise UsageError("\n  ".join(["the configuration cannot be used:", *wrong]))
    return Config(path, {k: v for k, v in found.items() if k not in tables}, tables, places)


def converted(value: Any, kind: Any, key: str, path: Path, where: str) -> Any:
    """A TOML value as the type of its option; paths are seen from the file's folder. `where` names
    the file and the line."""
    kind = _plain_kind(kind)
    origin = typing.get_origin(kind)
    if origin is list:
        inner = typing.get_args(kind)[0]
        items = value if isinstance(value, list) else [value]
        return [converted(item, inner, key, path, where) for item in items]
    if origin is tuple:
        parts = typing.get_args(kind)
        if not isinstance(value, list) or len(value) != len(parts):
            raise _wrong(where, key, f"a list of {len(parts)} values", value)
        return tuple(
            converted(v, part, key, path, where) for v, part in zip(value, parts, strict=True)
        )
    if isinstance(value, list) and len(value) == 1 and kind in (str, Path):
        value = value[0]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and number and isinstance(value, int):
        return value
    if kind is float and number:
        return float(value)
    if kind is str and isinstance(value, str):
        return value
    if kind is Path and isinstance(value, str) and value:
        return _beside(path, value)
    rules = {bool: "true or false", int: "a whole number", float: "a number", str: "one text"}
    raise _wrong(where, key, rules.get(kind, "the path of one file"), value)


def _wrong(where: str, key: str, rule: str, value: Any) -> UsageError:
    return UsageError(f"the configuration {where}: {key} must be {rule}; got {value!r}")


def _beside(config: Path, text: str) -> Path:
    """A path of the file; what it names may be a pattern, its folder's own name is none."""
    there = config.parent / text
    if there.exists() or not glob.has_magic(text):
        return there
    return Path(os.path.join(glob.escape(str(config.parent)), text))


def _options(command: Any, hints: Mapping[str, Any]) -> dict[str, Option]:
    """The options of a command by their keys: the flag's name, with _ for each dash."""
    found = {}
    for parameter in command.params:
        flags = [flag for flag in parameter.opts if flag.startswith("--")]
        key = flags[0][2:].replace("-", "_") if flags else FILES
        if key not in NOT_HERE:
            found[key] = Option(key, parameter.name, hints.get(parameter.name))
    return found


def _shared_keys(commands: Iterable[Mapping[str, Option]]) -> list[str]:
    """Options of the log and of the target stand for all commands."""
    from reweigh.cli.options import LogOptions, TargetOptions

    names = [f.name for group in (LogOptions, TargetOptions) for f in fields(group)]
    return [FILES, *(n for n in names if any(n in options for options in commands))]


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _losing(typed: set[str]) -> set[str]:
    lost: set[str] = set()
    for one, other in RIVALS:
        if typed & one:
            lost |= other
        if typed & other:
            lost |= one
    return lost - typed


def _plain_kind(kind: Any) -> Any:
    """A type without Annotated and without None."""
    if hasattr(kind, "__metadata__"):
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [part for part in typing.get_args(kind) if part is not type(None)]
        kind = kinds[0]
    return kind


def _near(
    key: str, known: Iterable[str], commands: Mapping[str, Iterable[str]] | None = None
) -> str:
    """A hint: the command whose option this is, or the nearest name."""
    owners: Sequence[str] = [name for name, keys in (commands or {}).items() if key in keys]
    if owners:
        return f"; it belongs to a command: write it below [{owners[0]}]"
    return nearest(key.replace("-", "_"), known)
