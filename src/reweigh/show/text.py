"""Results as text, and the words that text, tables and charts share."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence

from reweigh.show.record import NO_TRUST, Change, Evaluation
from reweigh.system.numbers import number, rounded, two_digits
from reweigh.trust.gain import Gain
from reweigh.trust.intervals import Interval

LONGEST_NAME = 20
ENDS = (9, 14, 18, 4)  # characters that a cut name keeps of its end, in the order of trial
Lines = Sequence[tuple[str, str]]


def evaluation_lines(e: Evaluation) -> list[tuple[str, str]]:
    """What is printed of an estimate, as (label, text)."""
    d, verdict = e.diagnostics, e.verdict
    assert d is not None
    assert verdict is not None
    how = e.error_method
    if e.error != e.standard_error:
        how = f"of the episodes; {two_digits(e.standard_error)} if the state were all"
    worst = "none"
    if d.worst_ess is not None:
        worst = f"{d.worst_ess:,.0f} of {e.n_episodes:,} episodes at step {d.worst_step}"
    around = "none" if e.interval is None else e.no_interval or str(e.interval)
    known = e.trusted and isinstance(e.tested, Gain)
    better = str(e.tested) if known else f"not told: {e.gain_why}"
    unseen = "not computed" if d.total_unseen is None else number(d.total_unseen)
    lines = [
        ("value", e.text),
        ("95 % interval", around),
        ("standard error", f"none: {how}" if e.error is None else f"{two_digits(e.error)} ({how})"),
        ("behaviour's own value", number(e.behavior_value)),
        ("better than behaviour", better),
        ("episodes, horizon", f"{e.n_episodes:,}, {e.horizon}"),
        ("effective size, worst", worst),
        ("mass on unseen states", unseen),
        ("placebo (reward 1)", f"{number(d.placebo)} (should be {number(d.placebo_expected)})"),
        ("verdict", str(verdict)),
    ]
    if verdict.unchecked:
        lines.append(("not checked", "; ".join(verdict.unchecked_lines())))
    if e.chosen is not None:
        lines.append(("chosen", e.chosen))
    return lines + [("warning", str(warning)) for warning in e.warnings]


def aligned(lines: Lines, indent: str = "") -> list[str]:
    """Labels and texts in two columns."""
    width = max(len(label) for label, _ in lines)
    return [f"{indent}{label:<{width}}  {text}" for label, text in lines]


def html_table(name: str, lines: Lines) -> str:
    """The same for a notebook."""
    cells = "".join(
        f"<tr><th style='text-align:left;white-space:nowrap'>{html.escape(label)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for label, text in lines
    )
    caption = f"<caption style='text-align:left'>{html.escape(name)}</caption>"
    return f"<table>{caption}<tbody>{cells}</tbody></table>"


def interval_cell(e: Evaluation) -> str:
    """The interval in a table."""
    if e.around is not None:
        return span(e.around)
    return "none to trust" if e.no_interval.startswith(NO_TRUST) else "none"


def by_text(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """(name, text) by text: what is said of several is said once, with all their names."""
    names: dict[str, list[str]] = {}
    for name, text in pairs:
        names.setdefault(text, []).append(name)
    return names


def change_cells(change: Change, error: float | None) -> tuple[str, str, str]:
    """(change, value, moved by) in a table of other choices."""
    if change.value is None or change.moved is None:
        return change.change, f"none: {change.why}", ""
    sign = "+" if change.moved >= 0 else ""
    return change.change, rounded(change.value, error), sign + rounded(change.moved, error)


def span(interval: Interval) -> str:
    """The ends in words."""
    if math.isfinite(interval.low) and math.isfinite(interval.high):
        margin = (interval.high - interval.low) / 4
        return f"{rounded(interval.low, margin)} to {rounded(interval.high, margin)}"
    return str(interval)


def percent(level: float) -> str:
    return f"{100 * level:.10g} %"


def sentence(text: str) -> str:
    """An advice as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def signed(value: float, error: float | None) -> str:
    return f"{'+' if value > 0 else ''}{rounded(value, error)}"


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
    for name, text in texts.items():
        label, k = _cut(text, ENDS[0]), 1
        while label in numbered.values():
            k += 1
            mark = f" #{k}"
            label = _cut(text, ENDS[0], LONGEST_NAME - len(mark)) + mark
        numbered[name] = label
    return numbered


def _cut(text: str, end: int, longest: int = LONGEST_NAME) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest - end - 1].rstrip()}…{text[-end:].lstrip()}"
