"""Running a study: cells × replicates on any number of workers, with every finished cell kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from reweigh.errors import ResourceError, UsageError
from reweigh.paper.backends import Backend, LostError, connected
from reweigh.paper.cells import (
    AnyCell,
    CellResult,
    Setting,
    in_order,
    load,
    path_of,
    run_replicates,
    store,
    versions,
)
from reweigh.system.files import locked

CHUNKS = 16  # parts of a cell, so that no worker waits long for the last one
LOCK = ".lock"
C = TypeVar("C", bound=AnyCell)
K = TypeVar("K")  # what is kept of a cell in memory


@dataclass(frozen=True)
class Progress:
    """How far a study is: cells, and work in units that cost about the same time each."""

    cell: AnyCell
    finished: int
    cells: int
    work_done: float
    work: float


@dataclass(frozen=True)
class Done(Generic[C, K]):
    """The cells that there are, which of them were found on disk, and why others failed."""

    results: dict[C, K]
    found: frozenset[C]
    failed: dict[C, str]


def run(
    wanted: Mapping[C, Sequence[str]],
    folder: Path,
    setting: Setting,
    *,
    backend: Backend | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Done[C, CellResult]:
    """Evaluate these estimators on every replicate of every cell; finished cells are in `folder`.

    A cell is written as soon as its last replicate is done, so that an interruption loses only
    cells under way. With `resume` cells found in the folder are kept (estimators that they lack
    are added), or refused if their configuration differs; with `overwrite` they are removed first;
    with neither a folder that holds some is refused. A cell whose worker dies is told, and the
    others are finished. One run at a time: the folder is locked.
    """
    return run_keeping(
        lambda cell, result: result,
        wanted,
        folder,
        setting,
        backend=backend,
        resume=resume,
        overwrite=overwrite,
        report=report,
    )


def run_keeping(
    keep: Callable[[C, CellResult], K],
    wanted: Mapping[C, Sequence[str]],
    folder: Path,
    setting: Setting,
    *,
    backend: Backend | None = None,
    resume: bool = False,
    overwrite: bool = False,
    extend: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Done[C, K]:
    """The same for studies that do not fit in memory: of a finished cell what `keep` makes of it
    is kept, the rest is in the folder. With `extend` a cell that has fewer replicates, of all that
    is asked for, is gone on with: a replicate's numbers do not depend on how many there are."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot make the folder {str(folder)!r}: {error.strerror or error}"
        ) from error
    busy = f"another run is working in {str(folder)!r}; wait for it, or give another folder"
    with locked(folder / LOCK, busy):
        backend = backend or Backend()
        return _run(keep, wanted, folder, setting, backend, resume, overwrite, extend, report)


def _run(
    keep: Callable[[C, CellResult], K],
    wanted: Mapping[C, Sequence[str]],
    folder: Path,
    setting: Setting,
    backend: Backend,
    resume: bool,
    overwrite: bool,
    extend: bool,
    report: Callable[[Progress], None],
) -> Done[C, K]:
    there = [cell for cell in wanted if path_of(folder, cell).exists()]
    if there and not (resume or overwrite):
        raise UsageError(
            f"{str(folder)!r} holds cells of an earlier run: go on with --resume, begin anew with "
            "--overwrite, or give another folder"
        )
    if overwrite:
        for cell in there:
            path_of(folder, cell).unlink()
    kept: dict[C, K] = {}
    missing: dict[C, list[str]] = {}
    parts: dict[C, list[Part]] = defaultdict(list)
    for cell in wanted:
        before = load(folder, cell, setting, fewer=extend)
        rest = [name for name in wanted[cell] if before is None or name not in before.asked]
        if before is not None and before.replicates < setting.replicates:
            missing[cell] = list(wanted[cell])
            if not rest:
                parts[cell] = [(range(before.replicates), before)]
        elif rest:
            missing[cell] = rest
        elif before is not None:
            kept[cell] = keep(cell, before)
    found = frozenset(kept)
    work = {cell: cell.cost * len(names) for cell, names in missing.items()}
    tasks = [
        (cell, missing[cell], part)
        for cell in missing
        for part in _parts(setting.replicates, sum(len(done) for done, _ in parts[cell]))
    ]
    failed: dict[C, str] = {}
    finished, work_done = 0, 0.0
    for cell, part in _carried_out(tasks, setting, backend, failed):
        parts[cell].append(part)
        work_done += work[cell] * len(part[0]) / setting.replicates
        if sum(len(r) for r, _ in parts[cell]) == setting.replicates:
            result = in_order(parts.pop(cell))
            before = load(folder, cell, setting, fewer=extend)
            added = before is not None and before.replicates == setting.replicates
            whole = before.joined(result) if added and before is not None else result
            store(folder, cell, setting, whole)
            kept[cell] = keep(cell, whole)
            finished += 1
        report(Progress(cell, finished, len(missing), work_done, sum(work.values())))
    return Done({cell: kept[cell] for cell in wanted if cell not in failed}, found, failed)


def _parts(replicates: int, done: int) -> list[range]:
    """What is left of so many replicates, in parts."""
    size = max(1, -(-(replicates - done) // CHUNKS))
    return [range(i, min(i + size, replicates)) for i in range(done, replicates, size)]


Part = tuple[range, CellResult]
Task = tuple[C, list[str], range]


def _carried_out(
    tasks: list[Task[C]], setting: Setting, backend: Backend, failed: dict[C, str]
) -> Iterator[tuple[C, Part]]:
    """The results of all tasks as they are done. When a worker dies, all of its pool is lost: what
    is left is then run cell by cell, so that only the cell that kills its workers fails."""
    left = {(cell, part.start): (cell, names, part) for cell, names, part in tasks}
    try:
        for cell, part in _pool(tasks, setting, backend):
            del left[cell, part[0].start]
            yield cell, part
        return
    except LostError as error:
        if backend.elsewhere:
            raise ResourceError(
                f"the cluster was lost ({error}); every finished cell is kept: go on with --resume"
            ) from error
    for cell in dict.fromkeys(cell for cell, _ in left):
        try:
            yield from _pool([t for t in left.values() if t[0] == cell], setting, backend)
        except LostError as error:
            failed[cell] = str(error)


def _pool(tasks: list[Task[C]], setting: Setting, backend: Backend) -> Iterator[tuple[C, Part]]:
    import joblib

    if not tasks:
        return
    here = versions()
    with connected(backend):
        calls = [joblib.delayed(_task)(*task, setting.seed, here) for task in tasks]
        yield from backend.unordered(calls)


def _task(
    cell: C, asked: list[str], part: range, seed: int, wanted: dict[str, str]
) -> tuple[C, Part]:
    if versions() != wanted:
        raise UsageError(
            f"a worker has other versions ({versions()}) than this process ({wanted}): its numbers "
            "could differ"
        )
    return cell, run_replicates(cell, asked, seed, part)
