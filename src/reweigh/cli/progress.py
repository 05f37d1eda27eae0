"""A bar on the terminal while something takes its time: how far it is, and the time left.

Everything is on the standard error, and is erased at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from reweigh.system.process import watching

FULL = 1000  # shares are shown in thousandths


@contextmanager
def bar_of(text: str, log: Any = None) -> Iterator[Any]:
    """A line while something is done: what, for how long; with a bar and the time left as soon as
    a loop inside reports how far it is (`reweigh.system.process.each`), or the scans of the log
    tell their rows. Yields the log to work on."""
    with progress_bar() as bar:
        line = Line(bar, text)
        if getattr(getattr(log, "scanner", None), "reports_rows", False):
            yield replace(log, scanner=replace(log.scanner, report=line.rows))
        else:
            with watching(line.share):
                yield log


def progress_bar() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        Timing(),
        TextColumn("{task.fields[pace]}"),
        console=Console(stderr=True),
        transient=True,
    )


class Timing(ProgressColumn):
    """The share and the time left where they are known, else the time that it has taken."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text(f"{clock(task.elapsed)} so far")
        ends = task.fields["ends"]
        left = task.time_remaining if ends is None else max(ends - time.monotonic(), 0.0)
        return Text(f"{task.percentage:3.0f} %{'' if left is None else f', {clock(left)} left'}")


@dataclass
class Line:
    """One line of the terminal with the progress of a loop; another loop restarts it."""

    bar: Progress
    text: str
    loop: str | None = None
    began: float = 0.0
    done: float = 0.0

    def __post_init__(self) -> None:
        self.task = self.bar.add_task(self.text, total=None, pace="", ends=None)

    def share(self, what: str, done: float) -> None:
        """The share of a loop that is done."""
        now = time.monotonic()
        if what != self.loop or done < self.done:
            self.loop, self.began = what, now
            self.bar.remove_task(self.task)
            text = f"{self.text}: {what}" if what else self.text
            self.task = self.bar.add_task(text, total=None, pace="", ends=None)
        self.done = done
        if done > 0:
            # rounds take alike: (now - began)/done is the time of all of them
            ends = self.began + (now - self.began) / done
            self.bar.update(self.task, total=FULL, completed=FULL * done, ends=ends)

    def rows(self, done: int, total: int) -> None:
        """The rows of a scan that are read."""
        if done < self.done:  # the rows are read once more
            self.bar.reset(self.task)
        self.done = done
        self.bar.update(self.task, total=total, completed=done)
        speed = self.bar.tasks[0].speed  # of late: loading the kernels does not count
        self.bar.update(self.task, pace=pace(speed) if speed else "")


def clock(seconds: float | None) -> str:
    """Such as 0:07 or 1:02:03."""
    whole = round(seconds or 0.0)
    hours, minutes = divmod(whole // 60, 60)
    start = f"{hours}:{minutes:02}" if hours else f"{minutes}"
    return f"{start}:{whole % 60:02}"


def pace(rows_per_second: float) -> str:
    """Such as "12.3 million rows/s"."""
    if rows_per_second >= 1e6:
        return f"{rows_per_second / 1e6:.1f} million rows/s"
    return f"{rows_per_second:,.0f} rows/s"
