"""The command line: commands, and what their failures exit with."""

from __future__ import annotations

import atexit
import errno
import importlib
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from reweigh import __version__
from reweigh.cli import interrupts, progress
from reweigh.cli.interrupts import INTERRUPTED
from reweigh.cli.terminal import for_terminal, printable
from reweigh.errors import ResourceError, ReweighError
from reweigh.system import process

# Each is a function in the module (or package) of its name.
COMMANDS = (
    "init", "check", "evaluate", "compare", "moments", "merge", "plan", "reproduce", "demo",
)  # fmt: skip


def function_of(command: str) -> Callable[..., None]:
    """What a command runs."""
    function: Callable[..., None] = getattr(
        importlib.import_module(f"reweigh.cli.{command}"), command
    )
    return function


class Commands(TyperGroup):
    """A command's module is imported when the command is called, or described."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            alone = typer.Typer(add_completion=False)
            alone.command(cmd_name)(interrupts.let_through(function_of(cmd_name)))
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)


app = typer.Typer(
    name="reweigh",
    cls=Commands,
    help="Off-policy evaluation: what would another policy have earned, and how sure is that?"
    "\n\nExit codes: 0 ok, 1 a bug, 2 usage, 3 input refused, 4 the data cannot answer, "
    "5 some cells of a study failed, 6 file or resource, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reweigh {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command. Exit codes: 0 ok, 1 bug, 2 usage, 3 input refused, 4 statistically refused,
    5 partial, 6 file or resource, 130 interrupted."""
    _open_closed_streams()
    interrupts.listen(_say)
    _leave(run(sys.argv[1:]))


def _open_closed_streams() -> None:
    """A standard stream that was closed (`>&-`) leads nowhere: otherwise the next file that is
    opened would get its number, and what is printed would land in that file."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _leave(code: int) -> NoReturn:
    """End the process with this code, as it would end but for taking the interpreter apart: a
    reader's thread of Arrow's that lets go of its file meanwhile would abort the process."""
    with suppress(KeyboardInterrupt):
        if code != INTERRUPTED:  # threads may have long to go
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a letter shows its code
            stream.reconfigure(errors="backslashreplace")
    real = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(real[0], "output"), _Stream(real[1], "error")
    interrupts.forget()
    try:
        # Without standalone mode Typer returns the code of an Exit instead of leaving.
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # before the command began
            _say(interrupts.interrupted_text())
        return int(code or 0)
    except _ReaderLeftError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), error.number)
        return 0
    except (typer.Abort, KeyboardInterrupt, interrupts.Interrupted):
        _say(interrupts.interrupted_text())
        return INTERRUPTED
    except Exception as error:
        return _failed(error)
    finally:
        sys.stdout, sys.stderr = real


def _failed(error: Exception) -> int:
    """Say what went wrong; the exit code that stands for it."""
    if isinstance(error, ReweighError):
        _say(f"error: {for_terminal(_message(error))}")
        return error.exit_code
    if interrupts.heard():
        _say(interrupts.interrupted_text())
        return INTERRUPTED
    if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # a usage error
        text = error.format_message()
        if text:
            _say(f"error: {printable(text)}")
        return 2
    if process.is_shortage(error):
        _say(f"error: {for_terminal(_shortage(error))}")
        return ResourceError.exit_code
    return _bug(error)


class _ReaderLeftError(Exception):
    """A standard stream was closed by its reader, as by `| head`: no error."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Stream:
    """A standard stream that distinguishes a reader who left from other failures to write."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._failures():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._failures():
            self._stream.flush()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            raise _ReaderLeftError(self._stream.fileno()) from error
        except OSError as error:
            raise ResourceError(
                error.errno or errno.EIO,
                f"cannot write to the standard {self._name}: {error.strerror or error}",
            ) from error


def _shortage(error: Exception) -> str:
    """What was to be held when memory ran out, and how much there may be."""
    notes = getattr(error, "__notes__", [])
    while_doing = f" {notes[0]}" if notes else f" while {progress.doing()}" * bool(progress.doing())
    lines = str(error).splitlines()
    wanted = f": {lines[0]}" if lines else ""
    most = process.limit()
    there = "" if most is None else f"; the limit of this process is {process.in_words(most)}"
    return (
        f"out of memory{while_doing}{wanted}{there}. Raise the limit, or read the log with "
        "engine='stream' or engine='duckdb'"
    )


def _message(error: Exception) -> str:
    """What went wrong, and what else there is to say of it."""
    text = str(getattr(error, "strerror", None) or error)
    return "\n  ".join([text, *getattr(error, "__notes__", [])])


def _bug(error: Exception) -> int:
    handle, path = tempfile.mkstemp(prefix="reweigh-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        traceback.print_exception(error, file=stream)
    _say(
        f"internal error: {type(error).__name__}: {printable(str(error))}\n"
        f"This is a bug of reweigh. Please report it with the details in {path}"
    )
    return 1


def _say(text: str) -> None:
    # there is no stream left to report this on; the exit code does
    with suppress(OSError, ValueError, _ReaderLeftError):
        print(text, file=sys.stderr)
