"""Estimators made ready to be run on many mixtures of the episodes of a log at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.estimate.control import halves
from reweigh.estimate.direct import Rows, observed
from reweigh.estimate.recipe import Marginal, Model, Recipe, Stationary, Stepwise
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy, scope_of
from reweigh.sums.cells import one_step_cells
from reweigh.sums.shares import shares_of
from reweigh.trust import mixed_cells, mixed_control, mixed_pooled
from reweigh.trust.draws import Draws
from reweigh.trust.log_cells import Cells
from reweigh.trust.mixed_cells import Mixed
from reweigh.trust.mixed_products import Products

Floats = npt.NDArray[np.float64]
Sums = dict[Cells, Mixed]  # of the mixtures, for all estimators of one log and target
Found = tuple[Floats, Floats | None]
MOST_KEPT = 1 << 29  # bytes of what the estimators of one log and target hold
BLOCK = 64  # mixtures that are run at once where they fit, as in kernels/resample.py
FEWEST = 4  # for which it still pays
ROW, COUNT = 48, 8 * BLOCK  # bytes of a row in the sparse matrices, and of an episode's counts
PRODUCT = 24  # bytes of a step of an episode: its product with and without the reward, its cell
ARRAYS = 28  # of (cells, mixtures) that they hold at a time


@dataclass(frozen=True, eq=False)
class LogCells:
    """The cells of a log, made once for all targets; None where their arrays would be too large."""

    log: EpisodeLog

    @cached_property
    def half(self) -> npt.NDArray[np.int64]:
        return halves(self.log.steps.episode_hash)

    @cached_property
    def whole(self) -> Cells | None:
        return self._fitting(Cells.of)

    @cached_property
    def by_half(self) -> Cells | None:
        return self._fitting(Cells.of, self.half)

    @cached_property
    def of_all_steps(self) -> Cells | None:
        return self._fitting(Cells.pooled)

    def _fitting(self, make: Callable[..., Cells | None], *given: Any) -> Cells | None:
        log = self.log
        if max(ROW * log.steps.n_rows, COUNT * log.n_episodes) > MOST_KEPT:
            return None
        cells = make(log, *given)
        return None if cells is None or _together(cells) < FEWEST else cells

    @property
    def together(self) -> int:
        """How many mixtures are run at once over the cells that were made."""
        made = (value for value in vars(self).values() if isinstance(value, Cells))
        return min((BLOCK, *map(_together, made)))


def _together(cells: Cells) -> int:
    """How many mixtures of sums by these cells can be held, as a power of two."""
    fit = MOST_KEPT // (8 * (ARRAYS * cells.largest + cells.kept))
    return 1 << (fit.bit_length() - 1) if fit else 0


@dataclass(frozen=True, eq=False)
class Ready:
    """A log and a target: what does not depend on the mixture, made once."""

    cells: LogCells
    target: Policy
    max_ratio: float | None

    @property
    def log(self) -> EpisodeLog:
        return self.cells.log

    def road(self, recipe: Recipe, errors: bool) -> Callable[[Draws, Sums], Found] | None:
        """What runs this estimator: (m,) values, and errors if they are asked for, nan where the
        general road is to say why there is none. None where only that road knows the estimator."""
        log, control = self.log, recipe.control
        if not log.steps.has_propensities or log.n_truncated or recipe.reward != "logged":
            return None
        if control is None and recipe.uses_trajectories:
            if self.products is None:
                return None
            return partial(self._products, recipe, errors)
        if isinstance(recipe.weights, Stationary):
            return None
        if isinstance(recipe.weights, Marginal) and not observed(log):
            return None
        if log.steps.start_value is not None:
            return None
        if recipe.needs.policy and not self.follows_state:
            return None
        if isinstance(recipe.weights, Model):
            return self._over(self.cells.whole, partial(mixed_cells.model, recipe, errors))
        if control is None:
            pooled = recipe.weights == Marginal(pooled=True)
            first = log.steps.first_states().astype(np.int64)
            road = partial(mixed_pooled.pooled, recipe, first, errors)
            return self._over(self.cells.of_all_steps, road) if pooled else None
        cells = self.cells.whole if control.q == "in-sample" else self.cells.by_half
        if isinstance(recipe.weights, Stepwise):
            if self.products is None:
                return None
            among = self.cells.half == 0 if control.q == "split" else None
            road = partial(mixed_control.doubly_robust, recipe, self.products, among, errors)
            return self._over(cells, road)
        plain = recipe.weights == Marginal() and recipe.normalize != "state"
        if not plain or control.q == "cross-fit":
            return None
        return self._over(cells, partial(mixed_control.marginal, recipe, errors))

    def _over(
        self, cells: Cells | None, road: Callable[[Mixed], Found]
    ) -> Callable[[Draws, Sums], Found] | None:
        """The road over the sums by these cells, if it can be taken."""
        if cells is None or (self.log.actions is None and cells is not self.cells.of_all_steps):
            return None

        def run(draws: Draws, sums: Sums) -> Found:
            if cells not in sums:
                sums[cells] = Mixed(cells, draws, self.of_rows)
            return road(sums[cells])

        return run

    def _products(self, recipe: Recipe, errors: bool, draws: Draws, sums: Sums) -> Found:
        assert self.products is not None
        return self.products.run(recipe, draws, errors)

    @cached_property
    def follows_state(self) -> bool:
        """Whether the target follows from step and state: these roads know no other model."""
        if scope_of(self.target) != "logged action" or self.log.actions is None:
            return scope_of(self.target) == "state"
        steps, none = self.log.steps, np.zeros(self.log.n_episodes, np.int64)
        as_state = len(self.log.states)
        pi, rho = self.of_rows["π"], self.rho
        cells = one_step_cells(steps, none, pi, rho, steps.action, as_state)
        return shares_of(cells, None).rule == "one number"

    @cached_property
    def rho(self) -> Floats:
        return Rows.of(self.log, self.target, self.max_ratio).row_ratios

    @cached_property
    def products(self) -> Products | None:
        if PRODUCT * self.log.n_episodes * self.log.horizon > MOST_KEPT:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            return Products.of(self.log, self.rho)

    @cached_property
    def of_rows(self) -> dict[str, Floats]:
        """Of the rows: π, y, ρ and the running product w, where it can be held."""
        steps = self.log.steps
        found = {"y": steps.reward, "ρ": self.rho, "π": self.target.probabilities(self.log)}
        if self.products is not None:
            found["w"] = self.products.w[steps.episode_index, steps.step]
        return found
