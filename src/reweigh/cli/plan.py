"""reweigh plan: how many episodes would be enough?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import reweigh as rw
from reweigh.cli import options
from reweigh.cli.command import command
from reweigh.cli.inputs import estimators_named, read_inputs
from reweigh.cli.terminal import Terminal, collect_warnings, for_terminal
from reweigh.errors import ResourceError, UsageError

GOAL = "Goal of the plan"
POWER = 0.8


def _goal(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=GOAL)


@command(target=options.TargetOptions, log=options.LogOptions)
def plan(
    log: options.LogOptions,
    target: options.TargetOptions,
    paths: options.PilotOrMoments = None,
    half_width: Annotated[float | None, _goal("Half-width of the interval.")] = None,
    difference: Annotated[
        float | None, _goal("Difference between target and behavior to detect.")
    ] = None,
    power: Annotated[
        float | None, _goal("Probability of detecting the difference. (default: 0.8)")
    ] = None,
    level: Annotated[float, _goal("Level of the interval or of the test.")] = 0.95,
    estimators: Annotated[
        str, typer.Option(help="Estimators, comma-separated, as for evaluate.")
    ] = "mis,is",
    max_ratio: options.MaxRatio = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    chart: Annotated[
        list[Path] | None,
        typer.Option(help="Write the chart to this file: .svg, .png, .pdf, .html or .json."),
        options.WRITES,
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the chart if it exists.")
    ] = False,
) -> None:
    """Compute how many episodes are enough, and where more of them help most.

    Example: reweigh plan pilot.parquet --target policy.csv --half-width 0.1

    With --quiet one line per estimator is left: its name and the episodes that it needs.
    """
    from reweigh.theory.planning import as_goal

    if power is not None and difference is None:
        raise UsageError("--power needs --difference")
    goal: dict[str, Any] = {
        "half_width": half_width,
        "difference": difference,
        "power": POWER if power is None else power,
        "level": level,
    }
    # fail before the log is read, not after
    as_goal(**goal)
    charts = chart or []
    _check_charts(charts, overwrite)
    recipes = estimators_named(estimators, max_ratio)
    terminal = Terminal(quiet, as_json)
    with collect_warnings() as warnings:
        with terminal.working("reading"):
            inputs = read_inputs(paths, log, target)
        with terminal.working("planning", inputs.data) as data:
            answer = rw.theory.plan(data, inputs.policy, estimators=recipes, **goal)
    if as_json:
        plain = answer.to_dict()
        plain["warnings"] = [*warnings, *plain["warnings"]]
        terminal.json({**plain, "log": inputs.about, "version": rw.__version__})
    else:
        _print(answer, terminal)
        terminal.warn(f"! {text}" for text in warnings)
    if charts:
        from reweigh.show.charts import save_as

        drawn = answer.chart()
        for path in charts:
            save_as(drawn, path, overwrite=overwrite)
            terminal.say(f"chart: {path}")


def _print(answer: Any, terminal: Terminal) -> None:
    from reweigh.theory.plan_result import plan_text, remarks

    if not terminal.quiet:
        # put into the command line's words sentence by sentence, before it is wrapped
        print(plan_text(answer, for_terminal))
        return
    for need in answer.needs:
        episodes = "refused" if need.episodes is None else f"{need.episodes:,}"
        terminal.answer(f"{need.estimator} {episodes}")
    terminal.warn(remarks(answer))


def _check_charts(paths: list[Path], overwrite: bool) -> None:
    if overwrite and not paths:
        raise UsageError("--overwrite needs --chart")
    for path in paths:
        from reweigh.show.charts import FORMATS

        if path.suffix[1:].lower() not in FORMATS:
            listed = ", ".join(f".{known}" for known in FORMATS)
            raise UsageError(f"--chart {str(path)!r}: the file name must end in one of {listed}")
        options.refuse_existing(path, overwrite=overwrite)
        if not path.parent.is_dir():
            folder = str(path.parent)
            raise ResourceError(f"cannot write {str(path)!r}: there is no folder {folder!r}")
