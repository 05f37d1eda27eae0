"""The direct method straight from the rows of a log in memory: DM's Solution, and its Q and V.

The model's cells (t, s, a, s') are often as many as the rows. Over the rows the same recursions
need arrays over (t, s, a) only (`kernels/model.py`); this road is taken where these are
not more than the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import SupportError
from reweigh.estimate import variance
from reweigh.estimate.direct import start_variance
from reweigh.estimate.nodes import DenseNodes
from reweigh.estimate.operators import SEEN_ENOUGH
from reweigh.estimate.recipe import Model, Recipe
from reweigh.estimate.recursion import no_support
from reweigh.estimate.solution import Solution, value_alone
from reweigh.estimate.weakest_places import Place, largest, missing_action, worst_node
from reweigh.kernels.choose import pick
from reweigh.kernels.groups import inner
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, HIDDEN
from reweigh.policy.base import Policy, scope_of
from reweigh.sums.shares import is_one_number
from reweigh.system.arithmetic import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
GROUPS_PER_ROW, FEW_GROUPS = 4, 1 << 16
CHUNK = 1 << 14  # groups
ROWS_PER_STEP = 50  # with fewer on average, the sums' way is as fast


def solve_model(
    log: EpisodeLog, target: Policy, recipe: Recipe, *, errors: bool = True
) -> Solution | None:
    """The Solution of DM, or its value alone; None for other estimators, and where the way over
    the sums is better."""
    if not isinstance(recipe.weights, Model):
        return None
    rows = ModelRows.fitting(log, target)
    if rows is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return _solve(rows, renorm=recipe.weights.unseen == "renorm", errors=errors)


def fits(log: EpisodeLog, parts: int = 1) -> bool:
    """Whether a model over the rows is to be preferred, with so many models at once.

    What is refused (continuous actions, no behaviour) is refused by the usual road; so is the
    question what a behaviour earned that hides states and is cut off.
    """
    if log.actions is None or not log.steps.has_propensities:
        return False
    if log.n_truncated and log.has_hidden:
        return False
    groups = log.horizon * parts * (len(log.states) + 2) * len(log.actions)
    enough = log.steps.n_rows >= ROWS_PER_STEP * log.horizon
    return enough and groups <= max(GROUPS_PER_ROW * log.steps.n_rows, FEW_GROUPS)


@dataclass(frozen=True, eq=False)
class ModelRows:
    """What the kernels read (see `kernels/model.py`), and what is counted once.

    sums (5, H, groups) holds N, M, Σπ, Σy and Σπ² of the rows by (t, s, a).
    """

    log: EpisodeLog
    state: npt.NDArray[np.int32]
    action: npt.NDArray[np.int32]
    last: npt.NDArray[np.int32]
    shift: npt.NDArray[np.int32]
    width: int
    n_actions: int
    sums: Floats

    @classmethod
    def fitting(
        cls, log: EpisodeLog, target: Policy, part: npt.NDArray[Any] | None = None, parts: int = 1
    ) -> ModelRows | None:
        """None where the way over the sums is better, or the policy sees more than the state."""
        scope = scope_of(target)
        if scope == "row" or not fits(log, parts):
            return None
        rows = cls.of(log, target.probabilities(log), part, parts)
        return rows if scope == "state" or rows.follow_from_state(parts) else None

    def follow_from_state(self, parts: int) -> bool:
        """Whether the policy does, by `shares.is_one_number`; one answer for all parts."""
        shape = self.log.horizon, parts, self.width * self.n_actions
        n, pi, pi2 = (self.sums[j].reshape(shape).sum(axis=1) for j in (0, 2, 4))
        return is_one_number(n, pi, pi2, self.by_state)

    @classmethod
    def of(
        cls, log: EpisodeLog, pi: Floats, part: npt.NDArray[Any] | None = None, parts: int = 1
    ) -> ModelRows:
        """`part` (n,) is the model, out of so many, to which an episode belongs."""
        assert log.actions is not None
        steps, hidden = log.steps, len(log.states)
        width = hidden + 2 if log.has_hidden or np.any(steps.ending == HIDDEN) else hidden + 1
        n_actions = len(log.actions)
        state = steps.state
        if width == hidden + 2:
            state = np.where(state == HIDDEN, np.int32(hidden), state)
        # After the horizon a hidden state is not needed, and no state of its own.
        short = steps.lengths < log.horizon
        last = np.where((steps.ending == HIDDEN) & short, hidden, steps.ending)
        last = np.where(last == END, width - 1, np.maximum(last, -1)).astype(np.int32)
        shift = np.zeros(steps.n_episodes, np.int32)
        if part is not None:
            shift[:] = part * width
        sums = np.zeros((5, log.horizon, parts * width * n_actions))
        made = cls(log, state, steps.action, last, shift, width, n_actions, sums)
        run = pick("model.count", steps.n_rows)
        run(*made.columns, shift, pi, steps.reward, n_actions, sums)
        return made

    @property
    def columns(self) -> tuple[Any, ...]:
        """The first arguments of every kernel."""
        return self.log.steps.offsets, self.state, self.action, self.last

    @property
    def size(self) -> int:
        return self.log.steps.n_rows

    def share(self) -> Floats:
        """(H, groups) π(a|s), as the rows show it; 0 where there is none."""
        return _mean(self.sums[2], self.sums[0])

    def rewards(self) -> Floats:
        """(H, groups) r̂_t(s,a)."""
        return _mean(self.sums[3], self.sums[0])

    def by_state(self, values: Floats) -> Floats:
        """The sums over the actions: (…, groups) to (…, columns)."""
        return np.asarray(values.reshape(*values.shape[:-1], -1, self.n_actions).sum(axis=-1))

    def visits(self) -> Floats:
        """(H+1, width) rows at (t, s), and at END the episodes that have ended."""
        horizon = self.log.horizon
        found = np.zeros((horizon + 1, self.width))
        found[:-1] = self.by_state(self.sums[0])
        ended = self.log.steps.lengths[self.last == self.width - 1]
        found[:, -1] = np.cumsum(np.bincount(ended, minlength=horizon + 1))
        return found

    def backward(
        self, share: Floats, reward: Floats, *, placebo: bool = False
    ) -> tuple[Floats, Floats]:
        """(H+1, columns) V, and what it would be if every reward were 1 (else empty); `reward`,
        r̂_t(s,a), becomes Q."""
        v = np.empty((self.log.horizon + 1, share.shape[1] // self.n_actions))
        v1 = np.empty_like(v) if placebo else np.empty((0, 0))
        run = pick("model.backward", self.size)
        run(*self.columns, self.shift, self.log.discount, self.sums, share, reward, v, v1)
        return v, v1


def _mean(total: Floats, count: Floats) -> Floats:
    return np.asarray(total / np.maximum(count, 1.0))


@dataclass(frozen=True, eq=False)
class RowsQ:
    """Q and V of the direct method by (t, s, a) and (t, s), of each part of a log."""

    rows: ModelRows
    q: Floats
    v: Floats

    @classmethod
    def fit(cls, log: EpisodeLog, target: Policy, part: Ints, parts: int) -> RowsQ | None:
        """None as in `ModelRows.fitting`."""
        rows = ModelRows.fitting(log, target, part, parts)
        if rows is None:
            return None
        q = rows.rewards()
        v, _ = rows.backward(rows.share(), q)
        return cls(rows, q, v)

    def shape(self, model: Ints) -> tuple[Floats, Floats]:
        """(N,) y - Q + γV' and (n,) V_0(s_0), each episode by the model of that number."""
        steps = self.rows.log.steps
        shift = (model * self.rows.width).astype(np.int32)
        shaped = np.empty(steps.n_rows)
        run = pick("model.shape", steps.n_rows)
        gamma = self.rows.log.discount
        run(*self.rows.columns, shift, steps.reward, gamma, self.q, self.v, shaped)
        return shaped, self.v[0, self.rows.state[: steps.n_episodes] + shift]


@dataclass(frozen=True, eq=False)
class Nodes:
    """By (t, s), (H, width), from the groups of its actions.

    reward   r̂_t(s) = Σ_a share r̂_t(s,a)      placebo  Σ_a share, END's being 1
    square   Σ_a share²/N                       covered  Σ_a π(a|s) of what can be carried on
    rare     Σ_a share of the actions seen fewer than 10 times
    """

    reward: Floats
    placebo: Floats
    square: Floats
    covered: Floats
    rare: Floats

    @classmethod
    def of(cls, rows: ModelRows, share: Floats, probability: Floats, reward: Floats) -> Nodes:
        horizon, width = rows.log.horizon, rows.width
        found = np.empty((5, horizon, width))
        some = max(CHUNK // share.shape[1], 1)
        for start in range(0, horizon, some):
            t = slice(start, start + some)
            N, M, own = rows.sums[0, t], rows.sums[1, t], share[t]
            square, covered = own * own / np.maximum(N, 1.0), probability[t] * (M > 0)
            each = (own * reward[t], own, square, covered, own * (N < SEEN_ENOUGH))
            for j, values in enumerate(each):
                found[j, t] = rows.by_state(values)
        found[1, :, -1] = found[3, :, -1] = 1.0
        return cls(*found)


def _solve(rows: ModelRows, *, renorm: bool, errors: bool) -> Solution:
    """Q and V backward, d forward, and the spread within the groups (t, s, a)."""
    horizon, n = rows.log.horizon, rows.log.n_episodes
    powers = np.asarray(rows.log.discount ** np.arange(horizon), np.float64)
    share = probability = rows.share()
    visits, reward = rows.visits(), rows.rewards()
    if renorm:
        total = np.repeat(rows.by_state(share), rows.n_actions, axis=1)
        share = divided(probability, total)
    nodes = Nodes.of(rows, share, probability, reward)
    d = _forward(rows, share, visits, nodes.placebo)
    per_step = powers * _mean_of(d, nodes.reward)
    if not errors:
        return value_alone(per_step)
    v, v1 = rows.backward(share, reward, placebo=True)
    parts, squares, of_placebo, corrected = _spread(rows, share, d, v, v1)
    if renorm:  # its placebo would be H whatever the log lacks: it is that of the plain model
        ones, off = _plain_placebo(rows, probability, visits)
    else:
        ones = _mean_of(d, nodes.placebo)
        off = float(np.sqrt(of_placebo + start_variance(v1[0], visits[0])))
    start = start_variance(v[0], visits[0])
    square = start + float(parts.sum())
    gone = variance.lost_in_rounding(square, squares + inner(v[0] ** 2, visits[0]) / n**2)
    rare = np.where(visits[:-1] < SEEN_ENOUGH, 1.0, nodes.rare)
    rare_by_step, unseen = _mean_of(d, rare), _unseen(nodes, d, conserves=renorm)
    return Solution(
        value=float(per_step.sum()),
        standard_error=None if gone else float(np.sqrt(square)),
        error_method=variance.LOST if gone else "analytic",
        per_step=per_step,
        ess=_effective_sizes(nodes, d, visits),
        unseen_mass=unseen,
        unseen_at=_unseen_at(rows, nodes, d, unseen),
        placebo=float(powers @ ones),
        placebo_error=off,
        placebo_by_step=powers * ones,
        rare_mass=float(rare_by_step.sum()) / horizon,
        rare_by_step=rare_by_step,
        rare_at=_rare_at(rows, share, d[:-1] * rare),
        total_mass=d[:-1].sum(axis=1),
        variance_of_start=start,
        freedom=variance.Freedom.of_sums(*corrected, start, n),
        from_model=True,
        by_node=_nodes(rows, d, visits, parts),
    )


def _mean_of(d: Floats, values: Floats) -> Floats:
    """(H,) <d_t, values_t>."""
    return np.asarray((d[:-1] * values).sum(axis=1))


def _forward(rows: ModelRows, share: Floats, visits: Floats, placebo: Floats) -> Floats:
    """(H+1, width) d_t; SupportError where no row is possible under the target."""
    d = np.zeros_like(visits)
    d[0] = visits[0] / rows.log.n_episodes
    pick("model.forward", rows.size)(*rows.columns, rows.sums, share, d)
    impossible = np.flatnonzero(~(_mean_of(d, placebo) > 0))
    if len(impossible):
        raise no_support(int(impossible[0]))
    return d


def _plain_placebo(rows: ModelRows, share: Floats, visits: Floats) -> tuple[Floats, float | None]:
    """(H,) <d_t, 1> of the model that is not renormalised, and the error of its placebo."""
    ones = rows.by_state(share)
    ones[:, -1] = 1.0
    try:
        d = _forward(rows, share, visits, ones)
    except SupportError:
        return np.zeros(rows.log.horizon), None
    _, v1 = rows.backward(share, np.zeros_like(share), placebo=True)
    _, _, square, _ = _spread(rows, share, d, v1, v1)
    return _mean_of(d, ones), float(np.sqrt(square + start_variance(v1[0], visits[0])))


def _spread(
    rows: ModelRows, share: Floats, d: Floats, v: Floats, v1: Floats
) -> tuple[Floats, float, float, tuple[float, float]]:
    """(H, width) parts of SE², what it is a difference of, the placebo's parts added up, and two
    sums over the groups: C = V N/(N - 1) and C²/(N - 1)."""
    parts = np.zeros((rows.log.horizon, rows.width))
    run = pick("model.spread", rows.size)
    reward, gamma = rows.log.steps.reward, rows.log.discount
    found = run(*rows.columns, reward, gamma, rows.sums, share, d, v, v1, parts)
    return parts, found[0], found[1], found[2:]


def _effective_sizes(nodes: Nodes, d: Floats, visits: Floats) -> Floats:
    """(H,) (Σω)²/Σω² of the weights ω = d_t(s) share/N that rows carry; nan without rows."""
    end, ended = d[:-1, -1], visits[:-1, -1]
    first = _mean_of(d, nodes.placebo) - np.where(ended > 0, 0.0, end)
    second = _mean_of(d, d[:-1] * nodes.square) + divided(end**2, ended)
    return np.where(second > 0, first**2 / np.where(second > 0, second, 1.0), np.nan)


def _unseen(nodes: Nodes, d: Floats, *, conserves: bool) -> Floats:
    """(H,) target mass on actions that the log does not show, see `weights.escaping`."""
    lost = _mean_of(d, np.maximum(1 - nodes.covered, 0.0))
    if conserves:  # d_t keeps what was lost: count no mass twice
        kept = np.cumprod(np.maximum(1 - lost, 0.0))
        lost = lost * np.concatenate([[1.0], kept[:-1]])
    return np.where(lost > 1e-9, lost, 0.0)


def _unseen_at(rows: ModelRows, nodes: Nodes, d: Floats, unseen: Floats) -> Place | None:
    """See `where.most_unseen`."""
    if not unseen.any():
        return None
    t = int(np.argmax(unseen))
    state = largest(d[t] * np.maximum(1 - nodes.covered[t], 0.0))
    N, M, P = (sums[:, _actions(rows, state)] for sums in rows.sums[:3])  # (H, actions)
    every = np.flatnonzero(N.sum(axis=0))
    lost = 1 - float(nodes.covered[t, state])
    count, total = N.sum(axis=0)[every], P.sum(axis=0)[every]
    return Place(t, state, missing_action(lost, every, count, total, np.flatnonzero(M[t])))


def _rare_at(rows: ModelRows, share: Floats, mass: Floats) -> Place | None:
    """See `where.most_rare`; `mass` is (H, width)."""
    code = np.append(np.arange(rows.width - 1), END)
    node = worst_node(np.broadcast_to(code, mass.shape).reshape(-1), mass.reshape(-1))
    if node is None:
        return None
    t, column = divmod(node, rows.width)
    own = _actions(rows, column)
    each = np.where(rows.sums[0, t, own] < SEEN_ENOUGH, share[t, own], 0.0)
    return Place(t, int(code[column]), largest(each) if each.any() else None)


def _actions(rows: ModelRows, column: int) -> slice:
    """The groups of a state."""
    return slice(column * rows.n_actions, (column + 1) * rows.n_actions)


def _nodes(rows: ModelRows, d: Floats, visits: Floats, parts: Floats) -> DenseNodes:
    """What the Solution tells by (t, s): those with rows, ended episodes, or reached last."""
    steps, known = rows.log.steps, rows.last >= 0
    reached = np.zeros(d.shape, np.uint8)
    reached[steps.lengths[known], rows.last[known]] = 1
    parts = np.concatenate([parts, np.zeros((1, rows.width))])
    return DenseNodes(d, visits, parts, reached, steps.n_episodes, rows.size)
