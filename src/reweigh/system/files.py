"""Files of our own: written whole or not at all, never over an input, read strictly, sealed with a
checksum, and locked between processes. The system releases a lock when its process ends, however it
ends."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from reweigh.errors import InputError, InputWarning, ResourceError, UsageError

try:
    import fcntl
except ImportError:  # a system without flock: nothing is locked
    fcntl = None  # type: ignore[assignment]

CHECKSUM = "checksum"
POLL = 0.01  # seconds between two attempts to take a lock that is held
HELD = (errno.EAGAIN, errno.EACCES)


def digest_of(*parts: str | bytes) -> str:
    """A short name for a content: 16 bytes of SHA-256 in hexadecimal."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()[:32]


def parse_object(text: bytes | str, what: str) -> dict[str, Any]:
    """The JSON object in this text. InputError, which names `what`, for anything else: another
    value, a key that occurs twice, NaN, a number that no float holds, nesting without end."""
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise InputError(f"{what} is damaged: its JSON is nested too deeply") from error
    except ValueError as error:  # also bytes that are not UTF-8, and endless integers
        raise InputError(f"{what} is damaged: it is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(
            f"{what} is damaged: its JSON must be an object, not {type(value).__name__}"
        )
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice")
    return members


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def checksum_of(*parts: Any) -> str:
    """Of values that JSON can hold; the same whatever the order of keys and the spaces."""
    return digest_of(*(json.dumps(part, sort_keys=True, allow_nan=False) for part in parts))


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """The content with its checksum."""
    return content | {CHECKSUM: checksum_of(content)}


def unsealed(content: dict[str, Any], what: str, *, required: bool) -> dict[str, Any]:
    """The content without its checksum, which must be right. Where there is none although it is
    `required` the content is refused; else it comes with a remark."""
    rest = {key: value for key, value in content.items() if key != CHECKSUM}
    if CHECKSUM not in content and not required:
        warnings.warn(
            InputWarning(
                f"{what} was written by an older version, without a checksum: damage may go "
                "unnoticed; write it again"
            ),
            stacklevel=2,
        )
    elif content.get(CHECKSUM) != checksum_of(rest):
        raise InputError(f"{what} is damaged: its content does not match its checksum")
    return rest


@dataclass(frozen=True)
class NamedFile:
    """A file and the user's name for it, such as `--report`."""

    name: str
    path: Path

    def __str__(self) -> str:
        return f"{self.name} {str(self.path)!r}"

    @property
    def identity(self) -> tuple[object, ...] | None:
        """Device and inode, so that links are seen through; of a file that does not exist, those
        of its folder and its name there. None where not even the folder exists."""
        with suppress(OSError):
            status = self.path.stat()
            return status.st_dev, status.st_ino
        with suppress(OSError):
            resolved = self.path.resolve()
            folder = resolved.parent.stat()
            return folder.st_dev, folder.st_ino, resolved.name
        return None


def refuse_overlap(outputs: Iterable[NamedFile], inputs: Iterable[NamedFile]) -> None:
    """UsageError if an output is one of the inputs, or another output."""
    sources = {file.identity: file for file in inputs}
    targets: dict[object, NamedFile] = {}
    for output in outputs:
        identity = output.identity
        if identity is None:
            continue
        source, other = sources.get(identity), targets.setdefault(identity, output)
        if source is not None:
            raise UsageError(
                f"{output} and {source} are the same file, but an output must not replace an "
                f"input; give {output.name} another name"
            )
        if other is not output:
            raise UsageError(
                f"{other} and {output} are the same file; give each output its own name"
            )


def files_behind(*things: object) -> tuple[Path, ...]:
    """The files that logs, policies and sums were read from, which no result of theirs replaces."""
    return tuple(dict.fromkeys(path for t in things for path in getattr(t, "files", ())))


def write_atomically(
    path: str | Path,
    write: Callable[[BinaryIO], object],
    *,
    overwrite: bool = False,
    inputs: Iterable[Path] = (),
) -> None:
    """Write a file through a temporary one beside it: fsync, rename, fsync of the folder.

    A reader sees the old file or the new one, never a part. An existing file is kept unless
    `overwrite`, and kept in any case if it is one of `inputs`; a symbolic link is never followed.
    Without `overwrite` the last step is a hard link, which fails if another process made the file
    meanwhile. Temporary files of the same name that killed processes left behind are removed.
    """
    path = Path(path)
    if path.is_symlink():
        raise UsageError(f"{str(path)!r} is a symbolic link; give the path of the file itself")
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory; give a file name")
    if path.exists() and not overwrite:
        raise UsageError(f"{str(path)!r} exists; give another name or ask to overwrite it")
    refuse_overlap([NamedFile("the output", path)], [NamedFile("the input", i) for i in inputs])
    temporary = None
    try:
        _remove_strays(path)
        handle, temporary = _temporary(path)
        with os.fdopen(handle, "wb") as stream:  # locked until the file has its name
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
            if overwrite:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)
                os.unlink(temporary)
            temporary = None
        _sync_folder(path.parent)
    except FileExistsError as error:
        raise UsageError(f"{str(path)!r} was created by another process in the meantime") from error
    except OSError as error:
        raise ResourceError(
            error.errno or errno.EIO, f"cannot write {str(path)!r}: {error.strerror or error}"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _temporary(path: Path) -> tuple[int, str]:
    """A new file beside `path`, open and locked: the lock shows other processes that its writer
    is alive."""
    while True:
        name = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}~"))
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try_lock(handle)
        if still_named(handle, name):
            return handle, name
        os.close(handle)  # treated as a stray file before it was locked


def _remove_strays(path: Path) -> None:
    """Remove what writers of `path` left behind when they were killed."""
    stray = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}~")
    with os.scandir(path.parent) as entries:
        names = [entry.path for entry in entries if stray.fullmatch(entry.name)]
    for name in names:
        with suppress(OSError):  # of another user, or gone
            handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if try_lock(handle) and still_named(handle, name):
                    os.unlink(name)
            finally:
                os.close(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    it blocks no process; the next holder removes it.
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
                        os.unlink(path)  # before the lock ends: no other process has it yet
                return
        finally:
            os.close(handle)
        if not taken:  # held by another process; a removed file is created again at once
            if time.monotonic() >= deadline:
                raise ResourceError(errno.EBUSY, refusal)
            time.sleep(POLL)
