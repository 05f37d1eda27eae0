"""The files that a command reads and writes, by its parameters: no output is an input."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from reweigh.errors import ReweighError
from reweigh.system.output import NamedFile, refuse_overlap

# Marks a parameter (in its Annotated type) whose file or folder the command writes. Every other
# path of a command is one that it reads.
WRITES = "writes"


def refuse_own_inputs(hints: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """UsageError if the command would write a file that it reads, or one file twice. `hints` are
    the types of its parameters, `given` their values; nothing has been read yet."""
    # where standard output goes to a file, `>> log.csv` would write into it
    outputs: list[NamedFile] = [NamedFile("standard output", Path("/dev/stdout"))]
    inputs: list[NamedFile] = []
    for name, value in given.items():
        paths = value if isinstance(value, list) else [value]
        named = [NamedFile(_label(name, hints), path) for path in paths if isinstance(path, Path)]
        (outputs if WRITES in _metadata(name, hints) else inputs).extend(named)
    refuse_overlap(  # a folder is written into, file by file
        [file for file in outputs if not file.path.is_dir()],
        # what does not exist yet is no input
        [found for file in inputs for found in _expanded(file)]
        if any(file.path.is_file() for file in outputs)
        else (),
    )


def apart(command: Callable[..., None]) -> Callable[..., None]:
    """A command that refuses to write what it reads (`with_options` makes its commands do so)."""
    hints = typing.get_type_hints(command, include_extras=True)

    @functools.wraps(command)
    def run(**given: Any) -> None:
        refuse_own_inputs(hints, given)
        command(**given)

    return run


def _expanded(file: NamedFile) -> Iterator[NamedFile]:
    """The files of a directory or a pattern; of what cannot be found the command itself tells."""
    if file.path.is_file():
        yield file
        return
    from reweigh.log.sources import expand

    with suppress(ReweighError):
        for path in expand(file.path):
            yield NamedFile(file.name, path)


def _metadata(name: str, hints: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(getattr(hints.get(name), "__metadata__", ()))


def _label(name: str, hints: Mapping[str, Any]) -> str:
    """What the user calls a parameter: --report, or LOG."""
    for info in _metadata(name, hints):
        metavar = getattr(info, "metavar", None)
        if type(info).__name__ == "ArgumentInfo" and metavar:
            return str(metavar).rstrip("…")
        flags = [flag for flag in getattr(info, "param_decls", None) or () if flag[:2] == "--"]
        if flags:
            return str(flags[0])
    return f"--{name.replace('_', '-')}"
