"""Where a study's work is done: this process, processes here, or a Dask or Ray cluster."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from reweigh.errors import ReweighError, UsageError, check_whole, must_be

BackendName = Literal["loky", "sequential", "dask", "ray"]
BACKENDS: tuple[BackendName, ...] = ("loky", "sequential", "dask", "ray")
MOST_JOBS = 1024  # each is a process
WAVES = 4  # tasks per worker and wave, where results come only in whole lists
PATIENCE = 10.0  # seconds until an address counts as not answering
# Errors of these packages tell that workers or their scheduler are gone, not that the work failed.
CARRIERS = ("joblib", "concurrent", "distributed", "dask", "ray", "tornado", "asyncio")
RAY_TOKEN = (
    ". If the cluster asks for a token, as Ray's do unless told otherwise, set the same in "
    "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
)


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
        if self.name not in BACKENDS:
            raise must_be("backend", f"one of {', '.join(BACKENDS)}", self.name)
        if self.jobs is not None:
            check_whole("jobs", self.jobs, 1, MOST_JOBS)
        if self.address is not None and self.name not in ("dask", "ray"):
            raise UsageError(f"an address belongs to dask or ray, not to {self.name}")
        if self.jobs is not None and (self.elsewhere or self.name == "sequential"):
            raise UsageError(
                "jobs is a number of workers on this machine: leave it out for a cluster that has "
                "its own, and for sequential, which has none"
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
        with warnings.catch_warnings(), _telling_losses():
            warnings.filterwarnings("ignore", category=UserWarning, module="joblib")
            if self.name != "ray":
                options = {"return_as": "generator_unordered", "batch_size": 1}
                yield from joblib.Parallel(n_jobs=workers, **options)(calls)
                return
            width = WAVES * int(joblib.effective_n_jobs(workers))
            for i in range(0, len(calls), width):  # its joblib backend returns only whole lists
                yield from joblib.Parallel(n_jobs=workers)(calls[i : i + width])


@contextmanager
def _telling_losses() -> Iterator[None]:
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
    """joblib set to the backend, with its cluster at hand."""
    import joblib

    if backend.address is not None:
        _refuse_silence(backend.name, backend.address)
    cluster = {"dask": _dask, "ray": _ray}.get(backend.name, _here)
    with cluster(backend), joblib.parallel_config(backend=backend.name):
        yield


@contextmanager
def _here(backend: Backend) -> Iterator[None]:
    yield


@contextmanager
def _dask(backend: Backend) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError as error:
        raise _no_extra("dask") from error
    own = {
        "n_workers": backend.workers,
        "threads_per_worker": 1,
        "host": "127.0.0.1",
        "dashboard_address": None,
    }
    with _reaching(backend):
        client = Client(**own) if backend.address is None else Client(backend.address)
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
    with contextlib.nullcontext() if backend.elsewhere else _ray_on_loopback(), _reaching(backend):
        if backend.elsewhere:
            ray.init(address=backend.address, log_to_driver=False)
        else:  # "local": never a cluster that something else on this machine has noted down
            own = {"num_cpus": backend.workers, "include_dashboard": False}
            ray.init(address="local", log_to_driver=False, **own)
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
    with _environment(switch, "0"):
        ray_constants.ENABLE_RAY_CLUSTER = False
        try:
            yield
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _refuse_silence(name: str, address: str) -> None:
    """A cluster that does not answer at its address is told at once."""
    found = re.fullmatch(r"(?:\w+://)?\[?([^\[\]/]+?)\]?:(\d+)", address)
    if found is None:
        return  # a name that only the library understands
    try:
        socket.create_connection((found[1], int(found[2])), PATIENCE).close()
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
