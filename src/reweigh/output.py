"""Writing files: whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from reweigh.errors import ResourceError, UsageError


def write_atomically(
    path: str | Path, write: Callable[[BinaryIO], None], *, overwrite: bool = False
) -> None:
    """Write a file through a temporary one beside it: fsync, rename, fsync of the folder.

    A reader sees the old file or the new one, never a part. An existing file is kept unless
    `overwrite`; a symbolic link is never followed. Without `overwrite` the last step is a hard
    link, which fails if another process made the file meanwhile.
    """
    path = Path(path)
    if path.is_symlink():
        raise UsageError(f"{str(path)!r} is a symbolic link; give the path of the file itself")
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory; give a file name")
    if path.exists() and not overwrite:
        raise UsageError(f"{str(path)!r} exists; give another name or ask to overwrite it")
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix="~")
        with os.fdopen(handle, "wb") as stream:
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
