"""reweigh moments: the sums of a log, to keep, to share and to add; reweigh merge adds them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import reweigh as rw
from reweigh.cli import options
from reweigh.cli.command import command
from reweigh.cli.inputs import Inputs, estimators_named
from reweigh.cli.terminal import Terminal, collect_warnings
from reweigh.errors import InputError, UsageError
from reweigh.system.process import each


@command(target=options.TargetOptions, log=options.LogOptions)
def moments(
    log: options.LogOptions,
    target: options.TargetOptions,
    output: options.ParquetFile,
    paths: options.LogFiles = None,
    estimators: Annotated[
        str | None, typer.Option(help="Compute only the sums that these estimators need.")
    ] = None,
    blocks: Annotated[
        int, typer.Option(help="Blocks of episodes, for the jackknife and for cross-fitting.")
    ] = 1,
    memory: options.Memory = None,
    max_ratio: options.MaxRatio = None,
    cut: Annotated[
        str,
        typer.Option("--cut-episodes", help="What to do with cut-off episodes: keep or drop."),
    ] = "keep",
    overwrite: options.Overwrite = False,
    quiet: options.QuietFiles = False,
) -> None:
    """Write the sums of a log under a target policy: they replace its rows, and they add up.

    Example: reweigh moments site-a.parquet --target policy.csv --horizon 50 -o a.moments.parquet
    """
    from reweigh.estimate.standard_error import LEAST_BLOCKS

    options.check_choice("--cut-episodes", cut, "keep", "drop")
    terminal = Terminal(quiet)
    recipes = None
    if estimators is not None or memory is not None:
        recipes = estimators_named(estimators, max_ratio, memory, ["mis"])
    dropped = 0
    with collect_warnings() as warnings, terminal.working("reading"):
        log.check_source(paths)
        policy = target.read(log)
        data = log.read(paths, target.target_prob)
        if cut == "drop":
            log.require_rows(data, "--cut-episodes drop")
            dropped = data.n_truncated
            data = data.drop_truncated() if dropped else data
    with collect_warnings() as more, terminal.working("adding up", data) as rows:
        sums = rw.moments(rows, policy, recipes, blocks=blocks, max_ratio=max_ratio)
    with terminal.working("writing"):
        sums.save(output, overwrite=overwrite)
    terminal.say(f"{output}: {sums}")
    terminal.warn(f"! {text}" for text in (*warnings, *more))
    if dropped:
        terminal.warn(
            [
                f"! {dropped:,} cut-off episodes were left out; if the cut depends on the "
                "outcome, estimates are biased"
            ]
        )
    if blocks < LEAST_BLOCKS:
        terminal.say(
            f"with {blocks} block{'s' if blocks > 1 else ''} there will be no interval for "
            "wis and ssd-is, and mdr needs an even number of blocks, mdr-crossfit a multiple of "
            "5; --blocks 20 provides all"
        )


@command()
def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="MOMENTS…", help="Files of moments.")],
    output: options.ParquetFile,
    overwrite: options.Overwrite = False,
    quiet: options.QuietFiles = False,
    leave_out: Annotated[
        str | None,
        typer.Option(
            "--leave-out",
            metavar="ESTIMATOR",
            help="Show how much this estimator's value changes when one file is left out.",
        ),
    ] = None,
) -> None:
    """Add the moments of several logs; what does not belong together is refused.

    Example: reweigh merge a.moments.parquet b.moments.parquet -o all.moments.parquet
    """
    if len(paths) < 2:
        raise UsageError("merge needs at least two files of moments")
    terminal = Terminal(quiet)
    recipe = None if leave_out is None else rw.estimator(leave_out)
    with collect_warnings() as warnings, terminal.working("adding"):
        sites = each("reading", paths, rw.load_moments)
        total = sites[0]
        for path, site in zip(paths[1:], sites[1:], strict=True):
            try:
                total = total + site
            except InputError as error:
                raise InputError(f"{path} cannot be merged with {paths[0]}: {error}") from error
        total.save(output, overwrite=overwrite)
    terminal.say(f"{output}: {total}")
    terminal.warn(f"! {text}" for text in warnings)
    if recipe is not None:
        from reweigh.cli.details import print_sensitivity
        from reweigh.evaluation.sensitivity import of_sites

        with terminal.working("leaving files out"):
            changes = of_sites(sites, recipe, rw.evaluate_all, [path.name for path in paths])
        print_sensitivity(changes, terminal)


def read_moments(paths: list[Path], *, for_logs_only: bool, settings: bool) -> Inputs:
    """The only one of these files, for commands that take moments in place of a log.

    settings: a target or options of the log were given.
    """
    if len(paths) > 1:
        raise UsageError(
            "these are several files of moments; merge them first: reweigh merge … -o all.parquet"
        )
    if for_logs_only:
        raise UsageError(
            "moments contain sums, not episodes: --reward-range and --cut-episodes need the log"
        )
    if settings:
        raise UsageError(
            "moments include their target and the settings of their log: give no target and "
            "no log options"
        )
    sums = rw.load_moments(paths[0])
    return Inputs(sums, None, sums.about.behavior, paths[0].name)
