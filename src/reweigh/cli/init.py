"""reweigh init: look at a log, propose the roles of its columns, write a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from reweigh.cli.files import WRITES, apart
from reweigh.cli.terminal import Json, QuietFiles, Voice
from reweigh.errors import InputError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from reweigh.cli.first_look import Look
    from reweigh.cli.proposal import Choice, Proposal

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


@apart
def init(
    paths: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Files of the log.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Configuration to write."), WRITES
    ] = Path("reweigh.toml"),
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the configuration (and the copy) if it exists."),
    ] = False,
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV file. (default: found out)")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Decimal sign of a CSV file. (default: found out)")
    ] = None,
    tidy: Annotated[
        Path | None,
        typer.Option(
            help="Write a copy of the log as Parquet in which steps count from 0, percentages are "
            "shares, and yes and no are true and false; the configuration is for the copy."
        ),
        WRITES,
    ] = None,
    as_json: Json = False,
    quiet: QuietFiles = False,
) -> None:
    """Look at a log, propose the roles of its columns, and write them down for --config.

    Example: reweigh init episodes.csv -o reweigh.toml

    Example: reweigh init export.csv --tidy log.parquet
    """
    from reweigh.cli.first_look import look_at
    from reweigh.cli.propose import propose
    from reweigh.cli.tables import print_json
    from reweigh.cli.tidy import write_tidy
    from reweigh.cli.toml import toml_text
    from reweigh.sums.store import is_moments_file
    from reweigh.system.output import write_atomically

    if output.exists() and not overwrite:
        raise UsageError(f"{str(output)!r} exists; give another name or ask to overwrite it")
    if tidy is not None and tidy.suffix != ".parquet":
        raise UsageError(f"--tidy writes Parquet: {str(tidy)!r} must end in .parquet")
    if tidy is not None and tidy.exists() and not overwrite:
        raise UsageError(f"{str(tidy)!r} exists; give another name or ask to overwrite it")
    if any(is_moments_file(path) for path in paths):
        raise UsageError("this is a file of moments, not a log; reweigh evaluate takes it")
    voice = Voice(quiet, as_json)
    with voice.working("looking"):
        look = look_at(paths, delimiter, decimal)
        found = propose(look)
    if tidy is not None:
        with voice.working("writing the copy"):
            write_tidy(look, paths, found.repairs, tidy, overwrite=overwrite)
    try:
        content = toml_text(_lines(found, look, paths, output, tidy)).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"a name is no UTF-8, which TOML needs: {str(error.object)!r}") from error

    def write(stream: BinaryIO) -> None:
        stream.write(content)

    write_atomically(output, write, overwrite=overwrite)
    if as_json:
        print_json(_told(found, look, output) | {"tidy": None if tidy is None else str(tidy)})
        return
    voice.say(_seen(look))
    voice.table(_table(found))
    voice.say("")
    for line in (*(_undecided(found) if quiet else ()), *_remarks(found)):
        voice.warn(line)
    for repair in found.repairs if tidy is None else ():
        voice.warn(f"! {repair.wrong}")
    if found.repairs:
        mended = f"Put right in {tidy}: {_mended(found)}"
        voice.say(f"A copy that is right: {_again(paths)}" if tidy is None else mended)
    if found.unused:
        voice.say(f"not used: {', '.join(map(repr, found.unused))}")
    if found.unused or found.repairs or _remarks(found):
        voice.say("")
    voice.say(f"Written: {output}. Look at it, then:")
    for line in _next_steps(found, output):
        voice.say(line)


def _again(paths: list[Path]) -> str:
    """The command that writes a copy which is right."""
    files = " ".join(quote(str(path)) for path in paths)
    return f"reweigh init {files} --tidy log.parquet --overwrite"


def _mended(found: Proposal) -> str:
    return ", ".join(repr(repair.column) for repair in found.repairs)


def _lines(
    found: Proposal, look: Look, paths: list[Path], output: Path, tidy: Path | None
) -> list[Any]:
    """The configuration, line by line."""
    from reweigh.cli.toml import Line

    lines = [Line(comment=f"Proposed by reweigh init from {look.first.name}."), Line()]
    files = paths if tidy is None else [tidy]
    lines.append(Line("log", [_from_folder(path, output) for path in files]))
    for role in ROLES:
        choice = found.roles.get(role)
        if choice is not None:
            value = list(choice.columns) if role in MANY else choice.columns[0]
            lines.append(Line(role, value, choice.why))
        elif role in found.open:
            # every candidate can be had by removing the sign before it
            several = ", or list several" if role in MANY else ""
            lines.append(Line(comment=f"{role}: several columns may be it; choose one{several}"))
            lines += [Line(role, name, off=True) for name in found.open[role].columns]
            if role in MANY:
                lines.append(Line(role, list(found.open[role].columns), off=True))
    lines += [Line(key, value) for key, value in found.settings.items()]
    if look.csv.delimiter != "," and tidy is None:
        lines.append(Line("delimiter", look.csv.delimiter))
    if look.csv.decimal != "." and tidy is None:
        lines.append(Line("decimal", look.csv.decimal))
    if any("short_episodes" in text for text in found.missing):
        lines.append(
            Line("short_episodes", "terminal", "or truncated: why short episodes end", off=True)
        )
    if any("round or grid" in text for text in found.missing):
        lines.append(Line(comment="round = [10.0]  to tenths; or grid = ['60,90,120'], by edges"))
    if "target_prob" not in found.roles:
        lines.append(Line("target", "policy.csv", "state, action, prob", off=True))
    wrong = [repair.wrong for repair in found.repairs] if tidy is None else []
    if wrong:
        wrong.append(f"a copy that is right: {_again(paths)}")
    lines += [Line(comment=text) for text in (*wrong, *found.missing, *found.doubts)]
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

    from reweigh.cli.messages import printable

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
            table.add_row(role, "?", cell(f"undecided ({several.why}): {names}{_choose(role)}"))
        elif role in ROLES[:6]:
            table.add_row(role, "-", "not found")
    return table


def _choose(role: str) -> str:
    return "; choose one, or several" if role in MANY else "; choose one"


def _names(choice: Choice) -> str:
    return ", ".join(choice.columns)


def _remarks(found: Proposal) -> list[str]:
    """What is missing, and what is doubtful."""
    return [*(f"! {text}" for text in found.missing), *(f"? {text}" for text in found.doubts)]


def _undecided(found: Proposal) -> list[str]:
    return [f"? undecided: {role}: {_names(choice)}" for role, choice in found.open.items()]


def _next_steps(found: Proposal, output: Path) -> list[str]:
    config = f"--config {quote(str(output))}"
    if "target_prob" in found.roles:
        return [f"  reweigh check {config}", f"  reweigh evaluate {config} --report report.html"]
    return [
        f"  reweigh check {config} --write-policy policy.csv   (then change its shares)",
        f"  reweigh evaluate {config} --target policy.csv --report report.html",
    ]


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
        "repairs": {repair.column: repair.wrong for repair in found.repairs},
    }
