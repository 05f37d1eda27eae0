"""Writing files: whole or not at all, and never over an input."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from reweigh.errors import ResourceError, UsageError
from reweigh.system.locks import still_named, try_lock


@dataclass(frozen=True)
class NamedFile:
    """A file and what the user knows it as, such as `--report`."""

    name: str
    path: Path

    def __str__(self) -> str:
        return f"{self.name} {str(self.path)!r}"

    @property
    def identity(self) -> tuple[object, ...] | None:
        """Device and inode, so that links are seen through; of a file that does not exist, those
        of its folder and its name there. None where not even the folder exists."""
        with suppress(OSError):
            found = self.path.stat()
            return found.st_dev, found.st_ino
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
                f"{output} and {source} are the same file, and an output must not replace an "
                f"input; give {output.name} another name"
            )
        if other is not output:
            raise UsageError(
                f"{other} and {output} are the same file; give each output a name of its own"
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
            os.chmod(temporary, 0o666 & ~_umask())
            if overwrite:
                os.replace(temporary, path)
            else:
                os.link(temporary, path)
                os.unlink(temporary)
            temporary = None
        _sync_folder(path.parent)
    except FileExistsError as error:
        raise UsageError(f"{str(path)!r} was made by another process meanwhile") from error
    except OSError as error:
        raise ResourceError(
            error.errno or errno.EIO, f"cannot write {str(path)!r}: {error.strerror or error}"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _temporary(path: Path) -> tuple[int, str]:
    """A new file beside `path`, open and locked: the lock tells other processes that its writer
    is alive."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix="~")
        try_lock(handle)
        if still_named(handle, name):
            return handle, name
        os.close(handle)  # taken for a stray file before it was locked


def _remove_strays(path: Path) -> None:
    """Remove what writers of `path` left behind when they were killed."""
    stray = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}~")  # as mkstemp names them
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
