"""Values of all memories of a small log, straight from its rows, and how far an estimate is from
them: is the state enough, or does the estimate move when it remembers more?

The definition of `memory.py`, row by row, for logs in which no episode was cut off; one that has
ended stays in END with ρ = 1 and r = 0:

    w_t = m_a(s_a) ρ_a ⋯ ρ_t,  a = max(t - k, 0), or the last observed state before it
    m_{t+1}(s) = mean of w_t over the episodes that are in s next, divided by the mean of w_t over
                 all if each of them is observed            v̂ = Σ_t γ^t Σ w_t r_t / Σ w_t

The products grow from memory to memory, and there are no cells, so that a verdict can afford it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from reweigh.estimate.estimator import Recipe
from reweigh.estimate.standard_error import p_of_difference, same
from reweigh.kernels import MIX, SPREAD, Floats, Ints, group_by, inner, pick, tally
from reweigh.log.steps import Steps, folded, fraction, numbers_of

# A log bears a memory whose products leave so many effective episodes at every step, as do those of
# all shorter ones: longer products leave fewer, unless the log has lost the largest of them. With
# fewer, Markov logs of heavy weights look as if they were not Markov (docs/decisions.md).
LEAST_SIZE = 30.0
# For the verdict, two memories agree if chance makes such a difference more often than this.
# `memory="auto"` has its own limit (evaluation/memories.py).
ALIKE = 0.01
FIRST, GROWTH = (0, 1, 2, 3, 5, 7), 1.5
MOST_ROWS = 50_000  # of a sample for a verdict, an episode being counted with all its steps
SMALLEST, LARGEST = 1e-100, 1e100  # differences of influence values whose cubes a number holds


def memories(horizon: int) -> tuple[int, ...]:
    """The candidates: 0, 1, 2, 3, 5, 7, 11, 17, … and the whole episode, H - 1."""
    found, k = [k for k in FIRST if k < horizon - 1], FIRST[-1]
    while (k := math.ceil(GROWTH * k)) < horizon - 1:
        found.append(k)
    return (*found, horizon - 1)


# ---- the episodes ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PaddedEpisodes:
    """m episodes, each with H steps: after its end it is in END, with the ratio 1 and the reward 0.

    state   (H, m) codes, negative where hidden; `end` is that of END, end + 1 of a hidden start
    ratio, reward   (H, m), the ratios not clipped
    psi     (m,) influence values of the estimates of these episodes, by estimator
    share   of the log's episodes that these are, sampled by the hash of their ids
    """

    state: Ints
    ratio: Floats
    reward: Floats
    end: int
    psi: dict[object, Floats]
    share: float = 1.0

    @classmethod
    def of(cls, steps: Steps, pi: Floats, end: int, which: Ints) -> PaddedEpisodes:
        """Of the episodes `which`, increasing numbers; `pi` (N,) of the rows of all."""
        shape = (steps.horizon, len(which))
        state, ratio, reward = np.full(shape, end), np.ones(shape), np.zeros(shape)
        of_state, of_reward, mu = steps.state, steps.reward, steps.behavior_prob
        assert mu is not None
        for t, many in enumerate(np.searchsorted(which, np.diff(steps.offsets)).tolist()):
            at = steps.offsets[t] + which[:many]
            state[t, :many], ratio[t, :many] = of_state[at], pi[at] / mu[at]
            reward[t, :many] = of_reward[at]
        state[0][state[0] < 0] = end + 1
        return cls(state, ratio, reward, end, {})

    @classmethod
    def together(cls, parts: Sequence[PaddedEpisodes], share: float) -> PaddedEpisodes:
        first = parts[0]
        across = {
            name: np.concatenate([getattr(part, name) for part in parts], axis=1)
            for name in ("state", "ratio", "reward")
        }
        psi = {name: np.concatenate([part.psi[name] for part in parts]) for name in first.psi}
        return cls(**across, end=first.end, psi=psi, share=share)


def sampled(steps: Steps, share: float) -> Ints:
    """The numbers of this share of the episodes, by a hash of their ids: the same on every engine,
    in whatever parts the log is read."""
    if share >= 1:
        return np.arange(steps.n_episodes)
    d = fraction((folded(numbers_of(steps.episode)) + 1.0) * 2.0 * SPREAD)
    return np.flatnonzero(fraction(d * d * MIX) < share)


def share_of(episodes: int, horizon: int) -> float:
    """The share of the episodes that a verdict samples."""
    return 1 / max(math.ceil(episodes * horizon / MOST_ROWS), 1)


# ---- the values --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Places:
    """The (t, s) in which episodes are observed, V of them, numbered by their step.

    place   (H, m) of the state of each step, -1 where it is hidden
    begin   (H, m) the last observed one up to each step, at which windows begin
    since   (H, m) the product of the ratios from there to the step before; 1 where it is observed
    count   (V,) episodes;  bounds (H+1,) the first place of each step
    """

    place: Ints
    begin: Ints
    since: Floats
    count: Floats
    bounds: Ints

    @classmethod
    def of(cls, x: PaddedEpisodes, ratio: Floats) -> Places:
        own, since, seen = np.full(x.state.shape, -1), np.ones(ratio.shape), x.state >= 0
        groups = group_by([np.nonzero(seen)[0], x.state[seen]])
        own[seen] = groups.index()
        begin = own.copy()
        for t in np.flatnonzero(~seen.all(axis=1)).tolist():
            begin[t] = np.where(seen[t], own[t], begin[t - 1])
            since[t] = np.where(seen[t], 1.0, since[t - 1] * ratio[t - 1])
        bounds = np.searchsorted(groups.keys[0], np.arange(len(own) + 1))
        return cls(own, begin, since, groups.count().astype(float), bounds)


@dataclass(frozen=True, eq=False)
class Remembered:
    """With a memory of k steps: the value, (m,) influence values, and the least effective number of
    episodes that the products leave. `borne`: whether the log bears it; else the value is nan."""

    memory: int
    value: float
    psi: Floats
    size: float

    @property
    def borne(self) -> bool:
        return math.isfinite(self.value)


def remembered(
    x: PaddedEpisodes, memories: Iterable[int], discount: float, max_ratio: float | None
) -> Iterator[Remembered]:
    """Memory by memory, in increasing order, up to the first that the log does not bear."""
    ratio = x.ratio if max_ratio is None else np.minimum(x.ratio, max_ratio)
    places = Places.of(x, ratio)
    value_of = pick("memories.remember", round(x.state.size / x.share), with_influence)
    last, power = ratio.copy(), 0  # the ratios of the last k + 1 steps
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for k in memories:
            for lag in range(power + 1, k + 1):
                last[lag:] *= ratio[:-lag]
            power = k
            products = last.copy()
            products[k:] *= places.since[: len(last) - k]
            size = float(np.min(products.sum(axis=1) ** 2 / (products**2).sum(axis=1)))
            value, psi = math.nan, np.empty(0)
            if size >= LEAST_SIZE:
                of = places.place, places.begin, places.bounds, places.count
                value, psi = value_of(*of, products, x.reward, k, discount)
            found = Remembered(k, value if np.isfinite(psi).all() else math.nan, psi, size)
            yield found
            if not found.borne:
                return


def with_influence(
    own: Ints, begins: Ints, bounds: Ints, count: Floats, products: Floats, reward: Floats, k: int,
    discount: float,
) -> tuple[float, Floats]:  # fmt: skip
    """v̂ and ψ = n ∂v̂/∂ω, from the adjoint U_t(s) = ∂v̂/∂m_t(s). The places are those of `Places`;
    compiled for large logs (kernels/memories.py)."""
    horizon, n = own.shape
    at = [slice(int(a), int(b)) for a, b in pairwise(bounds)]
    m, total, earned = np.ones(len(count)), np.empty(horizon), np.empty(horizon)
    weight, scale = np.empty(products.shape), np.ones(horizon)
    complete = np.min(own, axis=1) >= 0
    for t in range(horizon):
        weight[t] = m[begins[max(t - k, 0)]] * products[t]
        total[t], earned[t] = weight[t].sum(), inner(weight[t], reward[t])
        if t + 1 < horizon:
            after, seen = at[t + 1], own[t + 1] >= 0
            if complete[t + 1]:
                scale[t] = n / total[t]
            index, width = own[t + 1][seen] - after.start, after.stop - after.start
            m[after] = tally(index, weight[t][seen], width) / count[after] * scale[t]
    value = discount ** np.arange(horizon) * earned / total
    u, psi = np.zeros(len(count)), np.zeros(n)
    for t in range(horizon - 1, -1, -1):
        slope = (discount**t * reward[t] - value[t]) / total[t]  # ∂v̂/∂w_t
        if t + 1 < horizon:
            after, seen = at[t + 1], own[t + 1] >= 0
            index, per_episode = own[t + 1][seen] - after.start, u[after] / count[after]
            slope[seen] += (scale[t] * per_episode)[index]
            psi[seen] -= (per_episode * m[after])[index]
            if complete[t + 1]:
                along = inner(u[after], m[after])
                slope -= along / total[t]
                psi += along / n
        psi += weight[t] * slope
        begin = begins[max(t - k, 0)]
        first, behind = int(begin.min()), int(begin.max()) + 1
        u[first:behind] += tally(begin - first, slope * products[t], behind - first)
    return float(value.sum()), n * psi


# ---- how far an estimate is from them ----------------------------------------------------------


@dataclass(frozen=True)
class Distance:
    """Of an estimate from that with a longer memory: the values, the errors of the difference that
    they are apart (the sign is that of estimate - longer), the skewness of its influence values,
    and how many effective episodes the longer one rests on."""

    memory: int
    value: float
    shorter: float
    apart: float
    skewness: float
    size: float

    @property
    def p(self) -> float:
        """Student's t with the effective episodes less 1, corrected for skewness: where heavy
        products are missing, the estimate is off and its error is small."""
        return p_of_difference(self.apart, self.skewness, self.size - 1)


@dataclass(frozen=True)
class Comparison:
    """An estimate beside those that remember more.

    longer   of the estimate, by memory, those that the log bears; none: the log bears none
    of_state the same of `mis-hajek`, if the estimate trusts the state and is not itself one of
             those with a memory
    agreeing the shortest of them that agrees with all longer ones
    share    of the episodes that were used
    unborne  the first that the log does not bear, and the effective episodes that it leaves
    """

    longer: tuple[Distance, ...]
    of_state: tuple[Distance, ...]
    agreeing: int
    share: float
    unborne: tuple[int, float] | None = None


def comparison(
    x: PaddedEpisodes, recipe: Recipe, value: float, by_memory: Sequence[Remembered]
) -> Comparison:
    """Of the estimate of this value. On a sample of the episodes the estimate is, to first order,
    the value and the mean of their influence values."""
    psi, own = x.psi[recipe], recipe.weights.remembers
    borne = [each for each in by_memory if each.borne]
    longer = [each for each in borne if each.memory > own]
    found = _distances(value + float(psi.mean()), psi, longer)
    of_state: tuple[Distance, ...] = ()
    by_windows = any(table.rows == "window" for table in recipe.weights.tables)
    if not own and not by_windows and borne:
        of_state = _distances(borne[0].value, borne[0].psi, longer)
    agreeing = own
    for place, each in enumerate(longer, 1):
        agreeing, apart = each.memory, _distances(each.value, each.psi, longer[place:])
        if all(other.p > ALIKE for other in apart):
            break
    last = by_memory[-1]
    unborne = None if last.borne else (last.memory, last.size)
    return Comparison(found, of_state, agreeing, x.share, unborne)


def _distances(value: float, psi: Floats, longer: Sequence[Remembered]) -> tuple[Distance, ...]:
    """SE² = Σ(ψ - mean)²/(n (n - 1)) with ψ the difference of the influence values; nan where no
    number holds their squares and cubes."""
    found, n = [], len(psi)
    away = psi - np.reshape([each.psi for each in longer], (len(longer), n))
    away -= away.mean(axis=1, keepdims=True)
    squared, furthest = away**2, np.abs(away).max(axis=1, initial=0.0).tolist()
    squares, cubes = squared.sum(axis=1).tolist(), (squared * away).sum(axis=1).tolist()
    for each, far, square, cube in zip(longer, furthest, squares, cubes, strict=True):
        apart, skewness = value - each.value, 0.0
        if far > 0 and not SMALLEST < far < LARGEST:
            apart = math.nan
        elif same(value, each.value):
            apart = 0.0
        elif square > 0:
            apart *= math.sqrt(n * (n - 1) / square)
            skewness = cube / square**1.5
        else:
            apart = math.copysign(math.inf, apart)
        found.append(Distance(each.memory, each.value, value, apart, skewness, each.size))
    return tuple(found)
