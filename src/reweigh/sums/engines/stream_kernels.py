"""The fast path's inner loops: rows of whole numbers into dense cells and running products.

`follow` goes through a batch once, episode by episode. It checks the rows, adds them to dense cells
(`stream_cells.py`) and to those by what came before (`stream_history.py`), and multiplies the
ratios of an episode (`stream_products.py`).

A row's record says where it led, so the last row of a batch waits in `Carry` for the next batch.
What is out of the ordinary (a fault, a null, an unknown state) only stops the loop: the general
path then does the whole log, and finds the words for it.

Places in arrays are unsigned numbers throughout: Numba would look at each signed one for whether it
counts from the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels.common import compiled, inlined
from reweigh.log.rules import LARGEST_REWARD, LEAST_PROBABILITY
from reweigh.log.steps import FOLD, LARGE, MARKS, MIX, SPREAD, Identity
from reweigh.sums.engines.stream_cells import AFTER_END, AFTER_STATES, AFTER_UNKNOWN, add
from reweigh.sums.engines.stream_episodes import pace
from reweigh.sums.engines.stream_history import add_before
from reweigh.sums.engines.stream_products import multiply, ratios, weigh

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Word = np.uint64

BY_32, LOW = Word(32), Word(0xFFFFFFFF)
U0, U1, U2 = Word(0), Word(1), Word(2)
PIECE = 4096  # rows that are looked at together
NOWHERE, FAULT = -1, -1


# What is checked of some rows: each in a loop over columns and without a way out of it, which
# processors do several rows at a time. Which row it was, the general path finds out.


@compiled
def below(codes: Any, limit: Any) -> bool:
    """Whether all codes are in 0..limit-1."""
    bad = False
    for i in range(len(codes)):
        bad |= bool(Word(codes[i]) >= Word(limit))  # as unsigned numbers, those below 0 are large
    return not bad


@compiled
def proper(y: Any, mu: Any, most: float) -> bool:
    """Whether |y| ≤ most, and 0 < μ ≤ 1 as in the contract; written so that NaN fails."""
    bad = False
    for i in range(len(mu)):
        bad |= not ((mu[i] >= LEAST_PROBABILITY) & (mu[i] <= 1.0) & (abs(y[i]) <= most))
    return not bad


@compiled
def shares(pi: Any) -> bool:
    """Whether 0 ≤ π ≤ 1."""
    bad = False
    for i in range(len(pi)):
        bad |= not ((pi[i] >= 0.0) & (pi[i] <= 1.0))
    return not bad


@compiled
def linked(ep: Any, t: Any) -> bool:
    """Whether every row but the first takes the next step of an episode, or begins one."""
    bad = False
    for i in range(len(ep) - 1):
        same = ep[i + 1] == ep[i]
        bad |= not ((same & (t[i + 1] == t[i] + 1)) | ((not same) & (t[i + 1] == 0)))
    return not bad


@compiled
def last_rows(flags: Any, t: Any) -> bool:
    """Whether an episode begins after every row that has the flag."""
    bad = False
    for i in range(len(flags) - 1):
        bad |= flags[i] & (t[i + 1] != 0)
    return not bad


@compiled
def leads(nxt: Any, s: Any, t: Any, known: int) -> bool:
    """Whether the next states are those of the next rows; where an episode ends, any or none."""
    bad = False
    for i in range(len(nxt) - 1):
        bad |= (t[i + 1] != 0) & (nxt[i] != s[i + 1])
    for i in range(len(nxt)):
        bad |= nxt[i] >= known
    return not bad


@compiled
def mark(seen: Any, codes: Any) -> None:
    """Which codes there are; nothing to do once all have been seen."""
    if seen.all():
        return
    for i in range(len(codes)):
        if codes[i] >= 0:
            seen[Word(codes[i])] = True


# The marks of `log/steps.py`.


@compiled
def fraction(x: Any) -> Any:
    return x - np.floor(x)


@compiled
def folded(x: float) -> Any:
    """f(x) = [c(x) · SPREAD]"""
    x = x if abs(x) < LARGE else x * FOLD
    x = x if abs(x) < LARGE else x * FOLD
    return fraction((x if abs(x) < LARGE else 0.0) * SPREAD)


@compiled
def row_base(y: float, mu: float, t: float) -> Any:
    """d = [(f(y) + 1) · (f(μ) + t + 2) · SPREAD]"""
    return fraction((folded(y) + 1.0) * (folded(mu) + (t + 2.0)) * SPREAD)


@compiled
def row_marks(t: Any, y: Any, mu: Any, horizon: int) -> np.int64:
    """Σ of the marks of the rows before the horizon, of which 0 < μ ≤ 1."""
    total = np.int64(0)
    for k in range(len(t)):
        of_mu = fraction(mu[k] * SPREAD)
        # by way of 32 bits, which processors convert several at a time
        d = fraction((folded(y[k]) + 1.0) * (of_mu + (float(np.int32(t[k])) + 2.0)) * SPREAD)
        mark = np.int64(np.int32(fraction(d * d * MIX) * MARKS))
        total += mark if t[k] < horizon else np.int64(0)
    return total


@compiled
def episode_mark(key: int, y: float, mu: float) -> int:
    """The mark of an episode, by the key of its id and its first row."""
    g = fraction((folded(float(key)) + 1.0) * (row_base(y, mu, 0.0) + 2.0) * SPREAD)
    return int(fraction(g * g * MIX) * MARKS)


@inlined
def ending(early: bool, ended: bool, cut: bool, after: int, short: int) -> int:
    """What follows the last row of an episode; FAULT if nothing says why it is the last.

    An early end that is not END is a cut.
    """
    if early and not ended and not cut and short == 0:
        return FAULT
    if ended or (early and not cut and short == 1):
        return AFTER_END
    return after + AFTER_STATES if after >= 0 else AFTER_UNKNOWN


@inlined
def run_end(t: Any, begin: int, length: int) -> Any:
    """Where the episode of row `begin` ends, or the batch; episodes begin with step 0.

    If it is as long as the one before, one look tells: steps count up by 1 up to there.
    """
    end = min(begin + max(length - t[begin], 1), len(t))
    if t[end - 1] - t[begin] == end - 1 - begin and (end == len(t) or t[end] == 0):
        return end
    end = begin + 1
    while end < len(t) and t[end] != 0:
        end += 1
    return end


@inlined
def placed(s: Any, a: Any, by_state: Any, by_action: Any) -> Any:
    return (Word(s) & LOW) * by_state + (Word(a) & LOW) * by_action


@compiled
def lay(
    t: Any, s: Any, a: Any, horizon: int, actions: Any, width: Any, in_key: bool, slots: Any,
    places: Any,
) -> None:  # fmt: skip
    """The slots and places of rows (see `trace`) as if all were of block 0 and none was the last.

    place = of·2^32 + key·(S + 2) + s',  of = s·A + a,  key = of or s:  linear in s, a and s'

    Codes are below 2^32, and are said to be: processors multiply these several at a time.
    """
    n = len(t)
    by_action = U1 << BY_32 | (width if in_key else U0)
    by_state = actions << BY_32 | (actions * width if in_key else width)
    for k in range(n):
        slots[k + 1] = t[k] if t[k] < horizon else NOWHERE
    for k in range(n - 1):
        places[k + 1] = placed(s[k], a[k], by_state, by_action) + Word(s[k + 1]) + U2
    if n > 0:
        places[n] = placed(s[n - 1], a[n - 1], by_state, by_action)


@compiled
def join(
    ep: Any, t: Any, s: Any, has_next: bool, horizon: int, short: int, state: Any, hashes: Any,
    slots: Any, places: Any, over: Any,
) -> int:  # fmt: skip
    """The row that waited for its successor, and some rows: do they go on with its episode?
    Returns 1 if that episode is over, 0 if it is not, or FAULT; the arrays as in `trace`."""
    n, found = len(ep), 0
    slots[0] = NOWHERE
    if state[0] == 0:
        return FAULT if n > 0 and t[0] != 0 else 0
    p_t, p_ended, p_cut, p_next = state[2], state[3] != 0, state[4] != 0, state[5]
    if n > 0 and ep[0] == state[1]:
        if (t[0] != p_t + 1) | p_ended | p_cut | (has_next and p_next != s[0]):
            return FAULT
        after = s[0] + AFTER_STATES
    else:
        early = p_t < horizon - 1
        after = ending(early, p_ended, p_cut, p_next, short)
        if after == FAULT or (n > 0 and t[0] != 0):
            return FAULT
        hashes[1] += Word(early and after != AFTER_END)
        over[0, 0], over[0, 1] = state[6], min(p_t + 1, horizon)
        found = 1
    if p_t < horizon:
        slots[0] = state[6] * horizon + p_t
        places[0] += Word(after)
    return found


@compiled
def trace(
    ep: Any, t: Any, s: Any, a: Any, y: Any, mu: Any, nxt: Any, ended: Any, cut: Any,
    run_block: Any, steps: int, horizon: int, short: int, sizes: Any, start: Any, begun: Any,
    state: Any, hashes: Any, slots: Any, places: Any, over: Any, paced: Any,
) -> int:  # fmt: skip
    """Follow the episodes through some rows (none: the log is over). Returns how many are over, or
    FAULT. The rows have been checked, as far as `linked`, `below` and the like can tell.

    steps   for how many steps there is a policy
    slots   gets block·H + t of each row, or NOWHERE from the horizon on; first of all, of the row
            that waited for its successor
    places  gets the places of (s, a) and of the cell, for `drain`; without s' for the last row
    over    gets block and length of the episodes that are over
    paced   see stream_episodes.pace; empty if not wanted
    """
    n = len(ep)
    _, states, actions, in_key, _, _, _ = sizes
    has_next, has_ended, has_cut = len(nxt) > 0, len(ended) > 0, len(cut) > 0
    block, run, cut_off = state[6], state[7], 0
    rewards, ahead, shift = paced
    by_step = len(rewards) > 0
    found = join(ep, t, s, has_next, horizon, short, state, hashes, slots, places, over)
    if found == FAULT:
        return FAULT
    lay(t, s, a, horizon, actions, states + U2, in_key > 0, slots, places)
    hashes[0] += Word(row_marks(t, y, mu, horizon))
    begin, length = 0, horizon
    while begin < n:
        first = t[begin]
        if first == 0:
            block = run_block[run - state[9]] if len(run_block) > 0 else 0
            begun[run] = ep[begin]
            run += 1
            start[block, s[begin]] += 1
            hashes[2] += Word(episode_mark(ep[begin], y[begin], mu[begin]))
        end = run_end(t, begin, length)
        length = t[end - 1] + 1
        state[8] = max(state[8], length)
        used = min(end, begin + max(horizon - first, 0))  # the rows before the horizon
        if used > begin and first + used - begin > steps:
            return FAULT
        if by_step and used > begin:
            pace(ep[begin], first, y, begin, used, rewards, ahead, shift)
        if block > 0:
            for k in range(begin, used):
                slots[k + 1] += block * horizon
        if end < n:
            last, early = end - 1, length < horizon
            after = ending(early, has_ended and ended[last], has_cut and cut[last],
                           nxt[last] if has_next else -1, short)  # fmt: skip
            if after == FAULT:
                return FAULT
            cut_off += early and after != AFTER_END
            places[end] += Word(after) - Word(s[end] + AFTER_STATES)
            over[found, 0], over[found, 1] = block, min(length, horizon)
            found += 1
        begin = end
    hashes[1] += Word(cut_off)
    if n > 0:
        last = n - 1
        state[1], state[2] = ep[last], t[last]
        state[3], state[4] = has_ended and ended[last], has_cut and cut[last]
        state[5] = nxt[last] if has_next else -1
    state[0], state[6], state[7] = n > 0, block, run
    return found


@compiled
def follow(
    rows: Any, links: Any, target: Any, horizon: int, short: int, max_ratio: float, sizes: Any,
    cells: Any, products: Any, lagged: Any, closed: Any, paced: Any, tallies: Any, carry: Any,
) -> bool:  # fmt: skip
    """Go through the rows of a batch (of none: the log is over). False if one is out of the
    ordinary.

    rows      episode, step, state, action, reward, μ
    links     next state, ended, cut off, and the block of each episode that begins; or empty
    target    π by row, or empty; and π(a|s) by (step or 0, s·A + a), or empty
    short     what a short episode without a flag is: 0 a fault, 1 END, 2 cut off
    sizes     unsigned: H, the room for states and actions, whether the action is in the key,
              numbers per record, records per line, cells per step (0: no cells are wanted)
    cells     lines of records by block·H + t, as words and as numbers, from where to where numbers
              wait in each, and the sums (see `drain`)
    products  see stream_products.weigh; lagged: see stream_history.add_before; closed, paced: see
              stream_episodes.Ends and pace; each of them empty if not wanted
    tallies   episodes by (block, s); which states, next states and actions there are; gets the
              episodes that begin
    carry     see Carry
    """
    pi, table = target
    start, shown, led, acted, begun = tallies
    state, number, hashes, slots, places, held, over, before, rho = carry
    n = len(rows[0])
    steps = table.shape[0] if table.shape[0] > 1 else horizon
    for low in range(0, max(n, 1), PIECE):
        piece = slice(low, min(low + PIECE, n))
        ep, t, s, a = rows[0][piece], rows[1][piece], rows[2][piece], rows[3][piece]
        y, mu, by_row = rows[4][piece], rows[5][piece], pi[piece]
        nxt, ended, cut = links[0][piece], links[1][piece], links[2][piece]
        fine = below(s, len(shown)) and below(a, len(acted)) and proper(y, mu, LARGEST_REWARD)
        fine = fine and linked(ep, t) and last_rows(ended, t) and last_rows(cut, t)
        if not (fine and leads(nxt, s, t, len(led)) and shares(by_row)):
            return False
        mark(shown, s)
        mark(led, nxt)
        mark(acted, a)
        found = trace(
            ep, t, s, a, y, mu, nxt, ended, cut, links[3], steps, horizon, short, sizes, start,
            begun, state, hashes, slots, places, over, paced,
        )  # fmt: skip
        if found == FAULT:
            return False
        many = len(ep)
        y_bits, mu_bits, pi_bits = y.view(np.uint64), mu.view(np.uint64), by_row.view(np.uint64)
        if sizes[6] > 0:
            add(slots[:1], places[:1], held[:1], held[1:2], held[2:3], table, sizes, max_ratio,
                cells)  # fmt: skip
            add(slots[1:many], places[1:many], y_bits, mu_bits, pi_bits, table, sizes, max_ratio,
                cells)  # fmt: skip
        if len(products[0]) + len(closed[0]) + len(lagged[2]) > 0:
            ratios(t, mu, by_row, table, places[1:], max_ratio, rho)
        if len(products[0]) > 0:
            weigh(t, y, rho, slots[1:], products, over, found, closed, number)
        elif len(closed[0]) > 0:
            multiply(t, y, rho, closed, number)
        if len(lagged[2]) > 0:
            add_before(many, (t, s, y, rho), held, slots, places, before[0], sizes, lagged)
        if many > 0:
            before[0] = places[many - 1] >> BY_32
            places[0] = places[many]
            held[0], held[1] = y_bits[many - 1], mu_bits[many - 1]
            held[2] = pi_bits[many - 1] if len(pi) > 0 else U0
            held[3] = rho.view(np.uint64)[many - 1]
    return True


@dataclass
class Carry:
    """What goes from one batch to the next, and room to work in.

    state   whether a row waits, and its episode, t, ended, cut, next state, block; how many
            episodes have been noted that began; the longest so far; how many were noted before
            the batch
    number  of that row's episode so far m, e with ρ_{0:t} = m·2^(256 e), Σγ^t ρ_{0:t} y_t, Σγ^t y_t
            and whether it is open
    hashes  the sum of the rows' marks, the number of episodes that were cut off, and the sum of
            the episodes' marks (see log/steps.py)
    places  first of all that of the waiting row (see `trace`); held: the bits of its y, μ, π, and ρ
            where products or cells by what came before are wanted
    before  s·A + a of the row before that one
    rho     room for the ratios of the rows
    """

    state: Ints = field(default_factory=lambda: np.array([0, 0, 0, 0, 0, -1, 0, 0, 0, 0]))
    number: Floats = field(default_factory=lambda: np.zeros(5))
    hashes: Words = field(default_factory=lambda: np.zeros(3, np.uint64))
    slots: Ints = field(default_factory=lambda: np.zeros(PIECE + 1, np.int64))
    places: Words = field(default_factory=lambda: np.zeros(PIECE + 1, np.uint64))
    held: Words = field(default_factory=lambda: np.zeros(4, np.uint64))
    over: Ints = field(default_factory=lambda: np.zeros((PIECE + 1, 2), np.int64))
    before: Words = field(default_factory=lambda: np.zeros(1, np.uint64))
    rho: Floats = field(default_factory=lambda: np.zeros(PIECE))

    def __post_init__(self) -> None:
        self.arrays = tuple(getattr(self, part.name) for part in fields(self))

    @property
    def begun(self) -> int:
        return int(self.state[7])

    @begun.setter
    def begun(self, count: int) -> None:
        self.state[7] = count

    @property
    def longest(self) -> int:
        return int(self.state[8])

    def identity(self, episodes: int) -> Identity:
        return Identity(episodes, int(self.hashes[0]), int(self.hashes[2]))

    @property
    def cut_off(self) -> int:
        return int(self.hashes[1])
