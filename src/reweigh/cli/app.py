"""The command line: commands, and what their failures exit with."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from typing import Annotated, Any, NoReturn, TextIO

import typer

from reweigh.cli.check import check
from reweigh.cli.compare import compare
from reweigh.cli.demo import demo
from reweigh.cli.evaluate import evaluate
from reweigh.cli.init import init
from reweigh.cli.merge import merge
from reweigh.cli.moments import moments
from reweigh.cli.plan import plan
from reweigh.cli.reproduce import reproduce
from reweigh.cli.words import for_terminal, printable

INTERRUPTED = 130

app = typer.Typer(
    name="reweigh",
    help="Off-policy evaluation: what would another policy have earned, and how sure is that?"
    "\n\nExit codes: 0 ok, 1 a bug, 2 usage, 3 input refused, 4 the data cannot answer, "
    "5 some cells of a study failed, 6 file or resource, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (init, check, evaluate, compare, moments, merge, plan, reproduce, demo):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        from reweigh import __version__

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
    _leave(run(sys.argv[1:]))


def _leave(code: int) -> NoReturn:
    """End the process with this code, as it would end but for taking the interpreter apart: a
    reader's thread of Arrow's that lets go of its file meanwhile would abort the process."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    from reweigh.errors import ReweighError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a letter shows its code
            stream.reconfigure(errors="backslashreplace")
    real, sys.stdout = sys.stdout, _Listener(sys.stdout)
    try:
        # Without standalone mode Typer returns the code of an Exit instead of leaving.
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except ReweighError as error:
        _say(f"error: {for_terminal(_message(error))}")
        return error.exit_code
    except typer.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except _NobodyListensError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), real.fileno())
        return 0
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # a usage error
            text = error.format_message()
            if text:
                _say(f"error: {printable(text)}")
            return 2
        return _bug(error)
    finally:
        sys.stdout = real


class _NobodyListensError(Exception):
    """Standard output was closed, as by `| head`: no error."""


class _Listener:
    """Standard output whose closing is told apart from other failures to write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError as error:
            raise _NobodyListensError from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError as error:
            raise _NobodyListensError from error


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
    print(text, file=sys.stderr)
