"""The command line: commands, what their failures exit with, and how a signal ends them."""

from __future__ import annotations

import atexit
import errno
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from reweigh import __version__
from reweigh.cli.terminal import (
    fitting,
    for_terminal,
    forget_phases,
    printable,
    screen_width,
    under_way,
    what_is_kept,
)
from reweigh.errors import ResourceError, ReweighError
from reweigh.system import process

# {command: its module}; each is a function of the command's name
COMMANDS = {
    name: {"merge": "moments", "skill": "schema"}.get(name, name)
    for name in (
        "init", "check", "evaluate", "compare", "moments", "merge", "plan", "reproduce", "demo",
        "explain", "schema", "skill",
    )
}  # fmt: skip
INTERRUPTED = 130
GRACE = 2.0  # seconds for the main thread to stop and clean up
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []  # the signal that ends the command


def function_of(command: str) -> Callable[..., None]:
    """What a command runs."""
    module = importlib.import_module(f"reweigh.cli.{COMMANDS[command]}")
    function: Callable[..., None] = getattr(module, command)
    return function


class Commands(TyperGroup):
    """A command's module is imported when the command is called, or described."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            alone = typer.Typer(add_completion=False)
            alone.command(cmd_name)(function_of(cmd_name))
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)


app = typer.Typer(
    name="reweigh",
    cls=Commands,
    help=(
        "Off-policy evaluation: what would another policy have earned, and how certain is "
        "that?\n\nExit codes: 0 ok, 1 a bug, 2 usage, 3 input refused, 4 the data cannot "
        "answer, 5 some cells of a study failed, 6 file or resource, 130 interrupted."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
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
    _end_on_signals()
    _leave(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a letter shows its code
            stream.reconfigure(errors="backslashreplace")
    real = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(real[0], "output"), _Stream(real[1], "error")
    forget_phases()
    try:
        # Without standalone mode Typer returns the code of an Exit instead of leaving, and 130
        # for a KeyboardInterrupt.
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        return _interrupted() if code == INTERRUPTED else int(code or 0)
    except _ReaderLeftError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), error.number)
        return 0
    except (typer.Abort, KeyboardInterrupt):
        return _interrupted()
    except Exception as error:
        return _failed(error)
    finally:
        sys.stdout, sys.stderr = real


def _failed(error: Exception) -> int:
    """Print the error; returns its exit code."""
    if isinstance(error, ReweighError):
        text = str(getattr(error, "strerror", None) or error)
        notes = getattr(error, "__notes__", [])
        _say("error: " + for_terminal("\n  ".join([text, *notes])))
        return error.exit_code
    if _received:  # a library may turn the interrupt into another error
        return _interrupted()
    if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # a usage error
        if error.format_message():
            _say(f"error: {printable(error.format_message())}")
        return 2
    if process.is_shortage(error):
        _say(f"error: {for_terminal(_shortage(error))}")
        return ResourceError.exit_code
    handle, path = tempfile.mkstemp(prefix="reweigh-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        traceback.print_exception(error, file=stream)
    _say(
        f"internal error: {type(error).__name__}: {printable(str(error))}\n"
        f"This is a bug of reweigh. Please report it with the details in {path}"
    )
    return 1


def _shortage(error: Exception) -> str:
    """What was to be held when memory ran out, and how much there may be."""
    notes = getattr(error, "__notes__", [])
    phase = f" {notes[0]}" if notes else under_way()
    lines = str(error).splitlines()
    needed = f": {lines[0]}" if lines else ""
    most = process.limit()
    limit = "" if most is None else f"; the limit of this process is {process.in_words(most)}"
    return (
        f"out of memory{phase}{needed}{limit}. Raise the limit, or read the log with "
        "engine='stream' or engine='duckdb'"
    )


def _say(text: str) -> None:
    # there is no stream left to report this on, only the exit code
    with suppress(OSError, ValueError, _ReaderLeftError):
        print(*fitting(text, screen_width(sys.stderr), hanging=2), sep="\n", file=sys.stderr)


# --- standard streams


def _open_closed_streams() -> None:
    """A standard stream that was closed (`>&-`) leads nowhere: otherwise the next file that is
    opened would get its number, and what is printed would land in that file."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


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


# --- the end


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


def _end_on_signals() -> None:
    """From now on SIGINT and SIGTERM raise KeyboardInterrupt in the main thread, once.

    Python handles a signal only between two of its instructions, and a compiled loop or a library
    may run for minutes. So a second thread is woken by the signal itself: where the process is
    still there after the grace time, that thread ends it. A signal that is ignored from the start
    (nohup) stays ignored.
    """

    def interrupt(number: int, frame: Any) -> None:
        if not _received:  # again and again must not disturb the cleaning up
            _received.append(number)
            raise KeyboardInterrupt

    def watch(reader: int) -> None:
        while True:
            if set(os.read(reader, 1)) & set(SIGNALS):
                time.sleep(GRACE)
                _end_now()

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    threading.Thread(target=watch, args=(reader,), name="reweigh-signals", daemon=True).start()
    print_unraisable = sys.unraisablehook

    def unraisable(what: Any) -> None:
        """Raised within a library's callback an interrupt is lost; the watching thread is not."""
        if not issubclass(what.exc_type, KeyboardInterrupt):
            print_unraisable(what)

    sys.unraisablehook = unraisable


def _end_now() -> None:
    """End this process and those that it started, from any thread, whatever they are doing."""
    for worker in multiprocessing.active_children():
        with suppress(OSError, ValueError):
            worker.kill()
    os._exit(_interrupted())


def _interrupted() -> int:
    """Print the interrupted work, and the files that exist now."""
    _say(f"Interrupted{under_way()}; {what_is_kept()}")
    return INTERRUPTED
