"""reweigh reproduce: the paper's figures, resumable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

if TYPE_CHECKING:
    from reweigh.experiments.sweep import Progress

CELLS, RUN = "cells", "run.json"


def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(metavar="FIGURE…", help="fig2a … fig6, extra_…, or all."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for tables, pictures and cells.")
    ],
    replicates: Annotated[int, typer.Option(help="Simulated logs per point.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the whole study.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Workers. (default: one per core)")] = None,
    backend: Annotated[str, typer.Option(help="loky, sequential, dask or ray.")] = "loky",
    address: Annotated[str | None, typer.Option(help="Address of a Dask or Ray cluster.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an interrupted run has finished.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew and replace what is there.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but warnings.")] = False,
) -> None:
    """Reproduce the paper's figures: CSV, SVG and PNG of each.

    Example: reweigh reproduce fig2a fig3b -o paper --replicates 16
    """
    from reweigh.cli.show import say
    from reweigh.errors import ResourceError, UsageError
    from reweigh.experiments import paper, sweep
    from reweigh.experiments.cells import Setting
    from reweigh.experiments.figures import chart
    from reweigh.report.charts import save

    panels = paper.chosen(figures)
    setting = Setting(replicates, seed)
    runner = sweep.Backend(backend, jobs, address)  # type: ignore[arg-type]
    if resume and overwrite:
        raise UsageError("give --resume or --overwrite, not both")
    names = [f"{panel.name}.{kind}" for panel in panels for kind in ("csv", "svg", "png")]
    there = [name for name in names if (output / name).exists()]
    if there and not (overwrite or resume):
        raise UsageError(
            f"{str(output / there[0])!r} exists: go on with --resume, begin anew with "
            "--overwrite, or give another folder"
        )
    began = time.monotonic()
    try:
        with _telling(quiet) as report:
            results = sweep.run(
                paper.wanted(panels),
                output / CELLS,
                setting,
                backend=runner,
                resume=resume,
                overwrite=overwrite,
                report=report,
            )
    except KeyboardInterrupt:
        say("interrupted; every finished cell is kept. Go on with the same command and --resume")
        raise
    except OSError as error:
        raise ResourceError(f"cannot write to {str(output)!r}: {error.strerror}") from error
    simulated = time.monotonic() - began
    for panel in panels:
        table = paper.rows(panel, results, setting)
        paper.write_csv(output / f"{panel.name}.csv", table, overwrite=True)
        save(chart(panel, table), output / panel.name, overwrite=True)
        for line in paper.refusals(panel, results):
            say(f"! {line}")
    total = time.monotonic() - began
    _write_run(output / RUN, figures, replicates, seed, runner.workers, simulated, total)
    if not quiet:
        say(
            f"{_counted(len(panels), 'figure')} from {_counted(len(results), 'cell')} of "
            f"{replicates} replicates in {duration(total)}: {output}"
        )


def _write_run(
    path: Path,
    figures: list[str],
    replicates: int,
    seed: int,
    workers: int,
    simulated: float,
    total: float,
) -> None:
    """How these results were made, and how long that took."""
    from reweigh import __version__
    from reweigh.output import write_atomically

    content = {
        "command": f"reweigh reproduce {' '.join(figures)} --replicates {replicates} --seed {seed}",
        "version": __version__,
        "workers": workers,
        "seconds_of_simulation": round(simulated, 1),
        "seconds": round(total, 1),
    }

    def write(stream: BinaryIO) -> None:
        stream.write((json.dumps(content, indent=2) + "\n").encode())

    write_atomically(path, write, overwrite=True)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def _telling(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left on a terminal, a line per finished cell elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield lambda progress: None
    elif console.is_terminal:
        with _bar(console) as report:
            yield report
    else:
        yield _Lines(console)


@contextmanager
def _bar(console: object) -> Iterator[Callable[[Progress], None]]:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:  # type: ignore[arg-type]
        task = bar.add_task("simulating", total=None)

        def report(p: Progress) -> None:
            text = f"cell {min(p.finished + 1, p.cells)} of {p.cells}"
            bar.update(task, total=p.work, completed=p.work_done, description=text)

        yield report


class _Lines:
    """One line per finished cell, with the time left at the pace so far."""

    def __init__(self, console: object) -> None:
        self._console = console
        self._began = time.monotonic()
        self._told = 0

    def __call__(self, p: Progress) -> None:
        if p.finished == self._told:
            return
        self._told = p.finished
        passed = time.monotonic() - self._began
        left = passed * (p.work - p.work_done) / p.work_done
        self._console.print(  # type: ignore[attr-defined]
            f"{p.finished}/{p.cells} {p.cell.name}, about {duration(left)} left", highlight=False
        )
