"""Locks between processes. The system releases them when their process ends, however it ends."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reweigh.errors import ResourceError

try:
    import fcntl
except ImportError:  # a system without flock: nothing is locked
    fcntl = None  # type: ignore[assignment]

POLL = 0.01  # seconds between two attempts to take a lock that is held
HELD = (errno.EAGAIN, errno.EACCES)


def try_lock(handle: int) -> bool | None:
    """Lock an open file for this process; False if another holds it, None if it cannot be locked
    (a system or a file system without locks)."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in HELD else None
    return True


def still_named(handle: int, path: str | Path) -> bool:
    """Whether this path is still the open file: another process may have removed it."""
    try:
        named = os.lstat(path)
    except OSError:
        return False
    return os.path.samestat(named, os.fstat(handle))


@contextmanager
def locked(path: Path, refusal: str, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path`; after `wait` seconds in vain raise ResourceError with `refusal`.

    The file exists only while it is held. One that a killed process left behind is not locked, so
    it blocks nobody; the next holder removes it.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ResourceError(
                error.errno or errno.EIO,
                f"cannot make the lock {str(path)!r}: {error.strerror or error}",
            ) from error
        try:
            taken = try_lock(handle)
            if taken is None or (taken and still_named(handle, path)):
                try:
                    yield
                finally:
                    with suppress(OSError):
                        os.unlink(path)  # before the lock ends: nobody else has it yet
                return
        finally:
            os.close(handle)
        if not taken:  # held by another; a file that was removed meanwhile is made anew at once
            if time.monotonic() >= deadline:
                raise ResourceError(errno.EBUSY, refusal)
            time.sleep(POLL)
