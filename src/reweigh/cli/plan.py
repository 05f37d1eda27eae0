"""reweigh plan: how many episodes would be enough?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reweigh.cli.evaluate import chosen
from reweigh.cli.files import WRITES
from reweigh.cli.inputs import read_given
from reweigh.cli.options import OR_TABLE, LogOptions, TargetOptions, with_options
from reweigh.cli.terminal import Json, Quiet, Voice
from reweigh.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from reweigh.theory.plan_result import Need

GOAL = "What the episodes must be enough for"
POWER = 0.8


@with_options(target=TargetOptions, log=LogOptions)
def plan(
    log: LogOptions,
    target: TargetOptions,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOG…", help="Files of a pilot log, or one file of moments. " + OR_TABLE
        ),
    ] = None,
    half_width: Annotated[
        float | None,
        typer.Option(help="Half-width of the interval that is wanted.", rich_help_panel=GOAL),
    ] = None,
    difference: Annotated[
        float | None,
        typer.Option(
            help="Difference between target and behaviour that must be found.",
            rich_help_panel=GOAL,
        ),
    ] = None,
    power: Annotated[
        float | None,
        typer.Option(
            help="Probability of finding the difference. (default: 0.8)", rich_help_panel=GOAL
        ),
    ] = None,
    level: Annotated[
        float, typer.Option(help="Level of the interval or of the test.", rich_help_panel=GOAL)
    ] = 0.95,
    estimators: Annotated[
        str, typer.Option(help="Names with commas between them, as for evaluate.")
    ] = "mis,is",
    max_ratio: Annotated[
        float | None, typer.Option(help="Clip the ratios π/μ at this number.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    chart: Annotated[
        list[Path] | None,
        typer.Option(help="Write the chart to this file: .svg, .png, .pdf, .html or .json."),
        WRITES,
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the chart if it exists.")
    ] = False,
) -> None:
    """Tell how many episodes would be enough, and where more of them would help.

    Example: reweigh plan pilot.parquet --target policy.csv --half-width 0.1

    With --quiet one line per estimator is left: its name and the episodes that it needs.
    """
    import reweigh as rw
    from reweigh import theory
    from reweigh.cli.messages import for_terminal
    from reweigh.cli.tables import noted, print_json
    from reweigh.theory.plan_result import plan_text, remarks
    from reweigh.theory.planning import as_goal

    if power is not None and difference is None:
        raise UsageError("--power belongs to --difference")
    power = POWER if power is None else power
    charts = chart or []
    if overwrite and not charts:
        raise UsageError("--overwrite belongs to --chart")
    # what would fail after the log has been read fails at once
    as_goal(half_width, difference, power, level)
    _check_charts(charts, overwrite)
    recipes = chosen(estimators, max_ratio)
    voice = Voice(quiet, as_json)
    with noted() as general:
        with voice.working("reading"):
            given = read_given(paths, log, target)
        with voice.at_work(given.data, "planning") as data:
            found = theory.plan(
                data,
                given.policy,
                half_width=half_width,
                difference=difference,
                power=power,
                level=level,
                estimators=recipes,
            )
    if as_json:
        told = found.to_dict()
        told["warnings"] = [*general, *told["warnings"]]
        print_json({**told, "log": given.about, "version": rw.__version__})
    else:
        if quiet:
            for need in found.needs:
                voice.answer(f"{need.estimator} {_episodes(need)}")
            for line in remarks(found):
                voice.warn(line)
        else:
            # put into the command line's words sentence by sentence, before it is wrapped
            print(plan_text(found, for_terminal))
        for text in general:
            voice.warn(f"! {text}")
    if charts:
        from reweigh.show.charts import save_as

        drawn = found.chart()
        for path in charts:
            save_as(drawn, path, overwrite=overwrite)
            voice.say(f"chart: {path}")


def _episodes(need: Need) -> str:
    return "refused" if need.episodes is None else f"{need.episodes:,}"


def _check_charts(paths: list[Path], overwrite: bool) -> None:
    from reweigh.show.charts import FORMATS

    for path in paths:
        if path.suffix[1:].lower() not in FORMATS:
            listed = ", ".join(f".{known}" for known in FORMATS)
            raise UsageError(f"--chart {str(path)!r}: the file's name must end in one of {listed}")
        if path.exists() and not overwrite:
            raise UsageError(f"{str(path)!r} exists; give another name or ask to overwrite it")
        if not path.parent.is_dir():
            folder = str(path.parent)
            raise ResourceError(f"cannot write {str(path)!r}: there is no folder {folder!r}")
