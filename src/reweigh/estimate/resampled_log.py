"""A log in memory, made ready to be solved on many replicates of its episodes at once.

Its sums by episode are those of any engine with a block for each. Running products stay by episode
and step: a product belongs to its episode whatever else is drawn, so the sums of all replicates are
one matrix product, and the errors of WIS, DR and WDR, squares of sums over an episode, are computed
from ψ_i of every episode.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.doubly_robust import fit_control, fold_of
from reweigh.estimate.estimator import FOLDS, Recipe, Replicated
from reweigh.estimate.products import Products
from reweigh.estimate.replicates import (
    AGAIN,
    Draws,
    UnitSums,
    columns_for,
    refusals,
    solve_units,
    unit_errors,
)
from reweigh.estimate.standard_error import lost_in_rounding, nothing_left
from reweigh.kernels import Bools, Floats, Ints, tally
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy, scope_of
from reweigh.sums.engines import ArraysEngine, Request, ratios
from reweigh.sums.policy import follows_state

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
        """The estimator on these replicates; `AGAIN` is the reason of those that must be evaluated
        separately; None if all of them must."""
        try:
            if isinstance(recipe.weights, Products):
                return self._weighed(recipe, draws, errors)
            units = self.units(recipe)
            solved = solve_units(recipe, units, draws, errors=errors)
        except RefusedError:  # of the whole log; what replicates are refused for differs
            return None
        return solved.but((AGAIN, self._other_shares(units, draws)))

    def together(self, recipe: Recipe, errors: bool) -> int:
        """How many replicates of this estimator can be held at once, as a power of two; 0 if these
        are too few, or if only the general code supports it."""
        log, largest = self.log, 1
        if not (log.steps.has_propensities and recipe.weights.solves_replicates):
            return 0
        if log.steps.weight is not None:
            return 0
        control, products = recipe.control, recipe.uses_trajectories
        if control is not None:
            by_rows = products if control.fit == "variance" else errors or products
            if by_rows and (control.blends or control.fit == "variance"):
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
        folds = 1 if recipe.control is None else recipe.control.blocks
        policy, tables = recipe.needs.policy, recipe.needs.tables
        whole, key = (kinds, policy, tables, 1), (kinds, policy, tables, folds)
        if whole not in self._kept:
            request = Request(
                kinds, 2 * FOLDS, self.max_ratio, policy=policy, named=False, tables=tables
            )
            each = np.arange(self.log.n_episodes)
            sums = ArraysEngine().moments(self.log, self.target, request, each)
            if scope_of(self.target) == "state":
                sums = replace(sums, share_rule="one number")
            self._kept[whole] = UnitSums(sums)
        if key not in self._kept:
            fold = fold_of(recipe.control, self.log.steps.episode_hash)
            self._kept[key] = UnitSums(self._kept[whole].moments, None, fold)
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
        if recipe.control is None:
            mixture, reasons = products.mixed(draws), [("no-episodes", draws.total == 0)]
        else:
            units = self.units(recipe)
            mixture, reasons = products.shaped(recipe, units, draws)
            reasons.append((AGAIN, self._other_shares(units, draws)))
        if not recipe.weights.stepwise:
            products = products.of_trajectories
            mixture = products.mixed(draws)
        return products.solve(recipe, mixture, errors=errors).but(*reasons)


@dataclass(frozen=True, eq=False)
class Mixture:
    """What the episodes of m replicates add up to.

    counts  (n, m) how often each episode is summed, and (m,) how many these are in all
    w, wy   (H, m) Σ_i c_i w_it and Σ_i c_i w_it y_it, of a control variate with the shaped y
    start   g by episode as (n, K) indicators of its (K, m) values, and (m,) Σ_i c_i g_i
    shaping of a control variate: (n, K) the products w by cell, with the cells' f (K, m) and t (K,)
    """

    counts: Any
    n: Floats
    w: Floats
    wy: Floats
    start: tuple[Any, Floats]
    g: Floats
    shaping: tuple[Any, Floats, Ints] | None = None


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
        """With W = ρ_{0:H-1} and the return instead of one step."""
        whole = self.w[:, -1:]
        return replace(self, w=whole, wy=whole * self.plain[:, None])

    def mixed(self, draws: Draws) -> Mixture:
        w, wy, g = (draws.of_units(columns) for columns in (self.w, self.wy, self.g[:, None]))
        start = self.g[:, None], np.ones((1, draws.many))
        return Mixture(draws.counts, draws.total, w, wy, start, g[0])

    def shaped(
        self, recipe: Recipe, units: UnitSums, draws: Draws
    ) -> tuple[Mixture, list[tuple[str, Any]]]:
        """With the control variate of each replicate; and the replicates that are refused."""
        assert recipe.control is not None
        sums = units.mixed(draws, columns_for(recipe, units.moments, errors=False))
        control = fit_control(recipe.control, sums)
        table, starts, size = units.tables["model"], units.tables["start_model"], len(self.w)
        split = recipe.control.q == "split"  # only the first half is summed

        def used(block: Ints) -> Bools:
            return fold_of(recipe.control, block) == 0 if split else np.ones(len(block), bool)

        f, g = np.zeros((len(table), draws.many)), np.zeros((len(starts), draws.many))
        kept, t = used(table.cells.keys[0]), table.cells.keys[1]
        f[kept], g[used(starts.cells.keys[0])] = control.f, control.g
        at = table.row_unit, table.table.t
        w, wy = table.sums(draws, "w", self.w[at]), table.sums(draws, "wy", self.wy[at])
        fold = np.zeros(size, np.int64) if units.fold is None else units.fold
        among = used(fold).astype(np.float64)[:, None]
        mixture = Mixture(
            draws.counts * among,
            draws.of_units(among)[0],
            draws.of_units(self.w * among),
            tally(t[kept], (wy + w * f)[kept], self.w.shape[1]),
            (starts.by_unit(np.ones(len(starts.row_unit)), size), g),
            (starts.sums(draws, "n") * g).sum(axis=0),
            (table.by_unit(self.w[at], size), f, t),
        )
        return mixture, refusals(recipe, sums)

    def solve(self, recipe: Recipe, mixture: Mixture, *, errors: bool) -> Replicated:
        """v = Σ_t γ^t Σ_i w_it y_it / n + ḡ,  or divided by Σ_i w_it at each step; its gradient by
        Σ w y is by_t, by Σ w where weighted - by_t v_t, and by Σ g 1/n."""
        n, w, wy, mean_g = mixture.n, mixture.w, mixture.wy, mixture.g / mixture.n
        weighted = recipe.normalize == "step"
        by = self.powers[:, None] / (w if weighted else n)
        value, error = (by * wy).sum(axis=0) + mean_g, None
        if errors:
            terms = [(self.wy, by), (mixture.start[0], mixture.start[1] / n)]
            if weighted:
                terms.append((self.w, -by * wy / w))
            if mixture.shaping is not None:
                products, f, t = mixture.shaping
                terms.append((products, f * by[t]))
            error = unit_errors(mixture.counts, n, mean_g if weighted else value, terms)
            lost = nothing_left(error, value)
            if not weighted:
                lost = lost_in_rounding(n * error**2, n * error**2 + value**2)
            error = np.where(lost, np.nan, error)
        return Replicated.of(value, error, ("no-overlap", ~np.all(w > 0, axis=0)))
