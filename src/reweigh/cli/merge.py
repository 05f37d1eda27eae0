"""reweigh merge: add the sums of several logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import reweigh as rw
from reweigh.cli.command import command
from reweigh.cli.options import Overwrite, ParquetFile, QuietFiles
from reweigh.cli.terminal import Terminal, noted
from reweigh.errors import InputError, UsageError
from reweigh.system.process import each


@command()
def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="MOMENTS…", help="Files of moments.")],
    output: ParquetFile,
    overwrite: Overwrite = False,
    quiet: QuietFiles = False,
    leave_out: Annotated[
        str | None,
        typer.Option(
            "--leave-out",
            metavar="ESTIMATOR",
            help="Tell how far this estimator's number moves when one file is left out.",
        ),
    ] = None,
) -> None:
    """Add the moments of several logs; what does not belong together is refused.

    Example: reweigh merge a.moments.parquet b.moments.parquet -o all.moments.parquet
    """
    if len(paths) < 2:
        raise UsageError("merge takes two files of moments or more")
    terminal = Terminal(quiet)
    recipe = None if leave_out is None else rw.estimator(leave_out)
    with noted() as warnings, terminal.working("adding"):
        sites = each("reading", paths, rw.load_moments)
        total = sites[0]
        for path, site in zip(paths[1:], sites[1:], strict=True):
            try:
                total = total + site
            except InputError as error:
                raise InputError(f"{path} does not add to {paths[0]}: {error}") from error
        total.save(output, overwrite=overwrite)
    terminal.say(f"{output}: {total}")
    terminal.warn(f"! {text}" for text in warnings)
    if recipe is not None:
        from reweigh.cli.tables import print_sensitivity
        from reweigh.evaluation.sensitivity import of_sites

        with terminal.working("leaving files out"):
            changes = of_sites(sites, recipe, rw.evaluate_all, [path.name for path in paths])
        print_sensitivity(changes, terminal)
