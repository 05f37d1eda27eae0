"""The figures of an evaluation: each a chart, its answer in words, and its data as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from reweigh.estimate.standard_error import same
from reweigh.show.charts import forest, steps
from reweigh.show.confounding import Confounding
from reweigh.show.html import LONGEST_LABEL, Cells, Figure, Table
from reweigh.show.record import Change, Evaluation, Report
from reweigh.show.text import change_cells, interval_cell, signed, span
from reweigh.system import number, two_digits
from reweigh.trust.breakdown import Decomposition, Heat, StatePart, ValueParts
from reweigh.trust.overlap import Weights

LISTED_FIELDS, LISTED_PAIRS = 60, 20  # rows of tables


def _right(columns: Cells, *left: int) -> frozenset[int]:
    return frozenset(k for k in range(len(columns)) if k not in left)


# --- estimators


def values(report: Report) -> Figure:
    rows = [row for row in report.rows if row.value is not None]
    behavior = None if report.main is None else report.main.behavior_value
    which = "the answer" if rows[0].reliable else "not reliable"
    text = f"{rows[0].estimator}, {which}: {_value(rows[0])}.{_agreement(rows)}"
    if behavior is not None:
        text += f" Today's policy earned {number(behavior)}."
    if report.truth is not None:
        text += f" The true value, known because the log is simulated, is {number(report.truth)}."
    refused = [row.label for row in report.rows if row.refused]
    if refused:
        text += f" Refused: {', '.join(refused)}."
    table = estimates_table(report)
    return Figure("forest", text, table, lambda: forest.values(rows, behavior, report.truth))


def _agreement(rows: list[Evaluation]) -> str:
    """Between what values the others lie, those with a red verdict apart."""
    fine = [row.value for row in rows[1:] if row.value is not None and row.level != "red"]
    red = sum(row.level == "red" for row in rows[1:])
    text = ""
    if fine:
        low, high = number(min(fine)), number(max(fine))
        between = f"at {low}" if low == high else f"between {low} and {high}"
        count, lie = (f"The {len(fine)} others", "lie") if len(fine) > 1 else ("The other", "is")
        text = f" {count} that can be relied on {lie} {between}."
    if red:
        others = "other is" if red == 1 else "others are"
        text += f" {red} {others} not reliable (✕) and should not count."
    return text


def _value(row: Evaluation) -> str:
    return row.text if row.around is None else f"{row.text} ({span(row.around)})"


def first_table(report: Report, most: int) -> Table:
    """The first ones in short."""
    columns = ("estimator", "verdict", "value", "interval", "fewest effective episodes")
    rows = tuple(
        (row.label, "refused", "", "", "")
        if row.refused is not None
        else (
            row.label,
            row.level or "",
            row.text,
            interval_cell(row),
            "" if row.ess is None else f"{row.ess:,.0f}",
        )
        for row in report.rows[:most]
    )
    hidden = len(report.rows) - len(rows)
    caption = f"The first estimators; {hidden} more below" if hidden else "The answers in short"
    return Table(caption, columns, rows, frozenset({2, 3, 4}), folded=False)


def estimates_table(report: Report) -> Table:
    columns = ("estimator", "value", "interval", "std. error", "fewest effective episodes",
               "verdict", "because of")  # fmt: skip
    rows = tuple(
        (row.label, "refused", "", "", "", "refused", row.refused.reason)
        if row.refused is not None
        else (
            row.label,
            row.text,
            interval_cell(row),
            two_digits(row.error) if row.trusted else "",
            "" if row.ess is None else f"{row.ess:,.0f}",
            row.level or "",
            ", ".join(row.reasons) or row.no_interval,
        )
        for row in report.rows
    )
    return Table("The estimators", columns, rows, frozenset({1, 2, 3, 4}))


def gain_cells(rows: Sequence[Evaluation]) -> list[Cells]:
    """(label, gain, interval) of those that have an interval of the gain."""
    return [
        (row.label, signed(row.gain, row.gain_error), span(row.gain_interval))
        for row in rows
        if row.gain is not None and row.gain_interval is not None
    ]


def gains(report: Report) -> Figure | None:
    """None where no estimator has an interval for the difference."""
    rows = [row for row in report.rows if row.gain_interval is not None]
    if not rows:
        return None
    columns = ("estimator", "new − today", "interval", "one-sided p")
    cells = tuple((*cell, row.better) for cell, row in zip(gain_cells(rows), rows, strict=True))
    name, gain, around, p = cells[0]
    why = "Both values come from the same episodes, so what they have in common cancels"
    if rows[0].tested_gain is not None and rows[0].tested_gain.at_most:
        why = "Sums hold no episodes: the error of the difference is at most that of both values"
    text = (
        f"{name}: {gain} ({around}), one-sided {p} of no gain. {why}; an interval "
        "without 0 shows a clear difference."
    )
    # Cut-off episodes may have been left out by some.
    whole = None if report.main is None else report.main.behavior_value
    behavior = {row.label: row.value - row.gain for row in rows if row.value and row.gain}
    other = [
        row for row, earned in behavior.items() if whole is not None and not same(earned, whole)
    ]
    if other:
        earned = number(behavior[other[0]])
        text += f" {', '.join(other)}: over {earned}, earned in the episodes that are used there."
    table = Table("New policy − today's", columns, cells, _right(columns, 0))
    return Figure("gains", text, table, lambda: forest.gains(rows))


def sensitivity(report: Report, changes: tuple[Change, ...]) -> Figure | None:
    known = [change for change in changes if change.value is not None]
    if report.main is None or not known:
        return None
    row = report.rows[0]
    columns = ("change", "value", "moved by")
    cells = tuple(change_cells(change, row.error) for change in changes)
    most = max(known, key=lambda change: abs(change.moved or 0.0))
    text = (
        f"The {'answer' if row.reliable else 'number'} is {_value(row)}. It moves most with "
        f"“{most.change}”: by {change_cells(most, row.error)[2]}. Fewer steps earn less by "
        "themselves; the other changes should move it by little more than its interval."
    )
    table = Table("The answer under other choices", columns, cells, frozenset({1, 2}))
    return Figure("sensitivity", text, table, lambda: forest.sensitivity(known, row))


def confounding(report: Report, bounds: Confounding) -> Figure:
    """The bounds by Γ."""
    table = Table("Bounds on the value", ("Γ", "at least", "at most"), tuple(bounds.rows()))
    label = "dm" if report.main is None else report.main.label
    text = " ".join([bounds.sentence, *bounds.notes])
    return Figure("confounding", text, table, lambda: forest.confounding(bounds, label))


# --- weights


def ess(weights: Weights) -> Figure:
    texts = []
    for curve in weights.curves:
        fewest = "none"
        if np.any(np.isfinite(curve.ess)):
            step = int(np.nanargmin(curve.ess))
            fewest = f"{curve.ess[step]:,.0f} of {weights.n_episodes:,} at step {step}"
        texts.append(f"{curve.name}: {fewest}")
    caption = "Effective episodes by step"
    return _curves(weights, "ess", "Fewest effective episodes.", texts, caption, "{:,.1f}".format)


def largest(weights: Weights) -> Figure | None:
    texts = []
    for curve in weights.curves:
        if curve.largest is not None and np.any(np.isfinite(curve.largest)):
            step = int(np.nanargmax(curve.largest))
            top = curve.largest[step]
            texts.append(
                f"{curve.name}: at most {number(float(top))} times the mean, at step {step}, where "
                f"one episode holds {top / weights.n_episodes:.1%} of the weight"
            )
    if not steps.curve_rows(weights, "largest"):
        return None
    caption = "Largest weight by step, as a multiple of the mean"
    return _curves(weights, "largest", "The largest weight.", texts, caption, number)


def _curves(
    weights: Weights,
    what: steps.Curve,
    first: str,
    texts: list[str],
    caption: str,
    cell: Callable[[float], str],
) -> Figure:
    none = [math.nan] * len(weights.curves[0].ess)
    arrays = [getattr(curve, what) for curve in weights.curves]
    series = [none if array is None else array.tolist() for array in arrays]
    cells = [[cell(v) if math.isfinite(v) else "none" for v in values] for values in series]
    table = _by_step(caption, [curve.name for curve in weights.curves], cells)
    text = f"{first} {'; '.join(texts)}." if texts else f"{first} "
    return Figure(what, text, table, lambda: steps.curves(weights, what))


def _by_step(caption: str, names: Sequence[str], series: Sequence[Sequence[str]]) -> Table:
    """A row per step: its number, and the text of each series."""
    rows = tuple((str(t), *cells) for t, cells in enumerate(zip(*series, strict=True)))
    columns = ("step", *names)
    return Table(caption, columns, rows, _right(columns))


# --- steps and states


def marginals(heat: Heat) -> Figure:
    gap = heat.target - heat.behavior
    single = gap[: len(gap) - 1] if heat.others else gap
    order = np.argsort(-np.abs(single), axis=None, kind="stable")[:LISTED_FIELDS]
    rows = tuple(
        (
            heat.names[r],
            steps.field_text(heat, c),
            f"{heat.target[r, c]:.2%}",
            f"{heat.behavior[r, c]:.2%}",
            f"{gap[r, c]:+.2%}",
        )
        for r, c in (divmod(field, single.shape[1]) for field in order.tolist())
    )
    columns = ("state", "step", "target's share", "log's share", "difference")
    caption = "The largest differences between target and log"
    table = Table(caption, columns, rows, _right(columns, 0))
    text = "Each field is a state at a step; its shade is the share of the episodes that are there."
    if rows:
        state, step, target, log, _ = rows[0]
        text += (
            f" The largest difference: in state {state} at step {step} there would be {target} of "
            f"the target's episodes, and there are {log} of the log's."
        )
    return Figure("difference", text, table, lambda: steps.marginals(None, longest=LONGEST_LABEL))


def value_steps(parts: ValueParts) -> Figure | None:
    if parts.per_step is None:
        return None
    target, log = parts.per_step, parts.log
    step = int(np.argmax(np.abs(target)))
    text = f"Most is earned at step {step}: {number(float(target[step]))} per episode"
    text += f", of {number(parts.value)} in all."
    series = {"target": target}
    if log is not None:
        series["log"] = log
        far = int(np.argmax(np.abs(target - log)))
        text += (
            f" Target and log differ most at step {far}: {number(float(target[far]))} against "
            f"{number(float(log[far]))}."
        )
    cells = [[number(value) for value in values.tolist()] for values in series.values()]
    table = _by_step("Reward per episode by step, discounted", list(series), cells)
    return Figure("value_steps", text, table, lambda: steps.value_steps(parts))


def variance_steps(parts: Decomposition) -> Figure:
    step = int(np.argmax(parts.by_step))
    text = (
        f"Step {step} has the largest share of the variance, {parts.by_step[step]:.1%}; the spread "
        f"of the first states has {parts.start:.1%}."
    )
    shares = [f"{share:.2%}" for share in parts.by_step.tolist()]
    table = _by_step("Share of the variance by step", ["share"], [shares])
    return Figure("variance_steps", text, table, lambda: steps.variance_steps(parts))


def value_states(parts: ValueParts) -> Figure | None:
    if not parts.states:
        return None
    top = parts.states[0]
    text = f"Most is earned in state {top.state}: {number(top.amount)} per episode, by "
    text += f"{parts.states_by}.{_rest(parts.states, number)}"
    table = _states_table("Value by state", "value", parts.states, number)
    return Figure("value_states", text, table, lambda: steps.value_states(parts))


def variance_states(parts: Decomposition) -> Figure | None:
    states = parts.states()
    if not states:
        return None
    text = f"The state {states[0].state} has the largest share of the variance, "
    text += f"{states[0].amount:.1%}.{_rest(states, '{:.1%}'.format)}"
    table = _states_table("Variance by state", "share", states, "{:.2%}".format)
    return Figure("variance_states", text, table, lambda: steps.variance_states(parts))


def _others(states: Sequence[StatePart]) -> tuple[int, float]:
    """How many are not listed, and how much they have."""
    rest = states[steps.listed(states) :]
    return len(rest), sum(part.amount for part in rest)


def _rest(states: Sequence[StatePart], text: Callable[[float], str]) -> str:
    count, amount = _others(states)
    return f" Not shown: {count:,} other states, with {text(amount)} together." if count else ""


def _states_table(
    caption: str, what: str, states: Sequence[StatePart], text: Callable[[float], str]
) -> Table:
    columns = ("state", what, "visits per episode, target", "visits per episode, log")
    listed, (count, amount) = states[: steps.listed(states)], _others(states)
    rows = [(p.state, text(p.amount), number(p.target), number(p.log)) for p in listed]
    rows += [(f"{count:,} others", text(amount), "", "")] if count else []
    return Table(caption, columns, tuple(rows), _right(columns, 0))


def pairs_table(parts: Decomposition) -> Table:
    columns = ("step", "state", "share", "logged rows", "wanted / logged")
    rows = tuple(
        (
            str(parts.step[k]),
            parts.state[k],
            f"{parts.share[k]:.2%}",
            f"{parts.visits[k] * (parts.episodes or 0):,.0f}",
            "" if parts.wanted is None else f"{parts.wanted[k]:.2f}",
        )
        for k in range(min(LISTED_PAIRS, len(parts.state)))
    )
    caption = "The steps and states with the most variance"
    return Table(caption, columns, rows, _right(columns, 1))
