"""reweigh evaluate: what would the target have earned?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli.inputs import read_given
from reweigh.cli.options import LogOptions, TargetOptions, with_options
from reweigh.cli.words import printable
from reweigh.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from reweigh.estimators.recipe import Recipe
    from reweigh.results import Estimate


@with_options(target=TargetOptions, log=LogOptions)
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="LOG…", help="Files of the log, or one file of moments."),
    ],
    log: LogOptions,
    target: TargetOptions,
    estimators: Annotated[
        str,
        typer.Option(
            help="Names with commas between them, or all: is, wis, trajectory-is, trajectory-wis, "
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
        bool, typer.Option("--strict", help="Take every warning for a refusal (exit 4).")
    ] = False,
    show_sql: Annotated[
        bool, typer.Option("--show-sql", help="Print the queries of the engine, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate what the target policy would have earned.

    Example: reweigh evaluate log.parquet --target policy.csv --estimators mis,wis,dm
    """
    import reweigh as rw
    from reweigh.cli.progress import at_work
    from reweigh.cli.show import (
        estimates_table,
        noted,
        print_json,
        print_table,
        remarks,
        say,
        working,
    )
    from reweigh.evidence import merged

    recipes = chosen(estimators, max_ratio)
    if cut not in ("refuse", "drop"):
        raise UsageError(f"--cut-episodes takes refuse or drop; got {cut!r}")
    with noted() as general:
        with working("reading", quiet=as_json):
            given = read_given(paths, log, target, for_logs_only=cut != "refuse")
        if show_sql:
            for request in merged(recipes).values():
                print(printable(_sql_of(given.data, given.policy, request)))
            return
        with at_work(given.data, "evaluating", quiet=as_json) as data:
            results = rw.evaluate_all(data, given.policy, recipes, truncated=cut)  # type: ignore[arg-type]
    answered = [result for result in results if isinstance(result, rw.Estimate)]
    if as_json:
        print_json(
            {
                "estimates": [result.to_dict() for result in results],
                "behavior_value": answered[0].behavior_value if answered else None,
                "log": given.about,
                "warnings": general,
                "version": rw.__version__,
            }
        )
    else:
        print_table(estimates_table(results))
        if answered:
            say(summary(answered))
        if given.behavior != "logged":
            say(f"behaviour probabilities: {given.behavior}; the errors take them for the truth")
        for line in [f"! {text}" for text in general] + (remarks(results) if answered else []):
            say(line)
    if not answered:
        raise RefusedError(
            "refused", "\n  ".join(["no estimator gave an answer", *remarks(results)])
        )
    if strict and (general or any(result.warnings for result in answered)):
        raise RefusedError("strict", "there are warnings, and --strict takes them for refusals")


def _sql_of(data: Any, policy: Any, request: Any) -> str:
    if not hasattr(data, "sql"):
        raise UsageError("--show-sql needs an engine with SQL: --engine duckdb or spark://…")
    return str(data.sql(policy, request))


def summary(estimates: Sequence[Estimate]) -> str:
    """The line that every table of estimates needs beside it."""
    from reweigh.results import number

    whole = max(estimates, key=lambda estimate: estimate.n_episodes)
    earned = "what the behaviour itself earned cannot be told"
    if whole.behavior_value is not None:
        earned = f"the behaviour itself earned {number(whole.behavior_value)} per episode"
    return f"{whole.n_episodes:,} episodes, horizon {whole.horizon}; {earned}"


def chosen(names: str, max_ratio: float | None) -> list[Recipe]:
    """Recipes from the names that the user gave."""
    import reweigh as rw

    listed = list(rw.ESTIMATORS) if names == "all" else [n.strip() for n in names.split(",")]
    recipes = [rw.estimator(name) for name in listed if name]
    if not recipes:
        raise UsageError("--estimators is empty; give names such as mis,wis")
    if max_ratio is None:
        return recipes
    return [
        recipe if recipe.name.startswith("dm") else replace(recipe, max_ratio=max_ratio)
        for recipe in recipes
    ]
