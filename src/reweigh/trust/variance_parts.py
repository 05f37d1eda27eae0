"""Where an estimate's variance comes from: its parts by step and state, and what would lower it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.estimate.estimator import Solution
from reweigh.estimate.influence import Parts
from reweigh.kernels.groups import tally
from reweigh.log.states import END, Labels

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LISTED = 20
DIGITS = 9  # of a share: less is rounding


@dataclass(frozen=True, eq=False)
class StatePart:
    """A state's part of the value, or of the variance, with an episode's expected visits to the
    state: under the target, and in the log."""

    state: str
    amount: float
    target: float
    log: float


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The variance of an estimate by (t, s), for K visited pairs, the largest share first.

    start    share of the variance that the first state's own spread has
    step     (K,) t
    state    K names
    share    (K,) share of the variance; with `start` they add up to 1
    target   (K,) d_t^π(s), the target's mass there
    visits   (K,) N_t(s)/n, the share of the episodes that the log shows there; d_t^μ(s) of a world
    wanted   (K,) wanted/logged: the step's visits at their best (Neyman's allocation, d_t(s) times
             the spread at s) over the visits as they are. None of a difference: other visits would
             be another behaviour, and so another difference
    by_step  (H,) share of each step
    episodes how many were logged, None of a world
    """

    estimator: str
    start: float
    step: Ints
    state: list[str]
    share: Floats
    target: Floats
    visits: Floats
    wanted: Floats | None
    by_step: Floats
    episodes: int | None = None

    def by_state(self) -> dict[str, float]:
        """Share of each state, summed over the steps, the largest first."""
        return {part.state: part.amount for part in self.states()}

    def states(self) -> list[StatePart]:
        """The same, with the visits to each state."""
        place = {name: k for k, name in enumerate(dict.fromkeys(self.state))}
        row = [place[name] for name in self.state]
        columns = (self.share, self.target, self.visits)
        sums = [np.bincount(row, each, len(place)).tolist() for each in columns]
        parts = [StatePart(name, *values) for name, *values in zip(place, *sums, strict=True)]
        return sorted(parts, key=lambda part: -round(part.amount, DIGITS))

    def heaviest_steps(self, count: int) -> Ints:
        """The steps with the largest shares."""
        order = np.argsort(-np.round(self.by_step, DIGITS), kind="stable")
        return np.asarray(order[:count], np.int64)

    def rare_mass(self, episodes: int) -> float:
        """The target's mass on (t, s) that so many episodes would visit fewer than 10 times."""
        rare = episodes * self.visits < 10
        return float(self.target[rare].sum()) / len(self.by_step)

    def to_dict(self, listed: int = LISTED) -> dict[str, Any]:
        """Plain values: the `listed` largest pairs, what the others have, and every step."""
        names = ["step", "share", "target", "visits"] + ["wanted"] * (self.wanted is not None)
        columns = [getattr(self, name)[:listed].tolist() for name in names]
        return {
            "estimator": self.estimator,
            "start": self.start,
            "largest": [
                {"state": state, **dict(zip(names, values, strict=True))}
                for state, *values in zip(self.state[:listed], *columns, strict=True)
            ],
            "others": {
                "pairs": max(len(self.state) - listed, 0),
                "share": float(self.share[listed:].sum()),
            },
            "by_step": self.by_step.tolist(),
        }


def from_solution(
    estimator: str, solution: Solution, states: Labels, n: int
) -> Decomposition | None:
    """Of a value's SE², from the sums; None for estimators without a part per state."""
    nodes, start = solution.nodes, solution.variance_of_start
    if nodes is None or nodes.variance is None:
        return None
    assert start is not None
    at, visits = (nodes.t, nodes.s, nodes.target), nodes.visits / n
    return decomposed(
        estimator, start, nodes.variance, at, visits, states.name, len(solution.ess), episodes=n
    )


def from_parts(estimator: str, parts: Parts, states: Labels, horizon: int) -> Decomposition:
    """Of a difference's mean(ψ²), from influence values."""
    start, by_node = parts.variances()
    at = parts.node_t, parts.node_s, parts.target
    visits = np.bincount(parts.node, minlength=len(by_node)) / len(parts.start)
    return decomposed(estimator, start, by_node, at, visits, states.name, horizon, difference=True)


def decomposed(
    estimator: str,
    start: float,
    variance: Floats,
    at: tuple[Ints, Ints, Floats],
    visits: Floats,
    name: Callable[[int], str],
    horizon: int,
    *,
    difference: bool = False,
    episodes: int | None = None,
) -> Decomposition:
    """`at` are the step, the state's code and the target's mass of each part."""
    kept = np.flatnonzero((visits > 0) & (at[1] != END) & (at[0] < horizon))
    variance, visits = variance[kept], visits[kept]
    step, code, target = at[0][kept], at[1][kept], at[2][kept]
    total = start + float(variance.sum())
    # parts that differ by rounding alone stand in the order of their steps
    order = np.lexsort((code, step, -np.round(variance / total, DIGITS)))
    return Decomposition(
        estimator=estimator,
        start=start / total,
        step=step[order],
        state=[name(one) for one in code[order].tolist()],
        share=variance[order] / total,
        target=target[order],
        visits=visits[order],
        wanted=None if difference else _wanted(variance, visits, step, horizon)[order],
        by_step=tally(step, variance, horizon) / total,
        episodes=episodes,
    )


def _wanted(variance: Floats, visits: Floats, step: Ints, horizon: int) -> Floats:
    """Σ_s A²/N is smallest, for a given Σ_s N of a step, at N ∝ A = γ^t d_t(s) sd_t(s), and the
    variance of (t, s) is A²/N: so A = sqrt(variance N). A step without variance wants nothing
    else than it has."""
    A = np.sqrt(variance * visits)
    best, logged = tally(step, A, horizon)[step], tally(step, visits, horizon)[step]
    found = A / np.where(best > 0, best, 1.0) * logged / visits
    return np.where(best > 0, found, 1.0)
