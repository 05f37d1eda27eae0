"""Values of all memories of a small log, straight from its rows, and how far an estimate is from
them: is the state enough, or does the estimate move when it remembers more?

The definition of `memory.py`, row by row, for logs in which every state is observed and no episode
was cut off; one that has ended stays in END with ρ = 1 and r = 0:

    w_t = m_a(s_a) ρ_a ⋯ ρ_t,  a = max(t - k, 0)        v̂ = Σ_t γ^t Σ w_t r_t / Σ w_t
    m_{t+1}(s) = (mean of w_t over the episodes that are in s next) / (mean of w_t)

The products grow from memory to memory, and there are no cells, so that a verdict can afford it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reweigh.estimate.estimator import Recipe
from reweigh.estimate.standard_error import same
from reweigh.kernels import MIX, SPREAD, Floats, Ints, inner, tally
from reweigh.log.steps import Steps, folded, fraction, numbers_of

# The verdict compares memories whose products leave so many effective episodes at every step, and
# takes two for the same if chance makes such a difference more often than in ALIKE of the logs.
# Student's t allows for the few episodes, so a test can use memories that are too noisy for an
# estimate: `memory="auto"` has its own limits (evaluation/memories.py).
LEAST_SIZE, ALIKE = 20.0, 0.01
FIRST, GROWTH = (0, 1, 2, 3, 5, 7), 1.5
MOST_ROWS = 50_000  # of a sample for a verdict, an episode being counted with all its steps


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

    state   (H, m) codes, that of END being `end`
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
    def of(cls, steps: Steps, rho: Floats, end: int, which: Ints) -> PaddedEpisodes:
        """Of the episodes `which`, increasing numbers."""
        shape = (steps.horizon, len(which))
        state, ratio, reward = np.full(shape, end), np.ones(shape), np.zeros(shape)
        for t in range(steps.horizon):
            rows = steps.rows(t)
            going = int(np.searchsorted(which, rows.stop - rows.start))
            at = rows.start + which[:going]
            state[t, :going], ratio[t, :going] = steps.state[at], rho[at]
            reward[t, :going] = steps.reward[at]
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
    count = np.stack([tally(s, np.ones(len(s)), x.end + 1) for s in x.state])
    products, power = ratio.copy(), 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for k in memories:
            for lag in range(power + 1, k + 1):
                products[lag:] *= ratio[:-lag]
            power = k
            size = float(np.min(products.sum(axis=1) ** 2 / (products**2).sum(axis=1)))
            value, psi = math.nan, np.empty(0)
            if size >= LEAST_SIZE:
                value, psi = _with_influence(x, products, count, k, discount)
            found = Remembered(k, value if np.isfinite(psi).all() else math.nan, psi, size)
            yield found
            if not found.borne:
                return


def _with_influence(
    x: PaddedEpisodes, products: Floats, count: Floats, k: int, discount: float
) -> tuple[float, Floats]:
    """v̂ and ψ = n ∂v̂/∂ω, from the adjoint U_t(s) = ∂v̂/∂m_t(s)."""
    horizon, n = x.state.shape
    m, total, earned = np.ones(count.shape), np.empty(horizon), np.empty(horizon)
    weight = np.empty(products.shape)
    for t in range(horizon):
        a = max(t - k, 0)
        weight[t] = m[a][x.state[a]] * products[t]
        total[t], earned[t] = weight[t].sum(), inner(weight[t], x.reward[t])
        if t + 1 < horizon:
            arriving = tally(x.state[t + 1], weight[t], x.end + 1)
            m[t + 1] = np.where(count[t + 1] > 0, arriving / count[t + 1] * n / total[t], 0.0)
    value = discount ** np.arange(horizon) * earned / total
    u, psi = np.zeros(count.shape), np.zeros(n)
    for t in range(horizon - 1, -1, -1):
        a = max(t - k, 0)
        slope = (discount**t * x.reward[t] - value[t]) / total[t]  # ∂v̂/∂w_t
        if t + 1 < horizon:
            after, seen = x.state[t + 1], count[t + 1] > 0
            per_episode = np.where(seen, u[t + 1] / count[t + 1], 0.0)
            along = inner(u[t + 1], m[t + 1])
            slope += (n * per_episode)[after] / total[t] - along / total[t]
            psi += along / n - (per_episode * m[t + 1])[after]
        psi += weight[t] * slope
        u[a] += tally(x.state[a], slope * products[t], x.end + 1)
    return float(value.sum()), n * psi


# ---- how far an estimate is from them ----------------------------------------------------------


@dataclass(frozen=True)
class Distance:
    """Between the estimates with two memories: the values, by how many errors of the difference
    they are apart, and on how many effective episodes the longer one rests."""

    memory: int
    value: float
    apart: float
    size: float
    shorter: float

    @property
    def p(self) -> float:
        """How often chance moves them this far apart: Student's t with the effective episodes less
        1."""
        from scipy.special import stdtr

        return 2 * float(stdtr(self.size - 1, -self.apart))


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
    agreeing = len(longer) - 1
    while agreeing > 0:
        shorter = longer[agreeing - 1]
        apart = _distances(shorter.value, shorter.psi, longer[agreeing:])
        if any(each.p <= ALIKE for each in apart):
            break
        agreeing -= 1
    last = by_memory[-1]
    unborne = None if last.borne else (last.memory, last.size)
    memory = longer[agreeing].memory if longer else own
    return Comparison(found, of_state, memory, x.share, unborne)


def _distances(value: float, psi: Floats, longer: Sequence[Remembered]) -> tuple[Distance, ...]:
    return tuple(
        Distance(
            each.memory, each.value, _apart(value, each.value, psi - each.psi), each.size, value
        )
        for each in longer
    )


def _apart(a: float, b: float, psi: Floats) -> float:
    """|a - b| in errors, SE² = Σ(ψ - mean)²/(n (n - 1)); 0 where only rounding is left."""
    if same(a, b):
        return 0.0
    error = math.sqrt(float(np.var(psi)) / (len(psi) - 1))
    return abs(a - b) / error if error > 0 else math.inf
