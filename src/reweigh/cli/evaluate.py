"""reweigh evaluate: what would the target have earned?"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli.options import LogOptions, TargetOptions, with_options
from reweigh.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from reweigh.estimators.recipe import Recipe


@with_options(target=TargetOptions, log=LogOptions)
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="LOG…", help="Files of the log, or one file of moments."),
    ],
    log: LogOptions,
    target: TargetOptions,
    estimators: Annotated[
        str, typer.Option(help="Names with commas between them, or all.")
    ] = "mis",
    max_ratio: Annotated[
        float | None, typer.Option(help="Clip the ratios π/μ at this number.")
    ] = None,
    cut: Annotated[
        str,
        typer.Option(
            "--cut-episodes",
            help="What IS, WIS, DR and WDR do with cut-off episodes: refuse or drop.",
        ),
    ] = "refuse",
    strict: Annotated[
        bool, typer.Option(help="Take every warning for a refusal (exit 4).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate what the target policy would have earned.

    Example: reweigh evaluate log.parquet --target policy.csv --estimators mis,wis,dm
    """
    import reweigh as rw
    from reweigh.cli.show import (
        escape_lines,
        estimates_table,
        print_json,
        print_table,
        remarks,
        working,
    )
    from reweigh.moments.store import is_moments_file

    recipes = chosen(estimators, max_ratio)
    if cut not in ("refuse", "drop"):
        raise UsageError(f"--cut-episodes takes refuse or drop; got {cut!r}")
    data: Any
    policy: Any = None
    with warnings.catch_warnings(record=True) as caught, working("evaluating", quiet=as_json):
        warnings.simplefilter("always", rw.ReweighWarning)
        if len(paths) == 1 and is_moments_file(paths[0]):
            if target != TargetOptions() or log != LogOptions():
                raise UsageError(
                    "moments already know their target and their log: give no target and no "
                    "options of the log with them"
                )
            data = rw.load_moments(paths[0])
            about = {"moments": paths[0].name, "episodes": data.n_episodes}
        else:
            policy = target.read(log)
            data = log.read(paths, target.target_prob)
            about = data.describe()
        results = rw.evaluate_all(data, policy, recipes, truncated=cut)  # type: ignore[arg-type]
    general = [str(w.message) for w in caught if issubclass(w.category, rw.ReweighWarning)]
    answered = [result for result in results if isinstance(result, rw.Estimate)]
    if as_json:
        print_json(
            {
                "estimates": [result.to_dict() for result in results],
                "behavior_value": answered[0].behavior_value if answered else None,
                "log": about,
                "warnings": general,
                "version": rw.__version__,
            }
        )
    else:
        print_table(estimates_table(results))
        lines = [f"! {text}" for text in general] + remarks(results)
        if answered:
            lines.insert(0, summary(answered[0]))
        print(escape_lines(lines))
    if not answered:
        first = results[0]
        assert isinstance(first, rw.Refusal)
        raise RefusedError(first.error.code, f"no estimator gave an answer; {first.error}")
    if strict and (general or any(result.warnings for result in answered)):
        raise RefusedError("strict", "there are warnings, and --strict takes them for refusals")


def summary(estimate: Any) -> str:
    """The line that every table of estimates needs beside it."""
    from reweigh.results import number

    return (
        f"{estimate.n_episodes:,} episodes, horizon {estimate.horizon}; the behaviour itself "
        f"earned {number(estimate.behavior_value)} per episode"
    )


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
