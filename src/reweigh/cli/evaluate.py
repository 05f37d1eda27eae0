"""reweigh evaluate: what would the target have earned?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli.inputs import read_given
from reweigh.cli.intervals import IntervalOptions, refuse_without_rows, told
from reweigh.cli.messages import printable
from reweigh.cli.options import OR_TABLE, Ledger, LogOptions, TargetOptions, with_options
from reweigh.cli.report import ReportOptions
from reweigh.cli.sensitivity import moved_entry, say_moved, sensitivities
from reweigh.cli.terminal import Json, Quiet, Voice
from reweigh.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from reweigh.estimate.recipe import Recipe
    from reweigh.evaluation.result import Estimate, Refusal


@with_options(target=TargetOptions, intervals=IntervalOptions, report=ReportOptions, log=LogOptions)
def evaluate(
    log: LogOptions,
    target: TargetOptions,
    intervals: IntervalOptions,
    report: ReportOptions,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOG…", help="Files of the log, or one file of moments. " + OR_TABLE
        ),
    ] = None,
    estimators: Annotated[
        str,
        typer.Option(
            help="Names with commas between them, all, or auto (chosen without a look at "
            "rewards): is, wis, trajectory-is, trajectory-wis, "
            "dm, dm-renorm, ssd-is, ssd-is-plugin, ssd-is-selfnorm, mis, mis-plain, mis-state, "
            "mis-pooled, dr, dr-split, dr-crossfit, wdr, wdr-split, wdr-crossfit, mdr, "
            "mdr-crossfit."
        ),
    ] = "mis",
    max_ratio: Annotated[
        float | None, typer.Option(help="Clip the ratios π/μ at this number.")
    ] = None,
    cut: Annotated[
        str,
        typer.Option(
            "--cut-episodes",
            help="What estimators that need whole episodes do with cut-off ones: refuse or drop.",
        ),
    ] = "refuse",
    strict: Annotated[
        bool, typer.Option("--strict", help="Take warnings and red verdicts for refusals (exit 4).")
    ] = False,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="How far the number moves with clipped ratios, without the heaviest episodes, "
            "with fewer steps, coarser or finer states.",
        ),
    ] = False,
    ledger: Ledger = None,
    show_sql: Annotated[
        bool, typer.Option("--show-sql", help="Print the queries of the engine, and stop.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Estimate what the target policy would have earned.

    Example: reweigh evaluate log.parquet --target policy.csv --estimators mis,wis --report out.html

    With --quiet one line per estimator is left: its name, value, interval and verdict.

    Example: reweigh evaluate --config reweigh.toml --quiet
    """
    import reweigh as rw
    from reweigh.cli.tables import (
        answer_line,
        estimates_table,
        gain_lines,
        most_episodes,
        noted,
        print_json,
        remarks,
    )
    from reweigh.decide.disagreement import disagreement
    from reweigh.decide.ledger import noted as noted_in_ledger
    from reweigh.decide.ledger import trial
    from reweigh.system.progress import each, stage

    voice = Voice(quiet, as_json)

    recipes = chosen(estimators, max_ratio, auto=True)
    if show_sql and "auto" in recipes:
        raise UsageError("--show-sql needs the estimators by name, not auto")
    intervals.check()
    report.check()
    if cut not in ("refuse", "drop"):
        raise UsageError(f"--cut-episodes takes refuse or drop; got {cut!r}")
    with noted() as general:
        with voice.working("reading"):
            rows_needed = cut != "refuse" or intervals.reward_range is not None
            given = read_given(paths, log, target, for_logs_only=rows_needed)
        if show_sql:
            print(printable(_sql_of(given.data, given.policy, recipes)))
            return
        if ledger is not None and not isinstance(given.data, rw.EpisodeLog):
            raise UsageError("--ledger knows logs in memory by their rows: use --engine arrays")
        with voice.at_work(given.data, "evaluating") as data:
            refuse_without_rows(intervals, data)
            stages = 4 if sensitivity else 3
            with stage(0, stages):
                found = _once(rw.evaluate_all(data, given.policy, recipes, truncated=cut))  # type: ignore[arg-type]
            with stage(1, stages):
                sure = told(found, intervals, data, given.policy)
                results = sure.results
                answered = [result for result in results if isinstance(result, rw.Estimate)]
            with stage(2, stages):
                each("checks", answered, lambda result: result.verdict)
            with stage(3, stages):
                moved = sensitivities(answered) if sensitivity else {}
        apart = disagreement(results)
    tried = len(results)  # one target: a pair for each
    if ledger is not None:
        trials = [trial(given.policy, result.recipe) for result in results]
        with noted() as remarked:
            tally = noted_in_ledger(ledger, given.data.episodes_digest(), trials)
        general += [*remarked, *tally.says_alone(len(trials))]
        tried = tally.tried
    report.write(results, given, sure, [*general, *([apart] if apart else [])], voice)
    if as_json:
        print_json(
            {
                "estimates": [
                    entry | moved_entry(moved, entry["estimator"]) for entry in sure.entries()
                ],
                "behavior_value": most_episodes(answered).behavior_value if answered else None,
                "log": given.about,
                "seed": sure.seed,
                "tried": tried,
                "certificate": sure.certificate_entry(),
                "disagreement": apart,
                "warnings": general,
                "report": None if report.report is None else str(report.report),
                "version": rw.__version__,
            }
        )
    else:
        voice.table(estimates_table(results, intervals=sure.intervals, heading=intervals.heading))
        for answer, interval in zip(results, sure.intervals, strict=True):
            voice.answer(answer_line(answer, interval))
        if answered:
            on_log = "" if ledger is None else f"; {tried} tried on this log"
            voice.say(summary(answered) + on_log)
        for line in gain_lines(answered):
            voice.say(line)
        for result in answered:
            if result.chosen is not None:
                voice.say(f"auto chose {result.chosen}")
        if given.behavior != "logged":
            told_of = f"behaviour probabilities: {given.behavior}"
            voice.say(f"{told_of}; the errors take them for the truth")
        noticed = [*general, *([apart] if apart else [])]
        for line in [f"! {text}" for text in noticed] + (remarks(results) if answered else []):
            voice.warn(line)
        if answered:
            sure.speak(intervals, voice)
        for changes in moved.values():
            say_moved(changes, voice)
        if isinstance(sure.certificate, rw.Certificate):
            voice.say(f"\n{sure.certificate}")
            voice.answer("certificate: " + sure.certificate.rows()[0][1])
        if report.report is not None:
            voice.say(f"report: {report.report}")
    if not answered:
        raise RefusedError(
            "refused", "\n  ".join(["no estimator gave an answer", *remarks(results)])
        )
    if strict and any(result.verdict.level == "red" for result in answered):
        raise RefusedError("red", "a verdict is red, and --strict takes it for a refusal")
    if strict and (general or apart or any(result.warnings for result in answered)):
        raise RefusedError("strict", "there are warnings, and --strict takes them for refusals")


def _once(found: list[Estimate | Refusal]) -> list[Estimate | Refusal]:
    """What auto chose may also have been named: it stands once, with auto's reason."""
    by_name: dict[str, Estimate | Refusal] = {}
    for result in found:
        if result.estimator not in by_name or getattr(result, "chosen", None) is not None:
            by_name[result.estimator] = result
    return list(by_name.values())


def _sql_of(data: Any, policy: Any, recipes: list[Any]) -> str:
    from reweigh.evaluation.evaluate import scanned_sql
    from reweigh.sums.scanned_log import ScannedLog

    if not isinstance(data, ScannedLog):
        raise UsageError("--show-sql needs an engine with SQL: --engine duckdb or spark://…")
    return scanned_sql(data, policy, recipes)


def summary(estimates: Sequence[Estimate]) -> str:
    """The line that every table of estimates needs beside it."""
    from reweigh.cli.tables import most_episodes
    from reweigh.evaluation.result import number

    whole = most_episodes(estimates)
    earned = "what the behaviour itself earned cannot be told"
    if whole.behavior_value is not None:
        earned = f"the behaviour itself earned {number(whole.behavior_value)} per episode"
    return f"{whole.n_episodes:,} episodes, horizon {whole.horizon}; {earned}"


def chosen(names: str, max_ratio: float | None, *, auto: bool = False) -> list[Any]:
    """Recipes from the names that the user gave; "auto" stays a name where it may be given."""
    import reweigh as rw
    from reweigh.estimate.recipe import Model

    listed = list(rw.ESTIMATORS) if names == "all" else [n.strip() for n in names.split(",")]
    recipes: list[Recipe | str] = [
        name if auto and name == "auto" else rw.estimator(name) for name in listed if name
    ]
    if not recipes:
        raise UsageError("--estimators is empty; give names such as mis,wis")
    if max_ratio is None:
        return recipes
    if "auto" in recipes:
        raise UsageError("--max-ratio belongs to an estimator that is named, not to auto")
    without = [r.name for r in recipes if not isinstance(r, str) and isinstance(r.weights, Model)]
    if len(without) == len(recipes):
        raise UsageError(f"--max-ratio clips ratios, and {', '.join(without)} uses none")
    return [
        recipe
        if isinstance(recipe, str) or recipe.name in without
        else replace(recipe, max_ratio=max_ratio)
        for recipe in recipes
    ]
