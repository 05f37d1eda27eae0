"""Replicates of a log: m mixtures of its episodes, and the sums of all of them at once.

A table of sums by unit (an episode, or a block of episodes) becomes one whose columns have a second
axis:  Σ_i c_ib x_i by cell, one sparse matrix (cells, units) times the counts c (units, m). Where
each replicate is the log without one block, sums are made once by block and added up without the
one; nothing is subtracted, which would leave noise where one block holds nearly all. Estimators
solve such sums as any others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.doubly_robust import fold_of, shape_moments
from reweigh.estimate.estimator import Recipe, Replicated
from reweigh.estimate.refusals import needs_log, overflow
from reweigh.estimate.standard_error import error_of_blocks, least_blocks, too_few
from reweigh.estimate.table_weights import TableWeights
from reweigh.kernels import Floats, Groups, Ints, group_by, tally
from reweigh.log.states import UNKNOWN
from reweigh.sums.keyed import StepMoments
from reweigh.sums.moments import NO_EXTRAS, Moments

AGAIN = "again"  # of a replicate that is to be solved by itself
CHUNK = 1 << 13  # units
LARGEST_KEPT = 31 << 20  # bytes; of more than 32 MB glibc keeps nothing
# Of a log's cells: tables of every estimator, of a model, of ratios, and of the errors of both
COUNTS, MODEL, RATIOS = {"n"}, {"y", "pi"}, {"rho", "z", "one"}
SQUARES: dict[str, set[str]] = {
    "n": set(), "y": {"y2"}, "pi": set(), "rho": {"rho2", "rhoz"}, "z": {"z2"}, "one": set(),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Draws:
    """m replicates of a log of n units.

    counts    (n, m) how often each unit occurs
    left_out  (n,) given where replicate b is the log without one block of its units: the number b
              of the unit's block, m if the unit is never left out
    """

    counts: npt.NDArray[np.uint8]
    left_out: Ints | None = None
    kept: dict[tuple[int, str], Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def without_each(cls, of: Ints, blocks: Ints) -> Draws:
        """Without each of these blocks in turn, the unit i being of block of[i]."""
        left_out = np.searchsorted(blocks, of)
        counts = np.asarray(of[:, None] != blocks, np.uint8)
        left_out[counts.all(axis=1)] = len(blocks)
        return cls(counts, left_out)

    @property
    def many(self) -> int:
        return int(self.counts.shape[1])

    def first(self, many: int) -> Draws:
        """The first ones."""
        return next(self.parts(many))[1]

    def parts(self, size: int) -> Iterator[tuple[slice, Draws]]:
        """The replicates, at most `size` at a time."""
        if self.many <= size:
            yield slice(0, self.many), self
            return
        for start in range(0, self.many, size):
            which = slice(start, min(start + size, self.many))
            counts, left = self.counts[:, which], self.left_out
            if left is not None:
                here = (left >= which.start) & (left < which.stop)
                left = np.where(here, left - which.start, counts.shape[1])
            yield which, Draws(np.ascontiguousarray(counts), left)

    @cached_property
    def times(self) -> Floats:
        return self.counts.astype(np.float64)

    @cached_property
    def total(self) -> Floats:
        """(m,) units."""
        return np.asarray(self.counts.sum(axis=0, dtype=np.float64))

    def of_units(self, columns: Floats) -> Floats:
        """(k, m) Σ_i c_i columns_i of columns (n, k), some units at a time."""
        if self.left_out is not None:
            return without_one(tally(self.left_out, columns, self.many + 1).T)
        total = np.zeros((columns.shape[1], self.many))
        for start in range(0, len(self.counts), CHUNK):
            k = slice(start, start + CHUNK)
            total += matrix_product(columns[k].T, self.counts[k].astype(np.float64))
        return total


def matrix_product(a: Any, b: Floats) -> Floats:
    """(k, m) a b of a (k, n), dense or sparse. A BLAS would wake its threads for it."""
    from scipy import sparse

    if not isinstance(a, np.ndarray):
        return np.asarray(a @ b)
    k, n = a.shape
    rows = a.ravel(), np.tile(np.arange(n, dtype=np.int32), k), np.arange(k + 1) * n
    return np.asarray(sparse.csr_array(rows, (k, n)) @ b)


def unit_errors(
    counts: Any, n: Floats, total: Floats, terms: Sequence[tuple[Any, Floats]]
) -> Floats:
    """(m,) the errors of functions f of sums Σ_i c_i x_i: SE² = Σ_i c_i ψ_i²/n² with
    ψ_i = n ∇f · x_i - ∇f · Σ_i c_i x_i, the latter being the `total` (m,). Of every term x is
    (units, K) and ∇f (K, m). Some units at a time."""
    squares = np.zeros(len(n))
    for start in range(0, len(counts), CHUNK):
        k = slice(start, start + CHUNK)
        psi = n * sum(matrix_product(x[k], slopes) for x, slopes in terms) - total
        squares += np.sum(counts[k] * psi**2, axis=0)
    return np.asarray(np.sqrt(squares) / n)


def without_one(parts: Floats) -> Floats:
    """(k, m) the sums of all parts (k, m + 1) but one, for each but the last: added from both
    sides, because subtracting the one would leave only noise where it is nearly all."""
    total = np.zeros((len(parts), parts.shape[1] - 1))
    np.cumsum(parts[:, :-2], axis=1, out=total[:, 1:])
    total += np.cumsum(parts[:, :0:-1], axis=1)[:, ::-1]
    return total


@dataclass(frozen=True, eq=False)
class UnitTable:
    """A table of sums by unit: R rows in K cells by its other keys.

    row_unit  (R,) the unit of each row
    fold      (n,) the block that the cells of a unit are to have, 0 without
    """

    table: Any
    row_unit: Ints
    fold: Ints | None = None

    @cached_property
    def keys(self) -> dict[str, Ints]:
        keys = {name: getattr(self.table, name) for name in self.table.keys}
        unit = self.row_unit
        return keys | {"block": np.zeros_like(unit) if self.fold is None else self.fold[unit]}

    @cached_property
    def cells(self) -> Groups:
        return group_by(list(self.keys.values()))

    @cached_property
    def _unit_by_cell(self) -> npt.NDArray[np.int32]:
        """(R,) of the rows in the order of their cells."""
        return self.row_unit[self.cells.order].astype(np.int32)

    @cached_property
    def _single(self) -> bool:
        """Whether every row counts once."""
        return bool(np.all(self.table.n == 1))

    def __len__(self) -> int:
        return len(self.cells)

    def sums(self, draws: Draws, name: str, values: Floats | None = None) -> Floats:
        """(K, m) the column of this name, of the rows' `values` where they are not the table's."""
        key = id(self), name
        if key not in draws.kept:
            values = getattr(self.table, name) if values is None else values
            draws.kept[key] = self._summed(draws, name, np.asarray(values, np.float64))
        return draws.kept[key]

    def _summed(self, draws: Draws, name: str, values: Floats) -> Floats:
        cells, m = self.cells, draws.many
        if not values.any():
            return np.zeros((len(self), 1))
        finite = np.isfinite(values).all()
        if self._single and finite and name != "n":
            first = values[cells.order[cells.starts]]
            if np.array_equal(first[cells.index()], values):  # such as π by step, state and action
                return first[:, None] * self.sums(draws, "n")
        if draws.left_out is not None:
            place = cells.index() * (m + 1) + draws.left_out[self.row_unit]
            return without_one(tally(place, values, len(cells) * (m + 1)).reshape(-1, m + 1))
        if not finite:  # 0 times infinity is not a number
            raise overflow()
        from scipy import sparse

        by_cell = values[cells.order], self._unit_by_cell, np.append(cells.starts, cells.size)
        return np.asarray(sparse.csr_array(by_cell, (len(self), len(draws.counts))) @ draws.times)

    def by_unit(self, values: Floats, units: int) -> Any:
        """(units, K) the sums of the rows' values, sparse."""
        from scipy import sparse

        return sparse.csr_array((values, (self.row_unit, self.cells.index())), (units, len(self)))

    def mixed(self, draws: Draws, columns: Collection[str]) -> Any:
        """The table of the replicates, with these columns; other columns are 0."""
        keys = dict(zip(self.keys, self.cells.keys, strict=True))
        # where no stretch is hidden the placebo is ρ
        same = "one" in columns and np.all(keys["t_next"] == keys["t"] + 1)
        sums = {
            name: self.sums(draws, "rho" if same and name == "one" else name)
            if name in columns
            else np.zeros((len(self), 1))
            for name in self.table.arrays().keys() - keys.keys()
        }
        return self.table.holding(keys | sums)


@dataclass(frozen=True, eq=False)
class UnitSums:
    """All sums of a log by unit, which is the `moments`' block; `blocks` are those that occur where
    not all numbers do, `fold` is as in UnitTable."""

    moments: Moments
    blocks: Ints | None = None
    fold: Ints | None = None

    def _units(self, table: Any) -> Ints:
        """(R,) of the table's rows."""
        of: Ints = table.block
        return of if self.blocks is None else np.searchsorted(self.blocks, of)

    @cached_property
    def tables(self) -> dict[str, UnitTable]:
        names = ["transitions", "start_model", "model", "policy"]
        if self.moments.start_model is None:
            names.append("start")
        tables = {name: getattr(self.moments, name) for name in names} | self.moments.tables
        return {
            name: UnitTable(table, self._units(table), self.fold)
            for name, table in tables.items()
            if table is not None
        }

    @property
    def largest(self) -> int:
        """Cells of the largest table."""
        return max(len(table) for table in self.tables.values())

    def mixed(self, draws: Draws, columns: Collection[str]) -> Moments:
        """The sums of the replicates; of the cells these columns."""
        # glibc gives arrays that are freed back to the system, and fetching them again page by page
        # takes longer than the computation. Once it has freed one of this size it keeps
        # smaller ones.
        np.empty(LARGEST_KEPT, np.uint8)
        tables: dict[str, Any] = {}
        for name, table in self.tables.items():
            wanted = columns if name in ("transitions", "model") else table.table.arrays().keys()
            tables[name] = table.mixed(draws, wanted)
        tables.setdefault("start", tables.get("start_model"))
        return replace(
            self.moments,
            tables={name: tables.pop(name) for name in self.moments.tables},
            trajectories=self._products(draws),
            share_rule=None if self.moments.model is None else self.moments.shares.rule,
            **tables,
            **NO_EXTRAS,
        )

    def _products(self, draws: Draws) -> StepMoments | None:
        """Running products of the replicates, each relative to its own largest product."""
        products = self.moments.trajectories
        if products is None:
            return None

        def stacked(table: Any) -> Any:
            unit = self._units(table)
            parts = [table.select(draws.counts[unit, b] > 0).total() for b in range(draws.many)]
            names = [f.name for f in fields(table) if f.name not in ("block", "t")]
            sums = {name: np.stack([getattr(p, name) for p in parts], axis=-1) for name in names}
            return type(table)(block=parts[0].block, t=parts[0].t, **sums)

        return StepMoments(stacked(products.steps), stacked(products.episodes))


def columns_for(recipe: Recipe, sums: Moments, errors: bool) -> set[str]:
    """The columns of cells that the estimator reads."""
    columns = set(COUNTS)
    by_ratios = sums.model is not None and sums.shares.rule == "ratios"
    if "model" in recipe.needs.kinds:
        columns |= MODEL
    by_ratios |= recipe.control is not None and recipe.control.blocks > 1  # Q of other episodes
    if by_ratios or (recipe.weights.uses_ratios and not recipe.uses_trajectories):
        columns |= RATIOS
    control = recipe.control
    squares = errors or (control is not None and (control.blends or control.fit == "variance"))
    return columns.union(*(SQUARES[name] for name in columns)) if squares else columns


def solve_units(recipe: Recipe, units: UnitSums, draws: Draws, *, errors: bool) -> Replicated:
    """The estimator on replicates of the sums of these units; `AGAIN` is the reason of those that
    must be solved separately."""
    why = recipe.weights.needs_rows(units.moments)
    if why:
        raise needs_log(recipe, why)
    sums = units.mixed(draws, columns_for(recipe, units.moments, errors))
    reasons = refusals(recipe, sums)
    if recipe.control is not None:
        sums = shape_moments(recipe, sums, errors=errors)
    reasons.append((AGAIN, _pooled_otherwise(recipe, sums)))
    solved = recipe.weights.solve_replicates(recipe, sums, errors=errors)
    if errors and solved.errors is None:
        assert isinstance(recipe.weights, TableWeights)
        solved = replace(solved, errors=_unit_errors(recipe.weights, units, sums, draws))
    return solved.but(*reasons)


def _unit_errors(weights: TableWeights, units: UnitSums, sums: Moments, draws: Draws) -> Floats:
    """(m,) the errors of a function of tables, from the influence values of the units."""
    tables, total, terms = weights.read(sums), np.zeros(draws.many), []
    for name, columns in weights.derivatives(tables).items():
        table = units.tables[name]
        for column, slope in columns.items():
            total += np.sum(slope * getattr(tables.tables[name], column), axis=1)
            of_rows = getattr(table.table, column).astype(np.float64)
            terms.append((table.by_unit(of_rows, len(draws.counts)), slope.T))
    return unit_errors(draws.counts, draws.total, total, terms)


def refusals(recipe: Recipe, sums: Moments) -> list[tuple[str, Any]]:
    """The replicates without episodes, or without a second fold that is needed."""
    starts = sums.start
    reasons = [("no-episodes", starts.n.sum(axis=0) == 0)]
    if recipe.control is not None and recipe.control.blocks > 1:
        control, fold = recipe.control, fold_of(recipe.control, starts.block)
        counts = [starts.n[fold == k].sum(axis=0) > 0 for k in range(control.blocks)]
        reasons.append(("empty-half", np.sum(counts, axis=0) < 2))
    return reasons


def _pooled_otherwise(recipe: Recipe, sums: Moments) -> Any:
    """(m,) whether pooled MIS uses the last step's moves of the replicate, and not of all: it does
    where all of their next states are known."""
    cells, horizon = sums.transitions, sums.about.horizon
    if cells is None or not recipe.weights.pools_steps:
        return np.zeros(sums.start.n.shape[1], bool)
    cut = (cells.t == horizon - 1) & (cells.s_next == UNKNOWN)
    return cut.any() & (cells.n[cut].sum(axis=0) == 0)


def values_without_blocks(recipe: Recipe, moments: Moments) -> Floats:
    """(g,) the values without each block of episodes, nan where there is none."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        blocks = moments.block_sizes()[0]
        return _without_each(recipe, moments.only(recipe.needs.all_kinds), blocks)[0]


def jackknife_error(recipe: Recipe, moments: Moments, value: float) -> tuple[float | None, str]:
    """(error, method), or (None, why there is none), from sums by blocks."""
    blocks, sizes = moments.block_sizes()
    cluster = moments.about.cluster
    if len(blocks) < least_blocks(cluster):
        return None, too_few(len(blocks), cluster)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # of other kinds of sums every block would be a copy
        without, reasons = _without_each(recipe, moments.only(recipe.needs.all_kinds), blocks)
    return error_of_blocks(value, without, sizes, reasons, cluster)


def _without_each(recipe: Recipe, moments: Moments, blocks: Ints) -> tuple[Floats, dict[str, int]]:
    """(g,) the values without each block, all at once where the estimator can; and the reasons of
    those that are missing."""
    values, refused = np.full(len(blocks), np.nan), np.full(len(blocks), AGAIN, object)
    try:
        if recipe.weights.solves_replicates:
            by_fold = recipe.control is not None and recipe.control.blocks > 1
            units = UnitSums(moments, blocks, fold_of(recipe.control, blocks) if by_fold else None)
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
