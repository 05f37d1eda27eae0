"""A bar for scans of large logs: rows per second and the time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

Report = Callable[[int, int], None]


@contextmanager
def scanning(quiet: bool) -> Iterator[Report | None]:
    """What to tell the rows done and their number; None where nobody looks (no terminal, quiet).

    Use it with `watched(log, report)`. The bar is on the standard error, and goes when it is done.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[pace]}"),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None, pace="")

        def report(done: int, total: int) -> None:
            bar.update(task, total=total, completed=done)
            speed = bar.tasks[task].speed  # of late: loading the kernels does not count
            bar.update(task, pace=pace(speed) if speed else "")

        yield report


@contextmanager
def at_work(data: Any, text: str, quiet: bool) -> Iterator[Any]:
    """The log to work on, with a bar while it is scanned, or a spinner where it is in memory."""
    from reweigh.cli.show import working

    if hasattr(data, "scanner"):
        with scanning(quiet) as report:
            yield watched(data, report)
    else:
        with working(text, quiet=quiet):
            yield data


def pace(rows_per_second: float) -> str:
    """Such as "12.3 million rows/s"."""
    if rows_per_second >= 1e6:
        return f"{rows_per_second / 1e6:.1f} million rows/s"
    return f"{rows_per_second:,.0f} rows/s"


def watched(log: Any, report: Report | None) -> Any:
    """The same log, whose scans tell `report`; a log in memory stays as it is."""
    scanner = getattr(log, "scanner", None)
    if report is None or not is_dataclass(scanner) or isinstance(scanner, type):
        return log
    if "report" not in {field.name for field in fields(scanner)}:
        return log
    return replace(log, scanner=replace(scanner, report=report))
