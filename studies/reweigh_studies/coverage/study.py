"""The coverage study: its parts, how they are run, and the tables that they give.

coverage   every world and size: values, analytic and clustered intervals, gates, verdicts; the
           jackknife of MIS
jackknife  every world and size: the jackknife of the other estimators
bootstrap  percentile and bootstrap-t intervals on ten worlds, up to 1,000 episodes
faults     faults put into the logs of some worlds: which gates notice; clean logs of the same
           worlds, for the gates that the part `coverage` does not tell
best       the best of 50 equal policies
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reweigh.errors import UsageError, nearest
from reweigh.paper import sweep
from reweigh.paper.cells import CellResult, Setting, load
from reweigh.paper.sweep import Backend
from reweigh.trust.gates.weights import DecisiveEpisodes
from reweigh_studies.coverage import tables
from reweigh_studies.coverage.cells import CLEAN, BestCell, TrustCell
from reweigh_studies.coverage.faults import FAULTS
from reweigh_studies.coverage.measures import (
    BEHAVIOR,
    BOOTSTRAPS,
    CUT,
    DEPENDENCE,
    JACKKNIFE,
    LOG,
    SUMS,
    Measure,
)
from reweigh_studies.coverage.tables import VERDICT, Row
from reweigh_studies.coverage.worlds import SIZES, WORLDS, installed

ESTIMATORS = (
    "mis", "mis-plain", "mis-state", "mis-pooled", "dm", "is", "wis", "dr", "wdr", "mdr",
)  # fmt: skip
QUICK = Measure().quick
JUDGED = ("mis", "dm", "wis")  # one of each kind: their gates are in the tables
# For others, the verdict and the gates that those lack: with faults, and on clean logs.
ALSO = {
    "dr": ("fitted values", "hidden policies", DecisiveEpisodes.name),
    "mdr": ("unseen actions",),
    SUMS: (DEPENDENCE, CUT),
}
POOLING = {"mis-pooled": ("steadiness",), "ssd-is": ("stationarity",)}
BOOTSTRAP_SIZES = (50, 200, 1000)
BOOTSTRAP_WORLDS = (
    "modelwin-10", "default", "noisy-better", "many-states", "apart", "longer-better", "ending",
    "rare-5", "steady-better", "bandit",
)  # fmt: skip
FAULTY_WORLDS = (
    "modelwin-10", "default", "tiny-better", "noisy-better", "many-states", "steady", "ending",
    "long-better",
)  # fmt: skip
# Pooling is for worlds that are the same at every step, and one fault is made for it. SSD-IS has
# its interval by deleting blocks, which costs more than all others together: one world has to do.
STEADY_WORLDS = ("modelwin-10", "steady", "steady-better")
POOLED_IN = {"mis-pooled": STEADY_WORLDS, "ssd-is": ("steady",)}
RENAMED = "states-renamed"
PUT_INTO = {  # faults that are none in the other worlds
    "cut-off": ("ending", "ending-better"),
    RENAMED: STEADY_WORLDS,
}
BEST_SIZES = (200, 1000)
SMALL_WORLDS = ("default", "tiny-better", "rare-5", "none", "modelfail-naive")
SMALL_SIZES = (50, 200)
SMALL_REPLICATES = 16
PARTS = {"coverage": 1000, "jackknife": 1000, "bootstrap": 300, "faults": 200, "best": 1000}
AnyTrust = TrustCell | BestCell


@dataclass
class Tables:
    """Rows of every table, as far as they are there."""

    coverage: list[Row] = field(default_factory=list)
    gates: list[Row] = field(default_factory=list)
    best: list[Row] = field(default_factory=list)
    bins: list[Row] = field(default_factory=list)

    def add(self, other: Tables) -> None:
        for name in vars(self):
            getattr(self, name).extend(getattr(other, name))

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        order = {name: place for place, name in enumerate(WORLDS)}

        def by_world(row: Row) -> Any:
            return order[row["world"]], row["n"]

        covered = sorted(self.coverage, key=by_world)
        tables.write_csv(folder / "coverage.csv", tables.COVERAGE, covered)
        tables.write_csv(folder / "gates.csv", tables.GATES, sorted(self.gates, key=by_world))
        tables.write_csv(folder / "best_of_many.csv", tables.BEST, self.best)
        tables.write_csv(folder / "bins.csv", tables.BINS, tables.bin_rows(self.bins))
        tables.write_csv(folder / "worlds.csv", tables.WORLD_COLUMNS, tables.world_rows())


@dataclass(frozen=True)
class Part:
    """Cells with their estimators, replicates, and the result made from a finished cell."""

    name: str
    cells: Mapping[AnyTrust, Sequence[str]]
    replicates: int
    keep: Callable[[AnyTrust, CellResult], Tables]


def plan(
    worlds: Iterable[str] | None = None,
    *,
    parts: Iterable[str] | None = None,
    sizes: Iterable[int] | None = None,
    faults: Iterable[str] | None = None,
    replicates: int | Mapping[str, int] | None = None,
    small: bool = False,
) -> list[Part]:
    """The parts of the study, of these worlds, sizes and faults; `replicates` is the most that any
    part has, or how many each has."""
    chosen = _chosen("world", worlds, WORLDS, SMALL_WORLDS if small else tuple(WORLDS))
    lacking = [name for name in chosen if not installed(WORLDS[name])]
    if lacking:
        raise UsageError(
            f"the worlds {', '.join(lacking)} need the package icu-sepsis: "
            "pip install --no-deps 'icu-sepsis>=2,<3'"
        )
    sizes = tuple(SMALL_SIZES if small else SIZES) if sizes is None else tuple(sizes)
    unknown = [n for n in sizes if n not in SIZES]
    if unknown:
        raise UsageError(f"the study has no logs of {unknown[0]} episodes (only of {SIZES})")
    if isinstance(replicates, Mapping):
        _chosen("part", replicates, PARTS, ())
        counts = {**PARTS, **replicates}
    else:
        most = replicates or (SMALL_REPLICATES if small else max(PARTS.values()))
        counts = {name: min(usual, most) for name, usual in PARTS.items()}
    cells = cells_of(chosen, sizes, _chosen("fault", faults, FAULTS, tuple(FAULTS)))
    return [
        Part(name, cells[name], counts[name], KEEP[name])
        for name in _chosen("part", parts, PARTS, tuple(PARTS))
        if cells[name]
    ]


def cells_of(
    chosen: Iterable[str] = tuple(WORLDS),
    sizes: Iterable[int] = SIZES,
    faults: Iterable[str] = tuple(FAULTS),
) -> dict[str, dict[AnyTrust, Sequence[str]]]:
    """The cells of every part, with their estimators."""
    chosen, sizes, faults = tuple(chosen), tuple(sizes), tuple(faults)
    others = tuple(name for name in ESTIMATORS if name not in QUICK)
    jackknife = Measure((JACKKNIFE,), quick=(), gates=False)
    bootstrap = Measure(BOOTSTRAPS, quick=(), gates=False)
    bare = Measure(("auto",), quick=())
    return {
        "coverage": {
            TrustCell(world, n): (*ESTIMATORS, LOG, BEHAVIOR) for world in chosen for n in sizes
        },
        "jackknife": {
            TrustCell(world, n, measure=jackknife): others for world in chosen for n in sizes
        },
        "bootstrap": {
            TrustCell(world, n, measure=bootstrap): ESTIMATORS
            for world in chosen
            if world in BOOTSTRAP_WORLDS
            for n in sizes
            if n in BOOTSTRAP_SIZES
        },
        "faults": {
            TrustCell(world, n, fault, bare): _estimators_for(world, fault)
            for world in chosen
            for n in sizes
            for fault in faults
            if world in _worlds_of(fault)
        },
        "best": {BestCell(n): ("mis",) for n in BEST_SIZES if n in sizes},
    }


def _worlds_of(fault: str) -> set[str]:
    """The worlds whose logs have a fault; clean are those of all of these."""
    if fault == CLEAN:
        return set(FAULTY_WORLDS).union(*PUT_INTO.values())
    return set(PUT_INTO.get(fault, FAULTY_WORLDS))


def _estimators_for(world: str, fault: str) -> tuple[str, ...]:
    """The estimators for a log of the part `faults`; those that the part `coverage` has on clean
    logs are not repeated."""
    judged = () if fault == CLEAN else JUDGED
    pooling = [name for name in POOLING if world in POOLED_IN[name] and fault in (CLEAN, RENAMED)]
    return (*judged, *ALSO, *pooling, LOG)


def _chosen(
    what: str, names: Iterable[str] | None, known: Iterable[str], usual: tuple[str, ...]
) -> tuple[str, ...]:
    listed = usual if names is None else tuple(dict.fromkeys(names))
    for name in listed:
        if name not in known:
            raise UsageError(
                f"there is no {what} {name!r}{nearest(name, known)} (known: {', '.join(known)})"
            )
    return listed


def _of_coverage(cell: AnyTrust, result: CellResult) -> Tables:
    assert isinstance(cell, TrustCell)
    rows = tables.coverage_rows(cell, result)
    gates = [row for row in tables.gate_rows(cell, result) if row["estimator"] in JUDGED]
    return Tables(coverage=rows, gates=gates, bins=tables.bin_counts(cell, result))


def _of_methods(*methods: str) -> Callable[[AnyTrust, CellResult], Tables]:
    """These methods alone: the others are in the part `coverage`, with more replicates."""

    def keep(cell: AnyTrust, result: CellResult) -> Tables:
        assert isinstance(cell, TrustCell)
        rows = tables.coverage_rows(cell, result)
        return Tables(coverage=[row for row in rows if row["method"] in methods])

    return keep


def _of_faults(cell: AnyTrust, result: CellResult) -> Tables:
    assert isinstance(cell, TrustCell)
    own = ALSO | POOLING
    rows = tables.gate_rows(cell, result)
    return Tables(
        gates=[
            row
            for row in rows
            if row["estimator"] not in own or row["gate"] in (*own[row["estimator"]], VERDICT)
        ]
    )


def _of_best(cell: AnyTrust, result: CellResult) -> Tables:
    assert isinstance(cell, BestCell)
    return Tables(best=tables.best_rows(cell, result))


KEEP: dict[str, Callable[[AnyTrust, CellResult], Tables]] = {
    "coverage": _of_coverage,
    "jackknife": _of_methods(JACKKNIFE),
    "bootstrap": _of_methods(*BOOTSTRAPS),
    "faults": _of_faults,
    "best": _of_best,
}


def run(
    parts: Iterable[Part],
    folder: Path,
    *,
    seed: int = 0,
    backend: Backend | None = None,
    overwrite: bool = False,
    report: Callable[[sweep.Progress], None] = lambda progress: None,
) -> tuple[Tables, dict[str, str]]:
    """Run the missing cells; returns the tables, and the failed cells with the reason."""
    found = Tables()
    failed: dict[str, str] = {}
    for part in parts:
        done = sweep.run(
            part.cells,
            folder / part.name,
            Setting(part.replicates, seed),
            backend=backend,
            resume=not overwrite,
            overwrite=overwrite,
            extend=True,
            keep=part.keep,
            report=report,
        )
        for kept in done.results.values():
            found.add(kept)
        failed |= {f"{part.name}/{cell.name}": why for cell, why in done.failed.items()}
    return found, failed


def finished(parts: Iterable[Part], folder: Path, *, seed: int = 0) -> tuple[Tables, int, int]:
    """The tables of the existing cells, their number, and the total number."""
    found, there, all_cells = Tables(), 0, 0
    for part in parts:
        for cell in part.cells:
            all_cells += 1
            result = load(folder / part.name, cell, Setting(part.replicates, seed), fewer=True)
            if result is not None:
                found.add(part.keep(cell, result))
                there += 1
    return found, there, all_cells
