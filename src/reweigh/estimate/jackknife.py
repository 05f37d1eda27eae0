"""The delete-a-block jackknife: standard errors of any estimator, from its values without each
block of episodes; from sums alone, or from the log."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.control import halves, shape_moments
from reweigh.estimate.recipe import Recipe
from reweigh.estimate.replicates import AGAIN, Draws, UnitSums, solve_units
from reweigh.estimate.variance import LOST, OVERFLOW, nothing_left
from reweigh.sums.moments import Moments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LEAST_BLOCKS = 10
TOO_FEW, GONE = "the jackknife needs at least", "without one block of episodes there is no estimate"


def jackknife_error(recipe: Recipe, moments: Moments, value: float) -> tuple[float | None, str]:
    """(error, method), or (None, why there is none), from sums by blocks."""
    blocks, sizes = moments.block_sizes()
    if len(blocks) < LEAST_BLOCKS:
        return None, _too_few(len(blocks))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # of other kinds of sums every block would be a copy
        without, reasons = _without_each(recipe, moments.only(recipe.needs.kinds), blocks)
    return error_of_blocks(value, without, sizes, reasons)


def _without_each(recipe: Recipe, moments: Moments, blocks: Ints) -> tuple[Floats, dict[str, int]]:
    """(g,) the values without each block, all at once where the estimator can; and the reasons of
    those that are missing."""
    values, refused = np.full(len(blocks), np.nan), np.full(len(blocks), AGAIN, object)
    try:
        if recipe.weights.solves_replicates:
            by_half = recipe.control is not None and recipe.control.blocks > 1
            units = UnitSums(moments, blocks, halves(blocks) if by_half else None)
            together = solve_units(recipe, units, Draws.without_each(blocks, blocks), errors=False)
            values, refused = together.values, together.refused
    except RefusedError as error:
        return values, {error.code: len(blocks)}
    for index in np.flatnonzero(refused == AGAIN):
        try:
            values[index] = _value(recipe, moments.without(int(blocks[index])))
            refused[index] = ""
        except RefusedError as error:
            return values, {error.code: 1}
    return values, {code: 1 for code in refused if code}


def _value(recipe: Recipe, part: Moments) -> float:
    if recipe.control is not None:
        part = shape_moments(recipe, part, errors=False)
    return recipe.weights.solve(recipe, part, errors=False).value


def error_of_blocks(
    value: float, without: Floats, sizes: Ints, reasons: Mapping[str, int]
) -> tuple[float | None, str]:
    """(error, method), or (None, why there is none), from the values (g,) without each block."""
    if len(sizes) < LEAST_BLOCKS:
        return None, _too_few(len(sizes))
    if not np.all(np.isfinite(without)):
        code = next(iter(reasons), "overflow")
        return None, f"{GONE} ({code})"
    with np.errstate(over="ignore"):
        error = block_error(value, without, sizes)
    if not np.isfinite(error):
        return None, OVERFLOW
    if nothing_left(error, value):
        return None, LOST
    return error, f"jackknife ({len(sizes)} blocks)"


def block_error(value: float, without: Floats, sizes: Ints) -> float:
    """Blocks come from a hash, so their sizes m_j differ. With h_j = n/m_j the pseudo-values are
    p_j = h_j v - (h_j - 1) v_(j), and Var = (1/g) Σ_j (p_j - v_J)²/(h_j - 1), where
    v_J = g v - Σ_j (1 - m_j/n) v_(j).
    """
    n, count = float(sizes.sum()), len(sizes)
    h = n / sizes
    center = count * value - float(np.sum((1 - sizes / n) * without))
    pseudo = h * value - (h - 1) * without
    return float(np.sqrt(np.mean((pseudo - center) ** 2 / (h - 1))))


def _too_few(blocks: int) -> str:
    return (
        f"{TOO_FEW} {LEAST_BLOCKS} blocks of episodes and there are {blocks}; make the moments "
        "with blocks=20"
    )
