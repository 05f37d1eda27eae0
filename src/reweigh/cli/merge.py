"""reweigh merge: add the sums of several logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reweigh.cli.files import WRITES, apart
from reweigh.cli.terminal import QuietFiles, Voice


@apart
def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="MOMENTS…", help="Files of moments.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Parquet file to write."), WRITES],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
    ] = False,
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
    import reweigh as rw
    from reweigh.cli.sensitivity import say_moved
    from reweigh.cli.tables import noted
    from reweigh.evaluation.sensitivity import of_sites
    from reweigh.system.progress import each

    if len(paths) < 2:
        raise rw.UsageError("merge takes two files of moments or more")
    voice = Voice(quiet)
    recipe = None if leave_out is None else rw.estimator(leave_out)
    with noted() as remarked, voice.working("adding"):
        sites = each("reading", paths, rw.load_moments)
        total = sites[0]
        for path, site in zip(paths[1:], sites[1:], strict=True):
            try:
                total = total + site
            except rw.InputError as error:
                raise rw.InputError(f"{path} does not add to {paths[0]}: {error}") from error
        total.save(output, overwrite=overwrite)
    voice.say(f"{output}: {total}")
    for text in remarked:
        voice.warn(f"! {text}")
    if recipe is not None:
        with voice.working("leaving files out"):
            moved = of_sites(sites, recipe, rw.evaluate_all, [path.name for path in paths])
        say_moved(moved, voice)
