"""What the log is, and how the numbers were computed: formula, versions, hashes, command."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from reweigh.estimate.recipe import (
    Marginal,
    Model,
    Recipe,
    Stationary,
    Stepwise,
    Trajectory,
)
from reweigh.show.basis import Basis
from reweigh.show.records import Facts
from reweigh.system.number_format import number

LIBRARIES = ("numpy", "scipy", "numba", "pyarrow", "altair", "vl-convert-python")
NOTATION = (
    "Steps are t = 0, …, H − 1; γ is the discount; ρ = π(a|s)/μ(a|s) the ratio of the target’s and "
    "the log’s probability of the logged action; ρ₀…ρₜ the running product; n the episodes, nₜ(s) "
    "those in state s at step t."
)
NORMALIZED = {
    "none": "dₜ is not normalised (the estimator of the paper’s theorem)",
    "simplex": "dₜ is divided by its sum at every step (the paper’s algorithm and experiments)",
    "state": "the ratios are divided by their own sum within every state",
}


def formula_of(recipe: Recipe) -> tuple[str, str]:
    """(the formula, which variant it is)."""
    weights = recipe.weights
    if isinstance(weights, Marginal):
        text = "v̂ = Σₜ γᵗ Σₛ dₜ(s) r̂ₜ(s),  dₜ₊₁(s′) = Σₛ P̂ₜ(s′|s) dₜ(s),"
        if recipe.normalize == "state":
            text += "  P̂ₜ(s′|s) = Σ ρ 1[s→s′] / Σ ρ,  r̂ₜ(s) = Σ ρ r / Σ ρ"
        else:
            text += "  P̂ₜ(s′|s) = Σ ρ 1[s→s′] / nₜ(s),  r̂ₜ(s) = Σ ρ r / nₜ(s)"
        variant = "marginalized importance sampling; " + NORMALIZED[recipe.normalize]
        if weights.pooled:
            variant += "; the estimates of all steps are pooled"
        if recipe.reward != "logged":
            variant += f"; rewards are {recipe.reward} over rows of the same state and action"
    elif isinstance(weights, Model):
        text = (
            "v̂ = Σₜ γᵗ Σₛ dₜ(s) Σₐ π(a|s) r̄ₜ(s,a),  dₜ₊₁(s′) = Σₛ Σₐ dₜ(s) π(a|s) T̂ₜ(s′|s,a), "
            "with T̂ and r̄ from counts"
        )
        unseen = "has no mass" if weights.unseen == "zero" else "is left out, π renormalised"
        variant = f"direct method, a model per step; an action never seen {unseen}"
    elif isinstance(weights, Stationary):
        text = "the stationary distribution d^π of the pooled model against that of the log, d^μ"
        variant = f"importance sampling with stationary distributions, read as “{weights.use}”"
    elif isinstance(weights, Stepwise):
        own = "Σᵢ ρ₀…ρₜ rₜ / n" if recipe.normalize == "none" else "Σᵢ ρ₀…ρₜ rₜ / Σᵢ ρ₀…ρₜ"
        text = f"v̂ = Σₜ γᵗ {own}"
        variant = "step-wise importance sampling" + (
            "" if recipe.normalize == "none" else ", weighted: divided by the sum of the weights"
        )
    else:
        assert isinstance(weights, Trajectory)
        own = "/ n" if recipe.normalize == "none" else "/ Σᵢ ρ₀…ρ_H₋₁"
        text = f"v̂ = Σᵢ (ρ₀…ρ_H₋₁) Σₜ γᵗ rₜ {own}"
        variant = "trajectory-wise importance sampling" + (
            "" if recipe.normalize == "none" else ", weighted"
        )
    if recipe.control is not None:
        fit = "of one’s own" if recipe.control.own else f"fitted {recipe.control.q}"
        text = f"Σₛ d₀(s) V(s) + the same on y = r − Q(s,a) + γ V(s′):  {text}"
        variant += f"; with a control variate, Q {fit} (doubly robust)"
    if recipe.max_ratio is not None:
        variant += f"; ratios clipped at {recipe.max_ratio:g}"
    return text, variant


def computed(basis: Basis, command: str | None, certificate: str | None = None) -> Facts:
    """How the numbers came about, and how to get them again."""
    facts: list[tuple[str, str]] = []
    recipes = [result.recipe for result in basis.results]
    if basis.main is not None:
        main = basis.main
        text, variant = formula_of(main.recipe)
        facts += [("estimator of the answer", f"{main.estimator}: {variant}"), ("formula", text)]
        interval = basis.main_interval
        if interval is not None and main.trusted:
            facts.append(("interval", interval.method))
        facts.append(("standard error", main.error_method))
        if main.chosen is not None:
            facts.append(("why this estimator", f"auto chose {main.chosen}"))
    facts.append(("estimators asked for", ", ".join(recipe.name for recipe in recipes)))
    facts.append(("notation", NOTATION))
    facts += _hashes(basis)
    if certificate:
        facts.append(("certificate", certificate))
    return (*facts, *versions(command))


def versions(command: str | None) -> Facts:
    """What computed it, and the command to repeat it, where there was one."""
    import reweigh

    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    used = f"Python {platform.python_version()}, {libraries}"
    facts = (("reweigh", reweigh.__version__), ("with", used))
    return facts if command is None else (*facts, ("command", command))


def _hashes(basis: Basis) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if basis.sums is not None:
        about = basis.sums.about
        if about.sources:
            found.append(("hash of the log", ", ".join(about.sources)))
        found.append(("hash of the target", about.target))
    return found


def described(basis: Basis, about: Mapping[str, Any] | None) -> Facts:
    """The log in words: as it describes itself, or as far as its sums tell."""
    if basis.log is not None:
        about = basis.log.describe()
    facts = {} if about is None else dict(about)
    if basis.log is None and basis.stored is not None:
        facts |= basis.stored.describe()
    return facts_of(facts)


def facts_of(about: Mapping[str, Any]) -> Facts:
    """Plain values in words."""
    return tuple(
        (name.replace("_", " "), _range(value) if name.endswith("_range") else _plain(value))
        for name, value in about.items()
        if value != []
    )


def _range(value: Any) -> str:
    return "none" if value is None else f"{_plain(value[0])} to {_plain(value[1])}"


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, Mapping):
        return "; ".join(f"{role}: {_plain(name)}" for role, name in value.items())
    return str(value)
