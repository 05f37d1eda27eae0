"""The in-memory engine: time-major NumPy arrays, one sort per table of cells.

Cost: O(N log N) time and O(N) memory for N rows; the tables hold the observed cells only. Where
the rows are many and the possible cells of a step fewer, a place for each of these spares the sort.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError
from reweigh.logs.log import EpisodeLog
from reweigh.logs.states import HIDDEN, START, UNKNOWN, Labels
from reweigh.logs.steps import Steps
from reweigh.moments.bundle import Moments
from reweigh.moments.compute import COMPILED_FROM, available, pick
from reweigh.moments.engines.base import Request, about
from reweigh.moments.groups import group_by
from reweigh.moments.trajectories import NO_SCALE, EpisodeSums, StepMoments, StepSums
from reweigh.moments.transitions import KEYS, NO_ACTION, StartMoments, TransitionMoments
from reweigh.policies.base import Policy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PLACES_FROM, PLACES_PER_ROW, MOST_PLACES = COMPILED_FROM, 1, 1 << 22
LARGEST_EXPONENT = 700.0


def ratios(log: EpisodeLog, target: Policy, max_ratio: float | None) -> tuple[Floats, Floats]:
    """(N,) π(a|s) and ρ = π/μ, clipped at `max_ratio` if given."""
    mu = log.steps.behavior_prob
    if mu is None:
        raise UsageError(
            "the log has no behaviour probabilities; name their column with behavior_prob=…, or "
            "estimate them: log.with_behavior(fit_behavior(log))"
        )
    pi = target.probabilities(log)
    rho = pi / mu
    return pi, rho if max_ratio is None else np.minimum(rho, max_ratio)


class ArraysEngine:
    """Sums of a log that is in memory."""

    name = "arrays"

    def moments(self, log: EpisodeLog, target: Policy, request: Request) -> Moments:
        pi, rho = ratios(log, target, request.max_ratio)
        steps = log.steps
        block = steps.blocks(request.blocks)
        hidden = log.has_hidden
        # The hidden state is a state of its own in the model's cells.
        states = Labels((*log.states.values, None)) if hidden else log.states
        made: dict[str, Any] = {}
        start = np.where(steps.state[steps.rows(0)] == HIDDEN, START, steps.state[steps.rows(0)])
        made["start"] = _starts(steps, block, start)
        if "transitions" in request.kinds:
            made["transitions"] = (
                _stretch_cells(steps, block, rho, log.discount)
                if hidden
                else _cells(steps, block, pi, rho, None, HIDDEN)
            )
        if "model" in request.kinds:
            as_state = len(states) - 1 if hidden else HIDDEN
            action = None if log.continuous_actions else steps.action
            made["model"] = _cells(steps, block, pi, rho, action, as_state)
            made["start_model"] = _starts(steps, block, np.where(start == START, as_state, start))
        if "trajectories" in request.kinds:
            made["trajectories"] = _trajectories(steps, block, rho, log.discount)
        return Moments(
            about=about(log, target, request),
            states=states,
            actions=log.actions,
            truncated=log.n_truncated,
            hidden=hidden,
            **made,
        )

    def weighted_residuals(
        self, log: EpisodeLog, target: Policy, request: Request, center: Floats, log_mean: Floats
    ) -> Floats:
        _, rho = ratios(log, target, request.max_ratio)
        steps = log.steps
        log_w = np.zeros(steps.n_episodes)
        total = np.zeros(steps.n_episodes)
        with np.errstate(divide="ignore"):
            log_rho = np.log(rho)
        for t in range(steps.horizon):
            rows = steps.rows(t)
            alive = rows.stop - rows.start
            log_w[:alive] += log_rho[rows]
            residual = np.full(steps.n_episodes, -center[t])
            residual[:alive] += steps.reward[rows]
            total += log.discount**t * np.exp(log_w - log_mean[t]) * residual
        return total


def _starts(steps: Steps, block: Ints, state: npt.NDArray[Any]) -> StartMoments:
    groups = group_by([block, state])
    g = np.zeros(steps.n_episodes) if steps.start_value is None else steps.start_value
    block_of, s = groups.keys
    return StartMoments(block_of, s, groups.count(), groups.sum(g), groups.sum(g * g))


def _cells(
    steps: Steps,
    block: Ints,
    pi: Floats,
    rho: Floats,
    action: npt.NDArray[Any] | None,
    as_state: int,
) -> TransitionMoments:
    """One-step cells; a hidden state gets the code `as_state`."""
    y = steps.reward
    # After the horizon a hidden state is not needed, and no state of its own.
    final = steps.step == steps.horizon - 1
    following = steps.next_state
    s_next = np.where(following == HIDDEN, np.where(final, UNKNOWN, as_state), following)
    mu = steps.behavior_prob
    assert mu is not None
    s = np.where(steps.state == HIDDEN, as_state, steps.state)
    quick = _cells_by_place(steps, block, s, action, s_next, rho, pi, mu)
    if quick is not None:
        return quick
    return _sum_cells(
        block=block[steps.episode_index],
        t=steps.step,
        s=s,
        a=np.full(len(y), NO_ACTION) if action is None else action,
        t_next=steps.step + 1,
        s_next=s_next,
        rho=rho,
        z=rho * y,
        y=y,
        one=rho,
        pi=pi,
        mu=mu,
    )


def _cells_by_place(
    steps: Steps,
    block: Ints,
    s: npt.NDArray[Any],
    action: npt.NDArray[Any] | None,
    s_next: npt.NDArray[Any],
    rho: Floats,
    pi: Floats,
    mu: Floats,
) -> TransitionMoments | None:
    """One-step cells with a place for every (block, s, a, s') instead of a sort: the rows of a
    step are together already. None where the rows are few or the places too many."""
    if steps.n_rows < PLACES_FROM or not available():
        return None
    n_states = max(int(s.max()), int(s_next.max())) + 1
    sizes = (
        int(block.max()) + 1,
        n_states,
        1 if action is None else int(action.max()) + 1,
        n_states - UNKNOWN,
    )
    places = math.prod(sizes)
    if places > min(MOST_PLACES, PLACES_PER_ROW * steps.n_rows):
        return None
    key = s.astype(np.int64)
    if sizes[0] > 1:
        key += block[steps.episode_index] * sizes[1]
    key *= sizes[2]
    if action is not None:
        key += action
    key *= sizes[3]
    key += s_next
    key -= UNKNOWN
    slot = np.full(places, -1, np.int64)
    size = pick("rows.count_cells", steps.n_rows)(steps.offsets, key, slot)
    t, cell = np.empty(size, np.int64), np.empty(size, np.int64)
    sums = np.zeros((size, 10))
    slot[:] = -1
    run = pick("rows.sum_cells", steps.n_rows)
    run(steps.offsets, key, slot, rho, steps.reward, pi, mu, t, cell, sums)
    cell, after = np.divmod(cell, sizes[3])
    cell, a = np.divmod(cell, sizes[2])
    block_of, state = np.divmod(cell, sizes[1])
    order = np.argsort(block_of, kind="stable") if sizes[0] > 1 else slice(None)
    n, rho1, rho2, z, rhoz, z2, y1, y2, pi1, mu1 = sums[order].T.copy()
    return TransitionMoments(
        block=block_of[order],
        t=t[order],
        s=state[order],
        a=a[order] if action is not None else np.full(size, NO_ACTION),
        t_next=t[order] + 1,
        s_next=after[order] + UNKNOWN,
        n=n.astype(np.int64),
        rho=rho1,
        rho2=rho2,
        z=z,
        rhoz=rhoz,
        z2=z2,
        y=y1,
        y2=y2,
        one=rho1,
        pi=pi1,
        mu=mu1,
    )


def _stretch_cells(steps: Steps, block: Ints, rho: Floats, gamma: float) -> TransitionMoments:
    """Cells from one observed state to the next: a hidden stretch is one long step.

    While a stretch lasts, per episode:  R = ρ_{t:t+j},  z = Σ_j γ^j ρ_{t:t+j} y_{t+j}.
    """
    n = steps.n_episodes
    anchor_t = np.zeros(n, np.int64)
    anchor_s = np.full(n, START, np.int64)
    product, z, y, one, power = (np.zeros(n) for _ in range(5))
    parts: list[dict[str, npt.NDArray[Any]]] = []

    def close(episodes: Ints, t: int, s: npt.NDArray[Any]) -> None:
        """The stretches of these episodes end at step t in the states s."""
        parts.append(
            {
                "block": block[episodes],
                "t": anchor_t[episodes],
                "s": anchor_s[episodes],
                "t_next": np.full(len(episodes), t),
                "s_next": s,
                "rho": product[episodes],
                "z": z[episodes],
                "y": y[episodes],
                "one": one[episodes],
            }
        )

    for t in range(steps.horizon):
        rows = steps.rows(t)
        alive = rows.stop - rows.start
        state = steps.state[rows]
        seen = np.flatnonzero(state != HIDDEN)
        begins = np.arange(alive) if t == 0 else seen
        if t > 0:
            close(seen, t, state[seen])
        anchor_t[begins] = t
        anchor_s[begins] = np.where(state[begins] == HIDDEN, START, state[begins])
        product[begins], power[begins] = 1.0, 1.0
        z[begins] = y[begins] = one[begins] = 0.0
        # R ← R ρ_t,   z ← z + γ^j R y_t
        product[:alive] *= rho[rows]
        z[:alive] += power[:alive] * product[:alive] * steps.reward[rows]
        y[:alive] += power[:alive] * steps.reward[rows]
        one[:alive] += power[:alive] * product[:alive]
        power[:alive] *= gamma
        going_on = int(steps.offsets[t + 2] - steps.offsets[t + 1]) if t + 1 < steps.horizon else 0
        over = np.arange(going_on, alive)
        if len(over):
            after = steps.ending[over]
            close(over, t + 1, np.where(after == HIDDEN, UNKNOWN, after))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    zeros = np.zeros(len(joined["z"]))
    return _sum_cells(a=np.full(len(zeros), NO_ACTION), pi=zeros, mu=zeros, **joined)


def _sum_cells(**columns: npt.NDArray[Any]) -> TransitionMoments:
    """Group rows by the key and add up what the cells hold."""
    groups = group_by([columns[key] for key in KEYS])
    rho, z, y = columns["rho"], columns["z"], columns["y"]
    return TransitionMoments(
        **dict(zip(KEYS, groups.keys, strict=True)),
        n=groups.count(),
        rho=groups.sum(rho),
        rho2=groups.sum(rho * rho),
        z=groups.sum(z),
        rhoz=groups.sum(rho * z),
        z2=groups.sum(z * z),
        y=groups.sum(y),
        y2=groups.sum(y * y),
        one=groups.sum(columns["one"]),
        pi=groups.sum(columns["pi"]),
        mu=groups.sum(columns["mu"]),
    )


def _trajectories(steps: Steps, block: Ints, rho: Floats, gamma: float) -> StepMoments:
    """Running products in log space: log ρ_{0:t} = Σ log ρ, with log 0 = -inf."""
    n = steps.n_episodes
    groups = _Whole(n) if not block.any() else group_by([block])
    log_w = np.zeros(n)
    g = np.zeros(n) if steps.start_value is None else steps.start_value
    x, plain, y = g.copy(), np.zeros(n), np.empty(n)
    tables = []
    with np.errstate(over="ignore"):
        for t in range(steps.horizon):
            rows = steps.rows(t)
            alive = rows.stop - rows.start
            with np.errstate(divide="ignore"):
                log_w[:alive] += np.log(rho[rows])
            scale, w = _scaled(groups, log_w)
            y[:alive], y[alive:] = steps.reward[rows], 0.0
            power = gamma**t
            top = float(scale[0])
            if len(scale) == 1 and NO_SCALE < top < LARGEST_EXPONENT:
                x += power * np.exp(top) * (w * y)
            else:  # a reward of 0 earns 0, also under a weight that overflows
                earning = y != 0
                x[earning] += power * np.exp(log_w[earning]) * y[earning]
            plain[:alive] += power * y[:alive]
            tables.append(
                StepSums(
                    block=groups.keys[0],
                    t=np.full(len(groups), t),
                    n=groups.count(),
                    log_scale=scale,
                    w=groups.sum(w),
                    w2=groups.sum(w * w),
                    wy=groups.sum(w * y),
                    wmax=groups.max(w),
                )
            )
        x2 = groups.sum(x * x)
    scale, w = _scaled(groups, log_w)
    episodes = EpisodeSums(
        block=groups.keys[0],
        t=np.zeros(len(groups), np.int64),
        n=groups.count(),
        log_scale=scale,
        x=groups.sum(x),
        x2=x2,
        w=groups.sum(w),
        w2=groups.sum(w * w),
        wg=groups.sum(w * plain),
        wg2=groups.sum((w * plain) ** 2),
        w2g=groups.sum(w * w * plain),
        wmax=groups.max(w),
        g=groups.sum(g),
        g2=groups.sum(g * g),
        ret=groups.sum(plain),
    )
    names = ("block", "t", "n", "log_scale", "w", "w2", "wy", "wmax")
    joined = {name: np.concatenate([getattr(part, name) for part in tables]) for name in names}
    order = np.lexsort((joined["t"], joined["block"]))
    return StepMoments(StepSums(**{name: v[order] for name, v in joined.items()}), episodes)


@dataclass(frozen=True)
class _Whole:
    """All episodes as one group: sums without a look-up (see `moments.groups.Groups`)."""

    size: int
    keys: tuple[Ints] = (np.zeros(1, np.int64),)

    def __len__(self) -> int:
        return 1

    def count(self) -> Ints:
        return np.array([self.size])

    def sum(self, values: Floats) -> Floats:
        return np.array([values.sum()])

    def max(self, values: Floats) -> Floats:
        return np.array([values.max()])

    def index(self) -> Ints:
        return np.zeros(1, np.int64)


def _scaled(groups: Any, log_w: Floats) -> tuple[Floats, Floats]:
    """Per group the largest log-weight, and per episode its weight relative to that."""
    top = groups.max(log_w)
    scale = np.where(np.isfinite(top), top, NO_SCALE)
    with np.errstate(invalid="ignore"):
        return scale, np.exp(log_w - scale[groups.index()])
