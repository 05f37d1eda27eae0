"""Tables and JSON on the terminal."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reweigh.cli.messages import printable

if TYPE_CHECKING:
    from rich.table import Table

    from reweigh.evaluation.result import Estimate, Interval, Refusal


def print_json(value: Any) -> None:
    """One JSON object in ASCII; what is no finite number leaves as null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collects the warnings of reweigh as texts."""
    import reweigh as rw

    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", rw.ReweighWarning)
        try:
            yield texts
        finally:
            for entry in caught:
                if issubclass(entry.category, rw.ReweighWarning):
                    texts.append(str(entry.message))
                else:
                    print(f"warning: {printable(str(entry.message))}", file=sys.stderr)


def print_table(table: Table) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 100
    Console(width=width, highlight=False, soft_wrap=False).print(table)


def estimates_table(
    results: Sequence[Estimate | Refusal],
    truth: float | None = None,
    *,
    intervals: Sequence[Interval | None] | None = None,
    heading: str = "95 % interval",
) -> Table:
    """One row per estimator; a refusal tells its reason below the table. Without `intervals` they
    are the estimates' own."""
    from rich import box
    from rich.table import Table

    from reweigh.evaluation.result import Refusal, two_digits

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
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
        cells = [
            result.estimator + (" !" if result.warnings else ""),
            result.value_text(error),
            _interval_cell(result, interval),
            "none" if d.worst_ess is None else f"{d.worst_ess:,.0f}",
            "" if d.total_unseen is None else f"{d.total_unseen:.1%}",
            two_digits(error) if truth is None else f"{result.value - truth:+.2g}",
            result.verdict.level,
        ]
        table.add_row(*cells)
    return table


def _interval_cell(result: Estimate, interval: Interval | None) -> str:
    if interval is None:
        return "none"
    return str(interval) if result.trusted else "none to trust"


def most_episodes(results: Sequence[Estimate]) -> Estimate:
    """The one that speaks of the whole log, where others leave cut-off episodes out."""
    return max(results, key=lambda result: result.n_episodes)


def gain_lines(results: Sequence[Estimate]) -> list[str]:
    """Whether the target is better than the behaviour, by each estimator whose error may be shown;
    why that is not told, once for all that lack it for the same reason. Where cut-off episodes were
    left out, what the behaviour earned in the others, which the gain is over."""
    from reweigh.evaluation.result import Gain, number
    from reweigh.trust.gain import same

    whole = most_episodes(results).behavior_value if results else None
    lines: list[str] = []
    lacking: dict[str, list[str]] = {}
    for result in results:
        found = result.gain_or_why() if result.trusted else None
        if isinstance(found, Gain):
            own, over = result.behavior_value, ""
            if own is not None and whole is not None and not same(own, whole):
                over = f", over the {number(own)} earned in the episodes that were not cut off"
            lines.append(f"{result.estimator}: better than the behaviour? {found}{over}")
        elif found is not None:
            lacking.setdefault(found.reason, []).append(result.estimator)
    return lines + [
        f"{', '.join(names)}: better than the behaviour? not told: {why}"
        for why, names in lacking.items()
    ]


def answer_line(result: Estimate | Refusal, interval: Interval | None) -> str:
    """What is left of a row where only the answer is wanted."""
    from reweigh.evaluation.result import Refusal

    if isinstance(result, Refusal):
        return f"{result.estimator} refused"
    value = result.value_text(result.standard_error)
    around = "no interval" if interval is None else str(interval)
    if interval is not None and not result.trusted:
        around = "no interval to trust"
    return f"{result.estimator} {value} {around} {result.verdict.level}"


def remarks(results: Sequence[Estimate | Refusal]) -> list[str]:
    """Warnings and refusals as lines, the same text once with all its estimators."""
    from reweigh.evaluation.result import Refusal

    by_text: dict[str, list[str]] = {}
    for result in results:
        if isinstance(result, Refusal):
            by_text.setdefault(f"refused ({result.error.code}): {result.error}", []).append(
                result.estimator
            )
        else:
            reasons = {gate.sentence: gate.level for gate in result.verdict.reasons}
            other = [f"! {w}" for w in result.warnings if str(w) not in reasons]
            for text in [*other, *(f"{level}: {text}" for text, level in reasons.items())]:
                by_text.setdefault(text, []).append(result.estimator)
            if not result.trusted and result.standard_error is not None:
                by_text.setdefault(result.not_to_trust, []).append(result.estimator)
            told = any(gate.name == "interval" for gate in result.verdict.reasons)
            if result.standard_error is None and not told:
                by_text.setdefault(f"no interval: {result.error_method}", []).append(
                    result.estimator
                )
            for line in result.verdict.unchecked_lines():
                by_text.setdefault(f"not checked: {line}", []).append(result.estimator)
    return [f"{', '.join(names)}: {text}" for text, names in by_text.items()]


def facts_table(facts: Mapping[str, Any], title: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), _plain(value))
    return table


def _plain(value: Any) -> str:
    from rich.markup import escape

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
    return escape(printable(str(value)))
