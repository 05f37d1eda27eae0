"""reweigh init: look at a log, propose the roles of its columns, write a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from reweigh.errors import InputError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from reweigh.cli.look import Look
    from reweigh.cli.propose import Choice, Proposal

ROLES = (
    "episode",
    "step",
    "state",
    "action",
    "reward",
    "behavior_prob",
    "target_prob",
    "next_state",
    "terminated",
    "truncated",
)
MANY = ("state", "next_state")  # roles that several columns may share


def init(
    paths: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Files of the log.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Configuration to write.")] = Path(
        "reweigh.toml"
    ),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the configuration if it exists.")
    ] = False,
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV file. (default: found out)")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Decimal sign of a CSV file. (default: found out)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing but what is missing or doubtful.")
    ] = False,
) -> None:
    """Look at a log, propose the roles of its columns, and write them down for --config.

    Example: reweigh init episodes.csv -o reweigh.toml
    """
    from reweigh.cli.look import look_at
    from reweigh.cli.propose import propose
    from reweigh.cli.show import print_json, print_table, say, working
    from reweigh.cli.toml import toml_text
    from reweigh.moments.store import is_moments_file
    from reweigh.output import write_atomically

    if output.exists() and not overwrite:
        raise UsageError(f"{str(output)!r} exists; give another name or ask to overwrite it")
    if any(is_moments_file(path) for path in paths):
        raise UsageError("this is a file of moments, not a log; reweigh evaluate takes it")
    with working("looking", quiet=as_json or quiet):
        look = look_at(paths, delimiter, decimal)
        found = propose(look)
    try:
        content = toml_text(_lines(found, look, paths, output)).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"a name is no UTF-8, which TOML needs: {str(error.object)!r}") from error

    def write(stream: BinaryIO) -> None:
        stream.write(content)

    write_atomically(output, write, overwrite=overwrite)
    if as_json:
        print_json(_told(found, look, output))
        return
    if quiet:
        for line in (*_undecided(found), *_remarks(found)):
            say(line)
        return
    say(_seen(look))
    print_table(_table(found))
    for line in ("", *_remarks(found)):
        say(line)
    say(f"Written: {output}. Look at it, then:")
    for line in _next_steps(found, output):
        say(line)


def _lines(found: Proposal, look: Look, paths: list[Path], output: Path) -> list[Any]:
    """The configuration, line by line."""
    from reweigh.cli.toml import Line

    lines = [Line(comment=f"Proposed by reweigh init from {look.first.name}."), Line()]
    lines.append(Line("log", [_from_folder(path, output) for path in paths]))
    for role in ROLES:
        choice = found.roles.get(role)
        if choice is not None:
            value = list(choice.columns) if role in MANY else choice.columns[0]
            lines.append(Line(role, value, choice.why))
        elif role in found.open:
            # every candidate can be had by removing the sign before it
            lines.append(Line(comment=f"{role}: several columns may be it; choose one"))
            lines += [Line(role, name, off=True) for name in found.open[role].columns]
    lines += [Line(key, value) for key, value in found.settings.items()]
    if look.csv.delimiter != ",":
        lines.append(Line("delimiter", look.csv.delimiter))
    if look.csv.decimal != ".":
        lines.append(Line("decimal", look.csv.decimal))
    if any("short_episodes" in text for text in found.missing):
        lines.append(
            Line("short_episodes", "terminal", "or truncated: why short episodes end", off=True)
        )
    if any("round or grid" in text for text in found.missing):
        lines.append(Line(comment="round = [10.0]  to tenths; or grid = ['60,90,120'], by edges"))
    if "target_prob" not in found.roles:
        lines.append(Line("target", "policy.csv", "state, action, prob", off=True))
    lines += [Line(comment=text) for text in (*found.missing, *found.doubts)]
    return lines


def _from_folder(path: Path, output: Path) -> str:
    """The path as seen from the folder of the configuration."""
    if path.is_absolute():
        return str(path)
    return Path(os.path.relpath(path, output.parent)).as_posix()


def _seen(look: Look) -> str:
    rows = f"{look.rows:,} rows" if look.whole else f"the first {look.rows:,} rows"
    files = "" if look.files == 1 else f" (the first of {look.files:,} files)"
    written = ""
    if look.kind == "csv" and (look.csv.delimiter, look.csv.decimal) != (",", "."):
        written = f", delimiter {look.csv.delimiter!r}, decimal sign {look.csv.decimal!r}"
    return f"{look.first.name}{files}: {rows}, {len(look.columns)} columns{written}\n"


def _table(found: Proposal) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from reweigh.cli.words import printable

    def cell(text: str) -> str:
        return escape(printable(text))

    table = Table(box=None, pad_edge=False)
    table.add_column("role", no_wrap=True)
    table.add_column("column", overflow="fold")
    table.add_column("why", overflow="fold")
    for role in ROLES:
        choice = found.roles.get(role)
        if choice is not None:
            table.add_row(role, cell(_names(choice)), cell(choice.why))
        elif role in found.open:
            several = found.open[role]
            names = _names(several)
            table.add_row(role, "?", cell(f"undecided ({several.why}): {names}; choose one"))
        elif role in ROLES[:6]:
            table.add_row(role, "-", "not found")
    return table


def _names(choice: Choice) -> str:
    return ", ".join(choice.columns)


def _remarks(found: Proposal) -> list[str]:
    """What is missing, what is doubtful, and what is not used."""
    lines = [f"! {text}" for text in found.missing]
    lines += [f"? {text}" for text in found.doubts]
    if found.unused:
        lines.append(f"not used: {', '.join(map(repr, found.unused))}")
    return [*lines, ""] if lines else []


def _undecided(found: Proposal) -> list[str]:
    return [f"? undecided: {role}: {_names(choice)}" for role, choice in found.open.items()]


def _next_steps(found: Proposal, output: Path) -> list[str]:
    config = f"--config {quote(str(output))}"
    target = "" if "target_prob" in found.roles else " --target policy.csv"
    return [f"  reweigh check {config}", f"  reweigh evaluate {config}{target}"]


def _told(found: Proposal, look: Look, output: Path) -> dict[str, Any]:
    def plain(choice: Choice) -> dict[str, Any]:
        return {"columns": list(choice.columns), "why": choice.why, "guess": choice.guess}

    return {
        "config": str(output),
        "rows": look.rows,
        "whole": look.whole,
        "roles": {role: plain(found.roles[role]) for role in ROLES if role in found.roles},
        "undecided": {role: list(found.open[role].columns) for role in ROLES if role in found.open},
        "missing": found.missing,
        "doubts": found.doubts,
        "unused": list(found.unused),
        "settings": found.settings,
    }
