"""The plan of the study of memory: its cells, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from reweigh.errors import UsageError, nearest
from reweigh.paper import sweep
from reweigh.paper.cells import CellResult, Setting, load
from reweigh.paper.sweep import Backend, Progress
from reweigh_studies.coverage.worlds import installed
from reweigh_studies.memory.cells import MemoryCell
from reweigh_studies.memory.worlds import HALVES, SIZES, WORLDS, half_of

REPLICATES = 300
SMALL_WORLDS, SMALL_SIZES, SMALL_REPLICATES = ("delayed-3", "random"), (200,), 8


@dataclass(frozen=True)
class Plan:
    """Cells, and how many logs each is to have."""

    cells: tuple[MemoryCell, ...]
    replicates: int


def whole_plan() -> Plan:
    return Plan(tuple(MemoryCell(world, n) for n in SIZES for world in WORLDS), REPLICATES)


def plan(
    worlds: Iterable[str] | None = None,
    *,
    sizes: Iterable[int] | None = None,
    half: str | None = None,
    replicates: int | None = None,
    small: bool = False,
) -> Plan:
    """The cells of these worlds and sizes, and of this half of the worlds; all, by default."""
    usual = SMALL_WORLDS if small else tuple(name for name in WORLDS if installed(WORLDS[name]))
    chosen = usual if worlds is None else tuple(dict.fromkeys(worlds))
    for what, value, known in (
        *(("world", name, WORLDS) for name in chosen),
        *(("half", name, HALVES) for name in (half,) if name),
    ):
        if value not in known:
            told = f"{nearest(value, known)} (known: {', '.join(known)})"
            raise UsageError(f"there is no {what} {value!r}{told}")
    sizes = (SMALL_SIZES if small else SIZES) if sizes is None else tuple(sizes)
    if unknown := [n for n in sizes if n not in SIZES]:
        raise UsageError(f"the study has no logs of {unknown[0]} episodes (only of {SIZES})")
    mine = [name for name in chosen if half in (None, half_of(name))]
    count = replicates or (SMALL_REPLICATES if small else REPLICATES)
    return Plan(tuple(MemoryCell(world, n) for n in sizes for world in mine), count)


def run(
    of: Plan,
    folder: Path,
    *,
    seed: int = 0,
    backend: Backend | None = None,
    overwrite: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[MemoryCell, str]:
    """Run what is missing, cell by cell, each kept when it is done; the failed ones, and why."""
    done = sweep.run(
        {cell: cell.estimators for cell in of.cells},
        folder,
        Setting(of.replicates, seed),
        backend=backend,
        resume=not overwrite,
        overwrite=overwrite,
        extend=True,
        keep=lambda cell, result: None,
        report=report,
    )
    return done.failed


def finished(folder: Path, *, seed: int = 0) -> dict[MemoryCell, CellResult]:
    """All cells of the study that are in the folder, however many logs they have."""
    found = {}
    for cell in whole_plan().cells:
        result = load(folder, cell, Setting(REPLICATES, seed), fewer=True)
        if result is not None:
            found[cell] = result
    return found
