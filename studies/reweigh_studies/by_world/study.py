"""A study of worlds at sizes: its plan, its halves, and how its cells are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from reweigh.errors import UsageError, nearest
from reweigh.paper import sweep
from reweigh.paper.cells import AnyCell, CellResult, Setting, load
from reweigh.paper.sweep import Backend, Progress
from reweigh_studies.coverage.worlds import StudyWorld, installed

HALVES = ("setting", "reporting")


class WorldCell(AnyCell, Protocol):
    """A world at a size."""

    @property
    def world(self) -> str:
        """Its name."""

    @property
    def n(self) -> int:
        """Episodes of a log."""

    @property
    def estimators(self) -> tuple[str, ...]:
        """Those of a log, which are always all of them."""


C = TypeVar("C", bound=WorldCell)


@dataclass(frozen=True)
class Plan(Generic[C]):
    """Cells, and how many logs each is to have."""

    cells: tuple[C, ...]
    replicates: int


@dataclass(frozen=True)
class Study(Generic[C]):
    """The whole design: `replicates` logs of every world at every size. `small` is a plan of
    seconds: names of worlds, sizes, logs."""

    worlds: Mapping[str, StudyWorld]
    sizes: tuple[int, ...]
    cell: Callable[[str, int], C]
    replicates: int
    small: tuple[tuple[str, ...], tuple[int, ...], int]

    def half_of(self, name: str) -> str:
        return half_of(self.worlds, name)

    @property
    def whole(self) -> Plan[C]:
        cells = (self.cell(world, n) for n in self.sizes for world in self.worlds)
        return Plan(tuple(cells), self.replicates)

    def plan(
        self,
        worlds: Iterable[str] | None = None,
        *,
        sizes: Iterable[int] | None = None,
        half: str | None = None,
        replicates: int | None = None,
        small: bool = False,
    ) -> Plan[C]:
        """The cells of these worlds and sizes, and of this half of the worlds; all, by default."""
        every = tuple(name for name, world in self.worlds.items() if installed(world))
        usual, usual_sizes, count = (
            self.small if small else (every, self.sizes, self.replicates)
        )  # fmt: skip
        chosen = usual if worlds is None else tuple(dict.fromkeys(worlds))
        requested: list[tuple[str, str, Sequence[str]]]
        requested = [("world", name, tuple(self.worlds)) for name in chosen]
        for what, value, known in [*requested, *([("half", half, HALVES)] if half else [])]:
            if value not in known:
                hint = f"{nearest(value, known)} (known: {', '.join(known)})"
                raise UsageError(f"there is no {what} {value!r}{hint}")
        taken = usual_sizes if sizes is None else tuple(sizes)
        if unknown := [n for n in taken if n not in self.sizes]:
            raise UsageError(
                f"the study has no logs of {unknown[0]} episodes (only of {self.sizes})"
            )
        mine = [name for name in chosen if half in (None, self.half_of(name))]
        return Plan(
            tuple(self.cell(world, n) for n in taken for world in mine), replicates or count
        )

    def run(
        self,
        of: Plan[C],
        folder: Path,
        *,
        seed: int = 0,
        backend: Backend | None = None,
        overwrite: bool = False,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> dict[C, str]:
        """Run what is missing, cell by cell, each kept when it is done; the failed ones, and
        why."""
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

    def finished(self, folder: Path, *, seed: int = 0) -> dict[C, CellResult]:
        """All cells of the study that are in the folder, however many logs they have."""
        found = {}
        for cell in self.whole.cells:
            result = load(folder, cell, Setting(self.replicates, seed), fewer=True)
            if result is not None:
                found[cell] = result
        return found


def half_of(worlds: Mapping[str, StudyWorld], name: str) -> str:
    """The half of the study that a world belongs to: by turns within its kind."""
    alike = [other for other, world in worlds.items() if world.group == worlds[name].group]
    return HALVES[alike.index(name) % 2]
