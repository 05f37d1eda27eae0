"""Q by (t, s, a) and V by (t, s) as tables, and the Q that is fitted on other episodes.

A Q of other episodes lacks actions, and states, of those it is used on. Taken for 0 they would
cost what they earn, though rows of a rare action make up for it on average: one log is then far
off. So what is thin is drawn towards what is not,

    b_t(s)   = (Σρy + M)/(Σρ + 1),     M = Σρy/Σρ over all rows of the step, y = r + γ V_{t+1}(s')
    Q_t(s,a) = (Σ_a y + b)/(n(a) + 1)           an action without rows has b, a state without rows M
    V_t(s)   = Σ_a π̄(a|s) Q_t(s,a)

and the value stays right on average, whatever Q is. Where rows end before an unknown state, the
rewards are averaged over all rows and γV over those that go on.

**The smallest variance** (MRDR, Farajtabar et al. 2018). DR adds ρ_{0:t} (r̄_t - Q_t(s,a)) to what
does not depend on Q, with r̄_t = Σ_{τ≥t} γ^{τ-t} ρ_{t+1:τ} r_τ the weighted return that follows, and
MDR w_t(s) ρ (y - Q_t(s,a)): Q is the regression with the squared weights,

    Q_t(s,a) = Σ_a ρ²_{0:t} r̄_t / Σ_a ρ²_{0:t}     MDR: Σ_a ρ² y / Σ_a ρ², as w_t(s) is the cell's

with the same shrinkage, 1 being the mean weight of the step's rows. With a table this minimizes the
paper's quadratic form too, as the log grows; it differs from the model's Q where rows of one cell
differ in what the state leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reweigh.estimate.operators import cells_of, importance_operator
from reweigh.estimate.refusals import needs_discrete
from reweigh.kernels import Bools, Floats, Ints, group_by, rowwise, tally
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, HIDDEN
from reweigh.sums.moments import Moments
from reweigh.system import divided

PRIOR = 1.0  # rows that the state's value counts as in an action's, and the step's in the state's
Sizes = tuple[int, int]


@dataclass(frozen=True, eq=False)
class TabularQ:
    """Q by (t, s, a) and V by (t, s), at increasing keys.

    state_value  b by (t, s), the Q of actions that are not there
    step_value   (H+1,) M, the Q and the V of states that are not there; 0 at the horizon
    """

    n_states: int
    n_actions: int
    q_key: Ints
    q_value: Floats
    v_key: Ints
    v_value: Floats
    state_value: Floats
    step_value: Floats

    @classmethod
    def of(
        cls, sizes: Sizes, q: tuple[Ints, Floats], nodes: tuple[Ints, Ints], V: Floats,
        b: Floats | None = None, M: Floats | None = None,
    ) -> TabularQ:  # fmt: skip
        """Of states and actions so many, with Q by key, and V and b by node; without b and M they
        are 0."""
        step, state = nodes
        states = np.flatnonzero(state >= 0)
        key = (step * sizes[0] + state)[states]
        order = np.argsort(key)
        states = states[order]
        b = np.zeros_like(V) if b is None else b
        M = np.zeros((int(step.max(initial=0)) + 1, *V.shape[1:])) if M is None else M
        return cls(*sizes, *q, key[order], V[states], b[states], M)

    def q(self, t: Ints, s: Ints, a: Ints) -> Floats:
        of_state = self._of_state(self.state_value, t, s)
        return _find(
            self.q_key, self.q_value, (t * self.n_states + s) * self.n_actions + a, of_state
        )

    def v(self, t: Ints, s: Ints) -> Floats:
        """V_t(s); 0 for END and whatever is not a state."""
        value = self._of_state(self.v_value, t, s)
        value[s < 0] = 0.0
        return value

    def _of_state(self, values: Floats, t: Ints, s: Ints) -> Floats:
        of_step = self.step_value[np.minimum(t, len(self.step_value) - 1)]
        return _find(self.v_key, values, t * self.n_states + s, of_step)

    def with_shares_of(self, part: Moments) -> TabularQ:
        """With V_t(s) = Σ_a π̄(a|t,s) Q_t(s,a), π̄ of the part of the log on which Q is used, where
        it is an estimate: the part's own luck in it is then in both, ρ Q and V."""
        shares, cells = part.shares, part.model
        assert cells is not None
        if shares.rule == "one number":
            return self
        of = cells if shares.policy is None else shares.policy
        groups = group_by([of.t, of.s, of.a])
        t, s, a = groups.keys
        nodes = group_by([t, s])
        key = nodes.keys[0] * self.n_states + nodes.keys[1]
        share = shares.of(groups, cells)
        own = self._of_state(self.state_value, *nodes.keys)
        value = nodes.sum(share * self.q(t, s, a)) + _left(nodes.sum(share)) * own
        if value.ndim > 1:  # a replicate may lack what the part shows
            value = np.where(nodes.sum(groups.sum(of.n)) > 0, value, self.v(*nodes.keys))
        others = ~np.isin(self.v_key, key)
        keys = np.concatenate([self.v_key[others], key])
        order = np.argsort(keys)

        def joined(before: Floats, new: Floats) -> Floats:
            return np.concatenate([before[others], new])[order]

        return replace(
            self,
            v_key=keys[order],
            v_value=joined(self.v_value, value),
            state_value=joined(self.state_value, own),
        )


def _find(keys: Ints, values: Floats, wanted: Ints, otherwise: Floats) -> Floats:
    if len(keys) == 0:
        return otherwise.copy()
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(rowwise(keys[at] == wanted, values), values[at], otherwise)


def _left(total: Floats) -> Floats:
    """1 less what there is of it; rounding is nothing."""
    left = 1 - total
    return np.where(left > 1e-9, left, 0.0)


def shrunken_q(moments: Moments, *, by_variance: bool = False) -> TabularQ:
    """The Q for other episodes than these; see above. `by_variance`: the rows of an action count
    ρ² times, so that Q minimizes the variance of ρ (y - Q)."""
    if moments.actions is None or moments.about.continuous_actions:
        raise needs_discrete()
    cells, start = cells_of(moments, "model")
    op = importance_operator(cells, start, moments.about.horizon, moments.about.discount)
    c, shape, nodes = op.cells, op.initial.shape[1:], len(op.node_t)
    by_action = group_by([c.t, c.s, c.a])
    pair, size = by_action.index(), len(by_action)
    share = moments.shares.of(by_action, c)
    if share.ndim > 1:  # a replicate may lack the action
        share = np.where(by_action.sum(c.n) > 0, share, 0.0)
    node = np.zeros(size, np.int64)
    node[pair] = op.src
    bounds, known = op.edge_offsets, op.known
    assert bounds is not None
    n = c.rho2 if by_variance else c.n.astype(np.float64)
    earned = c.rhoz if by_variance else c.y
    parts = [(n, c.rho, True)]  # rows, Σρ, and whether they have the rewards
    if not known.all():
        parts.append((np.where(known, n, 0.0), np.where(known, c.rho, 0.0), False))
    sums = [(tally(pair, rows, size), tally(op.src, rho, nodes)) for rows, rho, _ in parts]
    Q, (V, b) = np.zeros((size, *shape)), np.zeros((2, nodes, *shape))
    M = np.zeros((op.horizon + 1, *shape))
    steps = np.searchsorted(op.node_t[node], np.arange(op.horizon + 1))
    for t in range(op.horizon - 1, -1, -1):
        e, k = slice(int(bounds[t]), int(bounds[t + 1])), op.nodes(t)
        p, width = slice(int(steps[t]), int(steps[t + 1])), k.stop - k.start
        to, of_node = op.dst[e], node[p] - k.start
        after = op.discount * np.where(rowwise(to >= 0, V), V[to], 0.0)
        for number, ((rows, rho, rewards), (count, R)) in enumerate(zip(parts, sums, strict=True)):
            ahead = after if number == len(parts) - 1 else 0.0
            z, y = rho[e] * ahead, rows[e] * ahead
            if rewards:
                z, y = z + c.z[e], y + earned[e]
            S = tally(op.src[e] - k.start, z, width)
            mean = divided(S.sum(axis=0), R[k].sum(axis=0))
            own = (S + PRIOR * mean) / (R[k] + PRIOR)
            Y = tally(pair[e] - p.start, y, p.stop - p.start)
            Q[p] += (Y + PRIOR * own[of_node]) / (count[p] + PRIOR)
            b[k] += own
            M[t] += mean
        total = tally(of_node, share[p], width)
        V[k] = tally(of_node, share[p] * Q[p], width) + _left(total) * b[k]
        V[k] = np.where(rowwise(op.node_s[k] == END, V), 0.0, V[k])
    step, state, action = by_action.keys
    sizes = len(moments.states), len(moments.actions)
    key = (step * sizes[0] + state) * sizes[1] + action
    return TabularQ.of(sizes, (key, Q), (op.node_t, op.node_s), V, b, M)


@dataclass(frozen=True, eq=False)
class WeightedReturns:
    """Of the rows the episode, the keys t, s, a, the squared weight ρ²_{0:t} over the step's
    largest, and r̄_t."""

    episode: Ints
    keys: tuple[Ints, Ints, Ints]
    weight: Floats
    value: Floats

    @classmethod
    def of(cls, log: EpisodeLog, rho: Floats) -> WeightedReturns:
        steps, value = log.steps, log.steps.reward.copy()
        with np.errstate(divide="ignore"):
            log_w = np.log(rho)
        for t in range(1, log.horizon):
            rows, before = steps.rows(t), steps.rows(t - 1)
            log_w[rows] += log_w[before][: rows.stop - rows.start]
        for t in range(log.horizon - 2, -1, -1):
            rows, after = steps.rows(t), steps.rows(t + 1)
            going_on = slice(rows.start, rows.start + after.stop - after.start)
            value[going_on] += log.discount * rho[after] * value[after]
        largest = np.full(log.horizon, -np.inf)
        np.maximum.at(largest, steps.step, log_w)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        state = np.where(steps.state == HIDDEN, len(log.states), steps.state).astype(np.int64)
        keys = steps.step.astype(np.int64), state, steps.action.astype(np.int64)
        weight = np.exp(2 * (log_w - largest[steps.step]))
        if steps.relative_weight is not None:
            weight = weight * steps.relative_weight[steps.episode_index]
        return cls(steps.episode_index, keys, weight, np.where(weight > 0, value, 0.0))

    def q(self, which: Bools, moments: Moments) -> TabularQ:
        """The Q of these episodes (n,), of which the `moments` are; see above."""
        if moments.actions is None or moments.about.continuous_actions:
            raise needs_discrete()
        rows = which[self.episode]
        pairs = group_by([key[rows] for key in self.keys])
        (t, s, a), sizes = pairs.keys, (len(moments.states), len(moments.actions))
        cells = cells_of(moments, "model")[0]
        share = moments.shares.of(group_by([cells.t, cells.s, cells.a]), cells)
        weight, R = self.weight[rows], pairs.sum(self.weight[rows])
        S, steps = pairs.sum(weight * self.value[rows]), moments.about.horizon
        total = tally(t, R, steps)
        prior = PRIOR * divided(total, tally(t, pairs.count(), steps))
        M = divided(tally(t, S, steps), total)
        nodes = group_by([t, s])
        step, of = nodes.keys[0], nodes.index()
        b = divided(nodes.sum(S) + (prior * M)[step], nodes.sum(R) + prior[step])
        Q = divided(S + prior[t] * b[of], R + prior[t])
        V = nodes.sum(share * Q) + _left(nodes.sum(share)) * b
        key = (t * sizes[0] + s) * sizes[1] + a
        return TabularQ.of(sizes, (key, Q), (step, nodes.keys[1]), V, b, np.append(M, 0.0))
