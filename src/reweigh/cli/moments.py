"""reweigh moments: the sums of a log, to keep, to share and to add."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reweigh.cli.options import LogOptions, TargetOptions, with_options


@with_options(target=TargetOptions, log=LogOptions)
def moments(
    paths: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Files of the log.")],
    log: LogOptions,
    target: TargetOptions,
    output: Annotated[Path, typer.Option("-o", "--output", help="Parquet file to write.")],
    estimators: Annotated[
        str | None, typer.Option(help="Only the sums that these estimators need.")
    ] = None,
    blocks: Annotated[
        int, typer.Option(help="Blocks of episodes, for the jackknife and for splitting.")
    ] = 1,
    max_ratio: Annotated[float | None, typer.Option(help="Clip the ratios at this number.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the file if it exists.")] = False,
) -> None:
    """Write the sums of a log under a target policy: they hold no episode, and they add up.

    Example: reweigh moments site-a.parquet --target policy.csv --horizon 50 -o a.moments.parquet
    """
    import reweigh as rw
    from reweigh.cli.evaluate import chosen
    from reweigh.cli.show import working

    recipes = None if estimators is None else chosen(estimators, max_ratio)
    policy = target.read(log)
    with working("reading the log"):
        data = log.read(paths, target.target_prob)
    with working("adding up"):
        sums = rw.moments(data, policy, recipes, blocks=blocks, max_ratio=max_ratio)
    sums.save(output, overwrite=overwrite)
    print(f"{output}: {sums}")
