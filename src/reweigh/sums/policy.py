"""π̄(a|t,s): what a model takes for the target's probability of an action in a cell (t, s).

A policy may see more than the state, x instead of s. A model has one probability per cell:

    every row      π̄(a|t,s) = Σ_i π(a|x_i)/n over all n rows of the cell, whichever action they
                   took, if the policy has the probabilities of every action
    one number     π̄ = π, where π is the same in all rows of each (t, s, a), and these add up to
                   at most 1 over the actions of a (t, s): then it follows from step and state
    ratios         π̄(a|t,s) = Σ_i 1{a_i = a} ρ_i / Σ_i ρ_i, where only the logged actions'
                   probabilities are known and they do not follow from step and state

The mean of π over the rows that *took* a is none of these: where x decides both policies it is far
too large, and Σ_a π̄ is not 1. Which of the last two holds is decided for the whole log: a cell of
one row would always choose the first.

The first are `PolicyMoments`, a table of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from reweigh.errors import Fault, InputError, input_error
from reweigh.kernels import Groups, Ints, group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN
from reweigh.policy import Floats, Policy, scope_of
from reweigh.sums.keyed import ABOVE_ONE, DIFFERS, KeyedTable, TransitionMoments
from reweigh.sums.tables import BUILT_IN
from reweigh.system import divided

Rule = Literal["every row", "one number", "ratios"]
SUMS_TO_ONE = 1e-4  # how far above 1 the probabilities of a function may add up: float32


@dataclass(frozen=True, eq=False)
class PolicyMoments(KeyedTable):
    """By (block, t, s) and every action a of the log: its rows n, and Σπ(a|x) over all of them,
    whichever action they took, x being all that the policy sees."""

    TABLE = BUILT_IN["policy"]

    block: Ints
    t: Ints
    s: Ints
    a: Ints
    n: Ints
    pi: Floats

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        actions = np.unique(parts[0].a)
        if not all(np.array_equal(np.unique(part.a), actions) for part in parts[1:]):
            raise InputError(
                "these moments of a policy function come from logs with different actions, "
                "and neither has the probabilities of the other's actions; give the target "
                "as a table or a logged column"
            )
        return super().together(parts)

    def share(self, t: Ints, s: Ints, a: Ints) -> Floats:
        """π̄(a|t,s) = Σπ(a|x)/n over all rows of (t, s) and all blocks, of (t, s, a) that occur."""
        groups = group_by([self.t, self.s, self.a])
        mean = divided(groups.sum(self.pi), groups.sum(self.n))
        n_states = int(max(self.s.max(), s.max(initial=0))) + 1
        n_actions = int(max(self.a.max(), a.max(initial=0))) + 1
        of_t, of_s, of_a = groups.keys
        keys = (of_t * n_states + of_s) * n_actions + of_a
        place = np.searchsorted(keys, (t * n_states + s) * n_actions + a)
        return np.asarray(mean[place], np.float64)


def policy_moments(
    log: EpisodeLog, target: Policy, block: Ints, as_state: int
) -> PolicyMoments | None:
    """None if the model's cells are enough: the policy follows from the state, or has only the
    probability of the logged action. A hidden state has the code `as_state`."""
    if log.actions is None or scope_of(target) != "row":
        return None
    steps = log.steps
    state = np.where(steps.state == HIDDEN, as_state, steps.state).astype(np.int64)
    nodes = group_by([block[steps.episode_index], steps.step, state])
    node, n, size = nodes.index(), nodes.count(), len(nodes)
    total = np.zeros(steps.n_rows)
    pi = np.empty((size, len(log.actions)))
    for code, action in enumerate(log.actions.values):  # never a table of rows × actions
        own = target.of_action(log, action)
        total += own
        pi[:, code] = tally(node, own, size)
    _refuse_above_one(log, target, total)
    columns = [np.repeat(key, len(log.actions)) for key in (*nodes.keys, n)]
    of_block, t, s, rows = columns
    a = np.tile(np.arange(len(log.actions)), size)
    return PolicyMoments(of_block, t, s, a, rows, pi.reshape(-1))


def _refuse_above_one(log: EpisodeLog, target: Policy, total: Floats) -> None:
    worst = int(np.argmax(total))
    if not total[worst] > 1 + SUMS_TO_ONE:
        return
    raise input_error(
        "the target policy",
        [
            Fault(
                "row-sum",
                f"the probabilities of {target.name} must add up to at most 1 over the log's "
                "actions",
                "return π(action|state) for every action, also for those that were not logged",
                (log.place(worst, log.columns.action, float(total[worst])),),
                int(np.sum(total > 1 + SUMS_TO_ONE)),
                len(total),
            )
        ],
    )


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


def _over_actions(groups: Groups, values: Floats) -> Floats:
    """(G,) the sums of the groups' values over the actions of their (t, s)."""
    nodes = group_by([groups.keys[0], groups.keys[1]])
    return np.asarray(nodes.sum(values)[nodes.index()], np.float64)
