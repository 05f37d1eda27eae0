"""Tables and numbers of the coverage study's page, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def listed(numbers: Iterable[int]) -> str:
    *most, last = [f"{number:,}" for number in numbers]
    return f"{', '.join(most)} and {last}" if most else last


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join([*lines, ""])
