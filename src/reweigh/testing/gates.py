"""check_gate: does a gate meet the requirements of every gate?

    from reweigh.testing import check_gate
    check_gate(MyGate(), faulty=lambda rng: (log, target))

Every check raises AssertionError with a sentence that names the fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.action_groups import ActionGroups
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.presets import ESTIMATORS, ON_FEATURES, as_recipe, dm, mdr, mis, ssd_is, wis
from reweigh.evaluation.evaluate import evaluate_in_study, moments
from reweigh.evaluation.result import Refusal
from reweigh.evaluation.solved import solve
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.diagnostic_tables import VERSIONS
from reweigh.sums.moments import Moments
from reweigh.sums.read import read_log
from reweigh.trust.gates import Context, Gate, GateResult, Limit, all_gates
from reweigh.trust.gates.gate import ONE_STEP, ORDER
from reweigh.worlds import random_mdp

Logs = Callable[[np.random.Generator], tuple[EpisodeLog, Policy]]
TABLES = {"transitions", "model", "trajectories", "state values", *VERSIONS}
# quantities read from any of several tables
READ_FROM = {"choices": ("choices", "model", "transitions"), "state values": ("transitions",)}
ENGINES = ("arrays", "stream", "duckdb")
# each can be computed from sums too
WORLD = random_mdp(1, 4, 2, 5, reward_sd=0.3)
GROUPED = mis(action_group=ActionGroups({0: "all", 1: "all"}, WORLD.target, WORLD.behavior))
TRIED = (
    *(mis(), wis(), dm(), mdr(), mdr("in-sample"), mis(pooled=True), ssd_is()),
    *(GROUPED, mdr("features")),
)
LONGEST_TEXT = 400  # characters
EPISODES = 300


def check_gate(
    gate: Gate,
    faulty: Logs | None = None,
    *,
    clean: Logs | None = None,
    estimator: Recipe | str | None = None,
    logs: int = 6,
    seed: int = 0,
    reward_range: tuple[float, float] | None = None,
) -> None:
    """Check a gate's declaration, its results without its sums, equal results from the sums of
    every engine, and, if `faulty` makes logs with its fault, that it is amber or red more often on
    these than on clean ones.

    `estimator` is one that it concerns, else the first of the usual ones; `faulty` and `clean`
    make a log and its target from a random generator, and are evaluated with this `reward_range`.
    """
    check_declaration(gate)
    recipe = _estimator_for(gate, estimator)
    check_lacking(gate, recipe)
    check_engines(gate, recipe)
    if faulty is not None:
        check_fault(gate, recipe, faulty, clean or clean_log, logs, seed, reward_range)


def table_row(gate: Gate) -> str:
    """The gate's row in the docs' table, as Markdown."""
    limits = "; ".join(f"{kind}: {at}" if kind else str(at) for kind, at in gate.limits.items())
    of = f"with {' or '.join(sorted(gate.of))}" if gate.of else "all"
    of += f", not with {' or '.join(sorted(gate.unless))}" if gate.unless else ""
    needs = ", ".join(sorted(gate.needs)) or "–"
    notes = ["a hint"] if gate.hint else []
    notes += [gate.softened] if gate.softened else []
    cells = (gate.name, gate.question, of, limits or "–", needs, gate.fault, "; ".join(notes))
    return "| " + " | ".join(cells) + " |"


def check_declaration(gate: Gate) -> None:
    """Names, limits, tables and traits are real ones."""
    every = [make() for make in (ESTIMATORS | ON_FEATURES).values()]
    every += [mis(memory=1), GROUPED]
    for what in ("name", "question", "fault"):
        assert getattr(gate, what), f"{gate!r} declares no {what}"
    assert gate.question.endswith("?"), f"{gate.name}: the question does not end with '?'"
    others = [other for other in all_gates() if type(other) is not type(gate)]
    assert gate.name not in {other.name for other in others}, f"two gates are named {gate.name!r}"
    unknown = gate.needs - TABLES
    assert not unknown, f"{gate.name} needs tables that do not exist: {sorted(unknown)}"
    traits = frozenset({ONE_STEP}).union(*(recipe.traits for recipe in every))
    unknown = (gate.of | gate.unless) - traits
    assert not unknown, f"{gate.name} names traits that no estimator has: {sorted(unknown)}"
    unknown = frozenset(gate.limits) - {"", *(recipe.limits for recipe in every)}
    assert not unknown, f"{gate.name} has limits for no known estimator: {sorted(unknown)}"
    assert not gate.limits or "" in gate.limits, f"{gate.name} has no default limit"
    for limit in gate.limits.values():
        both = limit.amber is not None and limit.red is not None
        if both and limit.judge(limit.red or 0.0) == "green":
            raise AssertionError(f"{gate.name}: red comes before amber ({limit})")
        assert str(limit) in table_row(gate), (
            f"{gate.name}: a limit is missing from the row of the docs"
        )


def check_lacking(gate: Gate, recipe: Recipe) -> None:
    """Without its tables a gate has no value, but a reason."""
    if gate.reads != "sums" or not gate.needs:
        return
    log, target = clean_log(np.random.default_rng(0))
    none: dict[str, Any] = dict.fromkeys(
        table for need in gate.needs for table in READ_FROM.get(need, (need,))
    )
    bare = replace(moments(log, target), start_model=None, hidden=True, **none)
    result = gate.measure(Context(bare, recipe, error=1.0))
    assert result is not None, f"{gate.name} returns nothing if its sums are missing"
    check_result(gate, result)
    assert result.value is None, f"{gate.name} has a value without the sums it needs"
    assert result.level != "green", f"{gate.name} is green without the sums it needs"


def check_engines(gate: Gate, recipe: Recipe) -> None:
    """The sums of every engine give the same result."""
    answers = {}
    for engine, (sums, target) in _sums_of_engines().items():
        result = measure(gate, sums, target, recipe)
        if result is not None:
            check_result(gate, result)
        answers[engine] = result
    first = answers[ENGINES[0]]
    for engine, other in answers.items():
        fault = f"{gate.name} has another result on {engine} than on {ENGINES[0]}"
        assert (first is None) == (other is None), fault
        if first is None or other is None:
            continue
        a, b = first.to_dict(), other.to_dict()
        a.pop("per_step"), b.pop("per_step")
        x, y = a.pop("value"), b.pop("value")
        assert a == b, f"{fault}: {a} and {b}"
        close = x == y or math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12)
        assert close, f"{fault}: {x} and {y}"


def check_result(gate: Gate, result: GateResult) -> None:
    """A result's texts fit, no number is nan, and its level follows from its value and limit."""
    assert result.name == gate.name, f"{gate.name} returns a result named {result.name!r}"
    text = result.text
    assert text, f"{gate.name}: the text is empty"
    assert "\n" not in text, f"{gate.name}: the text has several lines"
    assert len(text) <= LONGEST_TEXT, f"{gate.name}: the text has {len(text)} characters"
    assert not text.endswith("."), f"{gate.name}: the text ends with a full stop: {text!r}"
    json.dumps(result.to_dict(), allow_nan=False)
    if result.level in ("green", "unknown"):
        assert not result.advice, f"{gate.name} gives advice at the level {result.level}"
    if result.level == "unknown":
        assert result.value is None, f"{gate.name} is unknown but has a value"
    if result.value is None or not result.limit:
        return
    judged = _limit_in(result.limit).judge(result.value)
    softer = bool(gate.softened) and ORDER.index(result.level) < ORDER.index(judged)
    assert result.level == judged or softer, (
        f"{gate.name} is {result.level} at {result.value}, which is {judged} by {result.limit}"
    )


def check_fault(
    gate: Gate,
    recipe: Recipe,
    faulty: Logs,
    clean: Logs,
    logs: int = 6,
    seed: int = 0,
    reward_range: tuple[float, float] | None = None,
) -> None:
    """On logs with its fault it is amber or red more often than on clean ones, red counting more;
    if the levels are equal, its values are further beyond its limit."""
    alarms, values = {}, {}
    for kind, make in (("clean", clean), ("faulty", faulty)):
        streams = np.random.default_rng(seed).spawn(logs)
        results = [
            r for r in (_worst(gate, *make(rng), recipe, reward_range) for rng in streams) if r
        ]
        for result in results:
            check_result(gate, result)
        alarms[kind] = sum(max(ORDER.index(result.level) - 1, 0) for result in results)
        values[kind] = [result.value for result in results if result.value is not None]
    quiet, loud = alarms["clean"], alarms["faulty"]
    noticed = loud > quiet
    if loud == quiet > 0 and gate.limits:
        above = np.mean(values["faulty"]) > np.mean(values["clean"])
        noticed = bool(above == gate.limit().above)
    assert noticed, (
        f"{gate.name} does not detect {gate.fault}: over {logs} logs each, counting 1 for "
        f"amber and 2 for red, {loud} with the fault and {quiet} without"
    )


def measure(
    gate: Gate,
    data: EpisodeLog | Moments,
    target: Policy | None,
    recipe: Recipe,
    reward_range: tuple[float, float] | None = None,
) -> GateResult | None:
    """The gate's result for one estimate, whether or not it is among the gates of a verdict. A
    value that the gate refuses is red."""
    [estimate] = evaluate_in_study(data, target, [recipe], reward_range)
    if isinstance(estimate, Refusal):
        return None
    context, of = estimate.context(), estimate.uncertainty
    if gate.reads == "solution":
        solved = solve(of.data, recipe, of.dropped)
        context = Context(
            solved.used,
            recipe,
            solved.solution,
            data=data,
            error=estimate.standard_error,
            within_rewards=True,
        )
    try:
        with np.errstate(all="ignore"):
            return gate.measure(context)
    except RefusedError as error:
        return gate.result("red", None, str(error).rstrip("."))


def clean_log(rng: np.random.Generator) -> tuple[EpisodeLog, Policy]:
    """A log without any fault."""
    return WORLD.simulate(EPISODES, rng), WORLD.target


def _worst(
    gate: Gate,
    log: EpisodeLog,
    target: Policy,
    recipe: Recipe,
    reward_range: tuple[float, float] | None,
) -> GateResult | None:
    """The worse of its results from rows and from sums: some gates apply to only one of them."""
    of_rows = measure(gate, log, target, recipe, reward_range)
    of_sums = measure(gate, moments(log, target), None, recipe, reward_range)
    results = [r for r in (of_rows, of_sums) if r is not None]
    return max(results, key=lambda result: ORDER.index(result.level), default=None)


def _estimator_for(gate: Gate, estimator: Recipe | str | None) -> Recipe:
    tried = TRIED if estimator is None else (as_recipe(estimator),)
    names = ", ".join(recipe.name for recipe in tried)
    concerned = [recipe for recipe in tried if gate.concerns(recipe.traits)]
    assert concerned, f"{gate.name} does not apply to {names}"
    return concerned[0]


def _limit_in(text: str) -> Limit:
    """The limit that a result prints."""
    at = {name: float(value) for name, value in re.findall(r"(amber|red) [<>] (\S+?)(?:,|$)", text)}
    return Limit(at.get("amber"), at.get("red"), above=">" in text)


@cache
def _sums_of_engines() -> dict[str, tuple[Moments, Policy]]:
    log, target = clean_log(np.random.default_rng(0))
    table = log.to_table()
    return {engine: (moments(read_log(table, engine=engine), target), target) for engine in ENGINES}
