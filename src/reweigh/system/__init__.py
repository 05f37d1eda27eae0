"""Numbers as text with the digits that they deserve, and what other packages add: objects that
their metadata names in one of our groups.

    [project.entry-points."reweigh.estimators"]
    my-mis = "my_package:my_mis"

Groups are `reweigh.estimators`, `reweigh.gates` and `reweigh.adapters`. Reading the metadata of all
installed packages is slow: it is not done before a name is not one of ours, or all names are
wanted. `optional_module` imports from packages that only some users have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from reweigh.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

MOST_DECIMALS = 12  # smaller numbers are written with an exponent, not as zeros
SMALLEST_P = 1e-16  # below, the digits of a p-value are those of rounding


def divided(numerator: Floats, denominator: Floats) -> Floats:
    """numerator/denominator, 0 where the denominator is 0."""
    import numpy as np  # here: the command line's help needs none

    some = denominator > 0
    return np.where(some, numerator / np.where(some, denominator, 1.0), 0.0)


def finite_or_none(value: float | None) -> float | None:
    """What overflowed is not a number to hand on."""
    return value if value is not None and math.isfinite(value) else None


def rounded(value: float, error: float | None) -> str:
    """A number with as many decimals as its error supports (two digits of the error)."""
    if error is None or not error > 0:
        return number(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    if decimals <= MOST_DECIMALS or value == 0:
        return f"{value:,.{min(decimals, MOST_DECIMALS)}f}"
    digits = math.floor(math.log10(abs(value))) + decimals
    return f"{value:.{min(max(digits, 1), 16)}e}"


def number(value: float | None) -> str:
    """A number with four significant digits."""
    if value is None:
        return "unknown"
    if not math.isfinite(value):
        return "too large to print"
    if value == 0 or 1e-4 <= abs(value) < 1e7:
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:.3e}"


def two_digits(value: float | None) -> str:
    """A standard error with two significant digits."""
    if value is None:
        return "none"
    return f"{value:.2e}" if value and not 1e-4 <= value < 1e5 else f"{value:#.2g}".rstrip(".")


def p_text(p: float, *, at_most: bool = False) -> str:
    """A p-value: "p = 0.013", or "p ≤ 0.013" where it is at most that."""
    if p < SMALLEST_P:
        return f"p < {SMALLEST_P:g}"
    return f"p {'≤' if at_most else '='} {p:.2g}"


@cache
def declared(group: str) -> dict[str, Any]:
    """The entry points of a group, such as "estimators", by name."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=f"reweigh.{group}")}


def added_names(group: str) -> tuple[str, ...]:
    """The names that other packages add to a group."""
    return tuple(declared(group))


def added(group: str, name: str) -> Any:
    """The object of that name, imported; None where no package adds it."""
    entry = declared(group).get(name)
    if entry is None:
        return None
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.value
        raise UsageError(
            f"{name!r}, which the package {package!r} adds to reweigh.{group}, cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def forget() -> None:
    """Look again: packages were installed meanwhile."""
    declared.cache_clear()


def installed(packages: Iterable[str]) -> list[str]:
    """Those of the packages that are installed, with their versions."""
    from importlib import metadata

    versions = []
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return versions


def optional_module(module: str, extra: str, what: str) -> Any:
    """A module of an optional package, or a word on what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0].replace("sklearn", "scikit-learn")
        raise UsageError(
            f"{what} needs the package {package}: pip install 'reweigh[{extra}]' ({error})"
        ) from error
