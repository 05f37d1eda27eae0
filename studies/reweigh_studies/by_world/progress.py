"""What scripts of studies share: lists among their options, and a line now and then."""

from __future__ import annotations

import sys
import time

from reweigh.paper.sweep import Progress

TOLD_EVERY = 30.0  # seconds


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str) -> list[int]:
    return [int(name) for name in names(text)]


class Telling:
    """A line now and then, with the time left at the pace so far."""

    def __init__(self) -> None:
        self._began, self._told, self._first = time.monotonic(), 0.0, 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.work_done < self._first or not self._first:  # a part begins
            self._began, self._first = now, progress.work_done
        if now - self._told < TOLD_EVERY and progress.finished < progress.cells:
            return
        self._told, done = now, progress.work_done - self._first
        left = ""
        if done > 0:
            hours = (now - self._began) / done * (progress.work - progress.work_done) / 3600
            left = f", about {hours:.1f} h of this part left"
        print(
            f"{progress.finished}/{progress.cells} cells, {progress.cell.name}{left}",
            file=sys.stderr,
            flush=True,
        )
