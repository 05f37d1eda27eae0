"""Products of ratios, from the rows of a log in memory: sums of running products, and windows.

The kernels (`kernels/products.py`), and below the same in NumPy for few rows, hold a product as
m·2^(256 e); here it becomes what `StepMoments` stores, sums relative to the exponential of a
logarithm.

A window is the last k + 1 steps of an episode as one long step, for estimators with a memory of k.
That of step t leads from (a, s_a) to t + 1, with a = max(t - k, 0) or the last observed state
before it, and has the product of its ratios:

    w = ρ_a ⋯ ρ_t

After the end of an episode ρ = 1 and y = 0. An episode that ended with step τ has windows of the
steps τ + 1, …, τ + k too, which begin before its end and lead to END; a window that begins at END
or later has the product 1, and nothing is to be summed of it. There are as many windows as rows,
and up to k more for each episode that ends early.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.kernels import group_by, pick
from reweigh.log.states import END, HIDDEN
from reweigh.log.steps import Steps
from reweigh.sums.keyed import NO_SCALE, EpisodeSums, StepMoments, StepSums
from reweigh.system.process import require

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NOTHING = -(1 << 40)  # as in kernels/products.py
WHOLE = ("x", "x2", "w", "w2", "wg", "wg2", "w2g", "g", "g2", "ret", "wmax")
LOG_UNIT = 256 * float(np.log(2.0))  # the logarithm of one exponent
WINDOW_BYTES = 160  # of a window while its table is made: keys, numbers, and the order of the keys


def trajectories(steps: Steps, block: Ints, rho: Floats, gamma: float) -> StepMoments:
    """Σw, Σw², Σwy of w = ρ_{0:t} by (block, t), and what whole episodes add up to by block."""
    horizon = steps.horizon
    groups = group_by([block])
    index, blocks = groups.index(), len(groups)
    with np.errstate(over="ignore", invalid="ignore"):
        g, m, e, x, plain, top, sums = _run(steps, rho, gamma, index, blocks)
        scale, by = _to_largest(top.reshape(-1), sums[3].reshape(-1))
        w, w2, wy, wmax = sums.reshape(4, -1) * np.stack([by, by * by, by, by])
        episodes = _episodes(groups.keys[0], index, m, e, x, plain, g)
    return StepMoments(
        StepSums(
            block=np.repeat(groups.keys[0], horizon),
            t=np.tile(np.arange(horizon), blocks),
            n=np.repeat(groups.count(), horizon),
            log_scale=scale,
            w=w,
            w2=w2,
            wy=wy,
            wmax=wmax,
        ),
        episodes,
    )


def _run(
    steps: Steps, rho: Floats, gamma: float, index: Ints, blocks: int
) -> tuple[Floats, Floats, Ints, Floats, Floats, Ints, Floats]:
    """(n,) g, the products as m·2^(256 e), x and the returns; by (block, t) the sums and their
    exponent."""
    n, horizon = steps.n_episodes, steps.horizon
    g = np.zeros(n) if steps.start_value is None else steps.start_value
    m, e = np.ones(n), np.zeros(n, np.int64)
    x, plain = g.copy(), np.zeros(n)
    top, sums = np.zeros((blocks, horizon), np.int64), np.zeros((4, blocks, horizon))
    run = pick("products.running", steps.n_rows, running)
    run(steps.offsets, rho, steps.reward, gamma, index, m, e, x, plain, top, sums)
    return g, m, e, x, plain, top, sums


def of_episodes(steps: Steps, rho: Floats, gamma: float) -> tuple[Floats, Floats, Floats]:
    """(n,) the logarithm of the whole product, g + Σ_t γ^t ρ_{0:t} y_t, and Σ_t γ^t y_t."""
    everyone = np.zeros(steps.n_episodes, np.int64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        _, m, e, x, plain, _, _ = _run(steps, rho, gamma, everyone, 1)
        return np.log(m) + e * LOG_UNIT, x, plain


def _to_largest(top: Ints, largest: Floats) -> tuple[Floats, Floats]:
    """log_scale, the logarithm of the largest product, and the factor for sums relative to 2^(256
    top); without a largest number nothing is changed."""
    fine = (largest > 0) & (largest < np.inf)
    safe = np.where(fine, largest, 1.0)
    return np.where(fine, top * LOG_UNIT + np.log(safe), NO_SCALE), 1.0 / safe


def _episodes(
    blocks: Ints, index: Ints, m: Floats, e: Ints, x: Floats, plain: Floats, g: Floats
) -> EpisodeSums:
    """By block, with W the whole product and G the return."""
    size = len(blocks)
    top, found = np.full(size, NOTHING), np.zeros((len(WHOLE), size))
    pick("products.episodes", len(m), add_episodes)(index, m, e, x, plain, g, top, found)
    sums = dict(zip(WHOLE, found, strict=True))
    scale, by = _to_largest(top, sums["wmax"])
    for name, power in EpisodeSums.POWER.items():
        sums[name] *= by**power
    return EpisodeSums(blocks, np.zeros(size, np.int64), np.bincount(index), scale, **sums)


def weighted_residuals(
    steps: Steps, rho: Floats, gamma: float, center: Floats, log_mean: Floats
) -> Floats:
    """(n,) per episode Σ_t γ^t ρ_{0:t} (y_t - center_t)/exp(log_mean_t).

    An episode that has ended continues with its last product and y = 0.
    """
    n = steps.n_episodes
    m, e, total = np.ones(n), np.zeros(n, np.int64), np.zeros(n)
    scale, exponent = _steps_scale(gamma, center, log_mean)
    run = pick("products.residuals", steps.n_rows, residuals)
    with np.errstate(over="ignore", invalid="ignore"):
        run(steps.offsets, rho, steps.reward, center, scale, exponent, m, e, total)
    return total


def running_weights(steps: Steps, rho: Floats, gamma: float, log_mean: Floats) -> Floats:
    """(N,) γ^t ρ_{0:t}/exp(log_mean_t) of every row; `log_mean` is (H,), or (1,) for all steps."""
    log_mean = np.broadcast_to(log_mean, steps.horizon)
    log_w, weight = np.zeros(steps.n_episodes), np.empty(steps.n_rows)
    with np.errstate(divide="ignore", over="ignore"):
        log_rho = np.log(rho)
        for t in range(steps.horizon):
            rows = steps.rows(t)
            alive = rows.stop - rows.start
            log_w[:alive] += log_rho[rows]
            weight[rows] = gamma**t * np.exp(log_w[:alive] - log_mean[t])
    return weight


def _steps_scale(gamma: float, center: Floats, log_mean: Floats) -> tuple[Floats, Ints]:
    """(2H+1,) float and exponent of γ^t/exp(log_mean_t), then of the factor of an ended episode's
    product from step t = 0..H on:  -Σ_{t' ≥ t} γ^t' center_t'/exp(log_mean_t')."""
    horizon = len(center)
    scale, exponent = np.zeros(2 * horizon + 1), np.zeros(2 * horizon + 1, np.int64)
    whole = np.rint(log_mean / LOG_UNIT)
    exponent[:horizon] = -whole
    scale[:horizon] = gamma ** np.arange(horizon) / np.exp(log_mean - whole * LOG_UNIT)
    value, at = 0.0, 0
    for t in range(horizon - 1, -1, -1):
        term, own = -float(scale[t] * center[t]), int(exponent[t])
        if term != 0.0:
            larger = own if value == 0.0 else max(at, own)
            value = _shift(value, at - larger) + _shift(term, own - larger)
            at = larger
        scale[horizon + t], exponent[horizon + t] = value, at
    return scale, exponent


def _shift(value: float, e: int) -> float:
    return math.ldexp(value, max(256 * e, -5000))


# ---- in NumPy ------------------------------------------------------------------------------


def shifted(m: Floats, e: Ints) -> Floats:
    """m·2^(256 e)."""
    return np.asarray(np.ldexp(m, np.clip(256 * e, -5000, 5000).astype(np.int32)))


def multiply(rho: Floats, m: Floats, e: Ints) -> None:
    """m·2^(256 e) times ρ, with m kept within [2^-256, 2^256]."""
    large = (m > 1) & (rho > 1)  # half of the exponent beforehand, so that nothing overflows
    m *= np.where(large, rho * 2.0**-256, rho)
    e += large
    by = np.rint(np.frexp(np.where(m < np.inf, m, 1.0))[1] / 256).astype(np.int64)
    m[:] = np.ldexp(m, (-256 * by).astype(np.int32))
    e += by


def running(
    offsets: Ints, rho: Floats, reward: Floats, gamma: float, block: Ints, m: Floats, e: Ints,
    x: Floats, plain: Floats, top: Ints, sums: Floats,
) -> None:  # fmt: skip
    """See `kernels.products.running`."""
    for t in range(len(offsets) - 1):
        rows = slice(int(offsets[t]), int(offsets[t + 1]))
        alive = rows.stop - rows.start
        y = np.zeros(len(m))
        y[:alive] = reward[rows]
        multiply(rho[rows], m[:alive], e[:alive])
        top[:, t] = _largest_exponent(block, m, e, len(top))
        w = shifted(m, e - top[block, t])
        for j, values in enumerate((w, w * w, w * y)):
            sums[j, :, t] = np.bincount(block, values, len(top))
        np.maximum.at(sums[3, :, t], block, w)
        plain += gamma**t * y
        # a reward of 0 earns 0, also under a weight that overflows
        x += gamma**t * np.where(y == 0, 0.0, shifted(m, e) * np.where(y == 0, 1.0, y))


def _largest_exponent(block: Ints, m: Floats, e: Ints, blocks: int) -> Ints:
    """By block, of the products that are not 0."""
    top = np.full(blocks, NOTHING)
    np.maximum.at(top, block, np.where(m != 0, e, NOTHING))
    return top


def add_episodes(
    block: Ints, m: Floats, e: Ints, x: Floats, plain: Floats, g: Floats, top: Ints, sums: Floats
) -> None:
    """See `kernels.products.episodes`."""
    top[:] = _largest_exponent(block, m, e, len(top))
    W = shifted(m, e - top[block])
    WG = W * plain
    columns = (x, x * x, W, W * W, WG, WG * WG, W * WG, g, g * g, plain)
    for j, values in enumerate(columns):
        sums[j] = np.bincount(block, values, len(top))
    np.maximum.at(sums[10], block, W)


def residuals(
    offsets: Ints, rho: Floats, reward: Floats, center: Floats, scale: Floats, exponent: Ints,
    m: Floats, e: Ints, total: Floats,
) -> None:  # fmt: skip
    """See `kernels.products.residuals`."""
    horizon = len(offsets) - 1
    alive = [*np.diff(offsets).tolist(), 0]
    for t in range(horizon):
        here = slice(0, alive[t])
        multiply(rho[offsets[t] : offsets[t + 1]], m[here], e[here])
        y = reward[offsets[t] : offsets[t + 1]]
        total[here] += scale[t] * shifted(m[here], e[here] + exponent[t]) * (y - center[t])
        over, after = slice(alive[t + 1], alive[t]), horizon + t + 1
        if scale[after] != 0.0:
            total[over] += scale[after] * shifted(m[over], e[over] + exponent[after])


@dataclass(frozen=True, eq=False)
class Windows:
    """L windows: their episode and first step, the row of that step, the step that they lead to,
    the row of the last step that there is, and whether it is the window's own last step."""

    episode: Ints
    begin: Ints
    first_row: Ints
    t_next: Ints
    last_row: Ints
    is_last: npt.NDArray[np.bool_]
    ratio: Floats


def windows_of(steps: Steps, rho: Floats, memory: int) -> Windows:
    """All windows of a log, the first N of them those of its rows."""
    ended = np.flatnonzero(steps.ending == END)
    length = steps.lengths
    further = np.minimum(memory, steps.horizon - length[ended])
    count = steps.n_rows + int(further.sum())
    require(
        count * WINDOW_BYTES,
        f"the windows of a memory of {memory:,} steps ({count:,} of them)",
        "give a smaller memory or a shorter horizon, or use mis()",
    )
    after = np.repeat(ended, further)
    offset = np.arange(len(after)) - np.repeat(np.cumsum(further) - further, further)
    episode = np.concatenate([steps.episode_index, after])
    step = np.concatenate([steps.step, length[after] + offset])
    last = np.minimum(step, length[episode] - 1)
    begin = np.maximum(step - memory, 0)
    begin = _last_observed(steps)[steps.offsets[begin] + episode]
    return Windows(
        episode=episode,
        begin=begin,
        first_row=steps.offsets[begin] + episode,
        t_next=step + 1,
        last_row=steps.offsets[last] + episode,
        is_last=step == last,
        ratio=_products(steps, rho, episode, begin, last),
    )


def _last_observed(steps: Steps) -> Ints:
    """(N,) the step of the last observed state up to each row; that of step 0 counts as one."""
    step = np.array(steps.step)
    for t in range(1, steps.horizon):
        rows, before = steps.rows(t), steps.rows(t - 1).start
        hidden = np.flatnonzero(steps.state[rows] == HIDDEN)
        step[rows.start + hidden] = step[before + hidden]
    return step


def _products(steps: Steps, rho: Floats, episode: Ints, begin: Ints, last: Ints) -> Floats:
    """(L,) ρ_begin ⋯ ρ_last; those from step 0 on are running products."""
    product = np.empty(len(episode))
    whole = np.flatnonzero(begin == 0)
    product[whole] = _running(steps, rho)[steps.offsets[last[whole]] + episode[whole]]
    some = np.flatnonzero(begin > 0)
    product[some] = rho[steps.offsets[last[some]] + episode[some]]
    back = 1
    while len(some := some[last[some] - back >= begin[some]]):
        step = last[some] - back
        product[some] = _times(product[some], rho[steps.offsets[step] + episode[some]])
        back += 1
    return product


def _running(steps: Steps, rho: Floats) -> Floats:
    """(N,) ρ_{0:t}"""
    product = np.array(rho)
    for t in range(1, steps.horizon):
        rows, before = steps.rows(t), steps.rows(t - 1).start
        product[rows] = _times(product[before : before + rows.stop - rows.start], product[rows])
    return product


def _times(a: Floats, b: Floats) -> Floats:
    """a b, and 0 where one of them is 0: what cannot happen counts 0, however large the rest."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where((a == 0) | (b == 0), 0.0, a * b)
