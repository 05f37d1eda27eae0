"""reweigh explain: why is the verdict what it is? From a result that was kept as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from reweigh.cli.command import command
from reweigh.cli.terminal import SCHEMA_VERSION, for_terminal, printable, screen_width
from reweigh.errors import InputError, ResourceError, UsageError, nearest

WIDEST = 100  # columns


@command()
def explain(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT",
            help="JSON file: what evaluate, compare or check --diagnose printed with --json.",
        ),
    ],
    of: Annotated[
        str | None,
        typer.Option(
            help="Which result to explain: an estimator, or in a comparison “target, estimator”. "
            "(default: the one that is the answer)"
        ),
    ] = None,
) -> None:
    """Explain a verdict from a saved result, without computing anything again: the answer, what
    decided, every check in plain words, and what to do.

    Example: reweigh explain result.json, after reweigh evaluate … --json > result.json
    """
    from reweigh.show.explanation import explained, main_of, results_of
    from reweigh.show.record import PER_EPISODE

    content = _read(path)
    try:
        results = results_of(content)
    except InputError as error:
        raise InputError(f"{str(path)!r}: {error}") from error
    named = {e.label: e for e in results}
    if not named:
        raise InputError(f"{str(path)!r} holds no result")
    if of is not None and of not in named:
        listed = "; ".join(named)
        raise UsageError(f"--of {of!r} is not in the file, which has: {listed}{nearest(of, named)}")
    main = main_of(results) if of is None else named[of]
    width = min(screen_width() or WIDEST, WIDEST)
    unit = content.get("unit", PER_EPISODE)
    print(for_terminal(explained(main, results, unit, width)))
    others = [f"{e.label} ({e.level or 'refused'})" for e in results if e is not main]
    if others:
        print(printable(f"\nAlso in this file: {'; '.join(others)}. Explain one with --of NAME."))


def _read(path: Path) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} is not JSON: {error}") from error
    version = content.get("schema_version", SCHEMA_VERSION) if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise InputError(
            f"{str(path)!r} was written by a newer reweigh (schema_version {version}, this one "
            f"reads up to {SCHEMA_VERSION}): update reweigh"
        )
    return content
