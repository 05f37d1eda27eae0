"""What the compiled kernels share. Importing it imports Numba."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])
LINE = 8  # numbers in a line of the cache
END = -2  # as in log/states.py: Numba takes globals as constants
SEEN_ENOUGH, DEFICIT_ERRORS = 10, 4.0  # as in estimate/operators.py


def compiled(function: Function) -> Function:
    """Compiled at the first call and kept on disk; without the interpreter's lock."""
    made: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return made  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """Compiled into what calls it: a call would count references to every array."""
    made: Any = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function)
    return made  # type: ignore[no-any-return]


@compiled
def short_of_one(M: float, ratio: float, square: float) -> bool:
    """Whether a mean ratio is below 1 by more than chance, as `covered` counts it, from Σρ and Σρ².
    Most are not, and that should be one branch, without a division."""
    far = (M - ratio) ** 2 * M > DEFICIT_ERRORS**2 * (M * square - ratio * ratio)
    return bool((M >= SEEN_ENOUGH) & (ratio < M) & far)


@compiled
def covered(M: float, ratio: float, square: float) -> float:
    """Share of the target's mass at a state that the log can carry on (estimate/operators.py)."""
    if not (M > 0 and ratio > 0):
        return 0.0
    if M < SEEN_ENOUGH or ratio >= M:
        return 1.0
    each = 1.0 / M
    mean = ratio * each
    variance = max(square * each - mean * mean, 0.0) * each
    return min(mean + DEFICIT_ERRORS * math.sqrt(variance), 1.0)


@compiled
def zeros_in_lines(count: int) -> Any:
    """(count,) zeros that begin where a line of the cache does: eight of them lie in one."""
    room = np.zeros(count + LINE - 1)
    first = (-(room.ctypes.data // 8)) % LINE
    return room[first : first + count]


@compiled
def total(values: Array) -> float:
    """Σ values, in four sums that need not wait for each other."""
    a = b = c = d = 0.0
    whole = len(values) - len(values) % 4
    for k in range(0, whole, 4):
        a += values[k]
        b += values[k + 1]
        c += values[k + 2]
        d += values[k + 3]
    for k in range(whole, len(values)):
        a += values[k]
    return (a + b) + (c + d)


@compiled
def greatest(values: Array, most: float) -> float:
    """The greatest of values and `most`, in four that need not wait for each other."""
    a = b = c = d = most
    whole = len(values) - len(values) % 4
    for k in range(0, whole, 4):
        a = values[k] if values[k] > a else a
        b = values[k + 1] if values[k + 1] > b else b
        c = values[k + 2] if values[k + 2] > c else c
        d = values[k + 3] if values[k + 3] > d else d
    for k in range(whole, len(values)):
        a = values[k] if values[k] > a else a
    a, c = b if b > a else a, d if d > c else c
    return c if c > a else a
