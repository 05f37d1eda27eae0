"""docs/benchmarks-peers.md: what was measured, in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

# What the registry has under such names, and why it is not here.
LEFT_OUT = {
    "coba": "turns logged rewards into simulated ones for its own experiments; no value of a "
    "stochastic policy",
    "d3rlpy": "fitted Q evaluation with neural networks: another estimator",
    "vowpalwabbit": "its estimators are the package vw-estimators",
    "banditml, recogym, striatum": "bandit models and simulators without estimators",
    "dice-rl": "the package of this name holds one function that prints a greeting",
    "pyope, opes, ope, cobs": "other things: encryption, portfolios, genomes, an index",
    "ope-tools, deep-ope, opelab": "not in the registry",
}
TARGETS = (  # (rows, peer's task, at least)
    (1_000_000, "is", 7.0),
    (10_000_000, "is", 6.0),
    (1_000_000, "is, unchecked", 2.5),
    (10_000_000, "is, unchecked", 2.0),
)
FORMS = {  # what of ours is compared
    "mis, value alone": "value of `mis`, target as a column",
    "mis, value alone, target as a table": "value of `mis`, target as a table",
    "mis": "value, error and diagnosis, target as a column",
    "mis, target as a table": "value, error and diagnosis, target as a table",
}
OFF = 4.0  # standard errors from the truth


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    heads = list(head)
    rule = ["---:" if name.startswith(">") else "---" for name in heads]
    lines = [[name.removeprefix(">") for name in heads], rule, *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def against_targets(found: dict[str, Any]) -> list[list[str]]:
    """(what, target, found, met) for the four targets, with the target policy in both forms, of our
    value alone, which is what the peer's call gives, and of the whole answer."""
    timings = found["peers"].get("scope_rl", {}).get("timings", [])
    rows = []
    for size, task, least in TARGETS:
        for timing in timings:
            if (timing["rows"], timing["estimator"]) != (size, task):
                continue
            how = "public call" if task == "is" else "checks bypassed"
            for form, words in FORMS.items():
                ratio = timing["ratios"][form]
                met = "yes" if ratio >= least else "**no**"
                what = f"SCOPE-RL's per-decision IS, {how} / {words}, {size:,} rows"
                rows.append([what, f"{least:g}", f"{ratio:.2f}", met])
    return rows


def timing_rows(found: dict[str, Any]) -> Iterable[list[str]]:
    for about in found["peers"].values():
        for timing in about.get("timings", ()):
            ratios = timing["ratios"]
            own = timing["estimator"].split(",")[0]
            difference = f"{timing['difference']:.0e}" if timing["difference"] else "0"
            yield [
                f"{about['name']} {about['version']}",
                timing["estimator"],
                f"{timing['rows']:,}",
                f"{'yes' if timing['same'] else '**no**'}, {difference}",
                f"{ratios[own]:.3g}",
                f"{ratios['mis']:.3g}",
            ]


def outcome_rows(found: dict[str, Any], key: str) -> Iterable[list[str]]:
    """Ours first; how far off in the standard errors of our estimator of the same name."""
    truth = found["cases"][key]["truth"]
    ours = {outcome["estimator"]: outcome for outcome in found["ours"][key]}
    sources = [("**reweigh**", found["ours"][key])]
    sources += [
        (about["name"], about["cases"][key])
        for about in found["peers"].values()
        if about.get("cases")
    ]
    for name, outcomes in sources:
        for outcome in outcomes:
            twin = ours.get(outcome["estimator"].split(",")[0], {})
            yield [name, outcome["estimator"], *off(outcome, truth, twin.get("standard_error"))]


def off(outcome: dict[str, Any], truth: float, error: float | None) -> list[str]:
    """(value, how far off, in standard errors, what was said)"""
    said = ", ".join(f"`{word}`" for word in outcome["said"]) or "nothing"
    if outcome["value"] is None:
        return ["refused", "", "", said]
    value = float(outcome["value"])
    if not math.isfinite(value):
        where = outcome["fails_from"]
        return [f"**{value}**" + (f" from H = {where} on" if where else ""), "", "", said]
    share = f"{100 * (value - truth) / truth:+.1f} %"
    if error is None or not math.isfinite(float(error)):
        return [f"{value:.4g}", share, "no error", said]
    far = abs(value - truth) / float(error)
    shown = f"{far:.1f}" if far < 1000 else "over 1000"
    return [f"{value:.4g}", share, f"**{shown}**" if far > OFF else shown, said]


def page(found: dict[str, Any]) -> str:
    machine = found["machine"]
    lines = [
        "# Beside other libraries",
        "",
        "The same logs, given to reweigh and to what else the registry has. Made by `make "
        "bench-peers`; all numbers are in [benchmarks-peers.json](benchmarks-peers.json). A shared "
        f"machine with {machine['cores']} cores, Python {machine['python']}, NumPy "
        f"{machine['numpy']}, Numba {machine['numba']}.",
        "",
        "Each peer has an environment of its own. CPU time, measured by the process that spends "
        "it; the sides take turns, and the least of the repetitions counts. reweigh's time is from "
        "a user's int64 and float64 arrays to the value with its standard error and diagnosis, "
        "every row checked; a peer's is that of its call alone, on input that is already in its "
        "form, and a model that it needs is handed to it. Ratios move by a tenth or two between "
        "runs. SCOPE-RL's call gives a value without an error: beside it stands also "
        "`rw.point_values`, which does the same, from the same arrays and with the same checks.",
        "",
        "## Against our targets",
        "",
        *table(["what", ">target, at least", ">found", "met"], against_targets(found)),
        "",
        "## The same numbers, and what they cost",
        "",
        "S = 100, A = 10; H = 100, or 1 for peers of one step. *Same number*: the estimators are "
        "the same, so their values should be; the relative difference. Then the peer's CPU time "
        "over reweigh's, for the same estimator and for `mis`.",
        "",
        *table(
            [
                "peer",
                "estimator",
                ">rows",
                "same number",
                ">/ ours, same",
                ">/ ours, `mis`",
            ],
            timing_rows(found),
        ),
        "",
        *remarks(found),
        "",
        "## Where the truth is known",
        "",
        "Values of worlds that are computed exactly. *Off* is the difference to the truth, in per "
        "cent of it and in standard errors of reweigh's estimator of the same kind, bold where "
        f"these are more than {OFF:g}. *From H on* is where the first few episodes alone stop "
        "being numbers.",
    ]
    for key, case in found["cases"].items():
        lines += [
            "",
            f"### {case['title']}",
            "",
            f"{case['text']} The truth is {case['truth']:.4f}.",
            "",
            *table(
                ["library", "estimator", ">value", ">off", ">in errors", "said"],
                outcome_rows(found, key),
            ),
            "",
            *(WHY[key]),
        ]
    return "\n".join([*lines, "", *absent(found)]) + "\n"


WHY = {
    "early": (
        "SCOPE-RL knows no ends: it asks for `step_per_trajectory` rows of every episode. It is "
        "right when its user pads the rows so that both policies agree past the end (*is*); rows "
        "that follow each other without padding are cut into pieces of H and mix episodes, as its "
        "own `obtain_steps` does. The *wis* of offline_rl_ope and of ReAgent divides by the "
        "weights of the episodes that still run, as if the others did not count, RLlib's by the "
        "mean weight of those that run, and ReAgent divides even unweighted sums by their number: "
        "these estimate something else, and more data do not help.",
    ),
    "near": (
        "Importance sampling works here, as reweigh's values show. SCOPE-RL multiplies the "
        "probabilities of each policy before it divides, and divides 0 by 0.",
    ),
    "far": (
        "Every product is dominated by one episode; reweigh keeps them as logarithms, so its "
        "weighted estimators stay numbers, and it says in a warning that they rest on one "
        "episode. Marginalized importance sampling multiplies nothing over time, and is right.",
    ),
}


def remarks(found: dict[str, Any]) -> list[str]:
    ran = [about for about in found["peers"].values() if "missing" not in about]
    return [
        f"- {about['name']} {about['version']}: "
        + "; ".join(filter(None, [about["note"], how(about)]))
        + "."
        for about in ran
    ]


def how(about: dict[str, Any]) -> str:
    return "in one process with reweigh" if about["processes"] == 1 else "in a process of its own"


def absent(found: dict[str, Any]) -> list[str]:
    missing = [about for about in found["peers"].values() if "missing" in about]
    lines = ["## Not here", ""]
    lines += [f"- {about['name']} {about['version']}: {about['missing']}." for about in missing]
    return lines + [f"- {name}: {why}." for name, why in LEFT_OUT.items()]
