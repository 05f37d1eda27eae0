"""What a terminal shows while something takes its time: how far it is, and the time left.

Everything is on the standard error, and goes when it is done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from reweigh.system.process import Report, watching

FULL = 1000  # shares are told in thousandths


_phases: list[str] = []  # of the command, the innermost last


def doing() -> str:
    """What the command does, or did when it failed; empty where it is not known."""
    return _phases[-1] if _phases else ""


def forget() -> None:
    """Another command begins."""
    _phases.clear()


@contextmanager
def phase(text: str) -> Iterator[None]:
    """A failure leaves the phase in place, for the message that tells it."""
    _phases.append(text)
    yield
    _phases.remove(text)


@contextmanager
def working(text: str, *, silent: bool = False) -> Iterator[None]:
    """A line while something is done: what, for how long; with a bar and the time left as soon as
    a loop inside tells how far it is (`reweigh.system.process.each`)."""
    if silent or not sys.stderr.isatty():
        with phase(text):
            yield
        return
    with phase(text), _bar() as bar:
        line = _Line(bar, bar.add_task(text, total=None, pace="", ends=None), text)
        with watching(line.tell):
            yield


@contextmanager
def scanning(text: str, *, silent: bool = False) -> Iterator[Report | None]:
    """What to tell the rows done and their number; None where nobody looks (no terminal, quiet).

    Use it with `watched(log, report)`.
    """
    if silent or not sys.stderr.isatty():
        yield None
        return
    with _bar() as bar:
        task = bar.add_task(text, total=None, pace="", ends=None)

        def report(done: int, total: int) -> None:
            if done < bar.tasks[task].completed:  # the rows are read once more
                bar.reset(task)
            bar.update(task, total=total, completed=done)
            speed = bar.tasks[task].speed  # of late: loading the kernels does not count
            bar.update(task, pace=pace(speed) if speed else "")

        yield report


@contextmanager
def at_work(data: Any, text: str, *, silent: bool = False) -> Iterator[Any]:
    """The log to work on: a bar tells how far its scans or the loops over it are."""
    if _reports(data):
        with phase(text), scanning(text, silent=silent) as report:
            yield watched(data, report)
    else:
        with working(text, silent=silent):
            yield data


def _reports(data: Any) -> bool:
    """Whether the scans of a log tell the rows that are done; others tell their queries."""
    return getattr(getattr(data, "scanner", None), "tells_rows", False)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        _timing(),
        TextColumn("{task.fields[pace]}"),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _timing() -> Any:
    """The share and the time left where they are known, else the time that it has taken."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Timing(ProgressColumn):
        def render(self, task: Task) -> Text:
            if task.total is None:
                return Text(f"{clock(task.elapsed)} so far")
            ends = task.fields["ends"]
            left = task.time_remaining if ends is None else max(ends - time.monotonic(), 0.0)
            return Text(
                f"{task.percentage:3.0f} %{'' if left is None else f', {clock(left)} left'}"
            )

    return Timing()


def clock(seconds: float | None) -> str:
    """Such as 0:07 or 1:02:03."""
    whole = round(seconds or 0.0)
    hours, minutes = divmod(whole // 60, 60)
    start = f"{hours}:{minutes:02}" if hours else f"{minutes}"
    return f"{start}:{whole % 60:02}"


@dataclass
class _Line:
    """One line of the terminal, which says how far a loop is; another loop starts it anew."""

    bar: Any
    task: Any
    text: str
    loop: str | None = None
    began: float = 0.0
    share: float = 0.0

    def tell(self, what: str, share: float) -> None:
        now = time.monotonic()
        if what != self.loop or share < self.share:
            self.loop, self.began = what, now
            self.bar.remove_task(self.task)
            self.task = self.bar.add_task(
                f"{self.text}: {what}" if what else self.text, total=None, pace="", ends=None
            )
        self.share = share
        if share > 0:
            # rounds take alike: (now - began)/share is the time of all of them
            ends = self.began + (now - self.began) / share
            self.bar.update(self.task, total=FULL, completed=FULL * share, ends=ends)


def pace(rows_per_second: float) -> str:
    """Such as "12.3 million rows/s"."""
    if rows_per_second >= 1e6:
        return f"{rows_per_second / 1e6:.1f} million rows/s"
    return f"{rows_per_second:,.0f} rows/s"


def watched(log: Any, report: Report | None) -> Any:
    """The same log, whose scans tell `report`; a log in memory stays as it is."""
    if report is None or not _reports(log):
        return log
    return replace(log, scanner=replace(log.scanner, report=report))
