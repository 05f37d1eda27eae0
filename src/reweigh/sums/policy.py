"""PolicyMoments: what a target that sees more than the state would do in a (t, s). They add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from reweigh.errors import Fault, InputError, input_error
from reweigh.kernels.groups import group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN
from reweigh.policy.base import Floats, Policy, scope_of
from reweigh.sums.keyed import KeyedTable
from reweigh.sums.tables import BUILT_IN
from reweigh.system.numbers import divided

Ints = npt.NDArray[np.int64]
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
                "these moments of a policy function are of logs with different actions, and "
                "neither holds what the policy does with the other's; give the target as a table "
                "or a logged column"
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
    """None where the model's cells hold all there is to know: the policy follows from the state, or
    knows the probability of the logged action alone. A hidden state has the code `as_state`."""
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
                "return π(action|state) for any of the actions, also those that were not taken",
                (log.place(worst, log.columns.action, float(total[worst])),),
                int(np.sum(total > 1 + SUMS_TO_ONE)),
                len(total),
            )
        ],
    )
