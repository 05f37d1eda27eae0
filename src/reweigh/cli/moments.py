"""reweigh moments: the sums of a log, to keep, to share and to add."""

from __future__ import annotations

from typing import Annotated

import typer

import reweigh as rw
from reweigh.cli.command import command
from reweigh.cli.inputs import estimators_named
from reweigh.cli.options import (
    LogFiles,
    LogOptions,
    MaxRatio,
    Overwrite,
    ParquetFile,
    QuietFiles,
    TargetOptions,
    check_choice,
)
from reweigh.cli.terminal import Terminal, noted


@command(target=TargetOptions, log=LogOptions)
def moments(
    log: LogOptions,
    target: TargetOptions,
    output: ParquetFile,
    paths: LogFiles = None,
    estimators: Annotated[
        str | None, typer.Option(help="Only the sums that these estimators need.")
    ] = None,
    blocks: Annotated[
        int, typer.Option(help="Blocks of episodes, for the jackknife and for splitting.")
    ] = 1,
    max_ratio: MaxRatio = None,
    cut: Annotated[
        str,
        typer.Option("--cut-episodes", help="What to do with cut-off episodes: keep or drop."),
    ] = "keep",
    overwrite: Overwrite = False,
    quiet: QuietFiles = False,
) -> None:
    """Write the sums of a log under a target policy: they stand for its rows, and they add up.

    Example: reweigh moments site-a.parquet --target policy.csv --horizon 50 -o a.moments.parquet
    """
    from reweigh.estimate.standard_error import LEAST_BLOCKS

    check_choice("--cut-episodes", cut, "keep", "drop")
    terminal = Terminal(quiet)
    recipes = None if estimators is None else estimators_named(estimators, max_ratio)
    dropped = 0
    with noted() as warnings, terminal.working("reading"):
        log.check_source(paths)
        policy = target.read(log)
        data = log.read(paths, target.target_prob)
        if cut == "drop":
            log.require_rows(data, "--cut-episodes drop")
            dropped = data.n_truncated
            data = data.drop_truncated() if dropped else data
    with noted() as more, terminal.at_work(data, "adding up") as rows:
        sums = rw.moments(rows, policy, recipes, blocks=blocks, max_ratio=max_ratio)
    with terminal.working("writing"):
        sums.save(output, overwrite=overwrite)
    terminal.say(f"{output}: {sums}")
    terminal.warn(f"! {text}" for text in (*warnings, *more))
    if dropped:
        terminal.warn(
            [
                f"! {dropped:,} cut-off episodes were left out; if being cut off has to do with "
                "the outcome, estimates are biased"
            ]
        )
    if blocks < LEAST_BLOCKS:
        terminal.say(
            f"with {blocks} block{'s' if blocks > 1 else ''} there will be no interval for wis and "
            "ssd-is, and an odd number leaves no halves for mdr; --blocks 20 gives both"
        )
