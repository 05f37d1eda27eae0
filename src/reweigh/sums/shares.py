"""π̄(a|t,s): what a model takes for the target's probability of an action in a cell (t, s).

A policy may see more than the state, x instead of s. A model has one probability per cell:

    every row      π̄(a|t,s) = Σ_i π(a|x_i)/n over all n rows of the cell, whichever action they
                   took, where the policy can be asked for every action
    one number     π̄ = π, where π is the same in all rows of each (t, s, a), and these add up to
                   at most 1 over the actions of a (t, s): then it follows from step and state
    ratios         π̄(a|t,s) = Σ_i 1{a_i = a} ρ_i / Σ_i ρ_i, where only the logged actions'
                   probabilities are known and they do not follow from step and state

The mean of π over the rows that *took* a is none of these: where x decides both policies it is far
too large, and Σ_a π̄ is not 1. Which of the last two holds is one question for the whole log: a
cell of one row would answer the first whatever the policy sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import Groups, group_by
from reweigh.sums.policy import PolicyMoments
from reweigh.sums.transitions import TransitionMoments
from reweigh.system.numbers import divided

Floats = npt.NDArray[np.float64]
Rule = Literal["every row", "one number", "ratios"]
DIFFERS = 1e-9  # of nΣπ²: what rounding leaves of nΣπ² - (Σπ)²
ABOVE_ONE = 1e-6


@dataclass(frozen=True, eq=False)
class Shares:
    """How the shares of a log's cells are found; `policy` where the rule is "every row"."""

    rule: Rule
    policy: PolicyMoments | None = None

    def of(self, groups: Groups, cells: TransitionMoments) -> Floats:
        """(G,) π̄ of the groups (t, s, a) of these cells."""
        t, s, a = groups.keys
        if self.policy is not None:
            return self.policy.share(t, s, a)
        if self.rule == "one number":
            return divided(groups.sum(cells.pi), groups.sum(cells.n))
        rho = groups.sum(cells.rho)
        return divided(rho, _over_actions(groups, rho))


def shares_of(cells: TransitionMoments, policy: PolicyMoments | None) -> Shares:
    """The rule for a log with these cells, in all of its parts."""
    if policy is not None:
        return Shares("every row", policy)
    return Shares("one number" if follows_state(cells) else "ratios")


def follows_state(cells: TransitionMoments) -> Any:
    """Whether the target follows from step and state, as far as these cells show: see
    `is_one_number`. Of replicates (m,)."""
    groups = group_by([cells.t, cells.s, cells.a])
    n, pi, pi2 = (groups.sum(values) for values in (cells.n, cells.pi, cells.pi2))
    constant = np.all(n * pi2 - pi**2 <= DIFFERS * n * pi2, axis=0)
    total = _over_actions(groups, divided(pi, n))
    return constant & ~np.any(total > 1 + ABOVE_ONE, axis=0)


def is_one_number(
    n: Floats, pi: Floats, pi2: Floats, over_actions: Callable[[Floats], Floats]
) -> bool:
    """Whether π is the same in all rows of each (t, s, a), and these add up to at most 1; given are
    the rows of the groups, Σπ and Σπ², and what adds up over the actions of a (t, s)."""
    if not is_constant(n, pi, pi2):
        return False
    return not np.any(over_actions(divided(pi, n)) > 1 + ABOVE_ONE)


def is_constant(n: Floats, total: Floats, squares: Floats) -> bool:
    """Whether numbers are the same within each group, given its rows n, Σx and Σx²; not where they
    are no numbers."""
    return bool(np.all(n * squares - total**2 <= DIFFERS * n * squares))


def _over_actions(groups: Groups, values: Floats) -> Floats:
    """(G,) the sums of the groups' values over the actions of their (t, s)."""
    nodes = group_by([groups.keys[0], groups.keys[1]])
    return np.asarray(nodes.sum(values)[nodes.index()], np.float64)
