"""MIS pooled over time, on many mixtures of the episodes at once.

Its cells are those of all steps together, by (s, s'); a state's column is its code, END's the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.estimate.recipe import Recipe
from reweigh.trust.draws import adding
from reweigh.trust.log_cells import Cells
from reweigh.trust.mixed_cells import Mixed, inverse, root

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Operator:
    """P̂(s'|s) and r̂(s) of m mixtures. Rewards are divided by N rows, moves by the M whose next
    state is used; `per_state` divides by the sums of their ratios instead."""

    mixed: Mixed
    per_state: bool

    @property
    def cells(self) -> Cells:
        return self.mixed.cells

    @cached_property
    def here(self) -> Any:
        """Adds up cells by their state."""
        return adding(self.cells.s, self.cells.width)

    @cached_property
    def used(self) -> npt.NDArray[np.bool_]:
        """(K, 1) whether the cell's move counts."""
        return (self.cells.to < self.cells.width)[:, None]

    @cached_property
    def to(self) -> Ints:
        return np.where(self.used[:, 0], self.cells.to, 0)

    @cached_property
    def divisors(self) -> tuple[Floats, Floats]:
        """(width, m) what rewards and moves are multiplied by."""
        one = self.mixed["ρ" if self.per_state else "n"]
        return inverse(self.here @ one), inverse(self.here @ (one * self.used))

    @cached_property
    def moved(self) -> Floats:
        """(K, m) P̂(s'|s)."""
        return self.mixed["ρ"] * self.used * self.divisors[1][self.cells.s]

    @cached_property
    def reward(self) -> Floats:
        """(width, m) r̂(s)."""
        return np.asarray(self.divisors[0] * (self.here @ self.mixed["ρy"]))

    @cached_property
    def placebo(self) -> Floats:
        """(width, m) the same if every reward were 1."""
        found = np.asarray(self.divisors[0] * (self.here @ self.mixed["ρ"]))
        found[-1] = 1.0
        return found


def pooled(recipe: Recipe, first: Ints, errors: bool, mixed: Mixed) -> tuple[Floats, Floats | None]:
    """(m,) values and errors; first (n,) are the columns in which the episodes begin."""
    op, cells = Operator(mixed, recipe.normalize == "state"), mixed.cells
    arriving = adding(op.to, cells.width)
    start = d = np.asarray(adding(first, cells.width) @ mixed.draws.times) / mixed.total
    values, fine = np.zeros(d.shape[1]), np.ones(d.shape[1], bool)
    masses, flow = np.ones((cells.horizon, d.shape[1])), []
    for t in range(cells.horizon):
        if recipe.normalize == "simplex" and t > 0:
            mass = d.sum(axis=0)
            masses[t] = np.where(mass > 0, mass, 1.0)
            d = d / masses[t]
        if errors:
            flow.append(d)
        fine &= np.sum(d * op.placebo, axis=0) > 0
        values += cells.gamma**t * np.sum(d * op.reward, axis=0)
        after = arriving @ (d[cells.s] * op.moved)
        after[-1] += d[-1]
        d = after
    values[~fine] = np.nan
    if not errors:
        return values, None
    u, D, U = _backward(op, flow, masses, simplex=recipe.normalize == "simplex")
    return values, root(*_spread(op, D, U), start, u, mixed.total)


def _backward(
    op: Operator, flow: list[Floats], masses: Floats, *, simplex: bool
) -> tuple[Floats, Floats, Floats]:
    """u_0 (width, m), and how the value moves through a state's rewards and a cell's moves:
    D(s) = Σ_t γ^t d_t(s) and U(s,s') = Σ_t γ^{t+1} d_t(s) a_{t+1}(s'), where a is u, or
    (u - <d, u>)/c where d was divided by c."""
    cells = op.cells
    D, a = np.zeros((2, *op.reward.shape))
    U = np.zeros((len(cells), a.shape[1]))
    for t in range(cells.horizon - 1, -1, -1):
        d, now = flow[t], cells.gamma**t * flow[t]
        D += now
        u = op.reward.copy()
        if t + 1 < cells.horizon:
            ahead = a[op.to]
            ahead *= cells.gamma
            u += op.here @ (op.moved * ahead)
            ahead *= now[cells.s]
            U += ahead
        u[-1] += cells.gamma * a[-1]
        a = (u - np.sum(d * u, axis=0)) / masses[t] if simplex and t > 0 else u
    return a, D, U


def _spread(op: Operator, D: Floats, U: Floats) -> tuple[Floats, Floats]:
    """(m,) Σ_s [N Var(R) + M Var(T) + 2 M Cov_M(R, T)], see `variance.py`, and what that is a
    difference of. R = D ρ (y - k)/N and T = ρ (U - h)/M; per state N and M are sums of ratios, k is
    r̂(s) and h the mean of U, else k = h = 0."""
    mixed, here, s = op.mixed, op.here, op.cells.s
    rho, z, rho2, rhoz, z2 = (mixed[name] for name in ("ρ", "ρy", "ρρ", "ρρy", "ρρyy"))
    by_reward, by_move = op.divisors
    if op.per_state:
        k = op.reward[s]
        z2, rhoz, z = z2 - k * (2 * rhoz - k * rho2), rhoz - k * rho2, z - k * rho
        U = U - (by_move * (here @ (rho * op.used * U)))[s]
    a, b = (D * by_reward)[s], U * op.used * by_move[s]
    n = mixed["n"]
    per_row, per_move = inverse(here @ n), inverse(here @ (n * op.used))
    R, T = a * z, b * rho
    sum_r, sum_t = here @ R, here @ T
    alone = here @ (a**2 * z2 + b**2 * rho2)
    parts = alone + 2 * (here @ (a * b * rhoz))
    parts -= sum_r**2 * per_row + (sum_t + 2 * (here @ (R * op.used))) * sum_t * per_move
    return np.maximum(parts, 0.0).sum(axis=0), alone.sum(axis=0)
