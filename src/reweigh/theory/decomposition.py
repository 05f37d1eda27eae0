"""Where an estimate's variance comes from: its parts by step and state, and what would lower it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.estimate.influence import Parts
from reweigh.estimate.solution import Solution
from reweigh.kernels.groups import tally
from reweigh.log.states import END, Labels
from reweigh.theory.exact import Quantities
from reweigh.theory.spread import Spread
from reweigh.worlds.tabular import TabularMDP

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LISTED = 20
OTHERS = "others"
DIGITS = 9  # of a share: less is rounding
WANTED = (
    "wanted/logged: the share of a step's visits that would serve best (the target's mass times "
    "the spread there) over the share that the log has; above 1, more data there helps most"
)


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

    def by_state(self) -> dict[str, float]:
        """Share of each state, summed over the steps, the largest first."""
        total: dict[str, float] = {}
        for name, share in zip(self.state, self.share.tolist(), strict=True):
            total[name] = total.get(name, 0.0) + share
        return dict(sorted(total.items(), key=lambda item: -round(item[1], DIGITS)))

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
        names = ["step", "share", "target", "visits"]
        if self.wanted is not None:
            names.append("wanted")
        columns = [getattr(self, name)[:listed].tolist() for name in names]
        return {
            "estimator": self.estimator,
            "start": self.start,
            "largest": [
                {"state": state, **dict(zip(names, values, strict=True))}
                for state, *values in zip(self.state[:listed], *columns, strict=True)
            ],
            OTHERS: {
                "pairs": max(len(self.state) - listed, 0),
                "share": float(self.share[listed:].sum()),
            },
            "by_step": self.by_step.tolist(),
        }


def from_solution(
    estimator: str, solution: Solution, states: Labels, n: int
) -> Decomposition | None:
    """Of a value's SE², from the sums; None for estimators without a part per state."""
    nodes = solution.nodes
    if nodes is None or nodes.variance is None:
        return None
    assert solution.variance_of_start is not None
    return _decomposed(
        estimator,
        solution.variance_of_start,
        nodes.variance,
        nodes.t,
        nodes.s,
        [states.name(code) for code in nodes.s.tolist()],
        nodes.target,
        nodes.visits / n,
        len(solution.ess),
        difference=False,
    )


def from_parts(estimator: str, parts: Parts, states: Labels, horizon: int) -> Decomposition:
    """Of a difference's mean(ψ²), from influence values."""
    n = len(parts.start)
    start, by_node = parts.variances()
    return _decomposed(
        estimator,
        start,
        by_node,
        parts.node_t,
        parts.node_s,
        [states.name(code) for code in parts.node_s.tolist()],
        parts.target,
        np.bincount(parts.node, minlength=len(by_node)) / n,
        horizon,
        difference=True,
    )


def from_world(
    estimator: str, mdp: TabularMDP, q: Quantities, exact: Spread, *, difference: bool
) -> Decomposition:
    """Of the exact variance of a world; terminal states are END, which has none."""
    assert exact.start is not None
    assert exact.by_state is not None
    step, state = (index.reshape(-1) for index in np.indices(exact.by_state.shape))
    return _decomposed(
        estimator,
        exact.start,
        exact.by_state.reshape(-1),
        step,
        np.where(np.isin(state, mdp.terminal), END, state),
        [str(s) for s in state.tolist()],
        q.d_pi[: q.horizon].reshape(-1),
        q.d_mu[: q.horizon].reshape(-1),
        q.horizon,
        difference=difference,
    )


def _decomposed(
    estimator: str,
    start: float,
    variance: Floats,
    step: Ints,
    code: Ints,
    names: list[str],
    target: Floats,
    visits: Floats,
    horizon: int,
    *,
    difference: bool,
) -> Decomposition:
    kept = np.flatnonzero((visits > 0) & (code != END) & (step < horizon))
    variance, step, target, visits = variance[kept], step[kept], target[kept], visits[kept]
    total = start + float(variance.sum())
    # parts that differ by rounding alone stand in the order of their steps
    order = np.lexsort((code[kept], step, -np.round(variance / total, DIGITS)))
    return Decomposition(
        estimator=estimator,
        start=start / total,
        step=step[order],
        state=[names[k] for k in kept[order]],
        share=variance[order] / total,
        target=target[order],
        visits=visits[order],
        wanted=None if difference else _wanted(variance, visits, step, horizon)[order],
        by_step=tally(step, variance, horizon) / total,
    )


def _wanted(variance: Floats, visits: Floats, step: Ints, horizon: int) -> Floats:
    """Σ_s A²/N is smallest, for a given Σ_s N of a step, at N ∝ A = γ^t d_t(s) sd_t(s), and the
    variance of (t, s) is A²/N: so A = sqrt(variance N). A step without variance wants nothing
    else than it has."""
    A = np.sqrt(variance * visits)
    best, logged = tally(step, A, horizon)[step], tally(step, visits, horizon)[step]
    found = A / np.where(best > 0, best, 1.0) * logged / visits
    return np.where(best > 0, found, 1.0)
