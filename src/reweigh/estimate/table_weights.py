"""Estimators that are a function of declared tables of sums: what another package writes.

    class Capped(TableWeights):
        tables = (capped,)
        formula = "v̂ = Σₜ γᵗ Σᵢ min(ρ₀…ρₜ, 5) rₜ / n"

        def description(self, recipe):
            return "importance sampling with capped products"

        def per_step(self, sums):
            table = sums.tables["capped"]
            return sums.discount**table.t * table.cy / sums.n

The value v = f(Σ_i x_i) is all that must be given. Its derivatives are found by differences, all of
which are replicates of one call. Influence values, errors and bootstraps follow from them: the
influence of episode i is n ∇f · x_i - ∇f · Σ_i x_i, as f does not change when every episode counts
twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from reweigh.estimate.estimator import JACKKNIFE_BLOCKS, Recipe, Replicated, Solution, Weights
from reweigh.estimate.refusals import cut_off, lacking, no_support, overflow
from reweigh.kernels import Floats
from reweigh.sums.gather import TableGradient
from reweigh.sums.moments import Moments

STEP = 1e-5  # of a sum: by how much it is moved to find a derivative
AT_ONCE = 1 << 22  # numbers of a column that are moved in one call


@dataclass(frozen=True, eq=False)
class TableSums:
    """The tables of m replicates of a log; m is 1 for the log itself.

    n        (m, 1) episodes
    tables   by name, with their keys (K,) and their columns (m, K) as attributes
    hidden_state   the code of the hidden state in the keys, None where no state is hidden
    """

    n: Floats
    discount: float
    horizon: int
    tables: dict[str, SimpleNamespace]
    hidden_state: int | None = None


class TableWeights(Weights):
    """A function of the sums of declared `tables`; see above."""

    blocks = JACKKNIFE_BLOCKS

    def per_step(self, sums: TableSums) -> Floats:
        """(m, H) the contribution of each step, or (m, 1) the value; nan where the sums do not
        determine it."""
        raise NotImplementedError

    def effective_sizes(self, sums: TableSums) -> Floats:
        """(m, H) on how many episodes each step effectively rests; nan: not known."""
        return np.full((len(sums.n), sums.horizon), np.nan)

    def placebo(self, sums: TableSums) -> Floats:
        """(m,) the value if every reward were 1; nan: not known."""
        return np.full(len(sums.n), np.nan)

    def derivatives(self, sums: TableSums) -> dict[str, dict[str, Floats]]:
        """(m, K) ∂v/∂(sum) by table and column: by differences, unless a class defines them."""
        return {
            name: {c: self._difference(sums, name, c) for c in _columns(table)}
            for name, table in sums.tables.items()
        }

    def _difference(self, sums: TableSums, table: str, column: str) -> Floats:
        values: Floats = getattr(sums.tables[table], column)
        m, cells = values.shape
        largest = np.abs(values).max(axis=1, keepdims=True, initial=0.0)
        h = STEP * np.where(values != 0, np.abs(values), np.where(largest > 0, largest, 1.0))
        slopes = np.empty((m, cells))
        for some in _parts(cells, AT_ONCE // (2 * m * cells)):
            k = np.arange(cells)[some]
            moved = np.broadcast_to(values, (len(k), 2, m, cells)).copy()
            moved[np.arange(len(k)), 0, :, k] += h[:, k].T
            moved[np.arange(len(k)), 1, :, k] -= h[:, k].T
            parts = self.per_step(_with_column(sums, table, column, moved.reshape(-1, cells)))
            above, below = np.moveaxis(parts.reshape(len(k), 2, m, -1), 1, 0)
            slopes[:, k] = (above - below).sum(axis=-1).T / (2 * h[:, k])
        return slopes

    def may_exceed_rewards(self, recipe: Recipe) -> bool:
        return True

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        tables = self.read(sums)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            [parts] = self.per_step(tables)
            [ess], [placebo] = self.effective_sizes(tables), self.placebo(tables)
        unknown = np.flatnonzero(np.isnan(parts))
        if len(unknown):
            raise no_support(int(unknown[0]))
        if not np.isfinite(parts).all():
            raise overflow()
        return Solution(
            value=float(parts.sum()),
            standard_error=None,
            error_method="delta",
            per_step=parts if len(parts) == tables.horizon else None,
            ess=ess,
            unseen_mass=None,
            placebo=float(placebo),
        )

    def solve_replicates(self, recipe: Recipe, sums: Moments, *, errors: bool) -> Replicated:
        """Errors take the episodes' own sums (`replicates.unit_errors`)."""
        values = self.per_step(self.read(sums)).sum(axis=-1)
        return Replicated.of(values, None, ("no-overlap", np.isnan(values)))

    def gradient(self, recipe: Recipe, sums: Moments) -> TableGradient:
        self.solve(recipe, sums, errors=False)  # raises the refusals
        tables, n, constant, by_table = self.read(sums), sums.n_episodes, 0.0, []
        for name, columns in self.derivatives(tables).items():
            table = sums.tables[name].forget("block")
            for column, slope in columns.items():
                constant -= float(np.sum(slope * getattr(tables.tables[name], column)))
            slopes = {column: n * slope[0] for column, slope in columns.items()}
            by_table.append(table.holding(table.arrays() | slopes))
        return TableGradient(tuple(by_table), constant, recipe.max_ratio)

    def read(self, sums: Moments) -> TableSums:
        """Its tables, of a log or of replicates."""
        if sums.truncated and self.whole_episodes:
            raise cut_off(sums.truncated)
        tables = {}
        for declared in self.tables:
            if declared.name not in sums.tables:
                raise lacking(declared.name)
            table = sums.tables[declared.name]
            arrays = (table.forget("block") if table.n.ndim == 1 else table).arrays()
            across = {
                c: np.atleast_2d(v.T).astype(np.float64)
                for c, v in arrays.items()
                if c not in table.keys
            }
            tables[declared.name] = SimpleNamespace(**arrays | across)
        n = np.atleast_1d(sums.start.n.sum(axis=0)).astype(np.float64)[:, None]
        full = {name: _full(table, len(n)) for name, table in tables.items()}
        hidden = len(sums.states) - 1 if sums.hidden else None
        return TableSums(n, sums.about.discount, sums.about.horizon, full, hidden)


def _columns(table: SimpleNamespace) -> list[str]:
    return [name for name, values in vars(table).items() if values.ndim == 2]


def _full(table: SimpleNamespace, m: int) -> SimpleNamespace:
    """A column that is 0 in every replicate is held once."""
    columns = {c: getattr(table, c) for c in _columns(table)}
    full = {c: np.broadcast_to(v, (m, v.shape[1])) for c, v in columns.items()}
    return SimpleNamespace(**vars(table) | full)


def _with_column(sums: TableSums, table: str, column: str, values: Floats) -> TableSums:
    """The sums with other values of a column, (r m, K): r times those of the m replicates."""

    def repeated(array: Floats) -> Floats:
        return np.tile(array, (len(values) // len(sums.n), 1))

    tables = {
        name: SimpleNamespace(
            **vars(held) | {c: repeated(getattr(held, c)) for c in _columns(held)}
        )
        for name, held in sums.tables.items()
    }
    setattr(tables[table], column, values)
    return replace(sums, n=repeated(sums.n), tables=tables)


def _parts(size: int, most: int) -> Iterator[slice]:
    for start in range(0, size, max(most, 1)):
        yield slice(start, start + max(most, 1))
