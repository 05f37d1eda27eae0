"""Figures: a chart with the question it answers, the answer in words, and its data as a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.evaluation.result import NO_TRUST
from reweigh.show import draw_forest, draw_places, draw_weights
from reweigh.show.answers import span
from reweigh.show.content import Content
from reweigh.show.draw import TITLES
from reweigh.show.records import (
    Floats,
    Heat,
    Moved,
    Place,
    Row,
    ValueParts,
    VarianceParts,
    Weights,
)
from reweigh.system.number_format import number, rounded, two_digits
from reweigh.trust.gain import same

LISTED_FIELDS = 60  # of a heat map, in its table
Cells = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """Texts in rows; `numbers` are the columns that are set to the right; a `folded` table opens
    when asked to."""

    caption: str
    columns: Cells
    rows: tuple[Cells, ...]
    numbers: frozenset[int] = frozenset()
    folded: bool = True
    marks: bool = False  # cells are levels, shown as marks


@dataclass(frozen=True, eq=False)
class Figure:
    """name is that of the chart in the page; text the answer in words; `draw` makes the chart."""

    name: str
    title: str
    text: str
    table: Table
    draw: Callable[[], Any]


def _figure(name: str, text: str, table: Table, draw: Callable[[], Any]) -> Figure:
    return Figure(name, TITLES[name], text, table, draw)


def _right(columns: Cells, *left: int) -> frozenset[int]:
    return frozenset(k for k in range(len(columns)) if k not in left)


# --- estimators


def forest(content: Content) -> Figure:
    rows = [row for row in content.rows if row.value is not None]
    text = f"{content.main}, the answer: {_value(rows[0])}.{_agreement(rows)}"
    if content.behavior is not None:
        text += f" The log's own policy earned {number(content.behavior)}."
    if content.truth is not None:
        text += f" The truth, known here from the simulation, is {number(content.truth)}."
    refused = [row.estimator for row in content.rows if row.refused]
    if refused:
        text += f" Refused: {', '.join(refused)}."
    return _figure(
        "forest",
        text,
        estimates_table(content),
        lambda: draw_forest.forest(rows, content.behavior, content.truth),
    )


def _agreement(rows: list[Row]) -> str:
    """Between what values the others lie, those with a red verdict apart."""
    fine = [row.value for row in rows[1:] if row.value is not None and row.verdict != "red"]
    red = sum(row.verdict == "red" for row in rows[1:])
    text = ""
    if fine:
        low, high = number(min(fine)), number(max(fine))
        count = "The other" if len(fine) == 1 else f"The {len(fine)} others"
        where = f"at {low}" if low == high else f"between {low} and {high}"
        text = f" {count} without a red verdict {'is' if len(fine) == 1 else 'lie'} {where}."
    if red:
        text += f" {red} {'has' if red == 1 else 'have'} a red verdict (✕) and should not count."
    return text


def _value(row: Row) -> str:
    around = "" if row.interval is None else f" ({span(row.interval)})"
    return f"{row.text}{around}"


def estimates_table(content: Content) -> Table:
    columns = ("estimator", "value", "interval", "std. error", "fewest effective episodes",
               "verdict", "because of")  # fmt: skip
    rows = []
    for row in content.rows:
        if row.value is None:
            rows.append((row.estimator, "refused", "", "", "", "refused", row.refused))
            continue
        rows.append(
            (
                row.estimator,
                row.text,
                interval_cell(row),
                two_digits(row.error),
                "" if row.ess is None else f"{row.ess:,.0f}",
                row.verdict or "",
                ", ".join(row.reasons) or row.no_interval,
            )
        )
    return Table("The estimators", columns, tuple(rows), frozenset({1, 2, 3, 4}), folded=False)


def interval_cell(row: Row) -> str:
    if row.interval is not None:
        return span(row.interval)
    return "none to trust" if row.no_interval.startswith(NO_TRUST) else "none"


def gains(content: Content) -> Figure | None:
    """None where no estimator has an interval for the difference."""
    rows = [row for row in content.rows if row.gain is not None and row.gain_interval is not None]
    if not rows:
        return None
    columns = ("estimator", "target − behaviour", "interval", "one-sided p")
    cells = []
    for row in rows:
        assert row.gain is not None
        assert row.gain_interval is not None
        gain = rounded(row.gain, row.gain_interval.standard_error)
        sign = "+" if row.gain > 0 else ""
        cells.append((row.estimator, f"{sign}{gain}", span(row.gain_interval), row.better))
    name, gain, around, p = cells[0]
    why = "Both values come from the same episodes, so what they have in common cancels"
    if rows[0].gain_at_most:
        why = "Sums hold no episodes: the error of the difference is at most that of both values"
    text = (
        f"{name}: {gain} ({around}), one-sided {p} of no gain. {why}; an interval without 0 tells "
        "them apart."
    )
    # Cut-off episodes may have been left out by some.
    own = {row.estimator: row.value - row.gain for row in rows if row.value and row.gain}
    other = [
        name
        for name, earned in own.items()
        if content.behavior is not None and not same(earned, content.behavior)
    ]
    if other:
        earned = number(own[other[0]])
        text += f" {', '.join(other)}: over {earned}, earned in the episodes that are used there."
    table = Table("Target − behaviour", columns, tuple(cells), _right(columns, 0))
    return _figure("gains", text, table, lambda: draw_forest.gains(rows))


def sensitivity(content: Content, moved: tuple[Moved, ...]) -> Figure | None:
    row = content.rows[0] if content.main is not None else None
    known = [change for change in moved if change.value is not None]
    if row is None or not known:
        return None
    columns = ("change", "value", "moved by")
    cells = tuple(
        (change.change, f"none: {change.why}", "")
        if change.value is None or change.moved is None
        else (change.change, rounded(change.value, row.error), _signed(change.moved, row.error))
        for change in moved
    )
    most = max(known, key=lambda change: abs(change.moved or 0.0))
    text = (
        f"The answer is {_value(row)}. It moves most with “{most.change}”: by "
        f"{_signed(most.moved or 0.0, row.error)}. Fewer steps earn less by themselves; the other "
        "changes should move it by little more than its interval."
    )
    table = Table("The answer under other choices", columns, cells, frozenset({1, 2}))
    return _figure("sensitivity", text, table, lambda: draw_forest.sensitivity(known, row))


def _signed(value: float, error: float | None) -> str:
    return f"{'+' if value >= 0 else ''}{rounded(value, error)}"


# --- weights


def ess(weights: Weights) -> Figure:
    said = [f"{curve.name}: {_fewest(curve.ess, weights.n_episodes)}" for curve in weights.curves]
    return _figure(
        "ess", f"Fewest effective episodes. {_joined(said)}",
        _steps_table(weights, "ess", "Effective episodes by step", 1),
        lambda: draw_weights.ess(weights),
    )  # fmt: skip


def largest(weights: Weights) -> Figure | None:
    if not draw_weights.has_largest(weights):
        return None
    said = []
    for curve in weights.curves:
        if curve.largest is not None and np.any(np.isfinite(curve.largest)):
            step = int(np.nanargmax(curve.largest))
            top = curve.largest[step]
            share = top / weights.n_episodes
            said.append(
                f"{curve.name}: at most {number(float(top))} times the mean, at step {step}, where "
                f"one episode holds {share:.1%} of the weight"
            )
    return _figure(
        "largest", f"The largest weight. {_joined(said)}",
        _steps_table(weights, "largest", "Largest weight by step, as a multiple of the mean", 3),
        lambda: draw_weights.largest(weights),
    )  # fmt: skip


def _fewest(values: Floats, n: int) -> str:
    if not np.any(np.isfinite(values)):
        return "none"
    step = int(np.nanargmin(values))
    return f"{values[step]:,.0f} of {n:,} at step {step}"


def _joined(said: list[str]) -> str:
    return f"{'; '.join(said)}." if said else ""


def _steps_table(weights: Weights, what: str, caption: str, digits: int) -> Table:
    columns = ("step", *(curve.name for curve in weights.curves))
    arrays = [getattr(curve, what) for curve in weights.curves]
    horizon = max(len(curve.ess) for curve in weights.curves)
    rows = tuple(
        (str(t), *(_or_none(None if a is None else float(a[t]), digits) for a in arrays))
        for t in range(horizon)
    )
    return Table(caption, columns, rows, _right(columns))


def _or_none(value: float | None, digits: int) -> str:
    if value is None or not math.isfinite(value):
        return "none"
    return f"{value:,.{digits}f}" if digits == 1 else number(value)


# --- places


def marginals(heat: Heat) -> Figure:
    gap = heat.target - heat.behavior
    single = gap[: len(gap) - 1] if heat.others else gap
    order = np.argsort(-np.abs(single), axis=None, kind="stable")[:LISTED_FIELDS]
    rows = []
    for place in order.tolist():
        r, c = divmod(place, single.shape[1])
        rows.append(
            (
                heat.names[r],
                draw_places.field_text(heat, c),
                f"{heat.target[r, c]:.2%}",
                f"{heat.behavior[r, c]:.2%}",
                f"{gap[r, c]:+.2%}",
            )
        )
    columns = ("state", "step", "target's share", "log's share", "difference")
    caption = "The largest differences between target and log"
    table = Table(caption, columns, tuple(rows), _right(columns, 0))
    text = "Each field is a state at a step; its shade is the share of the episodes that are there."
    if rows:
        state, step, target, log, _ = rows[0]
        text += (
            f" The largest difference: in state {state} at step {step} there would be {target} of "
            f"the target's episodes, and there are {log} of the log's."
        )
    return _figure("difference", text, table, lambda: draw_places.marginals(None, longest=180))


def value_steps(parts: ValueParts) -> Figure | None:
    if parts.per_step is None:
        return None
    step = int(np.argmax(np.abs(parts.per_step)))
    text = f"Most is earned at step {step}: {number(float(parts.per_step[step]))} per episode"
    text += f", of {number(parts.value)} in all."
    if parts.log is not None:
        more = parts.per_step - parts.log
        far = int(np.argmax(np.abs(more)))
        text += (
            f" Target and log differ most at step {far}: {number(float(parts.per_step[far]))} "
            f"against {number(float(parts.log[far]))}."
        )
    columns: Cells = ("step", "target", "log") if parts.log is not None else ("step", "target")
    series = [parts.per_step] + ([] if parts.log is None else [parts.log])
    rows = tuple(
        (str(t), *(number(float(values[t])) for values in series))
        for t in range(len(parts.per_step))
    )
    table = Table("Reward per episode by step, discounted", columns, rows, _right(columns))
    return _figure("value_steps", text, table, lambda: draw_places.value_steps(parts))


def value_states(parts: ValueParts) -> Figure | None:
    if not parts.states:
        return None
    top = parts.states[0]
    text = (
        f"Most is earned in state {top.state}: {number(top.amount)} per episode, by "
        f"{parts.states_by}.{_rest(parts.others, number)}"
    )
    table = _states_table("Value by state", "value", parts.states, parts.others, number)
    return _figure("value_states", text, table, lambda: draw_places.value_states(parts))


def variance_steps(parts: VarianceParts) -> Figure:
    step = int(np.argmax(parts.by_step))
    text = (
        f"Step {step} has the largest share of the variance, {parts.by_step[step]:.1%}; the spread "
        f"of the first states has {parts.start:.1%}."
    )
    rows = tuple((str(t), f"{share:.2%}") for t, share in enumerate(parts.by_step.tolist()))
    table = Table("Share of the variance by step", ("step", "share"), rows, frozenset({0, 1}))
    return _figure("variance_steps", text, table, lambda: draw_places.variance_steps(parts))


def variance_states(parts: VarianceParts) -> Figure | None:
    if not parts.states:
        return None
    top = parts.states[0]
    text = f"The state {top.state} has the largest share of the variance, {top.amount:.1%}."
    text += _rest(parts.others, lambda share: f"{share:.1%}")
    table = _states_table(
        "Variance by state", "share", parts.states, parts.others, lambda value: f"{value:.2%}"
    )
    return _figure("variance_states", text, table, lambda: draw_places.variance_states(parts))


def _rest(others: tuple[int, float], text: Callable[[float], str]) -> str:
    if not others[0]:
        return ""
    return f" Not shown: {others[0]:,} other states, with {text(others[1])} together."


def _states_table(
    caption: str,
    what: str,
    states: tuple[Place, ...],
    others: tuple[int, float],
    text: Callable[[float], str],
) -> Table:
    columns = ("state", what, "visits per episode, target", "visits per episode, log")
    rows = [(p.state, text(p.amount), number(p.target), number(p.log)) for p in states]
    if others[0]:
        rows.append((f"{others[0]:,} others", text(others[1]), "", ""))
    return Table(caption, columns, tuple(rows), _right(columns, 0))


def pairs_table(parts: VarianceParts) -> Table:
    columns = ("step", "state", "share", "logged rows", "wanted / logged")
    rows = tuple(
        (str(t), state, f"{share:.2%}", f"{visits:,.0f}", "" if more is None else f"{more:.2f}")
        for t, state, share, visits, more in parts.pairs
    )
    caption = "The steps and states with the most variance"
    return Table(caption, columns, rows, _right(columns, 1))
