"""Sums of running products while a log streams, episode by episode.

A product is held as m·2^(256 e), as in `kernels/products.py`; so is each sum, relative to
2^(256 top), where top is the largest exponent that was added to it. An episode that has ended goes
on with its last product: it is added once, to `frozen` at its length, and `spread` carries it to
all later steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.common import compiled
from reweigh.kernels.products import DOWN, NOTHING, UP, shifted
from reweigh.sums.products import _to_largest
from reweigh.sums.trajectories import EpisodeSums, StepMoments, StepSums, Table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Word = np.uint64
BY_32 = Word(32)
STEP = ("w", "w2", "wy", "wmax")
EPISODE = ("w", "w2", "wg", "wg2", "w2g", "wmax")
PLAIN = ("x", "x2", "ret")
STEP_POWER = tuple(StepSums.POWER[name] for name in STEP)
EPISODE_POWER = tuple(EpisodeSums.POWER[name] for name in EPISODE)
FOLD = 1 << 15  # episodes' rows per sum after which sums are put aside: small numbers still count


@compiled
def lift(sums: Any, top: Any, i: Any, e: Any, power: Any) -> None:
    """Make the sums of row i relative to 2^(256 e), where e is larger."""
    by = shifted(1.0, top[i] - e)
    for j in range(sums.shape[1]):
        sums[i, j] *= by if power[j] == 1 else by * by
    top[i] = e


@compiled
def weight(sums: Any, top: Any, i: Any, m: Any, e: Any, power: Any) -> Any:
    """m·2^(256 e) relative to row i, which is lifted if need be."""
    if e == top[i]:
        return m
    if m != 0.0 and e > top[i]:
        lift(sums, top, i, e, power)
        return m
    return shifted(m, e - top[i])


@compiled
def ratios(t: Any, mu: Any, pi: Any, table: Any, places: Any, max_ratio: float, rho: Any) -> None:
    """ρ_t = π(a|s) / μ of some rows; without a meaning from the horizon on.

    π is found in a loop of its own: one that only divides does several rows at a time.
    table   π by (step or 0, s·A + a); empty if the rows hold π (see stream_kernels.follow)
    """
    n, steps = len(mu), table.shape[0]
    if len(pi) > 0:
        rho[:n] = pi
    elif steps > 1:
        for k in range(n):
            rho[k] = table[Word(t[k] if t[k] < steps else 0), places[k] >> BY_32]
    else:
        first = table[0]
        for k in range(n):
            rho[k] = first[places[k] >> BY_32]
    for k in range(n):
        ratio = rho[k] / mu[k]
        rho[k] = max_ratio if ratio > max_ratio else ratio


@compiled
def weigh(
    t: Any, y: Any, rho: Any, slots: Any, products: Any, over: Any, found: int, closed: Any,
    number: Any,
) -> None:  # fmt: skip
    """Multiply the ratios of some rows (of none: the log is over), and add up the products.

    products  sums (block·H + t, 4) Σw, Σw², Σwy, max w with their tops; the same of ended episodes
              by length; by block Σ of EPISODE with tops, and of PLAIN; γ^t
    over      block and length of the episodes that are over, in the order in which they end
    closed    see stream_episodes.Ends
    number    m, e, Σγ^t ρ_{0:t} y_t, Σγ^t y_t of the episode that goes on, and whether there is one
    slots     see stream_kernels.trace
    """
    sums, top, frozen, frozen_top, whole, whole_top, plain, power = products
    m, x, g, open_ = number[0], number[2], number[3], number[4] > 0.0
    e: Any = np.int64(number[1])
    done, ends = 0, np.empty((found, 4))
    for k in range(len(t)):
        if t[k] == 0:
            if open_:
                ends[done, 0], ends[done, 1], ends[done, 2], ends[done, 3] = m, e, x, g
                done += 1
            m, e, x, g, open_ = 1.0, 0, 0.0, 0.0, True
        if slots[k] < 0:
            continue
        i, step, yk = Word(slots[k]), Word(t[k]), y[k]
        # ρ_{0:t} = ρ_{0:t-1} ρ_t, with m within [2^-256, 2^256]
        m *= rho[k]
        while m > UP and m < np.inf:
            m *= DOWN
            e += 1
        while m < DOWN and m > 0.0:
            m *= UP
            e -= 1
        w = m
        if e != top[i]:
            if m != 0.0 and e > top[i]:
                lift(sums, top, i, e, STEP_POWER)
            else:
                w = shifted(m, e - top[i])
        sums[i, 0] += w
        sums[i, 1] += w * w
        sums[i, 2] += w * yk
        sums[i, 3] = max(sums[i, 3], w)
        g += power[step] * yk
        if yk != 0.0:  # a reward of 0 earns 0, also under a weight that overflows
            x += power[step] * (m if e == 0 else shifted(m, e)) * yk
    if len(t) == 0 and open_:
        ends[done, 0], ends[done, 1], ends[done, 2], ends[done, 3] = m, e, x, g
        done += 1
        open_ = False
    number[0], number[1], number[2], number[3], number[4] = m, e, x, g, open_
    close(ends, over, len(power), frozen, frozen_top, whole, whole_top, plain)
    if len(closed[0]) > 0:
        for k in range(done):
            note(closed, ends[k, 0], ends[k, 1], ends[k, 3])


@compiled
def note(closed: Any, m: Any, e: Any, g: Any) -> None:
    """That an episode is over (see stream_episodes.Ends)."""
    found, count, _ = closed
    i = count[0]
    found[i, 0], found[i, 1], found[i, 2] = m, e, g
    count[0] = i + 1


@compiled
def multiply(t: Any, y: Any, rho: Any, closed: Any, number: Any) -> None:
    """The whole products and returns alone, as `weigh` has them."""
    m, g, open_, power = number[0], number[3], number[4] > 0.0, closed[2]
    e: Any = np.int64(number[1])
    k, n, horizon = Word(0), Word(len(t)), Word(len(power))
    while k < n:
        step = Word(t[k])
        if step == Word(0):
            if open_:
                note(closed, m, e, g)
            m, e, g, open_ = 1.0, 0, 0.0, True
        if step < horizon:
            m *= rho[k]
            if not (DOWN <= m <= UP):
                while m > UP and m < np.inf:
                    m *= DOWN
                    e += 1
                while m < DOWN and m > 0.0:
                    m *= UP
                    e -= 1
            g += power[step] * y[k]
        k += Word(1)
    if n == Word(0) and open_:
        note(closed, m, e, g)
        open_ = False
    number[0], number[1], number[3], number[4] = m, e, g, open_


@compiled
def close(
    ends: Any, over: Any, horizon: int, frozen: Any, frozen_top: Any, whole: Any, whole_top: Any,
    plain: Any,
) -> None:  # fmt: skip
    """Add episodes that are over."""
    for k in range(len(ends)):
        m, e, x, g = ends[k, 0], int(ends[k, 1]), ends[k, 2], ends[k, 3]
        block, length = over[k, 0], over[k, 1]
        w = weight(whole, whole_top, block, m, e, EPISODE_POWER)
        whole[block, 0] += w
        whole[block, 1] += w * w
        whole[block, 2] += w * g
        whole[block, 3] += (w * g) ** 2
        whole[block, 4] += w * w * g
        whole[block, 5] = max(whole[block, 5], w)
        plain[block, 0] += x
        plain[block, 1] += x * x
        plain[block, 2] += g
        if length < horizon:
            i = block * horizon + length
            w = weight(frozen, frozen_top, i, m, e, STEP_POWER)
            frozen[i, 0] += w
            frozen[i, 1] += w * w
            frozen[i, 3] = max(frozen[i, 3], w)


@compiled
def merge(sums: Any, top: Any, i: int, other: Any, other_top: Any, j: int) -> None:
    """Add row j of the one to row i of the other."""
    if other_top[j] == NOTHING:
        return
    if other_top[j] > top[i]:
        lift(sums, top, i, other_top[j], STEP_POWER)
    by = shifted(1.0, other_top[j] - top[i])
    sums[i, 0] += by * other[j, 0]
    sums[i, 1] += by * by * other[j, 1]
    sums[i, 2] += by * other[j, 2]
    sums[i, 3] = max(sums[i, 3], by * other[j, 3])


@compiled
def spread(sums: Any, top: Any, frozen: Any, frozen_top: Any, horizon: int) -> None:
    """Add to every step the episodes that ended before."""
    for i in range(len(sums)):
        if i % horizon > 0:
            merge(frozen, frozen_top, i, frozen, frozen_top, i - 1)
        merge(sums, top, i, frozen, frozen_top, i)


class Products:
    """The sums of all episodes so far; with 0 blocks, none."""

    def __init__(self, blocks: int, horizon: int, gamma: float) -> None:
        self.blocks, self.horizon = blocks, horizon
        self.power = np.array([gamma**t for t in range(horizon if blocks else 0)])
        self.aside: StepMoments | None = None
        self._clear()

    def _clear(self) -> None:
        slots = self.blocks * self.horizon
        self.sums, self.frozen = np.zeros((slots, len(STEP))), np.zeros((slots, len(STEP)))
        self.top, self.frozen_top = np.full(slots, NOTHING), np.full(slots, NOTHING)
        self.whole = np.zeros((self.blocks, len(EPISODE)))
        self.whole_top = np.full(self.blocks, NOTHING)
        self.plain = np.zeros((self.blocks, len(PLAIN)))
        self.arrays = (self.sums, self.top, self.frozen, self.frozen_top, self.whole,
                       self.whole_top, self.plain, self.power)  # as `weigh` takes them  # fmt: skip
        self.rows = 0

    def count(self, rows: int) -> None:
        """Put the sums aside now and then: a long sum loses the digits of what is added to it."""
        self.rows += rows
        if self.rows >= FOLD * len(self.sums) > 0:
            self.aside = self._total()
            self._clear()

    def _total(self) -> StepMoments:
        """All sums; the numbers of episodes are left open."""
        spread(self.sums, self.top, self.frozen, self.frozen_top, self.horizon)
        block, t = np.divmod(np.arange(len(self.sums)), self.horizon)
        with np.errstate(over="ignore", invalid="ignore"):
            steps = _relative(self.sums, self.top, STEP, STEP_POWER)
            whole = _relative(self.whole, self.whole_top, EPISODE, EPISODE_POWER)
        plain = {name: self.plain[:, j] for j, name in enumerate(PLAIN)}
        zeros = np.zeros(self.blocks)
        made = StepMoments(
            StepSums(block=block, t=t, n=np.zeros(len(t), np.int64), **steps),
            EpisodeSums(
                block=np.arange(self.blocks),
                t=np.zeros(self.blocks, np.int64),
                n=np.zeros(self.blocks, np.int64),
                g=zeros,
                g2=zeros.copy(),
                **whole,
                **plain,
            ),
        )
        return made if self.aside is None else self.aside + made

    def moments(self, episodes: Ints) -> StepMoments | None:
        """The sums, given how many episodes each block has; None if one is no finite number."""
        total = self._total()
        made = StepMoments(_counted(total.steps, episodes), _counted(total.episodes, episodes))
        for table in (made.steps, made.episodes):
            if not all(np.all(np.isfinite(getattr(table, name))) for name in table.POWER):
                return None
        return made


def _counted(table: Table, episodes: Ints) -> Table:
    """The blocks that hold episodes, and how many."""
    kept = table.where(episodes[table.block] > 0)
    return replace(kept, n=episodes[kept.block])


def _relative(sums: Floats, top: Ints, names: tuple[str, ...], power: Any) -> dict[str, Floats]:
    """The columns, relative to the exponential of `log_scale`, that of the largest product."""
    scale, by = _to_largest(top, sums[:, -1])
    columns = {name: sums[:, j] * by ** power[j] for j, name in enumerate(names)}
    return {"log_scale": scale, **columns}
