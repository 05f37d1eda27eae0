"""IS and WIS, step-wise and of whole trajectories, on many mixtures of the episodes at once.

A product of ratios belongs to its episode whatever else is drawn, so the sums of all mixtures are
one matrix product: counts times what the episodes hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reweigh.estimate.recipe import Recipe, Trajectory
from reweigh.estimate.variance import NOISE
from reweigh.log.log import EpisodeLog
from reweigh.trust.draws import CHUNK, Draws

Floats = npt.NDArray[np.float64]
HELD = 2.0**256  # larger products and rewards are for the general road, and smaller products


@dataclass(frozen=True, eq=False)
class Products:
    """What the episodes hold.

    w      (n, H) ρ_{0:t}, frozen once the episode has ended
    wy     (n, H) ρ_{0:t} y_t, 0 after the end
    x      (n,)   Σ_t γ^t ρ_{0:t} y_t and the start value of a control variate
    g      (n,)   that start value
    plain  (n,)   Σ_t γ^t y_t
    """

    w: Floats
    wy: Floats
    x: Floats
    g: Floats
    plain: Floats
    powers: Floats

    @classmethod
    def of(cls, log: EpisodeLog, rho: Floats) -> Products | None:
        """None where a product needs more than a float to hold it."""
        steps = log.steps
        powers = np.asarray(log.discount ** np.arange(log.horizon), np.float64)
        w, wy = np.ones((steps.n_episodes, log.horizon)), np.zeros((steps.n_episodes, log.horizon))
        plain, product = np.zeros(steps.n_episodes), np.ones(steps.n_episodes)
        for t in range(log.horizon):
            rows = steps.rows(t)
            alive = rows.stop - rows.start
            product[:alive] *= rho[rows]
            w[:, t] = product
            wy[:alive, t] = product[:alive] * steps.reward[rows]
            plain[:alive] += powers[t] * steps.reward[rows]
        if not np.all((w == 0) | ((w > 1 / HELD) & (w < HELD))):
            return None
        if not np.all(np.abs(steps.reward) < HELD):
            return None
        g = np.zeros(steps.n_episodes) if steps.start_value is None else steps.start_value
        return cls(w, wy, wy @ powers + g, g, plain, powers)

    def step_weights(self, draws: Draws, among: npt.NDArray[np.bool_] | None = None) -> Floats:
        """(H, m) Σ ρ_{0:t} of the mixtures, over all episodes or `among` some."""
        return draws.of_episodes(self.w if among is None else self.w * among[:, None])

    @cached_property
    def whole(self) -> Floats:
        """(n, 5) W, W², WG, (WG)² and W²G of whole episodes."""
        W = self.w[:, -1]
        return np.stack([W, W * W, W * self.plain, (W * self.plain) ** 2, W * W * self.plain], 1)

    def run(self, recipe: Recipe, draws: Draws, errors: bool) -> tuple[Floats, Floats | None]:
        """(m,) values and errors, nan where the general road is to say why there is none."""
        n = draws.episodes
        weights = self.step_weights(draws)
        if isinstance(recipe.weights, Trajectory):
            values, squares, scale = self._trajectory(recipe.normalize == "step", draws, n)
        elif recipe.normalize == "step":
            values, squares, scale = self._weighted(draws, n, weights, errors)
        else:
            first, second = draws.of_episodes(np.stack([self.x, self.x**2], 1)) / n
            values, squares, scale = first, (second - first**2) / n, second / n
        values[~np.all(weights > 0, axis=0)] = np.nan
        if not errors:
            return values, None
        squares[squares <= NOISE * scale] = np.nan
        return values, np.sqrt(squares)

    def _weighted(
        self, draws: Draws, n: Floats, weights: Floats, errors: bool
    ) -> tuple[Floats, Floats, Floats]:
        """v_t = Σ w y/Σ w and ψ_i = g_i - ḡ + Σ_t γ^t w_it (y_it - v_t)/mean(w_t)."""
        center = draws.of_episodes(self.wy) / weights
        mean_g = draws.of_episodes(self.g[:, None])[0] / n
        values = self.powers @ center + mean_g
        squares = np.full(len(n), np.nan)
        if errors:
            by = self.powers[:, None] * n / weights
            squares[:] = 0.0
            for start in range(0, len(draws.counts), CHUNK):
                k = slice(start, start + CHUNK)
                psi = self.wy[k] @ by - self.w[k] @ (by * center)
                psi += self.g[k, None] - mean_g
                squares += np.sum(draws.counts[k] * psi**2, axis=0)
            squares /= n**2
            squares[np.sqrt(squares) <= NOISE * np.abs(values)] = np.nan
        return values, squares, np.zeros(len(n))

    def _trajectory(self, weighted: bool, draws: Draws, n: Floats) -> tuple[Floats, Floats, Floats]:
        W, W2, WG, WG2, W2G = draws.of_episodes(self.whole)
        if not weighted:
            return WG / n, (WG2 / n - (WG / n) ** 2) / n, WG2 / n**2
        values = WG / W
        return values, (WG2 - 2 * values * W2G + values**2 * W2) / W**2, WG2 / W**2
