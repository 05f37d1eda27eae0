"""How much memory this process may use, and refusals before it asks for more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from reweigh.errors import ResourceError

STEP_BYTES = 320  # per step and block, of an evaluation; measured, from the reading to the answer
COMPILED_BYTES = 450_000_000  # addresses of Numba, its kernels and the first rows; measured
CGROUPS = Path("/sys/fs/cgroup")
# What libraries say, in errors of their own kinds, when the system gives them no memory.
WORDS = re.compile(
    r"failed to map segment|cannot allocate memory|can't start new thread|std::bad_alloc"
    r"|out of memory|libllvmlite",
    re.IGNORECASE,
)
UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6))


def limit() -> int | None:
    """Bytes that this process may take in all: the machine's memory, the limit of its control
    group or of its addresses (`ulimit -v`), whichever is least; None where unknown."""
    known = [n for n in (physical(), _control_group(), _address_limit()) if n is not None]
    return min(known, default=None)


def allowed() -> int | None:
    """The same of what it may still take: libraries alone use a large part of the addresses."""
    most, addresses = limit(), _address_limit()
    if most is None or addresses is None:
        return most
    return min(most, max(addresses - _addresses_in_use(), 0))


def require(needed: int, what: str, fix: str) -> None:
    """Refuse what would take more memory than there can be, before any of it is taken."""
    most = allowed()
    if most is not None and needed > most:
        raise ResourceError(
            f"{what} would take about {in_words(needed)} of memory, and this process may use "
            f"{in_words(most)} at most; {fix}"
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
    loaded. Without a limit of addresses (`ulimit -v`) nothing is asked."""
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
    """The least limit of the groups that this process is in, by either version of them."""
    limits = []
    for path in _group_files():
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # otherwise "max"
            limits.append(int(text))
    return min(limits, default=None)


def _group_files() -> Iterator[Path]:
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, kinds, name = line.split(":", 2)
        if kinds not in ("", "memory") and "memory" not in kinds.split(","):
            continue
        base = CGROUPS / "memory" if kinds else CGROUPS
        file = "memory.limit_in_bytes" if kinds else "memory.max"
        folder = base / name.lstrip("/")
        for group in (folder, *folder.parents):
            yield group / file
            if group == base:
                break


def _address_limit() -> int | None:
    try:
        import resource
    except ImportError:  # no such limits on this system
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else most


def _addresses_in_use() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
