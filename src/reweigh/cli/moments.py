"""reweigh moments: the sums of a log, to keep, to share and to add."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reweigh.cli.files import WRITES
from reweigh.cli.options import OR_TABLE, LogOptions, TargetOptions, with_options
from reweigh.cli.terminal import QuietFiles, Voice


@with_options(target=TargetOptions, log=LogOptions)
def moments(
    log: LogOptions,
    target: TargetOptions,
    output: Annotated[Path, typer.Option("-o", "--output", help="Parquet file to write."), WRITES],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LOG…", help="Files of the log. " + OR_TABLE),
    ] = None,
    estimators: Annotated[
        str | None, typer.Option(help="Only the sums that these estimators need.")
    ] = None,
    blocks: Annotated[
        int, typer.Option(help="Blocks of episodes, for the jackknife and for splitting.")
    ] = 1,
    max_ratio: Annotated[float | None, typer.Option(help="Clip the ratios at this number.")] = None,
    cut: Annotated[
        str,
        typer.Option("--cut-episodes", help="What to do with cut-off episodes: keep or drop."),
    ] = "keep",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
    ] = False,
    quiet: QuietFiles = False,
) -> None:
    """Write the sums of a log under a target policy: they stand for its rows, and they add up.

    Example: reweigh moments site-a.parquet --target policy.csv --horizon 50 -o a.moments.parquet
    """
    import reweigh as rw
    from reweigh.cli.evaluate import chosen
    from reweigh.cli.tables import noted
    from reweigh.errors import UsageError
    from reweigh.estimate.jackknife import LEAST_BLOCKS

    if cut not in ("keep", "drop"):
        raise UsageError(f"--cut-episodes takes keep or drop; got {cut!r}")
    voice = Voice(quiet)
    recipes = None if estimators is None else chosen(estimators, max_ratio)
    with noted() as warned, voice.working("reading"):
        log.check_source(paths)
        policy = target.read(log)
        data = log.read(paths, target.target_prob)
        if cut == "drop" and not isinstance(data, rw.EpisodeLog):
            raise UsageError("--cut-episodes drop needs the log in memory: use --engine arrays")
        dropped = data.n_truncated if cut == "drop" else 0
        if dropped:
            data = data.drop_truncated()
    with noted() as more, voice.at_work(data, "adding up") as rows:
        sums = rw.moments(rows, policy, recipes, blocks=blocks, max_ratio=max_ratio)
    warned += more
    with voice.working("writing"):
        sums.save(output, overwrite=overwrite)
    voice.say(f"{output}: {sums}")
    for text in warned:
        voice.warn(f"! {text}")
    if dropped:
        voice.warn(
            f"! {dropped:,} cut-off episodes were left out; if being cut off has to do with the "
            "outcome, estimates are biased"
        )
    if blocks < LEAST_BLOCKS:
        voice.say(
            f"with {blocks} block{'s' if blocks > 1 else ''} there will be no interval for wis and "
            "ssd-is, and an odd number leaves no halves for mdr; --blocks 20 gives both"
        )
