"""Which code does the work over rows: a compiled kernel, or plain NumPy.

Numba takes about 0.7 s to import and to load its compiled kernels, once per process. Below
COMPILED_FROM rows it would be loaded in vain more often than not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

COMPILED_FROM = 100_000  # rows


@contextmanager
def compiled(rows: int = 0) -> Iterator[None]:
    """Inside, compiled kernels are used from so many rows on: for work on many small logs."""
    global COMPILED_FROM
    before, COMPILED_FROM = COMPILED_FROM, rows
    try:
        yield
    finally:
        COMPILED_FROM = before


def pick(name: str, size: int, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function `module.function`, or this one in NumPy for few rows."""
    return kernel(name) if size >= COMPILED_FROM else plain


@cache
def kernel(name: str) -> Callable[..., Any]:
    """The compiled function `module.function`."""
    module, _, function = name.rpartition(".")
    found: Callable[..., Any]
    found = getattr(importlib.import_module(f"reweigh.kernels.{module}"), function)
    return found
