"""What it means when Arrow fails to read a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from reweigh.errors import InputError, ResourceError, ReweighError
from reweigh.system.memory import is_shortage


@contextmanager
def file_errors(path: Path, wrong: str) -> Iterator[None]:
    """The file is at fault, unless the system gave an error number or no memory.

    A damaged page shows in many ways: sizes that do not fit, text that is no UTF-8, a column that
    is not there. What the damage leaves readable is not noticed: Parquet has no checksum of its
    own, and those of its pages, which are verified, are rarely written.
    """
    try:
        yield
    except ReweighError:
        raise
    except (pa.ArrowException, MemoryError, OSError, ValueError, LookupError) as error:
        if is_shortage(error):
            error.add_note(f"while reading {path.name}")
            raise
        number = getattr(error, "errno", None)
        if number is not None:
            raise ResourceError(
                number, f"cannot read {str(path)!r}: {os.strerror(number)}"
            ) from error
        first = (str(error).splitlines() or [""])[0]
        raise InputError(f"{str(path)!r} {wrong}: {first}") from error
