"""The command line: commands, and what their failures exit with."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from typing import Annotated

import typer

from reweigh.cli.check import check
from reweigh.cli.demo import demo
from reweigh.cli.evaluate import evaluate
from reweigh.cli.merge import merge
from reweigh.cli.moments import moments

INTERRUPTED = 130

app = typer.Typer(
    name="reweigh",
    help="Off-policy evaluation: what would another policy have earned, and how sure is that?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (check, evaluate, moments, merge, demo):
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
    6 file or resource, 130 interrupted."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    from reweigh.errors import ReweighError

    try:
        # Without standalone mode Typer returns the code of an Exit instead of leaving.
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except ReweighError as error:
        _say(f"error: {_message(error)}")
        return error.exit_code
    except typer.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `| head` is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # a usage error
            _say(f"error: {error.format_message()}")
            return 2
        return _bug(error)


def _message(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _bug(error: Exception) -> int:
    handle, path = tempfile.mkstemp(prefix="reweigh-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        traceback.print_exception(error, file=stream)
    _say(
        f"internal error: {type(error).__name__}: {error}\n"
        f"This is a bug of reweigh. Please report it with the details in {path}"
    )
    return 1


def _say(text: str) -> None:
    # Names from the data may hold control characters; a terminal must not obey them.
    shown = "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in text)
    print(shown, file=sys.stderr)
