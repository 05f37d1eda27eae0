"""How wrong may the log be? Bounds on the value if hidden causes moved the logged actions.

The marginal sensitivity model (Tan 2006), with causes that are independent over the steps
(Bruns-Smith 2021): given the state, the true odds of the logged action are the logged ones times a
factor from 1/Γ to Γ. With u the hidden cause, E[y | do(a)] = E[w y | t, s, a], where

    w = μ(a|s)/μ(a|s,u),  α ≤ w ≤ β,  α = μ + (1 - μ)/Γ,  β = μ + Γ (1 - μ),  E[w | t, s, a] = 1.

E[w y] is largest with w = β on the largest y and α elsewhere. E[w] = 1 gives them the share
(1 - α)/(β - α) = 1/(1 + Γ), so with ȳ the mean and T the mean of that largest share

    Q(t, s, a) = α ȳ + (1 - α) T,   y = r + γ V_{t+1}(s'),   V_t(s) = Σ_a π(a|s) Q(t, s, a),

from the last step to the first; the lower bound has the smallest y. Γ = 1 is `dm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from reweigh.errors import RefusedError, must_be
from reweigh.estimate.presets import dm
from reweigh.estimate.refusals import lacking, needs_discrete
from reweigh.evaluation.data import LogData, RowsData
from reweigh.kernels import Bools, Floats, Ints, group_by, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.policy import Policy
from reweigh.show.confounding import Confounding
from reweigh.sums.keyed import DIFFERS
from reweigh.sums.moments import Moments
from reweigh.sums.numpy_scan import NumpyScan
from reweigh.sums.tables import BUILT_IN
from reweigh.trust.gates.gate import ROUNDING, place_in_words

if TYPE_CHECKING:
    from reweigh.evaluation.uncertainty import EstimateUncertainty

MOST = 100.0  # up to which a tipping point is looked for
CLOSE = 1e-4  # relative: how exactly it is found
TINY = np.finfo(np.float64).tiny
EXACT = 1e-9  # relative: sums of rewards that are one or two numbers
Outcomes = tuple[Ints, Ints, Ints, Ints, Floats, Floats]  # t, s, a, s', r, and how often


def of_estimate(of: EstimateUncertainty, gammas: Sequence[float]) -> Confounding:
    """Of the log and target behind an estimate."""
    if not of.data.has_states:
        why = "the bounds are those of a model of states, and the log names features alone"
        raise RefusedError("no-states", f"{why}: name a state (state=…)")
    model = SensitivityModel.of_data(of.data, of.dropped)
    return bounded(model, checked(gammas), of.behavior_value)


def checked(gammas: Sequence[float]) -> Floats:
    """Γ = 1 and these, rising."""
    values = np.asarray(gammas, np.float64)
    if values.ndim != 1 or not len(values) or not np.all((values >= 1) & (values < np.inf)):
        raise must_be("gammas", "finite numbers from 1 on", gammas)
    return np.unique(np.append(values, 1.0))


def bounded(model: SensitivityModel, gammas: Floats, behavior_value: float | None) -> Confounding:
    low, high = (np.array([model.value(g, side) for g in gammas]) for side in (-1, 1))
    value = float(low[0])
    tipping = None
    if behavior_value is not None:
        tipping = _tipping(model, value, behavior_value)
    return Confounding(value, behavior_value, gammas, low, high, tipping, MOST, model.unseen)


def _tipping(model: SensitivityModel, value: float, behavior: float) -> float | None:
    """The least Γ whose bounds hold the behavior's value, by bisection: they widen with Γ."""
    side = -1 if value >= behavior else 1

    def holds(gamma: float) -> bool:
        return side * (model.value(gamma, side) - behavior) >= 0

    low, high = 1.0, MOST
    if holds(low):
        return low
    if not holds(high):
        return None
    while high > (1 + CLOSE) * low:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@dataclass(frozen=True, eq=False)
class SensitivityModel:
    """What followed each (t, s, a).

    node, share, mu  (G,) of the groups (t, s, a): their (t, s), π̄(a|s) and μ(a|s)
    group, n, r, to  (E,) of the outcomes, by group: how often, the reward, the next (t, s), -1
                     where nothing follows
    begins           (H+1,) the first group of each step
    start            (K,) how the episodes begin, over the (t, s)
    """

    node: Ints
    share: Floats
    mu: Floats
    group: Ints
    n: Floats
    r: Floats
    to: Ints
    begins: Ints
    start: Floats
    discount: float

    @classmethod
    def of_data(cls, data: LogData, dropped: bool) -> SensitivityModel:
        sums = data.moments(dm(), dropped)
        if sums.about.continuous_actions:
            raise needs_discrete()
        if sums.model is None or sums.start_model is None:
            raise lacking("model")
        if isinstance(data, RowsData):
            log, target = data.rows(dropped)
            return cls.of(sums, *outcomes_of_rows(log, target, sums))
        return cls.of(sums, *outcomes_of_sums(sums))

    @classmethod
    def of(cls, sums: Moments, outcomes: Outcomes, constant: Bools) -> SensitivityModel:
        """`constant` (G,): whether the groups' rows have one propensity."""
        cells, start, about = sums.model, sums.start_model, sums.about
        assert cells is not None
        assert start is not None
        groups = group_by([cells.t, cells.s, cells.a])
        t, s, a = groups.keys
        if not np.all(constant):
            raise _varying(sums, *(int(key[np.argmin(constant)]) for key in (t, s, a)))
        nodes = group_by([t, s])
        width = len(sums.states) + 1
        keys = nodes.keys[0] * width + nodes.keys[1]
        of_t, of_s, of_a, after, r, n = outcomes
        going_on = (of_t + 1 < about.horizon) & (after != END)
        key = (of_t + 1) * width + after
        to = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        if np.any(going_on & ((after < 0) | (keys[to] != key))):
            raise RefusedError(
                "cut-off",
                "some episodes were cut off before a state that is not known, and the bounds need "
                "what follows every row: give next_state, or leave these episodes out "
                "(truncated='drop')",
            )
        return cls(
            nodes.index(),
            sums.shares.of(groups, cells),
            np.minimum(groups.sum(cells.mu) / groups.sum(cells.n), 1.0),
            group_by([of_t, of_s, of_a]).index(),
            n,
            r,
            np.where(going_on, to, -1),
            np.searchsorted(t, np.arange(about.horizon + 1)),
            tally(np.searchsorted(keys, start.s), start.n / start.n.sum(), len(keys)),
            about.discount,
        )

    @cached_property
    def edges(self) -> Ints:
        """(H+1,) the first outcome of each step."""
        return np.searchsorted(self.group, self.begins)

    @cached_property
    def rows(self) -> Floats:
        """(G,) the rows of the groups."""
        return tally(self.group, self.n, len(self.node))

    def value(self, gamma: float, side: int) -> float:
        """The upper (side 1) or lower (-1) bound."""
        alpha, kept = self.mu + (1 - self.mu) / gamma, self.rows / (1 + gamma)

        def worth(y: Floats, g: slice, e: slice) -> Floats:
            mean = self._mean(y, g, e)
            if gamma == 1:
                return mean
            # the mean of the `kept` rows with the largest side · y
            of, n = self.group[e] - g.start, self.n[e]
            order = np.lexsort((-side * y, of))
            of, n, y = of[order], n[order], y[order]
            before = np.cumsum(n) - n
            before -= before[np.searchsorted(of, np.arange(g.stop - g.start))][of]
            taken = np.clip(kept[g][of] - before, 0.0, n)
            extreme = tally(of, taken * y, g.stop - g.start) / kept[g]
            return np.asarray(alpha[g] * mean + (1 - alpha[g]) * extreme)

        return self._backward(self.r, worth)

    @cached_property
    def unseen(self) -> float:
        """The target's mass that reaches actions without rows, as `dm` counts it."""
        lost = 1 - tally(self.node, self.share, len(self.start))
        lost = np.where(lost > ROUNDING, lost, 0.0)
        return self._backward(np.zeros(len(self.r)), self._mean, lost, 1.0)

    def _mean(self, y: Floats, g: slice, e: slice) -> Floats:
        total = tally(self.group[e] - g.start, self.n[e] * y, g.stop - g.start)
        return np.asarray(total / self.rows[g])

    def _backward(
        self,
        r: Floats,
        worth: Callable[[Floats, slice, slice], Floats],
        more: Floats | float = 0.0,
        discount: float | None = None,
    ) -> float:
        """Σ_s d_0(s) V_0(s) with V = more + Σ_a π̄ Q, Q by `worth` of the outcomes of a step."""
        discount = self.discount if discount is None else discount
        V = np.append(np.zeros(len(self.start)), 0.0)  # the last: nothing follows
        V[:-1] += more
        for t in range(len(self.begins) - 2, -1, -1):
            g = slice(int(self.begins[t]), int(self.begins[t + 1]))
            e = slice(int(self.edges[t]), int(self.edges[t + 1]))
            Q = worth(r[e] + discount * V[self.to[e]], g, e)
            V[:-1] += tally(self.node[g], self.share[g] * Q, len(self.start))
        return float(self.start @ V[:-1])


def _varying(sums: Moments, t: int, s: int, a: int) -> RefusedError:
    assert sums.actions is not None
    place = place_in_words(t, sums.states.name(s), sums.actions.name(a))
    return RefusedError(
        "varying-propensities",
        f"the propensities differ at {place}, and the bounds are for one propensity per step, "
        "state and action: add to the state what they depend on",
    )


def outcomes_of_rows(log: EpisodeLog, target: Policy, sums: Moments) -> tuple[Outcomes, Bools]:
    """Of a log in memory."""
    table = BUILT_IN["model"]
    scan = NumpyScan(log, target.probabilities(log), None, np.zeros(log.n_episodes, np.int64))
    rows = scan.rows(table, table.keys)
    values, reward = np.unique(rows["reward"], return_inverse=True)
    groups = group_by([*(rows[key] for key in ("t", "s", "a", "s_next")), reward])
    t, s, a, after, code = groups.keys
    by_action = group_by([rows[key] for key in ("t", "s", "a")])
    mu = rows["behavior_prob"]
    spread = by_action.max(mu) + by_action.max(-mu)
    same = spread <= ROUNDING * by_action.max(mu)
    return (t, s, a, after, values[code], groups.count().astype(np.float64)), same


def outcomes_of_sums(sums: Moments) -> tuple[Outcomes, Bools]:
    """Of sums, where they hold the distribution: the rewards of each (t, s, a, s') are one number,
    or all of the log are one of two, the smallest b and the largest c. Then Σ(y - b)(c - y) = 0,
    and (Σy - n b)/(c - b) of them are c."""
    cells = sums.model
    assert cells is not None
    cells = cells.forget("block")
    n, y, y2 = cells.n.astype(np.float64), cells.y, cells.y2
    one_number = n * y2 - y**2 <= EXACT * np.maximum(n * y2, TINY)
    keys, rewards, counts = [cells.t, cells.s, cells.a, cells.s_next], y / n, n
    if not np.all(one_number):
        b, c = sums.rewards or (np.nan, np.nan)
        between = (b + c) * y - y2 - n * b * c
        if not np.all(np.abs(between) <= EXACT * n * max(abs(b), abs(c)) ** 2):
            worst = int(np.argmin(one_number))
            raise _only_sums(sums, int(cells.t[worst]), int(cells.s[worst]), int(cells.a[worst]))
        high = np.rint((y - n * b) / (c - b))
        keys = [np.concatenate([key, key]) for key in keys]
        rewards = np.repeat([b, c], len(n))
        counts = np.concatenate([n - high, high])
        some = counts > 0
        keys, rewards, counts = [key[some] for key in keys], rewards[some], counts[some]
    order = np.lexsort(keys[::-1])
    t, s, a, after = (key[order] for key in keys)
    groups = group_by([cells.t, cells.s, cells.a])
    rows, rho, rho2, pi, pi2 = (
        groups.sum(column) for column in (n, cells.rho, cells.rho2, cells.pi, cells.pi2)
    )
    same = (rows * rho2 - rho**2 <= DIFFERS * rows * rho2) & (
        rows * pi2 - pi**2 <= DIFFERS * rows * pi2
    )
    return (t, s, a, after, rewards[order], counts[order]), same


def _only_sums(sums: Moments, t: int, s: int, a: int) -> RefusedError:
    assert sums.actions is not None
    place = place_in_words(t, sums.states.name(s), sums.actions.name(a))
    return RefusedError(
        "needs-log",
        "the bounds need the distribution of the rewards, which sums do not hold where rewards "
        f"take many values (as at {place}): keep the log in memory (engine='arrays')",
    )
