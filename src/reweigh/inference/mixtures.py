"""Estimators made ready to be run on many mixtures of the episodes of a log at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.estimators.control import halves
from reweigh.estimators.direct import Rows, observed
from reweigh.estimators.recipe import Marginal, Model, Recipe, Stationary, Stepwise
from reweigh.inference import mixed_cells
from reweigh.inference.mixed_cells import Cells, Mixed
from reweigh.inference.mixed_products import Products
from reweigh.logs.log import EpisodeLog
from reweigh.policies.base import Policy

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.uint8]
MOST_KEPT = 1 << 28  # bytes of what a road holds
ROW, COUNT = 48, 64 * 8  # bytes of a row in the sparse matrices, and of what 64 mixtures count
ARRAYS = 8  # of (cells, 64) that a road holds at a time


@dataclass(frozen=True, eq=False)
class Ready:
    """A log and a target: what does not depend on the mixture, made once."""

    log: EpisodeLog
    target: Policy
    max_ratio: float | None

    def answers(self, recipe: Recipe, errors: bool) -> bool:
        """Whether `run` knows this estimator, and its errors if they are asked for."""
        log = self.log
        if not log.steps.has_propensities or log.n_truncated:
            return False
        if isinstance(recipe.weights, Stationary) or recipe.reward != "logged":
            return False
        if recipe.control is None and recipe.uses_trajectories:
            return self.products is not None
        if not observed(log) or (log.actions is None and recipe.weights != Marginal(pooled=True)):
            return False
        if isinstance(recipe.weights, Model):
            return self._cells(recipe) is not None
        if errors or (recipe.control is not None and recipe.control.own):
            return False
        if isinstance(recipe.weights, Stepwise):
            return self.products is not None and self._cells(recipe) is not None
        if recipe.control is None:
            return recipe.weights == Marginal(pooled=True) and self.pooled is not None
        return recipe.control.q != "cross-fit" and self._cells(recipe) is not None

    def run(
        self, recipe: Recipe, counts: Counts, errors: bool, made: dict[Cells, Mixed]
    ) -> tuple[Floats, Floats]:
        """(m,) values and errors; nan where the general road is to say why there is none. `made`
        holds the sums of these mixtures for the other estimators."""
        none = np.full(counts.shape[1], np.nan)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if recipe.control is None and recipe.uses_trajectories:
                assert self.products is not None
                values, found = self.products.run(recipe, counts, errors)
            elif isinstance(recipe.weights, Model):
                mixed = self._mixed(recipe, counts, made)
                values, found = mixed_cells.model(mixed, recipe.weights.unseen == "renorm", errors)
            elif recipe.control is None:
                mixed = self._mixed(recipe, counts, made)
                first = self.log.steps.first_states().astype(np.int64)
                values, found = mixed_cells.pooled(mixed, recipe, first), none
            elif isinstance(recipe.weights, Stepwise):
                assert self.products is not None
                summed = counts
                if recipe.control.q == "split":
                    summed = counts * (self.half == 0)[:, None].astype(np.uint8)
                weights = self.products.step_weights(summed)
                mixed = self._mixed(recipe, counts, made)
                values, found = mixed_cells.doubly_robust(mixed, recipe, weights), none
            else:
                mixed = self._mixed(recipe, counts, made)
                values, found = mixed_cells.marginal(mixed, recipe), none
        values[~np.isfinite(values)] = np.nan
        return values, found

    @cached_property
    def rho(self) -> Floats:
        return Rows.of(self.log, self.target, self.max_ratio).row_ratios

    @cached_property
    def half(self) -> npt.NDArray[np.int64]:
        return halves(self.log.steps.episode_hash)

    @cached_property
    def products(self) -> Products | None:
        if 16 * self.log.n_episodes * self.log.horizon > MOST_KEPT:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            return Products.of(self.log, self.rho)

    @cached_property
    def whole(self) -> Cells | None:
        return self._fitting(Cells.of)

    @cached_property
    def by_half(self) -> Cells | None:
        return self._fitting(Cells.of, self.half)

    @cached_property
    def pooled(self) -> Cells | None:
        return self._fitting(Cells.pooled)

    @cached_property
    def columns(self) -> dict[str, Floats]:
        """Of the rows: π, y, ρ and the running product w, where it can be held."""
        steps = self.log.steps
        found = {"y": steps.reward, "ρ": self.rho, "π": self.target.probabilities(self.log)}
        if self.products is not None:
            found["w"] = self.products.w[steps.episode_index, steps.step]
        return found

    def _cells(self, recipe: Recipe) -> Cells | None:
        if recipe.control is None:
            return self.whole if isinstance(recipe.weights, Model) else self.pooled
        return self.whole if recipe.control.q == "in-sample" else self.by_half

    def _mixed(self, recipe: Recipe, counts: Counts, made: dict[Cells, Mixed]) -> Mixed:
        cells = self._cells(recipe)
        assert cells is not None
        if cells not in made:
            made[cells] = Mixed(cells, counts.astype(np.float64), self.columns)
        return made[cells]

    def _fitting(self, make: Callable[..., Cells | None], *given: Any) -> Cells | None:
        """The cells, unless their arrays would be too large."""
        log = self.log
        if max(ROW * log.steps.n_rows, COUNT * log.n_episodes) > MOST_KEPT:
            return None
        cells = make(log, *given)
        if cells is None or max(len(cells), cells.nodes) * COUNT * ARRAYS > MOST_KEPT:
            return None
        return cells
