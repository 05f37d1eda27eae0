"""Running a study: cells × replicates on any number of workers, with every finished cell kept."""

from __future__ import annotations

import os
import re
import socket
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from reweigh.errors import ResourceError, ReweighError, UsageError, check, check_whole
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
BackendName = Literal["loky", "sequential", "dask", "ray"]
BACKENDS: tuple[BackendName, ...] = ("loky", "sequential", "dask", "ray")
MOST_JOBS = 1024  # each is a process
WAVES = 4  # tasks per worker and wave, where results come only in whole lists
PATIENCE = 10.0  # seconds until an address counts as not answering
# Errors of these packages mean that workers or their scheduler are gone, not that the work failed.
CARRIERS = ("joblib", "concurrent", "distributed", "dask", "ray", "tornado", "asyncio")
RAY_TOKEN = (
    ". If the cluster needs a token, as Ray's do by default, set the same in RAY_AUTH_TOKEN "
    "or RAY_AUTH_TOKEN_PATH"
)
C = TypeVar("C", bound=AnyCell)
Part = tuple[range, CellResult]
Task = tuple[C, list[str], range]


@dataclass(frozen=True)
class Progress:
    """How far a study is: cells, and work in units that cost about the same time each."""

    cell: AnyCell
    finished: int
    cells: int
    work_done: float
    work: float


@dataclass(frozen=True)
class Done(Generic[C]):
    """The cells that there are, which of them were found on disk, and why others failed."""

    results: dict[C, Any]
    existing: frozenset[C]
    failed: dict[C, str]


def run(
    wanted: Mapping[C, Sequence[str]],
    folder: Path,
    setting: Setting,
    *,
    backend: Backend | None = None,
    resume: bool = False,
    overwrite: bool = False,
    extend: bool = False,
    keep: Callable[[C, CellResult], Any] = lambda cell, result: result,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Done[C]:
    """Evaluate these estimators on every replicate of every cell; finished cells are in `folder`.

    A cell is written as soon as its last replicate is done, so that an interruption loses only
    cells under way. With `resume` cells found in the folder are kept (estimators that they lack are
    added), or refused if their configuration differs; with `overwrite` they are removed first; with
    neither a folder that holds some is refused. A cell whose worker dies is reported, and the
    others are finished. One run at a time: the folder is locked.

    For studies that do not fit in memory, `keep` selects what stays in memory of a finished cell;
    the rest is in the folder. With `extend` a cell that has too few replicates is continued: a
    replicate's numbers do not depend on how many there are.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"cannot make the folder {str(folder)!r}: {error.strerror or error}"
        ) from error
    busy = f"another run is using {str(folder)!r}; wait for it, or give another folder"
    with locked(folder / LOCK, busy):
        present = [path_of(folder, cell) for cell in wanted if path_of(folder, cell).exists()]
        if present and not (resume or overwrite):
            raise UsageError(
                f"{str(folder)!r} contains cells of an earlier run: continue with --resume, "
                "start again with --overwrite, or give another folder"
            )
        if overwrite:
            for path in present:
                path.unlink()
        return _run(wanted, folder, setting, backend or Backend(), extend, keep, report)


def _run(
    wanted: Mapping[C, Sequence[str]],
    folder: Path,
    setting: Setting,
    backend: Backend,
    extend: bool,
    keep: Callable[[C, CellResult], Any],
    report: Callable[[Progress], None],
) -> Done[C]:
    kept: dict[C, Any] = {}
    missing: dict[C, list[str]] = {}
    parts: dict[C, list[Part]] = defaultdict(list)
    for cell in wanted:
        before = load(folder, cell, setting, fewer=extend)
        rest = [name for name in wanted[cell] if before is None or name not in before.estimators]
        if before is not None and before.replicates < setting.replicates:
            missing[cell] = list(wanted[cell])
            if not rest:
                parts[cell] = [(range(before.replicates), before)]
        elif rest:
            missing[cell] = rest
        elif before is not None:
            kept[cell] = keep(cell, before)
    existing = frozenset(kept)
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
        if sum(len(replicates) for replicates, _ in parts[cell]) == setting.replicates:
            result = in_order(parts.pop(cell))
            before = load(folder, cell, setting, fewer=extend)
            if before is not None and before.replicates == setting.replicates:
                result = before.joined(result)
            store(folder, cell, setting, result)
            kept[cell] = keep(cell, result)
            finished += 1
        report(Progress(cell, finished, len(missing), work_done, sum(work.values())))
    return Done({cell: kept[cell] for cell in wanted if cell not in failed}, existing, failed)


def _parts(replicates: int, done: int) -> list[range]:
    """The remaining replicates, in parts."""
    size = max(1, -(-(replicates - done) // CHUNKS))
    return [range(i, min(i + size, replicates)) for i in range(done, replicates, size)]


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
                f"the connection to the cluster was lost ({error}); every finished cell is "
                "kept: continue with --resume"
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
    cell: C, estimators: list[str], part: range, seed: int, wanted: dict[str, str]
) -> tuple[C, Part]:
    if versions() != wanted:
        raise UsageError(
            f"a worker has other versions ({versions()}) than this process ({wanted}), so "
            "its numbers could differ"
        )
    return cell, run_replicates(cell, estimators, seed, part)


# Where the work is done: this process, processes here, or a Dask or Ray cluster


class LostError(Exception):
    """Workers, or the way to them, are gone."""


@dataclass(frozen=True)
class Backend:
    """loky (processes here), sequential (this process), dask or ray.

    `jobs` is the number of workers (None: one per core here, all of a cluster). Without an address
    Dask and Ray start a cluster on this machine, and stop it afterwards.
    """

    name: BackendName = "loky"
    jobs: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        check(self.name in BACKENDS, "backend", f"one of {', '.join(BACKENDS)}", self.name)
        if self.jobs is not None:
            check_whole("jobs", self.jobs, 1, MOST_JOBS)
        if self.address is not None and self.name not in ("dask", "ray"):
            raise UsageError(f"an address belongs to dask or ray, not to {self.name}")
        if self.jobs is not None and (self.elsewhere or self.name == "sequential"):
            raise UsageError(
                "jobs is a number of workers on this machine: omit it for a cluster, which "
                "has its own, and for sequential, which has none"
            )

    @property
    def elsewhere(self) -> bool:
        """Whether the workers belong to a cluster that is not ours to start."""
        return self.address is not None

    @property
    def workers(self) -> int | None:
        """Workers on this machine; None where a cluster has its own."""
        import joblib

        if self.elsewhere:
            return None
        return 1 if self.name == "sequential" else self.jobs or int(joblib.cpu_count())

    def unordered(self, calls: list[Any]) -> Iterator[Any]:
        """Results of joblib's delayed calls, in the order in which they are done."""
        import joblib

        workers = -1 if self.workers is None else self.workers
        with warnings.catch_warnings(), _workers_lost():
            warnings.filterwarnings("ignore", category=UserWarning, module="joblib")
            if self.name != "ray":
                options = {"return_as": "generator_unordered", "batch_size": 1}
                yield from joblib.Parallel(n_jobs=workers, **options)(calls)
                return
            width = WAVES * int(joblib.effective_n_jobs(workers))
            for i in range(0, len(calls), width):  # its joblib backend returns only whole lists
                yield from joblib.Parallel(n_jobs=workers)(calls[i : i + width])


@contextmanager
def _workers_lost() -> Iterator[None]:
    try:
        yield
    except ReweighError:
        raise
    except Exception as error:
        if type(error).__module__.split(".")[0] not in CARRIERS:
            raise
        first = str(error).strip().splitlines()
        raise LostError(f"{type(error).__name__}: {first[0] if first else ''}") from error


@contextmanager
def connected(backend: Backend) -> Iterator[None]:
    """joblib set to the backend, with its cluster."""
    import joblib

    if backend.address is not None:
        _refuse_silence(backend.name, backend.address)
    clusters = {"dask": _dask, "ray": _ray}
    cluster = clusters[backend.name](backend) if backend.name in clusters else nullcontext()
    with cluster, joblib.parallel_config(backend=backend.name):
        yield


@contextmanager
def _dask(backend: Backend) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError as error:
        raise _no_extra("dask") from error
    local = {
        "n_workers": backend.workers,
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "dashboard_address": None,
    }
    with _reaching(backend):
        client = Client(**local) if backend.address is None else Client(backend.address)
    with client:
        yield


@contextmanager
def _ray(backend: Backend) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise _no_extra("ray") from error
    with nullcontext() if backend.elsewhere else _ray_on_loopback(), _reaching(backend):
        if backend.elsewhere:
            ray.init(address=backend.address, log_to_driver=False)
        else:  # "local": never a cluster that something else on this machine has noted down
            local = {"num_cpus": backend.workers, "include_dashboard": False}
            ray.init(address="local", log_to_driver=False, **local)
    register_ray()
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _ray_on_loopback() -> Iterator[None]:
    """A cluster that starts inside listens on this machine's loopback address alone.

    Given the loopback address Ray takes an outward one instead, but for this switch, which it reads
    as it is imported and hands to its processes by the environment.
    """
    from ray._private import ray_constants

    switch, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    value = os.environ.get(switch)
    os.environ[switch], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[switch]
        os.environ.update({} if value is None else {switch: value})


def _refuse_silence(name: str, address: str) -> None:
    """A cluster that does not answer at its address is reported at once."""
    place = re.fullmatch(r"(?:\w+://)?\[?([^\[\]/]+?)\]?:(\d+)", address)
    if place is None:
        return  # a name that only the library understands
    try:
        socket.create_connection((place[1], int(place[2])), PATIENCE).close()
    except OSError as error:
        raise _unreachable(name, address, error) from error


@contextmanager
def _reaching(backend: Backend) -> Iterator[None]:
    try:
        yield
    except ReweighError:
        raise
    except Exception as error:
        where = backend.address or "a cluster on this machine"
        hint = RAY_TOKEN if backend.name == "ray" and backend.elsewhere else ""
        raise _unreachable(backend.name, where, f"{error}{hint}") from error


def _unreachable(name: str, where: str, error: object) -> UsageError:
    return UsageError(f"{name}: cannot reach {where}: {error}")


def _no_extra(name: str) -> UsageError:
    return UsageError(f"--backend {name} needs the extra: pip install 'reweigh[{name}]'")
