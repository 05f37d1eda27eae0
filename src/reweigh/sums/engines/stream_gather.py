"""The second scan of a large file: gradients by cell gathered over the rows of each episode.

What `sums/gather.py` does for a log in memory, here by the fast path's loops: a row's cell is found
as in the first scan, and its derivatives are looked up in dense tables. For gradients by (t, s, s')
and logs whose labels and ids are integers; others take the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.kernels.common import compiled
from reweigh.log.states import END, Labels
from reweigh.policy.base import Policy
from reweigh.sums.engines.base import Request
from reweigh.sums.engines.stream_cells import AFTER_END, AFTER_STATES, AFTER_UNKNOWN
from reweigh.sums.engines.stream_fast import NO_ROWS, SHORT, OutOfTheOrdinary, Scan, read_only
from reweigh.sums.engines.stream_kernels import FAULT, LOW, PIECE, below, linked, proper, trace
from reweigh.sums.engines.stream_labels import Integers
from reweigh.sums.engines.stream_products import ratios
from reweigh.sums.engines.stream_rows import RowSource
from reweigh.sums.gather import CellGradient, Gradient
from reweigh.sums.moments import Moments
from reweigh.sums.read import Reading

Floats = npt.NDArray[np.float64]
Gradients = dict[Hashable, Gradient]
Take = Callable[[dict[Hashable, Floats], npt.NDArray[np.int64]], None]
MOST_PLACES = 1 << 25  # numbers in the tables of all gradients
BY_32 = np.uint64(32)


def gather_quickly(
    rows: RowSource,
    reading: Reading,
    target: Policy,
    gradients: Gradients,
    returns: Hashable,
    mean_return: float,
    sums: Moments,
    take: Take,
) -> bool:
    """Hand `take` the influence values of some episodes after the other, by the names of the
    gradients, with the ids; `returns` is the name of return less mean. False where the general way
    must do the whole log, and says what there is to say: what was handed out is to be forgotten."""
    if not gradients or not all(map(_by_cell, gradients.values())):
        return False
    try:
        _Gather(rows, reading, target, gradients, returns, mean_return, sums, take).run_through()
    except OutOfTheOrdinary:
        return False
    return True


def _by_cell(gradient: Gradient) -> bool:
    return (
        isinstance(gradient, CellGradient)
        and gradient.moves != "actions"
        and gradient.policy is None
        and not gradient.halves
        and bool(np.all(gradient.cells.t_next - gradient.cells.t == 1))
    )


class _Gather(Scan):
    """One pass, of a log that the fast path has summed before."""

    def __init__(
        self,
        rows: RowSource,
        reading: Reading,
        target: Policy,
        gradients: Gradients,
        returns: Hashable,
        mean_return: float,
        sums: Moments,
        take: Take,
    ) -> None:
        about = sums.about
        if sums.hidden or any(value is None for value in sums.states.values):
            raise OutOfTheOrdinary
        request = Request(frozenset({"trajectories"}), max_ratio=about.max_ratio)
        super().__init__(rows, reading, target, request, about.horizon)
        whole = isinstance(self.states, Integers) and isinstance(self.actions, Integers)
        places = about.horizon * self.shape.states * (self.shape.states + AFTER_STATES)
        fits = 4 * len(gradients) * places <= MOST_PLACES
        if not (whole and fits and pa.types.is_signed_integer(self._kind(reading.columns.episode))):
            raise OutOfTheOrdinary
        self.names, self.take = [*gradients, returns], take
        coder, horizon = self.states, about.horizon
        assert isinstance(coder, Integers)
        tables = [_dense(g, sums.states, coder, horizon) for g in gradients.values()]
        self.by_cell = np.stack([by_cell for by_cell, _ in tables])
        self.at_start = np.stack([start for _, start in tables])
        self.powers = np.asarray(about.discount ** np.arange(about.horizon), np.float64)
        self.mean_return = mean_return
        self.open = np.zeros(len(self.names) + 1)  # of the episode so far, and whether there is one
        self.episode = np.zeros(1, np.int64)

    def run_through(self) -> None:
        for table in self.rows.batches(size=self.size):
            self._count(dict(zip(table.column_names, table.columns, strict=True)), table.num_rows)
            del table
        self._follow(*NO_ROWS)
        if self.open[-1]:
            self._hand_out(self.open[None, :-1], self.episode)

    def _follow(self, rows: Any, pi: Floats, links: Any) -> None:
        self.carry.state[9] = self.carry.begun
        psi = np.empty((len(rows[0]) + 1, len(self.names)))
        ids = np.empty(len(psi), np.int64)
        shape = self.shape
        sizes = tuple(map(np.uint64, (shape.horizon, shape.states, shape.actions, 0, 0, 0, 0)))
        found = gather(
            tuple(map(read_only, rows)),
            tuple(map(read_only, links)),
            (read_only(pi), self.policy),
            shape.horizon,
            SHORT[self.reading.short_episodes],
            self.max_ratio,
            sizes,
            self.paced.arrays,
            self._tallies(),
            self.carry.arrays,
            (self.by_cell, self.at_start, self.powers),
            (self.open, self.episode),
            psi,
            ids,
        )
        if found == FAULT:
            raise OutOfTheOrdinary  # rows in no order, or a log that has changed
        self._hand_out(psi[:found], ids[:found])

    def _hand_out(self, psi: Floats, ids: npt.NDArray[np.int64]) -> None:
        if len(psi):
            psi[:, -1] -= self.mean_return
            self.take({name: psi[:, j] for j, name in enumerate(self.names)}, ids)


def _dense(
    gradient: Gradient, states: Labels, coder: Integers, horizon: int
) -> tuple[Floats, Floats]:
    """(H, cells, 4) derivatives by the count, Σρ, Σz and Σy of every possible cell, at the place
    that the fast path gives it; and (S,) that by the count of the first state."""
    assert isinstance(gradient, CellGradient)
    cells, width = gradient.cells, coder.size + AFTER_STATES
    code = np.array([int(value) for value in states.values], np.int64) - coder.low  # type: ignore[arg-type]
    s, after = code[cells.s], cells.s_next
    to = np.where(after >= 0, code[np.maximum(after, 0)] + AFTER_STATES, AFTER_UNKNOWN)
    to = np.where(after == END, AFTER_END, to)
    by_cell = np.zeros((horizon, coder.size * width, 4))
    columns = gradient.one, gradient.rho, gradient.z, gradient.y
    by_cell[cells.t, s * width + to] = np.stack(columns, axis=1)
    first, at_start = cells.t == 0, np.zeros(coder.size)
    at_start[s[first]] = gradient.start[first]
    return by_cell, at_start


@compiled
def gather(
    rows: Any, links: Any, target: Any, horizon: int, short: int, max_ratio: float, sizes: Any,
    paced: Any, tallies: Any, carry: Any, tables: Any, unfinished: Any, psi: Any, ids: Any,
) -> int:  # fmt: skip
    """ψ of the episodes that these rows end (of none: the log is over), and their ids. Returns how
    many there are, or FAULT. The first arguments are those of `stream_kernels.follow`.

    tables      derivatives by gradient, step, cell and sum; by gradient and first state; γ^t
    unfinished  ψ of the episode so far, its return, and whether there is one; its id
    """
    pi, table = target
    by_cell, at_start, powers = tables
    so_far, episode = unfinished
    start, shown, _, acted, begun = tallies
    state, _, hashes, slots, places, held, over, _, rho = carry
    n, many_psi, found, waits = len(rows[0]), len(by_cell), 0, held.view(np.float64)
    steps = table.shape[0] if table.shape[0] > 1 else horizon
    for low in range(0, max(n, 1), PIECE):
        piece = slice(low, min(low + PIECE, n))
        ep, t, s, a = rows[0][piece], rows[1][piece], rows[2][piece], rows[3][piece]
        y, mu, by_row = rows[4][piece], rows[5][piece], pi[piece]
        nxt, ended, cut = links[0][piece], links[1][piece], links[2][piece]
        if not (below(s, len(shown)) and below(a, len(acted)) and proper(y, mu, np.inf)):
            return FAULT
        waiting, waiting_s = state[1], (places[0] >> BY_32) // sizes[2]
        if not linked(ep, t) or trace(
            ep, t, s, a, y, mu, nxt, ended, cut, links[3], steps, horizon, short, sizes, start,
            begun, state, hashes, slots, places, over, paced,
        ) == FAULT:  # fmt: skip
            return FAULT
        many = len(ep)
        ratios(t, mu, by_row, table, places[1:], max_ratio, rho)
        # The row that waited for its successor comes first; the last one waits in its turn.
        for j in range(max(many, 1)):
            if slots[j] < 0:  # none waited, or it is beyond the horizon
                continue
            step, cell = slots[j] % horizon, places[j] & LOW
            r, reward, who, at = waits[3], waits[0], waiting, waiting_s
            if j > 0:
                r, reward, who, at = rho[j - 1], y[j - 1], ep[j - 1], np.uint64(s[j - 1])
            if step == 0:
                if so_far[-1] > 0:
                    psi[found], ids[found] = so_far[:-1], episode[0]
                    found += 1
                so_far[:-2], so_far[-2], so_far[-1] = at_start[:, at], 0.0, 1.0
                episode[0] = who
            z = r * reward
            for m in range(many_psi):
                g = by_cell[m, step, cell]
                so_far[m] += g[0] + g[1] * r + g[2] * z + g[3] * reward
            so_far[-2] += powers[step] * reward
        if many > 0:
            places[0] = places[many]
            waits[0], waits[3] = y[many - 1], rho[many - 1]
    return found
