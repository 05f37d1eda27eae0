"""reweigh init: look at a log, propose the roles of its columns, write a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reweigh.cli.command import command
from reweigh.cli.options import WRITES, Json, QuietFiles, refuse_existing
from reweigh.cli.terminal import Terminal
from reweigh.errors import InputError, UsageError


@command()
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
    from reweigh.cli.init.description import Description
    from reweigh.cli.init.look import look_at
    from reweigh.cli.init.propose import propose
    from reweigh.cli.init.tidy import write_tidy
    from reweigh.sums.read import is_moments_file
    from reweigh.system.files import write_atomically

    refuse_existing(output, overwrite=overwrite)
    if tidy is not None and tidy.suffix != ".parquet":
        raise UsageError(f"--tidy writes Parquet: {str(tidy)!r} must end in .parquet")
    refuse_existing(tidy, overwrite=overwrite)
    if any(is_moments_file(path) for path in paths):
        raise UsageError("this is a file of moments, not a log; reweigh evaluate takes it")
    terminal = Terminal(quiet, as_json)
    with terminal.working("looking"):
        look = look_at(paths, delimiter, decimal)
        proposal = propose(look)
    if tidy is not None:
        with terminal.working("writing the copy"):
            write_tidy(look, paths, proposal.repairs, tidy, overwrite=overwrite)
    description = Description(proposal, look, paths, output, tidy)
    try:
        content = description.configuration().encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"a name is no UTF-8, which TOML needs: {str(error.object)!r}") from error
    write_atomically(output, lambda stream: stream.write(content), overwrite=overwrite)
    if as_json:
        terminal.json(description.to_dict())
    else:
        description.print(terminal)
