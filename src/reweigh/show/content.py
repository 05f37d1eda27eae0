"""Everything that a report tells, gathered from results: no drawing, no HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from reweigh.errors import RefusedError
from reweigh.evaluation.result import Estimate
from reweigh.show.answers import answer_of, policy_name, rows_of
from reweigh.show.basis import Basis, Missing
from reweigh.show.curse import weights_of
from reweigh.show.facts import computed, described, formula_of
from reweigh.show.holes import holes_of
from reweigh.show.places import heat_of, value_of, variance_of
from reweigh.show.records import (
    Answer,
    Check,
    Facts,
    Heat,
    Holes,
    Moved,
    Row,
    ValueParts,
    VarianceParts,
    Weights,
)
from reweigh.system.progress import stage

MOST_ROWS_MOVED = 1_000_000  # beyond, the evaluations of the sensitivity would take minutes
Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class Content:
    """A report's parts; a part that was not computed is Missing, with the reason.

    behavior, truth  the log's own value, and the true one where a simulation knows it
    checks           of the answer's estimate; `matrix` tells the level of every gate by estimator
    """

    title: str
    answer: Answer
    main: str | None
    n_episodes: int
    rows: tuple[Row, ...]
    behavior: float | None
    truth: float | None
    weights: Weights | Missing
    heat: Heat | Missing
    value: ValueParts | Missing
    variance: VarianceParts | Missing
    holes: Holes | Missing
    checks: tuple[Check, ...]
    matrix: tuple[tuple[str, tuple[str | None, ...]], ...]
    gate_names: tuple[str, ...]
    moved: tuple[Moved, ...] | Missing
    log: Facts
    computed: Facts
    formulas: tuple[tuple[str, str, str], ...]
    remarks: tuple[str, ...]


def gather(
    basis: Basis,
    *,
    title: str | None = None,
    truth: float | None = None,
    about: Mapping[str, Any] | None = None,
    command: str | None = None,
    remarks: Sequence[str] = (),
    certificate: str | None = None,
) -> Content:
    """All parts. `about` describes a log that is not in memory."""
    parts = 7
    with stage(0, parts):
        rows = rows_of(basis)
    with stage(1, parts):
        spread = _part(lambda: variance_of(basis))
    with stage(2, parts):
        weights = _part(lambda: weights_of(basis))
    with stage(3, parts):
        heat = _part(lambda: heat_of(basis))
    with stage(4, parts):
        value = _part(lambda: value_of(basis))
    with stage(5, parts):
        holes = _part(lambda: holes_of(basis))
    with stage(6, parts):
        moved = _moved(basis)
    main = None if basis.main is None else basis.main.estimator
    own = rows[0] if basis.main is not None else None
    names, matrix = _matrix(basis)
    return Content(
        title=title or f"What would {policy_name(basis)} earn?",
        answer=answer_of(basis, own, spread),
        main=main,
        n_episodes=basis.results[0].n_episodes if basis.main is None else basis.main.n_episodes,
        rows=rows,
        behavior=None if basis.main is None else basis.main.behavior_value,
        truth=truth,
        weights=weights,
        heat=heat,
        value=value,
        variance=spread,
        holes=holes,
        checks=_checks(basis.main),
        matrix=matrix,
        gate_names=names,
        moved=moved,
        log=described(basis, about),
        computed=computed(basis, command, certificate),
        formulas=tuple((r.estimator, *formula_of(r.recipe)) for r in basis.results),
        remarks=tuple(remarks),
    )


def _part(make: Callable[[], Part | Missing]) -> Part | Missing:
    """A part whose sums overflow, or that the log cannot answer, does not take the others along."""
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return make()
    except RefusedError as error:
        return Missing(error.reason)


def _checks(main: Estimate | None) -> tuple[Check, ...]:
    if main is None:
        return ()
    return tuple(
        Check(gate.name, gate.level, gate.text, gate.advice, gate.limit)
        for gate in main.verdict.gates
    )


def _matrix(
    basis: Basis,
) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str | None, ...]], ...]]:
    """The names of all gates, and for each estimator the level of each; None where a gate does
    not speak of it."""
    answered = [result for result in basis.results if isinstance(result, Estimate)]
    names = tuple(dict.fromkeys(gate.name for r in answered for gate in r.verdict.gates))
    found = []
    for result in answered:
        levels = {gate.name: gate.level for gate in result.verdict.gates}
        found.append((result.estimator, tuple(levels.get(name) for name in names)))
    return names, tuple(found)


def _moved(basis: Basis) -> tuple[Moved, ...] | Missing:
    """How far the answer moves with the choices behind it."""
    main, log = basis.main, basis.log
    if main is None:
        return Missing("there is no estimate")
    if log is None:
        return Missing("it changes the log, and there are only sums: read it with engine='arrays'")
    if log.steps.n_rows > MOST_ROWS_MOVED:
        return Missing(
            f"it evaluates the log about ten times, and {log.steps.n_rows:,} rows would take long; "
            "ask for it: estimate.sensitivity()"
        )
    try:
        found = main.sensitivity()
    except RefusedError as error:
        return Missing(error.reason)
    return tuple(Moved(c.change, c.value, c.moved, c.why) for c in found.changes)
