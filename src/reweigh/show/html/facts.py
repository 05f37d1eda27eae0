"""What the log is, and how the numbers were computed: formula, versions, hashes, command."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from reweigh.estimate.estimator import Recipe
from reweigh.show.html.page import Section, Table
from reweigh.show.record import Facts, Report
from reweigh.show.text import plain_value

LIBRARIES = ("numpy", "scipy", "numba", "pyarrow", "altair", "vl-convert-python")
NOTATION = (
    "Steps are t = 0, …, H − 1; γ is the discount; ρ = π(a|s)/μ(a|s) the ratio of the target’s and "
    "the log’s probability of the logged action; ρ₀…ρₜ the running product; n the episodes, nₜ(s) "
    "those in state s at step t."
)


def log_section(log: Mapping[str, Any]) -> Section:
    """The log as it describes itself."""
    facts = tuple(
        (name.replace("_", " "), _range(value) if name.endswith("_range") else plain_value(value))
        for name, value in log.items()
        if value != []
    )
    return Section("log", "The log", "What the numbers rest on.", facts=facts)


def computed_section(
    facts: Iterable[tuple[str, str]], recipes: Iterable[tuple[str, Recipe]], command: str | None
) -> Section:
    """How it was computed: these facts, the formulas, the versions, and the command to repeat it,
    where there was one."""
    import reweigh

    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    used = f"Python {platform.python_version()}, {libraries}"
    versions = [("reweigh", reweigh.__version__), ("with", used)]
    again = [] if command is None else [("command", command)]
    formulas = tuple((name, recipe.formula, recipe.description) for name, recipe in recipes)
    columns = ("estimator", "formula", "variant")
    table = Table("Estimators and their formulas", columns, formulas)
    title = "How it was computed"
    return Section("computed", title, tables=(table,), facts=(*facts, *versions, *again))


def computation(report: Report) -> Facts:
    """How the numbers of an evaluation came about."""
    facts: list[tuple[str, str]] = []
    main = report.main
    if main is not None:
        recipe = main.recipe
        facts.append(("estimator of the answer", f"{recipe.name}: {recipe.description}"))
        facts.append(("formula", recipe.formula))
        if main.around is not None:
            facts.append(("interval", main.around.method))
        facts.append(("standard error", main.error_method))
        if main.chosen is not None:
            facts.append(("why this estimator", f"auto chose {main.chosen}"))
    facts.append(("estimators asked for", ", ".join(e.estimator for e in report.results)))
    facts += [("notation", NOTATION), *report.hashes]
    if report.certificate:
        facts.append(("certificate", report.certificate))
    return tuple(facts)


def _range(value: Any) -> str:
    return "none" if value is None else f"{plain_value(value[0])} to {plain_value(value[1])}"
