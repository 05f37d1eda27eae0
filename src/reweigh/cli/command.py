"""A function as a command: its groups of options, the file of --config, and no output that is an
input."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from reweigh.cli.options import WRITES, Config
from reweigh.errors import ReweighError
from reweigh.system.files import NamedFile, refuse_overlap

Function = Callable[..., None]


def command(**groups: type) -> Callable[[Function], Function]:
    """A command whose parameters of these names are groups of options.

    Typer reads signatures; this one spreads the fields of each group into the command's, and
    gathers them again when it is called. Where there are groups, what was not given comes from the
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
            parameters += [_parameter("config", Config, None), _parameter("context", typer.Context)]

        @functools.wraps(function)
        def run(context: typer.Context | None = None, **values: Any) -> None:
            taken = None
            if context is not None and values["config"] is not None:
                from reweigh.cli.config import fill

                values, taken = fill(values["config"], context, values, run.__annotations__)
            _refuse_own_inputs(run.__annotations__, values)
            if groups:
                del values["config"]
            gathered = {
                name: group(**{f.name: values.pop(f.name) for f in fields(group)})
                for name, group in groups.items()
            }
            try:
                function(**values, **gathered)
            except ReweighError as error:
                for note in taken.notes(error) if taken is not None else ():
                    error.add_note(note)
                raise

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _refuse_own_inputs(hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """UsageError if the command would write a file that it reads, or one file twice. `hints` are
    the types of its parameters; nothing has been read yet."""
    # where standard output goes to a file, `>> log.csv` would write into it
    outputs: list[NamedFile] = [NamedFile("standard output", Path("/dev/stdout"))]
    inputs: list[NamedFile] = []
    for name, value in values.items():
        metadata = getattr(hints.get(name), "__metadata__", ())
        paths = value if isinstance(value, list) else [value]
        named = [NamedFile(_label(name, metadata), p) for p in paths if isinstance(p, Path)]
        (outputs if WRITES in metadata else inputs).extend(named)
    refuse_overlap(  # a folder is written into, file by file
        [file for file in outputs if not file.path.is_dir()],
        # what does not exist yet is no input
        [one for file in inputs for one in _expanded(file)]
        if any(file.path.is_file() for file in outputs)
        else (),
    )


def _expanded(file: NamedFile) -> Iterator[NamedFile]:
    """The files of a directory or a pattern; of what cannot be found the command itself tells."""
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
