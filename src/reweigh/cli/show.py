"""Tables and JSON on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from reweigh.results import Estimate, Refusal


def print_json(value: Any) -> None:
    """One JSON object; NaN never leaves."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def working(text: str, quiet: bool = False) -> Iterator[None]:
    """A spinner on standard error while something takes its time."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def print_table(table: Table) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 100
    Console(width=width, highlight=False, soft_wrap=False).print(table)


def estimates_table(results: Sequence[Estimate | Refusal], truth: float | None = None) -> Table:
    """One row per estimator; a refusal tells its reason below the table."""
    from rich import box
    from rich.table import Table

    from reweigh.results import Refusal, rounded, two_digits

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("estimator", "value", "95 % interval", "std. error", "ESS", "unseen"):
        table.add_column(name, justify="left" if name == "estimator" else "right", no_wrap=True)
    if truth is not None:
        table.add_column("off by", justify="right", no_wrap=True)
    for result in results:
        if isinstance(result, Refusal):
            blanks = [""] * (4 if truth is None else 5)
            table.add_row(result.estimator, "refused", *blanks)
            continue
        interval = result.interval()
        d = result.diagnostics
        cells = [
            result.estimator + (" !" if result.warnings else ""),
            rounded(result.value, result.standard_error),
            "none" if interval is None else str(interval),
            two_digits(result.standard_error),
            "none" if d.worst_ess is None else f"{d.worst_ess:,.0f}",
            "" if d.total_unseen is None else f"{d.total_unseen:.2%}",
        ]
        if truth is not None:
            cells.append(f"{result.value - truth:+.2g}")
        table.add_row(*cells)
    return table


def remarks(results: Sequence[Estimate | Refusal]) -> list[str]:
    """Warnings and refusals as lines, the same text once with all its estimators."""
    from reweigh.results import Refusal

    by_text: dict[str, list[str]] = {}
    for result in results:
        if isinstance(result, Refusal):
            by_text.setdefault(f"refused ({result.error.code}): {result.error}", []).append(
                result.estimator
            )
        else:
            for warning in result.warnings:
                by_text.setdefault(f"! {warning}", []).append(result.estimator)
            if result.standard_error is None:
                by_text.setdefault(f"no interval: {result.error_method}", []).append(
                    result.estimator
                )
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
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
    return escape(text)


def escape_lines(lines: Sequence[str]) -> str:
    """Text for the terminal: control characters are shown, not obeyed."""
    return "\n".join(
        "".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in lines
    )
