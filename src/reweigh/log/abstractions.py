"""The abstractions that make states from columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError, must_be
from reweigh.log.states import Codes, Labels, combine, encode_array, exact_array
from reweigh.system.fingerprint import digest_of_callable


@runtime_checkable
class Transformer(Protocol):
    """Anything with `transform` (the scikit-learn convention)."""

    def transform(self, values: npt.NDArray[Any]) -> Any: ...


class Abstraction:
    """Base of the abstractions that describe themselves; they take numbers only."""

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        raise UsageError("use Rounding, Grid, or any callable or object with transform()")


@dataclass(frozen=True)
class Rounding(Abstraction):
    """state = round(x · scale), column by column (half to even)."""

    scale: float | Sequence[float]

    def __post_init__(self) -> None:
        scale = np.asarray(self.scale, float)
        if scale.ndim > 1 or not np.all(np.isfinite(scale)) or np.any(scale <= 0):
            raise must_be("scale", "a positive number, or one per column", self.scale)
        # floats, so that equal scales are described alike
        object.__setattr__(self, "scale", tuple(scale.tolist()) if scale.ndim else float(scale))

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        scale = np.asarray(self.scale, float)
        if scale.ndim == 1 and values.shape[1] != len(scale):
            raise UsageError(
                f"Rounding has scales for {len(scale)} columns and is applied to {values.shape[1]}"
            )
        with np.errstate(over="ignore"):  # an infinity is refused below
            return _whole(np.rint(values * scale))


@dataclass(frozen=True)
class Grid(Abstraction):
    """state = number of edges at or below x, with one increasing list of edges per column."""

    edges: Sequence[float] | Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        nested = [np.atleast_1d(np.asarray(edge, float)) for edge in self.edges]
        lists = nested if any(np.ndim(e) for e in self.edges) else [np.asarray(self.edges, float)]
        for edge in lists:
            if not np.all(np.isfinite(edge)) or np.any(np.diff(edge) <= 0) or len(edge) == 0:
                raise must_be("edges", "increasing finite numbers, one list per column", self.edges)
        object.__setattr__(self, "edges", tuple(tuple(edge.tolist()) for edge in lists))

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        edges: tuple[tuple[float, ...], ...] = self.edges  # type: ignore[assignment]
        if values.shape[1] != len(edges):
            raise UsageError(
                f"Grid has edges for {len(edges)} columns and is applied to {values.shape[1]}"
            )
        cells = [np.searchsorted(edge, values[:, j], side="right") for j, edge in enumerate(edges)]
        return np.stack(cells, axis=1).astype(np.int64)


AnyAbstraction = Callable[[npt.NDArray[Any]], Any] | Transformer


def describe_abstraction(abstraction: AnyAbstraction | None) -> str | None:
    """The text that stays in the log's description (and that moments must share to be added)."""
    if abstraction is None:
        return None
    if isinstance(abstraction, Abstraction):
        return repr(abstraction)
    # Two lambdas, or two transformers fitted apart, are not the same abstraction.
    # An address in memory would make every run's description another one.
    name = getattr(abstraction, "__qualname__", re.sub(r" at 0x[0-9a-f]+", "", repr(abstraction)))
    call = abstraction if callable(abstraction) else abstraction.transform
    return f"{name} ({digest_of_callable(call)[:12]})"


def abstract_states(abstraction: AnyAbstraction, values: npt.NDArray[Any]) -> tuple[Codes, Labels]:
    """States from the (rows, k) array of the chosen columns."""
    if not callable(abstraction) and not isinstance(abstraction, Transformer):
        raise must_be("abstraction", "callable or have a transform() method", abstraction)
    call = abstraction if callable(abstraction) else abstraction.transform
    try:
        result = call(values)
        array = exact_array(result)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the state abstraction {describe_abstraction(abstraction)} failed; it is called with "
            f"an array of shape {values.shape} and returns one state per row: {error}"
        ) from error
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or len(array) != len(values) or array.shape[1] == 0:
        raise UsageError(
            f"the state abstraction returned shape {np.shape(array)} for {len(values)} rows; "
            "it must return one state (or one row of state columns) per row"
        )
    if np.ma.is_masked(result):
        raise UsageError("the state abstraction returned masked values; a state is never masked")
    if array.dtype.kind == "f":
        array = _whole(array)
    parts = [encode_array("the abstraction's states", array[:, j]) for j in range(array.shape[1])]
    return combine(parts)


def _whole(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Floats as integers, if that changes none of them."""
    if not np.all((np.abs(values) < 2.0**63) & (np.rint(values) == values)):
        raise UsageError(
            "the state abstraction returned numbers that are not whole, not finite or too large "
            "for 64 bits; a state is an integer or a text: round them or give the cell's number"
        )
    return values.astype(np.int64)
