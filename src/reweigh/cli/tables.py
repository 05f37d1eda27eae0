"""Tables and lines of estimates, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from reweigh.cli.terminal import Terminal, printable
from reweigh.evaluation.result import Estimate, Gain, Interval, Refusal
from reweigh.system.numbers import number, rounded, two_digits

if TYPE_CHECKING:
    from reweigh.evaluation.sensitivity import Sensitivity


def cell(text: str) -> str:
    """A text from the data, as it is: no markup, and nothing that a terminal obeys."""
    return escape(printable(text))


def ruled_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))


def estimates_table(
    results: Sequence[Estimate | Refusal],
    truth: float | None = None,
    intervals: Sequence[Interval | None] | None = None,
    heading: str = "95 % interval",
) -> Table:
    """One row per estimator; a refusal tells its reason below the table. Without `intervals` they
    are the estimates' own."""
    table = ruled_table()
    last = "std. error" if truth is None else "off by"
    for name in ("estimator", "value", heading, "ESS", "unseen", last, "verdict"):
        side: Any = "left" if name == "estimator" else "right"
        # where the terminal is narrow, an interval takes two lines, and no number is cut
        table.add_column(name, justify=side, no_wrap=name != heading)
    for index, result in enumerate(results):
        if isinstance(result, Refusal):
            table.add_row(result.estimator, "refused", *[""] * 5)
            continue
        interval = result.interval() if intervals is None else intervals[index]
        d, error = result.diagnostics, result.error_beside(interval)
        table.add_row(
            result.estimator + (" !" if result.warnings else ""),
            result.value_text(error),
            _around(result, interval, "none", "none to trust"),
            "none" if d.worst_ess is None else f"{d.worst_ess:,.0f}",
            "" if d.total_unseen is None else f"{d.total_unseen:.1%}",
            two_digits(error) if truth is None else f"{result.value - truth:+.2g}",
            result.verdict.level,
        )
    return table


def _around(result: Estimate, interval: Interval | None, none: str, untrusted: str) -> str:
    if interval is None:
        return none
    return str(interval) if result.trusted else untrusted


def answer_line(result: Estimate | Refusal, interval: Interval | None) -> str:
    """What is left of a row where only the answer is wanted."""
    if isinstance(result, Refusal):
        return f"{result.estimator} refused"
    value = result.value_text(result.standard_error)
    around = _around(result, interval, "no interval", "no interval to trust")
    return f"{result.estimator} {value} {around} {result.verdict.level}"


def most_episodes(results: Sequence[Estimate]) -> Estimate:
    """The one that speaks of the whole log, where others leave cut-off episodes out."""
    return max(results, key=lambda result: result.n_episodes)


def summary(estimates: Sequence[Estimate]) -> str:
    """The line that every table of estimates needs beside it."""
    whole = most_episodes(estimates)
    earned = "what the behaviour itself earned cannot be told"
    if whole.behavior_value is not None:
        earned = f"the behaviour itself earned {number(whole.behavior_value)} per episode"
    return f"{whole.n_episodes:,} episodes, horizon {whole.horizon}; {earned}"


def gain_lines(results: Sequence[Estimate]) -> list[str]:
    """Whether the target is better than the behaviour, by each estimator whose error may be shown;
    why that is not told, once for all that lack it for the same reason. Where cut-off episodes were
    left out, what the behaviour earned in the others, which the gain is over."""
    from reweigh.trust.gain import same

    whole = most_episodes(results).behavior_value if results else None
    lines: list[str] = []
    lacking: dict[str, list[str]] = {}
    for result in results:
        gain = result.gain_or_why() if result.trusted else None
        if isinstance(gain, Gain):
            earned, over = result.behavior_value, ""
            if earned is not None and whole is not None and not same(earned, whole):
                over = f", over the {number(earned)} earned in the episodes that were not cut off"
            lines.append(f"{result.estimator}: better than the behaviour? {gain}{over}")
        elif gain is not None:
            lacking.setdefault(gain.reason, []).append(result.estimator)
    return lines + [
        f"{', '.join(names)}: better than the behaviour? not told: {why}"
        for why, names in lacking.items()
    ]


def remarks(results: Sequence[Estimate | Refusal]) -> list[str]:
    """Warnings and refusals as lines, the same text once with all its estimators."""
    by_text: dict[str, list[str]] = {}
    for result in results:
        for text in _remarks_on(result):
            by_text.setdefault(text, []).append(result.estimator)
    return [f"{', '.join(names)}: {text}" for text, names in by_text.items()]


def _remarks_on(result: Estimate | Refusal) -> list[str]:
    if isinstance(result, Refusal):
        return [f"refused ({result.error.code}): {result.error}"]
    reasons = {gate.sentence: gate.level for gate in result.verdict.reasons}
    lines = [f"! {w}" for w in result.warnings if str(w) not in reasons]
    lines += [f"{level}: {text}" for text, level in reasons.items()]
    if result.standard_error is not None and not result.trusted:
        lines.append(result.not_to_trust)
    if result.standard_error is None and all(g.name != "interval" for g in result.verdict.reasons):
        lines.append(f"no interval: {result.error_method}")
    return lines + [f"not checked: {line}" for line in result.verdict.unchecked_lines()]


def print_sensitivity(changes: Sensitivity, terminal: Terminal) -> None:
    """By how much the number moves when a choice behind it is changed; --quiet leaves the largest
    change."""
    table = ruled_table()
    table.add_column(f"{changes.estimator}, if …")
    for name in ("value", "moves by"):
        table.add_column(name, justify="right", no_wrap=True)
    for what, value, moved in changes.rows():
        table.add_row(cell(what), "refused" if value.startswith("none:") else value, moved)
    terminal.say("")
    terminal.table(table)
    if changes.untried:
        terminal.say(changes.untried)
    terminal.warn(
        f"{changes.estimator}: {change.change}: no value: {change.why}"
        for change in changes.changes
        if change.value is None
    )
    most = changes.largest
    if most is not None and most.moved is not None:
        moved = rounded(most.moved, changes.standard_error)
        terminal.answer(f"{changes.estimator} moves most by {moved}: {most.change}")


def facts_table(facts: Mapping[str, Any], title: str) -> Table:
    table = Table(box=box.SIMPLE, title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), _plain(value))
    return table


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value) or "none"
    return cell(str(value))
