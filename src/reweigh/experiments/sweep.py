"""Running a study: cells × replicates on any number of workers, with every finished cell kept."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reweigh.errors import ReweighError, UsageError, must_be
from reweigh.experiments.cells import (
    Cell,
    CellResult,
    Setting,
    in_order,
    load,
    path_of,
    run_replicates,
    store,
)

BackendName = Literal["loky", "sequential", "dask", "ray"]
BACKENDS: tuple[BackendName, ...] = ("loky", "sequential", "dask", "ray")
CHUNKS = 16  # parts of a cell, so that no worker waits long for the last one
STEP_COST = 1000  # episodes: what a step costs however few episodes there are


@dataclass(frozen=True)
class Backend:
    """Where the work is done: processes here (loky), or a Dask or Ray cluster.

    `jobs` is the number of workers (None: one per core). Without an address Dask and Ray start
    a cluster on this machine, and stop it afterwards.
    """

    name: BackendName = "loky"
    jobs: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.name not in BACKENDS:
            raise must_be("backend", f"one of {', '.join(BACKENDS)}", self.name)
        if self.jobs is not None and (not isinstance(self.jobs, int) or self.jobs < 1):
            raise must_be("jobs", "a whole number from 1 on", self.jobs)
        if self.address is not None and self.name not in ("dask", "ray"):
            raise UsageError(f"an address belongs to dask or ray, not to {self.name}")

    @property
    def workers(self) -> int:
        return self.jobs or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Progress:
    """How far a study is: cells, and work in units that cost about the same time each."""

    cell: Cell
    finished: int
    cells: int
    work_done: float
    work: float


def run(
    wanted: Mapping[Cell, Sequence[str]],
    folder: Path,
    setting: Setting,
    *,
    backend: Backend | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[Cell, CellResult]:
    """Evaluate these estimators on every replicate of every cell; finished cells are in `folder`.

    A cell is written as soon as its last replicate is done, so that an interruption loses only
    cells under way. With `resume` cells found in the folder are kept (estimators that they lack
    are added), or refused if their configuration differs; without it a folder that holds some is
    refused unless `overwrite`.
    """
    backend = backend or Backend()
    folder.mkdir(parents=True, exist_ok=True)
    done: dict[Cell, CellResult] = {}
    missing: dict[Cell, list[str]] = {}
    for cell in wanted:
        found = load(folder, cell, setting) if resume else None
        if not resume and not overwrite and path_of(folder, cell).exists():
            raise UsageError(
                f"{str(folder)!r} holds cells of an earlier run: go on with --resume, begin anew "
                "with --overwrite, or give another folder"
            )
        if found is not None:
            done[cell] = found
        rest = [name for name in wanted[cell] if found is None or name not in found.values]
        if rest:
            missing[cell] = rest
    work = {cell: _cost(cell) * len(names) for cell, names in missing.items()}
    tasks = [(cell, missing[cell], part) for cell in missing for part in _parts(setting.replicates)]
    parts: dict[Cell, list[tuple[range, CellResult]]] = defaultdict(list)
    finished, work_done = 0, 0.0
    for cell, part in _carried_out(tasks, setting, backend):
        parts[cell].append(part)
        work_done += work[cell] * len(part[0]) / setting.replicates
        if sum(len(r) for r, _ in parts[cell]) == setting.replicates:
            result = in_order(parts.pop(cell))
            done[cell] = done[cell].joined(result) if cell in done else result
            store(folder, cell, setting, done[cell])
            finished += 1
        report(Progress(cell, finished, len(missing), work_done, sum(work.values())))
    return done


def _cost(cell: Cell) -> float:
    """Work of a replicate, about: rows, and the steps of the recursions whatever the rows."""
    return cell.horizon * (STEP_COST + cell.n) * (5.0 if cell.world == "mountaincar" else 1.0)


def _parts(replicates: int) -> list[range]:
    size = max(1, -(-replicates // CHUNKS))
    return [range(i, min(i + size, replicates)) for i in range(0, replicates, size)]


Task = tuple[Cell, list[str], range]


def _carried_out(
    tasks: list[Task], setting: Setting, backend: Backend
) -> Iterator[tuple[Cell, tuple[range, CellResult]]]:
    """The results of all tasks, in the order in which they are done."""
    import joblib

    if not tasks:
        return
    call = joblib.delayed(_task)
    with _connected(backend) as config, config:
        if backend.name == "ray":  # its joblib backend returns only whole lists: in waves
            width = 4 * backend.workers
            for i in range(0, len(tasks), width):
                wave = joblib.Parallel(n_jobs=backend.workers)(
                    call(*task, setting.seed) for task in tasks[i : i + width]
                )
                yield from wave
            return
        parallel = joblib.Parallel(
            n_jobs=backend.workers, return_as="generator_unordered", batch_size=1
        )
        yield from parallel(call(*task, setting.seed) for task in tasks)


def _task(
    cell: Cell, estimators: list[str], part: range, seed: int
) -> tuple[Cell, tuple[range, CellResult]]:
    return cell, run_replicates(cell, estimators, seed, part)


@contextmanager
def _connected(backend: Backend) -> Iterator[AbstractContextManager[Any]]:
    """joblib's configuration for the backend, with its cluster at hand."""
    import joblib

    if backend.name == "dask":
        try:
            from distributed import Client
        except ImportError as error:
            raise _no_extra("dask") from error
        with _reaching(backend):
            client = (
                Client(backend.address)
                if backend.address
                else Client(
                    n_workers=backend.workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address=None,
                )
            )
        with client:
            yield joblib.parallel_config(backend="dask")
        return
    if backend.name == "ray":
        try:
            import ray
            from ray.util.joblib import register_ray
        except ImportError as error:
            raise _no_extra("ray") from error
        options: dict[str, Any] = {"log_to_driver": False}
        if backend.address is None:
            options |= {"num_cpus": backend.workers, "include_dashboard": False}
        with _reaching(backend):
            ray.init(address=backend.address, **options)
        register_ray()
        try:
            yield joblib.parallel_config(backend="ray")
        finally:
            ray.shutdown()
        return
    yield joblib.parallel_config(backend=backend.name)


@contextmanager
def _reaching(backend: Backend) -> Iterator[None]:
    try:
        yield
    except ReweighError:
        raise
    except Exception as error:
        where = backend.address or "a cluster on this machine"
        raise UsageError(f"{backend.name}: cannot reach {where}: {error}") from error


def _no_extra(name: str) -> UsageError:
    return UsageError(f"--backend {name} needs the extra: pip install 'reweigh[{name}]'")
