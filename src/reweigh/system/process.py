"""This process: the memory that it may use, how far its loops are, and hearing Ctrl-C.

The command line listens with `watching`; loops with long rounds run through `each`. The listener is
a context variable, so no function passes it along. A loop within another one moves that one's
share.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from reweigh.errors import ResourceError, must_be

Part = TypeVar("Part")
Item = TypeVar("Item")
Result = TypeVar("Result")
Listener = Callable[[str, float], None]  # the work, and the share that is done
Report = Callable[[int, int], None]  # the rows that are read, of how many

STEP_BYTES = 320  # per step and block, of an evaluation; measured, from the reading to the answer
COMPILED_BYTES = 450_000_000  # addresses of Numba, its kernels and the first rows; measured
ALWAYS_THERE = 1 << 20  # bytes
USABLE = 0.75  # of the memory of a machine or a control group, unless a budget is set
CGROUPS = Path("/sys/fs/cgroup")
# Messages of libraries that get no memory, in their various error types.
WORDS = re.compile(
    r"failed to map segment|cannot allocate memory|can't start new thread|std::bad_alloc"
    r"|out of memory|libllvmlite",
    re.IGNORECASE,
)
UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6))
ASK_EVERY = 0.2  # seconds between two questions to what runs elsewhere
STOPPING = 5.0  # seconds for stopped work to return

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B", re.IGNORECASE)
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

_listener: ContextVar[Listener | None] = ContextVar("reweigh_progress", default=None)
_budget: list[int] = []  # of this process, not of a thread: threads share its memory


@contextmanager
def memory_budget(size: str | None) -> Iterator[None]:
    """Take at most this much memory, such as "4GB" or "512MiB"; None leaves it at three quarters of
    what the machine has."""
    if size is None:
        yield
        return
    _budget.append(in_bytes(size))
    try:
        yield
    finally:
        _budget.pop()


def in_bytes(size: str) -> int:
    """The bytes of a size such as "4GB" or "512MiB"."""
    parts = SIZE.fullmatch(size.strip())
    number = 0.0
    if parts is not None:
        number = float(parts[1]) * (1024 if parts[3] else 1000) ** POWERS[parts[2].upper()]
    if number < 1:
        raise must_be("max_memory", "a size such as 4GB or 512MiB", size)
    return int(number)


def limit() -> int | None:
    """Bytes that this process may take in all: the budget that was set, else three quarters of the
    machine's memory or of its control group's limit; and no more than its addresses (`ulimit -v`).
    None where all are unknown."""
    known = [n for n in (physical(), _control_group()) if n is not None]
    most = _budget[-1:] or [int(USABLE * n) for n in known]
    return min([*most, *(n for n in [_address_limit()] if n is not None)], default=None)


def allowed() -> int | None:
    """The same for the remaining addresses: libraries alone use a large part of them."""
    most, addresses = limit(), _address_limit()
    if most is None or addresses is None:
        return most
    return min(most, max(addresses - _addresses_in_use(), 0))


def require(needed: int, what: str, fix: str) -> None:
    """Refuse work that would need more memory than is available, before using any."""
    most = allowed() if needed > ALWAYS_THERE else None
    if most is not None and needed > most:
        raise ResourceError(
            f"{what} would take about {in_words(needed)} of memory, but this process may use "
            f"at most {in_words(most)}{' (--max-memory)' if _budget else ''}; {fix}"
        )


def require_steps(horizon: int, blocks: int = 1) -> None:
    """Every engine and estimator holds some numbers per step, whether or not episodes get there."""
    split = f" in {blocks:,} blocks" if blocks > 1 else ""
    require(
        horizon * blocks * STEP_BYTES,
        f"a horizon of {horizon:,} steps{split}",
        "give a shorter horizon" + (" or fewer blocks" if blocks > 1 else ""),
    )


def require_compiled() -> None:
    """Numba's compiler ends the process where the system gives it no addresses: refuse before it is
    loaded. Without a limit of addresses (`ulimit -v`) nothing is checked."""
    if _address_limit() is not None:
        require(COMPILED_BYTES, "loading the compiled scan", "raise its limit")


def is_shortage(error: BaseException | None) -> bool:
    """Whether memory ran out, be it in NumPy, Arrow, DuckDB, a thread or a library's loading."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryException":
            return True
        if isinstance(error, OSError | RuntimeError | ImportError) and WORDS.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def in_words(size: float) -> str:
    """Such as "3.2 GB"."""
    unit, factor = next(((u, f) for u, f in UNITS if size >= f), UNITS[-1])
    return (
        f"{size / factor:,.3g} {unit}" if size < 1000 * factor else f"{size / factor:,.0f} {unit}"
    )


def physical() -> int | None:
    """The machine's memory, in bytes."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # no such question on this system
        return None


def _control_group() -> int | None:
    """The least limit of the groups that this process is in; one without a limit says "max"."""
    limits = [_system_text(file) for file in _group_files()]
    return min((int(text) for text in limits if text.isdigit()), default=None)


def _group_files() -> Iterator[Path]:
    """The files that hold the limits of these groups, by either version of control groups."""
    for line in _system_text("/proc/self/cgroup").splitlines():
        _, kinds, name = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        base = CGROUPS / "memory" if kinds else CGROUPS
        group = base / name.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(base):
                yield folder / ("memory.limit_in_bytes" if kinds else "memory.max")


def _address_limit() -> int | None:
    try:
        import resource
    except ImportError:  # no such limits on this system
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def _addresses_in_use() -> int:
    pages = _system_text("/proc/self/statm").partition(" ")[0]
    return int(pages or 0) * os.sysconf("SC_PAGE_SIZE")


def _system_text(path: str | Path) -> str:
    """The content of this system file; empty if there is none."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


# ---- how far loops are --------------------------------------------------------------------------


@contextmanager
def watching(listener: Listener | None) -> Iterator[None]:
    """Report the loops inside to this listener."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def each(
    what: str, items: Iterable[Item], do: Callable[[Item], Result], at_most: int | None = None
) -> list[Result]:
    """[do(item) for item in items], and the listener gets the progress. `at_most` is for
    items that are made on the way, and cannot be counted."""
    n = at_most if at_most is not None else len(items) if isinstance(items, Sized) else 1
    results = []
    for k, item in enumerate(items):
        with stage(k, n, what):
            results.append(do(item))
    return results


@contextmanager
def stage(k: int, n: int, what: str = "") -> Iterator[None]:
    """The k-th of n rounds, of a loop or of a whole command: loops inside move its share."""
    listener = _listener.get()
    if listener is None:
        yield
        return

    def inside(_: str, share: float) -> None:
        listener(what, min((k + share) / n, 1.0))

    inside("", 0.0)
    with watching(inside):
        yield
    inside("", 1.0)


def report_share(share: float, what: str = "") -> None:
    """The progress of work that is not a loop; 0 when it begins."""
    listener = _listener.get()
    if listener is not None:
        listener(what, share)


def wait_for(
    work: Callable[[], Result],
    stop: Callable[[], None],
    share: Callable[[], float] = lambda: 0.0,
) -> Result:
    """`work()`, done in a library by another thread while this one waits: Python handles signals
    only in its main thread, and only between two of its instructions. `stop` ends the work early.
    `share` returns the progress for a listener; not above 0 if unknown.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    over = threading.Event()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    threading.Thread(target=run, name="reweigh-query", daemon=True).start()
    most = 0.0
    try:
        while not over.wait(ASK_EVERY):
            now = min(share(), 1.0) if _listener.get() is not None else 0.0
            if now > most:
                most = now
                report_share(now)
    except BaseException:
        stop()
        over.wait(STOPPING)
        raise
    if errors:
        raise errors[0]
    return results[0]


def read_ahead(parts: Iterator[Part], threads: int) -> Iterator[Part]:
    """The same, the next one being read by a thread of its own while one is in use.

    That thread also lets go of those that were used: memory that one thread takes and another one
    gives back is not soon taken again.
    """
    if threads == 1:
        yield from parts
        return
    from concurrent.futures import ThreadPoolExecutor

    used: list[Part] = []

    def read() -> Part | None:
        used.clear()
        return next(parts, None)

    with ThreadPoolExecutor(1) as reader:
        following = reader.submit(read)
        while (part := following.result()) is not None:
            following = reader.submit(read)
            yield part
            used.append(part)
            del part
