"""Which code does the work over rows: a compiled kernel, or its twin in NumPy.

Numba takes about 0.7 s to import and to load its compiled kernels, once per process, and the
kernels save about 0.15 s of an evaluation per million rows. Below COMPILED_FROM rows it would be
loaded in vain more often than not.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

COMPILED_FROM = 1_000_000  # rows


@contextmanager
def compiled(rows: int = 0) -> Iterator[None]:
    """Inside, compiled kernels are used from so many rows on: for work on many small logs."""
    global COMPILED_FROM
    before, COMPILED_FROM = COMPILED_FROM, rows
    try:
        yield
    finally:
        COMPILED_FROM = before


@cache
def available() -> bool:
    """Whether Numba is installed."""
    return importlib.util.find_spec("numba") is not None


def pick(name: str, size: int) -> Callable[..., Any]:
    """The function `module.function` of the kernels or of their twins, for that many rows."""
    return _found("kernels" if size >= COMPILED_FROM and available() else "kernels.twins", name)


@cache
def _found(package: str, name: str) -> Callable[..., Any]:
    module, function = name.split(".")
    found: Callable[..., Any] = getattr(
        importlib.import_module(f"reweigh.{package}.{module}"), function
    )
    return found
