"""A plan as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

from reweigh.evaluation.result import number, rounded, two_digits
from reweigh.theory.decomposition import WANTED, Decomposition
from reweigh.theory.plan_records import Goal, Need, Plan

WIDTH = 80
SHOWN_PAIRS, SHOWN_STEPS, LONGEST_NAME = 8, 5, 20
ENDS = (9, 14, 18, 4)  # characters that a cut name keeps of its end, in the order of trial


def plan_text(plan: Plan, words: Callable[[str], str] = str) -> str:
    """The tables of a plan, and its remarks, each of them put through `words` before wrapping."""
    lines = [question(plan.goal), source(plan), "", *_needs(plan)]
    reference = plan.need(plan.reference)
    lines += _wrapped(_beside(plan, reference), indent="  ")
    if plan.decomposition is not None:
        lines += ["", *_decomposition(plan, plan.decomposition)]
    notes = _wrapped([words(line) for line in remarks(plan)], indent="  ")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def question(goal: Goal) -> str:
    level = f"{goal.level:.4%}".rstrip("0%").rstrip(".")
    if goal.half_width is not None:
        return f"Episodes for a {level} % interval of half-width {number(goal.half_width)}"
    power = f"{goal.power:.4%}".rstrip("0%").rstrip(".")
    return (
        f"Episodes to find a difference of {number(goal.difference)} to the behaviour "
        f"({level} %, power {power} %)"
    )


def origin(plan: Plan, parts: Decomposition) -> str:
    what = (
        parts.estimator if plan.goal.half_width is not None else f"{parts.estimator}'s difference"
    )
    return f"Where the variance of {what} comes from"


def remarks(plan: Plan) -> list[str]:
    """Refusals and warnings, the same text once with all its estimators."""
    by_text: dict[str, list[str]] = {}
    for need in plan.needs:
        if need.refused is not None:
            text = f"refused ({need.refused.code}): {need.refused.reason}"
            by_text.setdefault(text, []).append(need.estimator)
        for warning in need.warnings:
            by_text.setdefault(f"! {warning}", []).append(need.estimator)
    listed = [f"{', '.join(names)}: {text}" for text, names in by_text.items()]
    return [*(f"! {warning}" for warning in plan.warnings), *listed]


def source(plan: Plan) -> str:
    """What the plan is made from."""
    if plan.pilot_episodes is None:
        return f"exact, from the world itself (horizon {plan.horizon})"
    kind = "a pilot" if plan.source == "log" else "the sums of a pilot"
    return f"from {kind} of {plan.pilot_episodes:,} episodes (horizon {plan.horizon})"


def _needs(plan: Plan) -> list[str]:
    goal, pilot = plan.goal, plan.pilot_episodes is not None
    head = ["estimator", "episodes", f"times {plan.reference}", "sd/episode"]
    if pilot:
        head += ["± now" if goal.half_width is not None else "power now", "ESS"]
    rows = [head]
    for need in plan.needs:
        mark = " !" if need.warnings else ""
        if need.variance is None:
            rows.append([need.estimator, "refused", *[""] * (len(head) - 2)])
            continue
        row = [
            need.estimator + mark,
            episodes_text(need),
            _times(need.times),
            number(need.variance**0.5),
        ]
        if pilot:
            now = number(need.now) if goal.half_width is not None else f"{need.now:.1%}"
            row += [now, "none" if need.ess is None else f"{need.ess:,.0f}"]
        rows.append(row)
    return _table(rows, left=(0,))


def _beside(plan: Plan, base: Need) -> list[str]:
    """What the goal means beside the numbers at hand."""
    assert base.value is not None
    assert base.variance is not None
    lines = []
    goal = plan.goal
    if goal.half_width is not None:
        value = f"{base.estimator}'s value is {number(base.value)}"
        if plan.pilot_episodes is None:
            value = f"the value is {number(base.value)}"
        share = ""
        if base.value:
            share = (
                f"; the half-width is {two_digits(100 * goal.half_width / abs(base.value))} % of it"
            )
        lines.append(value + share)
    elif base.difference is not None and plan.pilot_episodes is None:
        lines.append(f"the difference is {base.difference:+.4g}")
    elif base.difference is not None and plan.pilot_episodes is not None:
        margin = goal.quantile * (base.variance / plan.pilot_episodes) ** 0.5
        lines.append(
            f"the pilot's difference ({base.estimator}): "
            f"{rounded(base.difference, margin / 2)} ± {two_digits(margin)}"
        )
    if plan.pilot_episodes is not None and plan.episodes > plan.pilot_episodes:
        more = _count(plan.episodes - plan.pilot_episodes)
        lines.append(f"{base.estimator} needs {more} more than the pilot has")
    elif plan.pilot_episodes is not None:
        lines.append(f"the pilot is enough for {base.estimator}")
    return lines


def _decomposition(plan: Plan, parts: Decomposition) -> list[str]:
    logged = "log there" if plan.pilot_episodes is not None else "behaviour there"
    head = ["step", "state", "variance", "target there", logged]
    by_state = list(parts.by_state().items())[:SHOWN_STEPS]
    names = shown_names([*parts.state[:SHOWN_PAIRS], *(name for name, _ in by_state)])
    rows = [
        [
            str(parts.step[k]),
            names[parts.state[k]],
            f"{parts.share[k]:.1%}",
            f"{parts.target[k]:.1%}",
            f"{parts.visits[k]:.1%}",
        ]
        for k in range(min(SHOWN_PAIRS, len(parts.state)))
    ]
    if parts.wanted is not None:
        head.append("wanted/logged")
        for row, wanted in zip(rows, parts.wanted.tolist(), strict=False):
            row.append(f"{wanted:.2f}")
    empty = [""] * (len(head) - 3)
    rest = len(parts.state) - SHOWN_PAIRS
    if rest > 0:
        share = float(parts.share[SHOWN_PAIRS:].sum())
        rows.append(["", f"{rest:,} others", f"{share:.1%}", *empty])
    rows.append(["", "the first state", f"{parts.start:.1%}", *empty])
    lines = [origin(plan, parts), *_table([head, *rows], left=(1,))]
    heavy = parts.heaviest_steps(SHOWN_STEPS).tolist()
    steps = ", ".join(f"{t} ({parts.by_step[t]:.1%})" for t in heavy)
    states = ", ".join(f"{names[name]} ({share:.1%})" for name, share in by_state)
    sentences = [f"by step: {steps}", f"by state: {states}"]
    if parts.wanted is not None:
        sentences.append(WANTED)
    return lines + _wrapped(sentences, indent="  ")


def episodes_text(need: Need) -> str:
    assert need.episodes is not None
    return _count(need.episodes)


def _count(n: int) -> str:
    return f"{n:,}" if n < 10**10 else f"{n:.2e}"


def _times(times: float | None) -> str:
    assert times is not None
    return f"{times:,.1f}" if 0.05 <= times < 1e6 else f"{times:.1e}"


def plain(name: str) -> str:
    """A name from the data without characters that a terminal obeys."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def shown_names(names: Iterable[str], safe: Callable[[str], str] = plain) -> dict[str, str]:
    """Names from the data as they are shown: harmless (`safe`), not too long, and distinct.

    Long ones are cut in the middle, since names of a kind differ at their end; where that makes
    two of them alike, elsewhere; and where no place tells them apart they are numbered.
    """
    texts = {name: safe(name) for name in names}
    for end in ENDS:
        shown = {name: _cut(text, end) for name, text in texts.items()}
        if len(set(shown.values())) == len(shown):
            return shown
    numbered: dict[str, str] = {}
    taken: set[str] = set()
    for name, text in texts.items():
        found, k = _cut(text, ENDS[0]), 1
        while found in taken:
            k += 1
            mark = f" #{k}"
            found = _cut(text, ENDS[0], LONGEST_NAME - len(mark)) + mark
        taken.add(found)
        numbered[name] = found
    return numbered


def _cut(text: str, end: int, longest: int = LONGEST_NAME) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest - end - 1].rstrip()}…{text[-end:].lstrip()}"


def _table(rows: list[list[str]], left: Sequence[int]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _wrapped(texts: list[str], indent: str) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    ]
