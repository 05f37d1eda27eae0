"""A function as a command: its groups of options, the file of --config, and no output that is an
input. A configuration is TOML:

    log = ["episodes.csv"]        # the files of the log, as seen from the folder of this file
    episode = "patient"           # every option of the log and of the target, by its own name
    target = "policy.csv"

    [evaluate]                    # options of one command
    estimators = "mis,wis"

The command line takes precedence. Errors name the file and the line.
"""

from __future__ import annotations

import functools
import glob
import inspect
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import typer

from reweigh.cli import options
from reweigh.cli.terminal import printable
from reweigh.errors import ResourceError, ReweighError, UsageError, nearest
from reweigh.system.files import NamedFile, refuse_overlap
from reweigh.system.process import memory_budget

Function = Callable[..., None]
LARGEST = 1 << 20  # bytes; a configuration is written by hand
MOST_LINES = 1000
FILES = "log"  # the key of the argument LOG
# An option of one side on the command line replaces the file's options of the other.
RIVALS = (
    ({"target"}, {"target_prob"}),
    ({"behavior_prob"}, {"fit_behavior", "smoothing"}),
    ({"round"}, {"grid", "bins"}),
    ({"grid"}, {"bins"}),
    ({"bandit"}, {"step"}),
    ({"half_width"}, {"difference", "power"}),
)
NOT_HERE = {"config", "help", "version"}
# a [table], a key, or a key behind a #
LINE = re.compile(
    r"""^\s*(?:\[\s*(?P<table>[\w-]+)\s*\]|(["']?)(?P<key>[\w-]+)\2\s*=|"""
    r"""\#\s*(?P<off>[\w-]+)\s*=\s*.*\S)"""
)
ROLE = re.compile(r"for the role (\w+)")
MISSING = "missing-column"


def command(**groups: type) -> Callable[[Function], Function]:
    """A command whose parameters of these names are groups of options.

    Typer reads signatures; this one spreads the fields of each group into the command's, and
    gathers them again when it is called. With groups, options that were not given come from the
    file of `--config`. A command that would write a file that it reads is refused before it reads
    any.
    """

    def decorate(function: Function) -> Function:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            for name, parameter in inspect.signature(function).parameters.items()
            if name not in groups
        ]
        for group in groups.values():
            hints = typing.get_type_hints(group, include_extras=True)
            parameters += [_parameter(f.name, hints[f.name], f.default) for f in fields(group)]
        if groups:
            parameters += [
                _parameter("max_memory", options.MaxMemory, None),
                _parameter("config", options.Config, None),
                _parameter("context", typer.Context),
            ]

        @functools.wraps(function)
        def run(context: typer.Context | None = None, **values: Any) -> None:
            from_config = None
            if context is not None and values["config"] is not None:
                values, from_config = fill(values["config"], context, values, run.__annotations__)
            _refuse_overwriting_inputs(run.__annotations__, values)
            budget = values.pop("max_memory", None)
            if groups:
                del values["config"]
            gathered = {
                name: group(**{f.name: values.pop(f.name) for f in fields(group)})
                for name, group in groups.items()
            }
            try:
                with memory_budget(budget):
                    function(**values, **gathered)
            except ReweighError as error:
                for note in from_config.notes(error) if from_config is not None else ():
                    error.add_note(note)
                raise

        # Typer keeps the ends of lines: a terminal breaks the paragraphs where it is full
        paragraphs = (inspect.getdoc(function) or "").split("\n\n")
        run.__doc__ = "\n\n".join(" ".join(text.split()) for text in paragraphs)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _refuse_overwriting_inputs(hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """UsageError if the command would write a file that it reads, or one file twice. `hints` are
    the types of its parameters; nothing has been read yet."""
    # if standard output is a file, `>> log.csv` would write into it
    outputs: list[NamedFile] = [NamedFile("standard output", Path("/dev/stdout"))]
    inputs: list[NamedFile] = []
    for name, value in values.items():
        metadata = getattr(hints.get(name), "__metadata__", ())
        paths = value if isinstance(value, list) else [value]
        named = [NamedFile(_label(name, metadata), p) for p in paths if isinstance(p, Path)]
        (outputs if options.WRITES in metadata else inputs).extend(named)
    refuse_overlap(  # a folder is written into, file by file
        [file for file in outputs if not file.path.is_dir()],
        # a missing file is not an input
        [one for file in inputs for one in _expanded(file)]
        if any(file.path.is_file() for file in outputs)
        else (),
    )


def _expanded(file: NamedFile) -> Iterator[NamedFile]:
    """The files of a directory or a pattern; the command itself reports missing ones."""
    if file.path.is_file():
        yield file
        return
    from reweigh.log.sources import expand

    with suppress(ReweighError):
        for path in expand(file.path):
            yield NamedFile(file.name, path)


def _label(name: str, metadata: tuple[Any, ...]) -> str:
    """What the user calls a parameter: --report, or LOG."""
    for info in metadata:
        if isinstance(info, typer.models.ArgumentInfo) and info.metavar:
            return str(info.metavar).rstrip("…")
        flags = [flag for flag in getattr(info, "param_decls", None) or () if flag[:2] == "--"]
        if flags:
            return str(flags[0])
    return f"--{name.replace('_', '-')}"


# --- the configuration


@dataclass(frozen=True)
class Lines:
    """The lines of a configuration, from 1, by (table, key); the table of all commands is "".

    off  keys that are written behind a #: {key: lines}
    """

    path: Path
    at: Mapping[tuple[str, str], int] = field(default_factory=dict)
    off: Mapping[str, list[int]] = field(default_factory=dict)

    def of(self, key: str, table: str = "") -> str:
        """Such as "'reweigh.toml', line 3"; without the line where it is not known."""
        line = self.at.get((table, key))
        return repr(str(self.path)) + ("" if line is None else f", line {line}")


def lines_of(path: Path, text: str) -> Lines:
    """The lines of the keys of a valid configuration. A line has a key if everything before it is
    valid TOML: something similar inside a text of several lines is not a key."""
    lines = text.splitlines()
    if len(lines) > MOST_LINES:  # every prefix is read again
        return Lines(path)
    at: dict[tuple[str, str], int] = {}
    off: dict[str, list[int]] = {}
    table = ""
    for number, line in enumerate(lines, 1):
        match = LINE.match(line)
        if match is None or not _is_toml("\n".join(lines[: number - 1])):
            continue
        if match["table"]:
            table = match["table"]
            at["", table] = number
        elif match["key"]:
            at[table, match["key"]] = number
        else:
            off.setdefault(match["off"], []).append(number)
    return Lines(path, at, off)


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


@dataclass(frozen=True)
class FromConfig:
    """What a command took from its configuration: {key: (table, value in the file, value)}."""

    lines: Lines
    values: Mapping[str, tuple[str, Any, Any]]

    def notes(self, error: Exception) -> list[str]:
        """What the configuration has to do with this error, each with its line."""
        faults = getattr(error, "faults", ())
        text = "\n".join(map(str, faults)) if faults else str(error)  # without the heading
        notes = [
            f"{self.lines.of(key, table)} sets {key} = {toml_value(raw)}"
            for key, (table, raw, value) in self.values.items()
            if _concerns(text, key, [*_texts(raw), *_texts(value)])
        ]
        rules = [fault.rule for fault in faults if fault.code == MISSING]
        roles = [role for rule in rules for role in ROLE.findall(rule)]
        return notes + [self._unnamed(role) for role in roles if role not in self.values]

    def _unnamed(self, role: str) -> str:
        path, numbers = str(self.lines.path), [str(n) for n in self.lines.off.get(role, [])]
        if not numbers:
            return f'{path!r} names no column for {role}: add {role} = "COLUMN"'
        which = "line" if len(numbers) == 1 else "one of the lines"
        return f"{path!r} leaves {role} open: remove the # before {which} {', '.join(numbers)}"


def _concerns(text: str, key: str, values: Iterable[str]) -> bool:
    """Whether a message is about this option: by its name as an option, or by its value."""
    flag = "--" + key.replace("_", "-")
    named = rf"{re.escape(flag)}(?![\w-])|'{key}'|\b{key}=|for the role {key}\b"
    return bool(re.search(named, text)) or any(repr(value) in text for value in values if value)


def _texts(value: Any) -> list[str]:
    """The texts that a message could quote."""
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, str):
        return [value, *(part.strip() for part in value.split(","))]
    return [str(value)] if isinstance(value, Path) else []


def fill(
    path: Path, context: typer.Context, values: Mapping[str, Any], hints: Mapping[str, Any]
) -> tuple[dict[str, Any], FromConfig]:
    """A command's parameters, with those that were not given taken from the file; and which.

    `hints` are the types of the command's parameters; keys of other commands are checked by name.
    """
    name, parameters = str(context.info_name), _parameters(context.command)
    known = {name: parameters}  # the first, also where hints are looked for
    group: Any = None if context.parent is None else context.parent.command
    for other in group.list_commands(context) if hasattr(group, "list_commands") else ():
        known.setdefault(other, _parameters(group.get_command(context, other)))
    groups = [
        f.name for group in (options.LogOptions, options.TargetOptions) for f in fields(group)
    ]
    shared = [
        FILES,
        "max_memory",
        *(key for key in groups if any(key in keys for keys in known.values())),
    ]
    entries, lines = read_config(path, shared, known)

    typed = {key for key, parameter in parameters.items() if _on_command_line(context, parameter)}
    sides = [*RIVALS, *((other, one) for one, other in RIVALS)]
    skipped = typed.union(*(other for one, other in sides if typed & one))
    if name == "check" and not values["diagnose"] and "target" not in entries.get(name, {}):
        skipped.add("target")  # a file for all commands names it; --diagnose alone needs it
    filled = dict(values)
    from_config: dict[str, tuple[str, Any, Any]] = {}
    every = {key: ("", value) for key, value in entries.items() if key not in known}
    every |= {key: (name, value) for key, value in entries.get(name, {}).items()}
    for key, (table, value) in every.items():
        if key in parameters and key not in skipped:
            label = f"[{table}] {key}" if table else key
            kind, line = hints[parameters[key]], lines.of(key, table)
            filled[parameters[key]] = converted(value, kind, label, path, line)
            from_config[key] = (table, value, filled[parameters[key]])
    return filled, FromConfig(lines, from_config)


def read_config(
    path: Path, shared: Sequence[str], commands: Mapping[str, Iterable[str]]
) -> tuple[dict[str, Any], Lines]:
    """The file's content; every key must be one of `shared`, or of a command in its table."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(LARGEST + 1)
    except OSError as error:
        raise ResourceError(f"cannot read the configuration {str(path)!r}: {error.strerror}") from (
            error
        )
    if len(raw) > LARGEST:
        raise UsageError(f"{str(path)!r} is larger than 1 MB, so it is not a configuration")
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
        entries = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        last = f"at the end, line {len(raw.splitlines())}"
        why = str(error).replace("at end of document", last)
        raise UsageError(f"the configuration {str(path)!r} is not valid TOML: {why}") from error
    lines = lines_of(path, text)
    wrong = []
    for key, value in entries.items():
        if key in commands and not isinstance(value, dict):
            wrong.append(f"{lines.of(key)}: {key!r} must be a table of options: [{key}]")
        elif key in commands:
            wrong += [
                f"{lines.of(inner, key)}: [{key}] has no option {inner!r}"
                f"{_near(inner, commands[key])}"
                for inner in value
                if inner not in commands[key]
            ]
        elif key not in shared:
            near = _near(key, [*shared, *commands], commands)
            wrong.append(f"{lines.of(key)}: there is no option {key!r}{near}")
    if wrong:
        raise UsageError("\n  ".join(["the configuration cannot be used:", *wrong]))
    return entries, lines


def converted(value: Any, kind: Any, key: str, path: Path, line: str) -> Any:
    """A TOML value as the type of its option; paths are seen from the file's folder. `line` names
    the file and the line."""
    kind = _plain_kind(kind)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        items = value if isinstance(value, list) else [value]
        return [converted(item, parts[0], key, path, line) for item in items]
    rules = {bool: "true or false", int: "a whole number", float: "a number", str: "one text"}
    rule = rules.get(kind, "the path of one file")
    if origin is tuple:
        if isinstance(value, list) and len(value) == len(parts):
            pairs = zip(value, parts, strict=True)
            return tuple(converted(item, part, key, path, line) for item, part in pairs)
        rule = f"a list of {len(parts)} values"
    if isinstance(value, list) and len(value) == 1 and kind in (str, Path):
        value = value[0]
    if kind is float and type(value) is int:
        return float(value)
    if kind in rules and type(value) is kind:
        return value
    if kind is Path and isinstance(value, str) and value:
        return _in_its_folder(path, value)
    raise UsageError(f"the configuration {line}: {key} must be {rule}; got {value!r}")


def _in_its_folder(config: Path, text: str) -> Path:
    """A path of the file; the file name may be a pattern, the folder's name may not."""
    beside = config.parent / text
    if beside.exists() or not glob.has_magic(text):
        return beside
    return Path(os.path.join(glob.escape(str(config.parent)), text))


def _parameters(command: Any) -> dict[str, str]:
    """The parameters of a command by their keys: the flag's name, with _ for each dash."""
    names = {}
    for parameter in command.params:
        flags = [flag for flag in parameter.opts if flag.startswith("--")]
        key = flags[0][2:].replace("-", "_") if flags else FILES
        if key not in NOT_HERE:
            names[key] = parameter.name
    return names


def _on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _plain_kind(kind: Any) -> Any:
    """A type without Annotated and without None."""
    if hasattr(kind, "__metadata__"):
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def _near(
    key: str, known: Iterable[str], commands: Mapping[str, Iterable[str]] | None = None
) -> str:
    """A hint: the command with this option, or the nearest name."""
    owners = [name for name, keys in (commands or {}).items() if key in keys]
    if owners:
        return f"; it is an option of a command: write it below [{owners[0]}]"
    return nearest(key.replace("-", "_"), known)


# --- writing


def setting_line(key: str, value: Any, comment: str = "", *, off: bool = False) -> str:
    """`key = value  # comment`; with `off` the key is commented out too."""
    setting = f"{'# ' if off else ''}{key} = {toml_value(value)}"
    return f"{setting}  {comment_line(comment)}" if comment.strip() else setting


def comment_line(text: str) -> str:
    return f"# {' '.join(printable(text).split())}"


def toml_value(value: Any) -> str:
    if isinstance(value, str):
        # A JSON text is a TOML text but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)
