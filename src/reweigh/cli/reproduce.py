"""reweigh reproduce: the paper's figures, resumable."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh import __version__
from reweigh.cli.command import command
from reweigh.cli.options import WRITES, QuietFiles
from reweigh.cli.terminal import Terminal, keeping
from reweigh.errors import PartialError, UsageError
from reweigh.system import files

if TYPE_CHECKING:
    from reweigh.paper.cells import Setting
    from reweigh.paper.figures import Figure
    from reweigh.paper.sweep import Done, Progress

CELLS, RUN = "cells", "run.json"
KINDS = ("csv", "svg", "png")


@command()
def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIGURE…", help="fig2a … fig6, extra_…, or all; none lists them."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for tables, pictures and cells."),
        WRITES,
    ] = None,
    replicates: Annotated[int, typer.Option(help="Simulated logs per point.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the whole study.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(help="Workers on this machine. (default: one per core)")
    ] = None,
    backend: Annotated[str, typer.Option(help="loky, sequential, dask or ray.")] = "loky",
    address: Annotated[str | None, typer.Option(help="Address of a Dask or Ray cluster.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again and replace existing results.")
    ] = False,
    quiet: QuietFiles = False,
) -> None:
    """Reproduce the paper's figures: CSV, SVG and PNG of each.

    Example: reweigh reproduce fig2a fig3b -o paper --replicates 16
    """
    from reweigh.paper import figures as paper
    from reweigh.paper import sweep
    from reweigh.paper.cells import Setting

    if not figures:
        for figure in paper.FIGURES.values():
            print(f"{figure.name:26} {figure.title}: {', '.join(figure.estimators)}")
        return
    panels = paper.chosen(figures)
    if output is None:
        raise UsageError("name an output folder: -o FOLDER")
    setting = Setting(replicates, seed)
    runner = sweep.Backend(backend, jobs, address)  # type: ignore[arg-type]
    _prepare(panels, output, resume, overwrite)
    began = time.monotonic()
    instead = " instead of --overwrite" if overwrite else ""
    kept = f"every finished cell is kept. Continue with the same command and --resume{instead}"
    with keeping(kept), _reporting(quiet) as report:
        done = sweep.run(
            paper.wanted(panels),
            output / CELLS,
            setting,
            backend=runner,
            resume=resume,
            overwrite=overwrite,
            report=report,
        )
    simulated = time.monotonic() - began
    terminal = Terminal(quiet)
    whole = [panel for panel in panels if not set(panel.cells) & set(done.failed)]
    _write_figures(whole, done, setting, output, terminal)
    total = time.monotonic() - began
    about_run = {
        "command": f"reweigh reproduce {' '.join(figures)} --replicates {replicates} --seed {seed}",
        "version": __version__,
        "workers": runner.workers,
        "cells_computed": len(done.results) - len(done.existing),
        "cells_found": len(done.existing),
        "seconds_of_simulation": round(simulated, 1),
        "seconds": round(total, 1),
    }
    content = json.dumps(files.sealed(about_run), indent=2).encode() + b"\n"
    files.write_atomically(output / RUN, lambda stream: stream.write(content), overwrite=True)
    terminal.say(
        f"{_counted(len(whole), 'figure')} from {_counted(len(done.results), 'cell')} of "
        f"{replicates} replicates in {duration(total)}: {output}"
    )
    _refuse_partial(done)


def _refuse_partial(done: Done[Any]) -> None:
    """PartialError where cells failed."""
    if done.failed:
        listed = "; ".join(f"{cell.name} ({why})" for cell, why in done.failed.items())
        raise PartialError(
            f"{_counted(len(done.failed), 'cell')} failed: {listed}. Figures that need them "
            "are left out; the rest is kept: continue with --resume"
        )


def _prepare(panels: list[Figure], output: Path, resume: bool, overwrite: bool) -> None:
    """Existing results of these figures are kept, continued, or removed."""
    if resume and overwrite:
        raise UsageError("give --resume or --overwrite, not both")
    files = [output / f"{panel.name}.{kind}" for panel in panels for kind in KINDS]
    existing = [path for path in files if path.exists()]
    if existing and not (overwrite or resume):
        raise UsageError(
            f"{str(existing[0])!r} exists: continue with --resume, start again with "
            "--overwrite, or give another folder"
        )
    if overwrite:  # so that after an interruption all results are this run's
        for path in existing:
            path.unlink()


def _write_figures(
    panels: list[Figure], done: Done[Any], setting: Setting, output: Path, terminal: Terminal
) -> None:
    from reweigh.paper import figures as paper
    from reweigh.show.charts import save

    for panel in panels:
        table = paper.rows(panel, done.results, setting)
        paper.write_csv(output / f"{panel.name}.csv", table, overwrite=True)
        save(paper.chart(panel, table), output / panel.name, overwrite=True)
        terminal.warn(f"! {line}" for line in paper.refusals(panel, done.results))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def _reporting(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar with the time left on a terminal, a line per finished cell elsewhere."""
    from reweigh.cli.progress import Line, progress_bar

    if quiet:
        yield lambda p: None
    elif sys.stderr.isatty():
        with progress_bar() as bar:
            line = Line(bar, "simulating")
            yield lambda p: line.share("cells", p.work_done / p.work)
    else:
        yield _Lines()


@dataclass
class _Lines:
    """One line per finished cell, with the time left at the pace so far."""

    began: float | None = None
    work_before: float = 0.0  # by an earlier run
    finished: int = 0

    def __call__(self, p: Progress) -> None:
        now = time.monotonic()
        if self.began is None:  # until here workers were started
            self.began, self.work_before = now, p.work_done
        if p.finished == self.finished:
            return
        self.finished = p.finished
        left, done = "", p.work_done - self.work_before
        if done > 0:
            rest = (now - self.began) / done * (p.work - p.work_done)
            left = f", about {duration(rest)} left"
        print(f"{p.finished}/{p.cells} {p.cell.name}{left}", file=sys.stderr)
