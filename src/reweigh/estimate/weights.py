"""Weights: what a class of estimators is and does. `Recipe` composes them with the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from reweigh.estimate.recipe import Recipe
    from reweigh.estimate.recursion import Replicated
    from reweigh.estimate.solution import Solution
    from reweigh.log.log import EpisodeLog
    from reweigh.policy.base import Policy
    from reweigh.sums.gather import Gradient
    from reweigh.sums.moments import Moments

    Rows = tuple[EpisodeLog, Policy]


class Weights:
    """What an estimator of this kind is and does; a class of weights fills in what differs.

    kinds            the tables of sums that it is solved on
    normalizations   what `Recipe.normalize` may be, the first being the usual one
    rewards          what `Recipe.reward` may be
    takes_control    whether a control variate may replace the reward
    uses_ratios      whether rows are weighed with π/μ
    multiplies       whether ratios are multiplied over the episode: every reward must be there
    pools_steps      whether the world is taken to be the same at every step
    whole_episodes   whether cut-off episodes must be left out
    blocks           of episodes that its sums are split into: an error by the jackknife needs them
    solves_replicates   whether the replicates of a log are solved together
    formula          what it computes, with {over} for its divisor, by `Recipe.normalize`
    """

    kinds: ClassVar[frozenset[str]]
    normalizations: ClassVar[tuple[str, ...]] = ("none",)
    rewards: ClassVar[tuple[str, ...]] = ("logged",)
    takes_control: ClassVar[bool] = False
    uses_ratios: ClassVar[bool] = True
    multiplies: ClassVar[bool] = False
    whole_episodes: ClassVar[bool] = False
    blocks: ClassVar[int] = 1
    solves_replicates: ClassVar[bool] = True
    formula: ClassVar[str]
    divisors: ClassVar[dict[str, str]] = {}
    described: ClassVar[dict[str, str]] = {}

    @property
    def pools_steps(self) -> bool:
        return False

    def limits(self, recipe: Recipe) -> str:
        """Whose limits its gates have, where these differ between estimators."""
        return "states"

    def traits(self, recipe: Recipe) -> set[str]:
        """What gates may ask, beyond what the class declares; see `Recipe.traits`."""
        return set()

    def description(self, recipe: Recipe) -> str:
        """Which variant it is, in words."""
        return self.described[recipe.normalize]

    def solve(self, recipe: Recipe, sums: Moments, *, errors: bool = True) -> Solution:
        """The solution on its sums; without `errors` the value is enough."""
        raise NotImplementedError

    def solve_replicates(self, recipe: Recipe, sums: Moments, *, errors: bool) -> Replicated:
        """The same on sums that hold replicates, where it `solves_replicates`."""
        if self.multiplies:
            from reweigh.estimate.products import solve_product_replicates

            return solve_product_replicates(recipe, sums)
        from reweigh.estimate.solution import solve_replicates

        return solve_replicates(recipe, sums, errors=errors)

    def solve_rows(
        self, recipe: Recipe, log: EpisodeLog, target: Policy, *, errors: bool = True
    ) -> Solution | None:
        """The same straight from the rows of a log in memory, where that is faster; else None."""
        return None

    def gradient(self, recipe: Recipe, sums: Moments) -> Gradient:
        """n ∂v/∂(sum), which a second scan gathers into influence values."""
        raise NotImplementedError

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: Rows | None
    ) -> Solution:
        """The solution with an error that its sums alone do not hold, from the `rows` or, without
        them, from sums by blocks."""
        return solution

    def error_by_blocks(self, recipe: Recipe) -> bool:
        """Whether its error without the rows at hand is the jackknife's."""
        return self.blocks > 1
