"""A log in memory, made ready to be solved on many replicates of its episodes at once.

Its sums by episode are those of any engine with a block for each. Running products stay by episode
and step: a product belongs to its episode whatever else is drawn, so the sums of all replicates are
one matrix product, and the errors of WIS, DR and WDR, squares of sums over an episode, are computed
from ψ_i of every episode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.doubly_robust import fit_control, halves
from reweigh.estimate.estimator import Recipe, Replicated
from reweigh.estimate.products import Products
from reweigh.estimate.replicates import (
    AGAIN,
    CHUNK,
    Draws,
    UnitSums,
    columns_for,
    matrix_product,
    refusals,
    solve_units,
)
from reweigh.estimate.standard_error import lost_in_rounding, nothing_left
from reweigh.kernels import tally
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy, scope_of
from reweigh.sums.engines import ArraysEngine, Request, ratios
from reweigh.sums.policy import follows_state

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MOST_KEPT = 1 << 29  # bytes of what the estimators of one log and target hold
ROW, COUNT, PRODUCT = 48, 512, 24  # bytes of a row, of an episode's counts, of a step's product
ARRAYS = 28  # of (cells, m) that an estimator holds at a time
FEWEST = 4  # replicates for which it still pays
HELD = 2.0**256  # larger products and rewards are for the general way, and smaller products


@dataclass(frozen=True, eq=False)
class ResampledLog:
    """A log and a target: what does not depend on the replicate, made once."""

    log: EpisodeLog
    target: Policy
    max_ratio: float | None
    _kept: dict[Any, UnitSums] = field(default_factory=dict, repr=False)

    def solve(self, recipe: Recipe, draws: Draws, *, errors: bool) -> Replicated | None:
        """The estimator on these replicates, `AGAIN` being the reason of those that must be
        evaluated by themselves; None where all of them must."""
        try:
            if isinstance(recipe.weights, Products):
                return self._weighed(recipe, draws, errors)
            units = self.units(recipe)
            solved = solve_units(recipe, units, draws, errors=errors)
        except RefusedError:  # of the whole log; what replicates are refused for differs
            return None
        return solved.but((AGAIN, self._other_shares(units, draws)))

    def together(self, recipe: Recipe, errors: bool) -> int:
        """How many replicates of this estimator can be held at once, as a power of two; 0 where
        these are too few, and where only the general way knows it."""
        log, largest = self.log, 1
        if not (log.steps.has_propensities and recipe.weights.solves_replicates):
            return 0
        if COUNT * log.n_episodes > MOST_KEPT:
            return 0
        if isinstance(recipe.weights, Products) and (log.n_truncated or self.products is None):
            return 0
        if not isinstance(recipe.weights, Products) or recipe.fitted:
            actions = 1
            if recipe.needs.policy and scope_of(self.target) == "row":
                if recipe.uses_trajectories or (errors and not recipe.weights.uses_ratios):
                    return 0  # what the policy sees of each row counts
                actions = 1 if log.actions is None else len(log.actions)
            if ROW * log.steps.n_rows * actions > MOST_KEPT:
                return 0
            largest = self.units(recipe).largest
        if recipe.weights.pools_steps:
            largest = max(largest, (log.horizon + 1) * (len(log.states) + 1))
        fit = MOST_KEPT // (8 * ARRAYS * largest)
        return 1 << (fit.bit_length() - 1) if fit >= FEWEST else 0

    def units(self, recipe: Recipe) -> UnitSums:
        """The sums by episode that the estimator needs."""
        kinds = frozenset({"model"}) if recipe.fitted else recipe.needs.kinds
        split = recipe.control is not None and recipe.control.blocks > 1
        policy, tables = recipe.needs.policy, recipe.needs.tables
        whole, key = (kinds, policy, tables, False), (kinds, policy, tables, split)
        if whole not in self._kept:
            request = Request(kinds, 2, self.max_ratio, policy=policy, named=False, tables=tables)
            each = np.arange(self.log.n_episodes)
            sums = ArraysEngine().moments(self.log, self.target, request, each)
            if scope_of(self.target) == "state":
                sums = replace(sums, share_rule="one number")
            self._kept[whole] = UnitSums(sums)
        if key not in self._kept:
            half = halves(self.log.steps.episode_hash)
            self._kept[key] = UnitSums(self._kept[whole].moments, None, half)
        return self._kept[key]

    def _other_shares(self, units: UnitSums, draws: Draws) -> Any:
        """(m,) whether a model's shares are found by another rule than those of the whole log."""
        if units.moments.model is None or units.moments.shares.rule != "ratios":
            return False
        return follows_state(units.tables["model"].mixed(draws, ("n", "pi", "pi2")))

    @cached_property
    def products(self) -> RunningProducts | None:
        """None where they are too many, or need more than a float to hold them."""
        if PRODUCT * self.log.n_episodes * self.log.horizon > MOST_KEPT:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            return RunningProducts.of(self.log, ratios(self.log, self.target, self.max_ratio)[1])

    def _weighed(self, recipe: Recipe, draws: Draws, errors: bool) -> Replicated:
        """IS, WIS, DR and WDR."""
        products = self.products
        assert products is not None
        assert isinstance(recipe.weights, Products)
        reasons: list[tuple[str, Any]] = [("no-episodes", draws.total == 0)]
        shaped = None
        if recipe.control is not None:
            units = self.units(recipe)
            shaped, reasons = Shaped.of(recipe, units, products, draws)
            reasons.append((AGAIN, self._other_shares(units, draws)))
        if not recipe.weights.stepwise:
            products = products.of_trajectories
        return products.solve(recipe, draws, shaped, errors=errors).but(*reasons)


@dataclass(frozen=True, eq=False)
class Shaped:
    """The control variate of the replicates.

    f       (K, m) γV' - Q by cell of the model's table, whose `cell` (R,) each row has
    g       (n, m) is g[first]: by first state, and (n,) the episodes' first states
    earned  (H, m) Σ_i c_i w_it (y_it + f_it)
    among   (n,) the episodes that are summed
    """

    units: UnitSums
    f: Floats
    g: Floats
    earned: Floats
    among: Bools

    @classmethod
    def of(
        cls, recipe: Recipe, units: UnitSums, products: RunningProducts, draws: Draws
    ) -> tuple[Shaped, list[tuple[str, Any]]]:
        """With the replicates that are refused."""
        assert recipe.control is not None
        sums = units.mixed(draws, columns_for(recipe, units.moments, errors=False))
        control = fit_control(recipe.control, sums)
        table, starts = units.tables["model"], units.tables["start_model"]
        split = recipe.control.q == "split"  # only the first half is summed

        def used(block: Ints) -> Bools:
            return halves(block) == 0 if split else np.ones(len(block), bool)

        f, g = np.zeros((len(table), draws.many)), np.zeros((len(starts), draws.many))
        f[used(table.cells.keys[0])], g[used(starts.cells.keys[0])] = control.f, control.g
        at = table.row_unit, table.table.t
        w, wy = table.sums(draws, "w", products.w[at]), table.sums(draws, "wy", products.wy[at])
        kept, t = used(table.cells.keys[0]), table.cells.keys[1]
        earned = tally(t[kept], (wy + w * f)[kept], len(products.powers))
        among = np.ones(len(products.w), bool) if units.half is None else used(units.half)
        return cls(units, f, g, earned, among), refusals(recipe, sums)

    def residuals(self, products: RunningProducts, by: Floats) -> Iterator[tuple[slice, Floats]]:
        """Of some episodes after the other, (k, m) g(s_0) + Σ_t w_t by_t f_t."""
        from scipy import sparse

        table, starts = self.units.tables["model"], self.units.tables["start_model"]
        unit, t, cell = table.row_unit, table.table.t, table.cells.index()
        bounds = np.searchsorted(unit, np.arange(len(products.w) + 1))
        w, first = products.w[unit, t], starts.cells.index()
        each = self.f * by[table.cells.keys[1]]
        for start in range(0, len(products.w), CHUNK):
            k = slice(start, start + CHUNK)
            ends = bounds[start : start + CHUNK + 1]
            rows = slice(int(ends[0]), int(ends[-1]))
            by_episode = w[rows], cell[rows], ends - ends[0]
            moved = sparse.csr_array(by_episode, (len(ends) - 1, len(each))) @ each
            yield k, np.asarray(moved) + self.g[first[k]]


@dataclass(frozen=True, eq=False)
class RunningProducts:
    """What the episodes hold.

    w      (n, H) ρ_{0:t}, frozen once the episode has ended
    wy     (n, H) ρ_{0:t} y_t, 0 after the end
    g      (n,)   the start value of a control variate
    plain  (n,)   Σ_t γ^t y_t
    powers (H,)   γ^t
    """

    w: Floats
    wy: Floats
    g: Floats
    plain: Floats
    discount: float

    @classmethod
    def of(cls, log: EpisodeLog, rho: Floats) -> RunningProducts | None:
        """None where a product needs more than a float to hold it."""
        steps, n = log.steps, log.n_episodes
        w, wy = np.ones((n, log.horizon)), np.zeros((n, log.horizon))
        plain, product = np.zeros(n), np.ones(n)
        for t in range(log.horizon):
            rows = steps.rows(t)
            alive = rows.stop - rows.start
            product[:alive] *= rho[rows]
            w[:, t] = product
            wy[:alive, t] = product[:alive] * steps.reward[rows]
            plain[:alive] += log.discount**t * steps.reward[rows]
        if not np.all((w == 0) | ((w > 1 / HELD) & (w < HELD))):
            return None
        if not np.all(np.abs(steps.reward) < HELD):
            return None
        g = np.zeros(n) if steps.start_value is None else steps.start_value
        return cls(w, wy, g, plain, log.discount)

    @property
    def powers(self) -> Floats:
        return np.asarray(self.discount ** np.arange(self.w.shape[1]), np.float64)

    @property
    def of_trajectories(self) -> RunningProducts:
        """With W = ρ_{0:H-1} and the return in the place of one step."""
        whole = self.w[:, -1:]
        return replace(self, w=whole, wy=whole * self.plain[:, None])

    def solve(
        self, recipe: Recipe, draws: Draws, shaped: Shaped | None, *, errors: bool
    ) -> Replicated:
        """v = Σ_t γ^t Σ_i w_it y_it / n + ḡ,  or divided by Σ_i w_it at each step."""
        if shaped is None:
            n, w, wy = draws.total, draws.of_units(self.w), draws.of_units(self.wy)
            g = draws.of_units(self.g[:, None])[0]
        else:
            n = draws.of_units(shaped.among[:, None].astype(np.float64))[0]
            w, wy = draws.of_units(self.w * shaped.among[:, None]), shaped.earned
            first = shaped.units.tables["start_model"]
            g = (first.sums(draws, "n") * shaped.g).sum(axis=0)
        by = self.powers[:, None] / (w if recipe.normalize == "step" else n)
        value = (by * wy).sum(axis=0) + g / n
        spread = self._spread(recipe, draws, shaped, n, w, wy, g / n, value) if errors else None
        return Replicated.of(value, spread, ("no-overlap", ~np.all(w > 0, axis=0)))

    def _spread(
        self,
        recipe: Recipe,
        draws: Draws,
        shaped: Shaped | None,
        n: Floats,
        w: Floats,
        wy: Floats,
        mean_g: Floats,
        value: Floats,
    ) -> Floats:
        """(m,) SE, nan where rounding has eaten it, from ψ_i = g_i - c + Σ_t b_t w_it (y_it - v_t):

        IS, DR:    b_t = γ^t,            v_t = 0,                c = 0,   SE² = Var(ψ)/n
        WIS, WDR:  b_t = γ^t/mean(w_t),  v_t = Σ w_t y_t/Σ w_t,  c = ḡ,   SE² = mean(ψ²)/n
        """
        weighted = recipe.normalize == "step"
        by = self.powers[:, None] * (n / w if weighted else np.ones_like(w))
        parts: Iterator[tuple[slice, Floats]]
        if shaped is None:
            starts = range(0, len(self.w), CHUNK)
            parts = ((slice(k, k + CHUNK), self.g[k : k + CHUNK, None]) for k in starts)
        else:
            parts = shaped.residuals(self, by)
        first, second = np.zeros((2, draws.many))
        for k, moved in parts:
            psi = moved + matrix_product(self.wy[k], by)
            if weighted:
                psi -= matrix_product(self.w[k], by * wy / w) + mean_g
            times = draws.counts[k] if shaped is None else draws.counts[k] * shaped.among[k, None]
            first += np.sum(times * psi, axis=0)
            second += np.sum(times * psi**2, axis=0)
        if weighted:
            error = np.sqrt(second) / n
            return np.where(nothing_left(error, value), np.nan, error)
        square = second / n - (first / n) ** 2
        lost = lost_in_rounding(square, second / n)
        return np.sqrt(np.where(lost, np.nan, np.maximum(square, 0.0) / n))
