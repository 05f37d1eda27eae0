"""The fast path: what is common and large, batch by batch into dense cells.

Taken for sums of transitions of a log whose episodes stand together, with one state column of
integers or texts in a moderate range, logged propensities, and a table or a column as the target.
It returns None at anything out of the ordinary, faults included: the general path then begins
anew, and says what there is to say.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.logs.csvfile import truth
from reweigh.logs.plain import is_number, is_text
from reweigh.logs.roles import is_label
from reweigh.logs.scanned import Reading
from reweigh.logs.states import END, UNKNOWN, Label, Labels
from reweigh.moments.engines.base import Request
from reweigh.moments.engines.stream_chunks import SeenIds, id_keys, run_starts
from reweigh.moments.engines.stream_codes import (
    Coder,
    Integers,
    Vocabulary,
    dense_policy,
    policy_steps,
)
from reweigh.moments.engines.stream_kernels import (
    AFTER_END,
    AFTER_STATES,
    BESIDE,
    IN_LINE,
    RECORD,
    Carry,
    aligned,
    drain,
    follow,
)
from reweigh.moments.engines.stream_rows import RowSource
from reweigh.moments.engines.stream_sums import Words
from reweigh.moments.transitions import NO_ACTION, StartMoments, TransitionMoments
from reweigh.policies.base import Policy
from reweigh.policies.column import ColumnPolicy
from reweigh.policies.table import TablePolicy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_CELLS = 1 << 21  # dense cells, of 80 bytes
MOST_LABELS = 1 << 12
FEW_WORDS = 16
IN_CACHE = 1 << 17  # rows of a batch that are still in the cache when the kernel reads them
WAITING, FEWEST_WAITING, MOST_WAITING = 1 << 21, 64, 1 << 16  # records of 32 bytes: all, per step
FOLD = 4096  # rows per cell after which sums are put aside, so that small numbers still count
SHORT = {"error": 0, "terminal": 1, "truncated": 2}
NONE_F, NONE_I, NONE_B = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool)


class _OutOfTheOrdinary(Exception):
    """The general path must do this log."""


@dataclass
class Cells:
    """Dense sums for `capacity` states, which may grow, and the records that wait for them."""

    blocks: int
    horizon: int
    capacity: int
    max_ratio: float

    def __post_init__(self) -> None:
        slots, cells = self.blocks * self.horizon, self.capacity * (self.capacity + AFTER_STATES)
        if slots * cells > MOST_CELLS:
            raise _OutOfTheOrdinary
        self.line = aligned((slots, cells, IN_LINE))
        self.beside = aligned((slots, cells, BESIDE))
        # an odd number of cache lines: else the ends of all lines would fall into the same sets
        room = min(max(WAITING // slots, FEWEST_WAITING), MOST_WAITING) // 4 * 4 + 2
        self.records = np.empty((slots, room, RECORD))
        self.waiting = np.zeros(slots, np.int64)
        self.start = np.zeros((self.blocks, self.capacity), np.int64)
        self.shown = np.zeros(self.capacity, bool)
        self.aside: tuple[Floats, Floats] | None = None
        self.rows = 0

    def settle(self) -> None:
        """Add all that waits."""
        for slot in np.flatnonzero(self.waiting).tolist():
            count = int(self.waiting[slot])
            drain(self.records[slot], count, self.max_ratio, self.line[slot], self.beside[slot])
        self.waiting[:] = 0

    def grown(self, capacity: int) -> Cells:
        self.settle()
        larger = Cells(self.blocks, self.horizon, capacity, self.max_ratio)
        old = self.capacity
        for mine, theirs in zip(self._total(), (larger.line, larger.beside), strict=True):
            by_state = theirs.reshape(len(theirs), capacity, capacity + AFTER_STATES, -1)
            by_state[:, :old, : old + AFTER_STATES] = mine.reshape(
                len(mine), old, old + AFTER_STATES, -1
            )
        larger.start[:, :old] = self.start
        larger.shown[:old] = self.shown
        return larger

    def _total(self) -> tuple[Floats, Floats]:
        if self.aside is None:
            return self.line, self.beside
        return self.line + self.aside[0], self.beside + self.aside[1]

    def count(self, rows: int) -> None:
        """Put the sums aside now and then: a long sum loses the digits of what is added to it."""
        self.rows += rows
        if self.rows < FOLD * self.waiting.size * self.line.shape[1]:
            return
        self.aside = self._total()
        self.line, self.beside = aligned(self.line.shape), aligned(self.beside.shape)
        self.rows = 0

    def table(self) -> TransitionMoments:
        """The cells that hold rows, in the order of their keys."""
        self.settle()
        del self.records
        line, beside = (table.reshape(-1, table.shape[-1]) for table in self._total())
        at = np.flatnonzero(line[:, 0])
        rest, after = np.divmod(at, self.capacity + AFTER_STATES)
        rest, s = np.divmod(rest, self.capacity)
        block, t = np.divmod(rest, self.horizon)
        special = np.where(after == AFTER_END, END, UNKNOWN)
        names = ("rho2", "z", "rhoz", "z2", "y", "y2")
        rho = line[at, 1]
        return TransitionMoments(
            # constant columns take no memory, and without stretches the placebo is ρ itself
            block=block if self.blocks > 1 else np.broadcast_to(np.int64(0), len(at)),
            t=t,
            s=s,
            a=np.broadcast_to(np.int64(NO_ACTION), len(at)),
            t_next=t + 1,
            s_next=np.where(after >= AFTER_STATES, after - AFTER_STATES, special),
            n=line[at, 0].astype(np.int64),
            one=rho,
            rho=rho,
            pi=beside[at, 0],
            mu=beside[at, 1],
            **{name: line[at, i + 2] for i, name in enumerate(names)},
        )

    def starts(self) -> StartMoments:
        block, s = np.nonzero(self.start)
        zeros = np.zeros(len(s))
        return StartMoments(block, s, self.start[block, s], zeros, zeros.copy())


@dataclass(frozen=True)
class Fast:
    """The sums, the labels of the state column itself, the longest episode, and what was read."""

    moments: dict[str, Any]
    own: tuple[Label, ...]
    longest: int
    hashes: int
    rows: int


def fast_sums(
    rows: RowSource, reading: Reading, target: Policy, request: Request, horizon: int
) -> Fast | None:
    """The sums of transitions; None where the general path must do it."""
    try:
        return _Scan(rows, reading, target, request, horizon).run()
    except _OutOfTheOrdinary:
        return None


class _Scan:
    """One pass."""

    def __init__(
        self, rows: RowSource, reading: Reading, target: Policy, request: Request, horizon: int
    ) -> None:
        columns = reading.columns
        self.rows, self.reading, self.target, self.request = rows, reading, target, request
        self.horizon = horizon
        simple = (
            request.kinds == {"transitions"}
            and reading.abstraction is None
            and not reading.continuous_actions
            and len(columns.state) == 1
            and columns.behavior_prob is not None
            and isinstance(target, TablePolicy | ColumnPolicy)
            and pa.types.is_integer(self._kind(columns.step))
            and is_label(self._kind(columns.episode))
            and all(is_number(self._kind(name)) for name in self._numbers())
        )
        if not simple:
            raise _OutOfTheOrdinary
        self.states = self._coder([*columns.state, *(columns.next_state or ())])
        self.actions = self._coder([columns.action])
        ratio = np.inf if request.max_ratio is None else float(request.max_ratio)
        self.cells = Cells(request.blocks, horizon, max(self.states.known, FEW_WORDS), ratio)
        self.acted = np.zeros(max(self.actions.known, FEW_WORDS), bool)
        self.after = np.zeros(self.cells.capacity, bool)  # states that stand in next_state
        self.policy = np.zeros((1, 0, 0))
        self.seen, self.carry, self.done = SeenIds(), Carry(), 0
        self.begun = np.zeros(min(rows.size, IN_CACHE), np.int64)
        self.highest = -1

    def _kind(self, name: str) -> pa.DataType:
        return self.rows.schema.field(name).type

    def _numbers(self) -> list[str]:
        columns, target = self.reading.columns, self.target
        named = [columns.reward, columns.behavior_prob, columns.target_prob]
        if isinstance(target, ColumnPolicy):
            if target.column not in self.rows.names:
                raise _OutOfTheOrdinary
            named.append(target.column)
        return [name for name in named if name is not None]

    def _coder(self, names: list[str]) -> Coder:
        kinds = [self._kind(name) for name in names]
        if all(pa.types.is_integer(kind) for kind in kinds):
            spans = [span for span in map(self.rows.range_of, names) if span is not None]
            low = min((span[0] for span in spans), default=0)
            size = max((span[1] for span in spans), default=0) - low + 1
            if size <= MOST_LABELS and abs(low) < 2**62:
                return Integers(low, size)
        elif all(is_text(kind) for kind in kinds):
            return Vocabulary()
        raise _OutOfTheOrdinary

    def run(self) -> Fast:
        for table in self.rows.batches(size=min(self.rows.size, IN_CACHE)):
            self._count(table)
        self._follow(NONE_I, NONE_I, NONE_I, NONE_I, NONE_F, NONE_F, NONE_F, NONE_I, NONE_B,
                     NONE_B, NONE_I)  # fmt: skip
        if self.seen.repeated() is not None:
            raise _OutOfTheOrdinary
        return self._finish()

    def _count(self, table: pa.Table) -> None:
        columns = self.reading.columns
        for name in (columns.episode, columns.step, columns.action):
            if table.column(name).null_count:
                raise _OutOfTheOrdinary
        keys = id_keys(table.column(columns.episode))
        step = np.asarray(table.column(columns.step).to_numpy()).astype(np.int64, copy=False)
        state = self.states.codes(table.column(columns.state[0]))
        after = NONE_I
        if columns.next_state is not None:
            after = self.states.codes(table.column(columns.next_state[0]))
        action = self.actions.codes(table.column(columns.action))
        self._make_room()
        if len(after):
            self.after[after[(after >= 0) & (after < len(self.after))]] = True
        self.highest = max(self.highest, int(step.max()))
        self._check_target_prob(table)
        self._follow(
            keys.view(np.int64),
            step,
            state,
            action,
            self._floats(table, columns.reward),
            self._floats(table, columns.behavior_prob),
            self._floats(table, self.target.column)
            if isinstance(self.target, ColumnPolicy)
            else NONE_F,
            after,
            self._flags(table, columns.terminated),
            self._flags(table, columns.truncated),
            self._blocks(table.column(columns.episode), keys),
        )
        self.seen.add(self.begun[: self.carry.state[8]].view(np.uint64))
        self.done += table.num_rows
        self.cells.count(table.num_rows)

    def _make_room(self) -> None:
        """For words that have come up; and the policy in their codes."""
        capacity = self.cells.capacity
        while capacity < self.states.known:
            capacity *= 2
        if capacity > self.cells.capacity:
            self.cells = self.cells.grown(capacity)
            self.after = np.concatenate([self.after, np.zeros(capacity - len(self.after), bool)])
        if len(self.acted) < self.actions.known:
            more = np.zeros(2 * self.actions.known - len(self.acted), bool)
            self.acted = np.concatenate([self.acted, more])
        shape = (capacity, len(self.acted))
        known = (self.states.known, self.actions.known)
        if isinstance(self.target, TablePolicy) and getattr(self, "policy_of", None) != known:
            if policy_steps(self.target) * capacity * len(self.acted) > MOST_CELLS:
                raise _OutOfTheOrdinary
            self.policy = dense_policy(self.target, self.states, self.actions, shape)
            self.policy_of = known

    def _floats(self, table: pa.Table, name: str | None) -> Floats:
        assert name is not None
        column = table.column(name)
        if column.null_count:
            raise _OutOfTheOrdinary
        if not pa.types.is_float64(column.type):
            column = pc.cast(column, pa.float64(), safe=False)
        return np.asarray(column.to_numpy())

    def _flags(self, table: pa.Table, name: str | None) -> npt.NDArray[np.bool_]:
        if name is None:
            return NONE_B
        if table.column(name).null_count:
            raise _OutOfTheOrdinary
        values = truth(table.column(name))
        if values is None:
            raise _OutOfTheOrdinary
        return np.asarray(values.to_numpy(), bool)

    def _check_target_prob(self, table: pa.Table) -> None:
        """The column of that role is checked even where another target is asked about."""
        name = self.reading.columns.target_prob
        if name is None or (isinstance(self.target, ColumnPolicy) and self.target.column == name):
            return
        values = self._floats(table, name)
        if not np.all((values >= 0) & (values <= 1)):
            raise _OutOfTheOrdinary

    def _blocks(self, column: pa.ChunkedArray, keys: Words) -> Ints:
        """The block of each episode that begins: by the MD5 of its id's text."""
        count = self.request.blocks
        if count == 1:
            return NONE_I
        begins = run_starts(keys)
        if self.carry.state[0] and keys.view(np.int64)[0] == self.carry.state[1]:
            begins = begins[1:]
        if not pa.types.is_integer(column.type):  # the key is made of the same hash
            return ((keys[begins] >> np.uint64(32)) % np.uint64(count)).astype(np.int64)
        texts = [str(value).encode() for value in np.asarray(column.to_numpy())[begins].tolist()]
        hashes = [hashlib.md5(text, usedforsecurity=False).digest()[:4] for text in texts]
        return np.array([int.from_bytes(h, "big") % count for h in hashes], np.int64)

    def _follow(
        self, keys: Ints, step: Ints, state: Ints, action: Ints, y: Floats, mu: Floats,
        pi: Floats, after: Ints, ended: Any, cut: Any, run_block: Ints,
    ) -> None:  # fmt: skip
        cells, carry = self.cells, self.carry
        given = (keys, step, state, action, y, y.view(np.uint64), mu, mu.view(np.uint64), pi)
        fine = follow(
            *map(_read_only, (*given, self.policy, after, ended, cut, run_block)),
            self.horizon, cells.capacity, SHORT[self.reading.short_episodes], cells.max_ratio,
            cells.records, cells.waiting, cells.line, cells.beside,
            cells.start, cells.shown, self.acted, self.begun,
            carry.state, carry.number, carry.hashes,
        )  # fmt: skip
        if not fine:
            raise _OutOfTheOrdinary

    def _finish(self) -> Fast:
        pa.default_memory_pool().release_unused()
        known = range(self.states.known)
        used = [c for c in known if self.cells.shown[c] or self.after[c]]
        translate = np.full(self.cells.capacity, -1, np.int64)
        translate[used] = np.arange(len(used))
        actions = [self.actions.label(int(a)) for a in np.flatnonzero(self.acted)]
        return Fast(
            {
                "states": Labels(tuple(self.states.label(c) for c in used)),
                "actions": Labels(tuple(actions)),
                "start": self.cells.starts().recode(translate),
                "transitions": self.cells.table().recode(translate),
                "truncated": int(self.carry.hashes[1]),
            },
            tuple(self.states.label(c) for c in used if self.cells.shown[c]),
            self.highest + 1,
            int(self.carry.hashes[0]),
            self.done,
        )


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As Arrow's arrays are: for others the kernel would be compiled again."""
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array
