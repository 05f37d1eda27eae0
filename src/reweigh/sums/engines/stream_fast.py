"""The fast path: what is common and large, batch by batch into dense cells and running products.

Taken for logs whose episodes stand together, with one state column of integers or texts in a
moderate range, logged propensities, and a table or a column as the target. It returns None at
anything out of the ordinary, faults included: the general path then begins anew, and says what
there is to say.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.log.csv_files import truth
from reweigh.log.states import Label, Labels, floats, is_label, is_number, is_text
from reweigh.log.steps import Identity
from reweigh.policy.base import ColumnPolicy, Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.diagnostic_tables import VERSIONS, too_long
from reweigh.sums.engines.base import SPARE_CELLS, Request
from reweigh.sums.engines.stream_cells import Cells, Shape, TooManyCells
from reweigh.sums.engines.stream_chunks import (
    SIGN,
    RowOrderError,
    SeenIds,
    Words,
    id_keys,
    id_texts,
    run_starts,
)
from reweigh.sums.engines.stream_episodes import Ends, Paced
from reweigh.sums.engines.stream_history import Lagged
from reweigh.sums.engines.stream_kernels import PIECE, Carry, follow
from reweigh.sums.engines.stream_labels import (
    Coder,
    Integers,
    Vocabulary,
    dense_policy,
    policy_steps,
)
from reweigh.sums.engines.stream_products import Products
from reweigh.sums.engines.stream_rows import RowSource
from reweigh.sums.read import Reading
from reweigh.sums.transitions import StartMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KINDS = frozenset({"transitions", "model", "trajectories", *VERSIONS})
MOST_POLICY = 1 << 21  # probabilities
MOST_LABELS = 1 << 12
FEW_WORDS = 16  # for which there is room at first; integers are known beforehand
PAGES = 60_000  # rows of a batch: writers make pages of 20,000, and whole ones are not copied again
MOST_BEGUN = 1 << 17  # episodes that are noted before their ids are looked at
SHORT = {"error": 0, "terminal": 1, "truncated": 2}
NONE_F, NONE_I, NONE_B = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool)
NO_WORDS = np.zeros(0, np.uint64)
NO_ROWS = (  # what `_follow` is given when the log is over
    (NONE_I, NONE_I, NONE_I, NONE_I, NONE_F, NONE_F),
    NONE_F,
    (NONE_I, NONE_B, NONE_B, NONE_I),
)


class OutOfTheOrdinary(Exception):
    """The general path must do this log."""


@dataclass(frozen=True)
class Fast:
    """The sums, the labels of the state column itself, the longest episode, and what was read."""

    moments: dict[str, Any]
    own: tuple[Label, ...]
    longest: int
    identity: Identity
    rows: int


def fast_sums(
    rows: RowSource, reading: Reading, target: Policy, request: Request, horizon: int
) -> Fast | None:
    """The sums that were asked for; None where the general path must do it."""
    if rows.rows <= SPARE_CELLS:  # there are no more cells than rows
        request = replace(request, spare=frozenset())
    try:
        return Scan(rows, reading, target, request, horizon).run()
    except OutOfTheOrdinary:
        return None
    except TooManyCells:
        if not request.spare:
            return None
    try:
        found = Scan(rows, reading, target, request.without_spare(), horizon, choices=True).run()
    except (OutOfTheOrdinary, TooManyCells):
        return None
    found.moments["left_out"] |= request.left_out()
    return found


class Scan:
    """One pass."""

    def __init__(
        self,
        rows: RowSource,
        reading: Reading,
        target: Policy,
        request: Request,
        horizon: int,
        choices: bool = False,
    ) -> None:
        columns = reading.columns
        self.rows, self.reading, self.target, self.request = rows, reading, target, request
        simple = (
            frozenset() < request.kinds <= KINDS
            and bool(request.kinds - VERSIONS.keys())
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
            raise OutOfTheOrdinary
        self.states = self._coder([*columns.state, *(columns.next_state or ())])
        self.actions = self._coder([columns.action])
        self.max_ratio = np.inf if request.max_ratio is None else float(request.max_ratio)
        self.shape = Shape(
            blocks=request.blocks,
            horizon=horizon,
            states=self.states.known or FEW_WORDS,
            actions=self.actions.known or FEW_WORDS,
            in_key="model" in request.kinds,
            by_row=isinstance(target, ColumnPolicy),
            rows=rows.rows,
            spare="model" in request.spare,
            choices=choices,
        )
        wants_products = "trajectories" in request.kinds
        self.cells = Cells(self.shape) if request.kinds & {"transitions", "model"} else None
        self.products = Products(request.blocks if wants_products else 0, horizon, reading.discount)
        self.lagged = Lagged(self.shape, "lagged" in request.kinds, PIECE)
        self.too_long = too_long(horizon) if "paced" in request.kinds else {}
        self.paced = Paced("paced" in request.kinds and not self.too_long, horizon)
        self.start = np.zeros((request.blocks, self.shape.states), np.int64)
        self.shown, self.led = (np.zeros(self.shape.states, bool) for _ in range(2))
        self.acted = np.zeros(self.shape.actions, bool)
        self.policy, self.known = np.zeros((1, 0)), (0, 0)
        self.size = min(rows.size, PAGES)
        self.begun = np.zeros(max(self.size, MOST_BEGUN), np.int64)
        self.ends = Ends(request.kinds, len(self.begun), rows.rows, horizon, reading.discount)
        self.seen, self.carry, self.done = SeenIds(), Carry(), 0
        self.rewards = (math.inf, -math.inf)

    def _kind(self, name: str) -> pa.DataType:
        return self.rows.schema.field(name).type

    def _numbers(self) -> list[str]:
        columns, target = self.reading.columns, self.target
        named = [columns.reward, columns.behavior_prob, columns.target_prob]
        if isinstance(target, ColumnPolicy):
            if target.column not in self.rows.names:
                raise OutOfTheOrdinary
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
        raise OutOfTheOrdinary

    def run(self) -> Fast:
        for table in self.rows.batches(size=self.size):
            self._count(dict(zip(table.column_names, table.columns, strict=True)), table.num_rows)
            del table  # so that the next one may take its memory
        self._follow(*NO_ROWS)
        self._remember()
        if self.seen.repeated():
            raise RowOrderError
        return self._finish()

    def _count(self, table: dict[str, pa.ChunkedArray], rows: int) -> None:
        columns, target = self.reading.columns, self.target
        for name in (columns.episode, columns.step, columns.action):
            if table[name].null_count:
                raise OutOfTheOrdinary
        keys = id_keys(table[columns.episode])
        step = np.asarray(table[columns.step].to_numpy()).astype(np.int64, copy=False)
        state = self.states.codes(table[columns.state[0]])
        after = NONE_I
        if columns.next_state is not None:
            after = self.states.codes(table[columns.next_state[0]])
        action = self.actions.codes(table[columns.action])
        self._make_room()
        self.lagged.make_room(rows)
        self._look_at_ids(table[columns.episode], keys)
        self.paced.make_room(keys.view(np.int64))
        self._check_target_prob(table)
        y, mu = self._floats(table, columns.reward), self._floats(table, columns.behavior_prob)
        self._follow(
            (keys.view(np.int64), step, state, action, y, mu),
            self._floats(table, target.column) if isinstance(target, ColumnPolicy) else NONE_F,
            (
                after,
                self._flags(table, columns.terminated),
                self._flags(table, columns.truncated),
                self._blocks(table[columns.episode], keys),
            ),
        )
        if self.carry.begun > len(self.begun) - self.size:
            self._remember()
        used = y if self.reading.horizon is None else y[step < self.shape.horizon]
        if len(used):
            low, high = self.rewards
            self.rewards = min(low, float(used.min())), max(high, float(used.max()))
        self.done += rows
        self.products.count(rows)
        self.lagged.count(rows)
        if self.cells is not None:
            self.cells.count(rows)

    def _remember(self) -> None:
        """The ids of the episodes that have begun, and what is over."""
        begun = self.begun[: self.carry.begun]
        self.seen.add(begun.view(np.uint64))
        if not self.ends.take(begun):
            raise OutOfTheOrdinary
        self.carry.begun = 0

    def _look_at_ids(self, column: pa.ChunkedArray, keys: Words) -> None:
        """Whether the ids are whole numbers, where their order is asked for."""
        if not (self.request.kinds & {"ordered", "paced"} and self.ends.in_order):
            return
        if pa.types.is_uint64(column.type):
            self.ends.in_order = bool(np.all(keys < SIGN))
        elif pa.types.is_dictionary(column.type) and not is_text(column.type.value_type):
            raise OutOfTheOrdinary
        elif not pa.types.is_integer(column.type):
            self.ends.look_at(id_texts(column, run_starts(keys)))
        if not self.ends.in_order:
            self.paced.drop()

    def _make_room(self) -> None:
        """For words that have come up; and the policy in their codes."""
        known = (self.states.known, self.actions.known)
        states, actions = self.shape.states, self.shape.actions
        while states < known[0]:
            states *= 2
        while actions < known[1]:
            actions *= 2
        if (states, actions) != (self.shape.states, self.shape.actions):
            held = self.shape.found(int(self.carry.places[0]))
            before = self.shape.found(int(self.carry.before[0]) << 32)
            self.shape = replace(self.shape, states=states, actions=actions)
            self.carry.places[0] = self.shape.place(*held)
            self.carry.before[0] = before[0] * actions + before[1]
            self.lagged.grown(self.shape)
            if self.cells is not None:
                self.cells.settle(self.policy, self.max_ratio)
                self.cells = self.cells.grown(self.shape)
            more = [(0, 0), (0, states - self.start.shape[1])]
            self.start = np.pad(self.start, more)
            self.shown, self.led = (np.pad(seen, more[1]) for seen in (self.shown, self.led))
            self.acted = np.pad(self.acted, (0, actions - len(self.acted)))
        if isinstance(self.target, TablePolicy) and self.known != known:
            if policy_steps(self.target) * states * actions > MOST_POLICY:
                raise OutOfTheOrdinary
            dense = dense_policy(self.target, self.states, self.actions, (states, actions))
            self.policy = dense.reshape(len(dense), -1)
        if self.known != known:
            self.lagged.name_states([self.states.label(code) for code in range(known[0])])
            self.known = known

    def _floats(self, table: dict[str, pa.ChunkedArray], name: str | None) -> Floats:
        assert name is not None
        column = table[name]
        if column.null_count:
            raise OutOfTheOrdinary
        if not pa.types.is_float64(column.type):
            column = floats(column)
        return np.asarray(column.to_numpy())

    def _flags(self, table: dict[str, pa.ChunkedArray], name: str | None) -> npt.NDArray[np.bool_]:
        if name is None:
            return NONE_B
        if table[name].null_count:
            raise OutOfTheOrdinary
        values = truth(table[name])
        if values is None:
            raise OutOfTheOrdinary
        return np.asarray(values.to_numpy(), bool)

    def _check_target_prob(self, table: dict[str, pa.ChunkedArray]) -> None:
        """The column of that role is checked even where another target is asked about."""
        name = self.reading.columns.target_prob
        if name is None or (isinstance(self.target, ColumnPolicy) and self.target.column == name):
            return
        values = self._floats(table, name)
        if not np.all((values >= 0) & (values <= 1)):
            raise OutOfTheOrdinary

    def _blocks(self, column: pa.ChunkedArray, keys: Words) -> Ints:
        """The block of each episode that begins: by the MD5 of its id's text."""
        count = self.request.blocks
        if count == 1:
            return NONE_I
        begins = run_starts(keys)
        if self.carry.state[0] and keys.view(np.int64)[0] == self.carry.state[1]:
            begins = begins[1:]
        texts = [text.encode("utf-8", "surrogatepass") for text in id_texts(column, begins)]
        hashes = [hashlib.md5(text, usedforsecurity=False).digest()[:4] for text in texts]
        return np.array([int.from_bytes(h, "big") % count for h in hashes], np.int64)

    def _follow(self, rows: Any, pi: Floats, links: Any) -> None:
        self.carry.state[9] = self.carry.begun
        fine = follow(
            tuple(map(read_only, rows)),
            tuple(map(read_only, links)),
            (read_only(pi), self.policy),
            self.shape.horizon,
            SHORT[self.reading.short_episodes],
            self.max_ratio,
            *self._sums(),
            self.lagged.arrays,
            self.ends.arrays,
            self.paced.arrays,
            self._tallies(),
            self.carry.arrays,
        )
        if not fine:
            raise OutOfTheOrdinary

    def _sums(self) -> tuple[Any, Any, Any]:
        """Sizes, cells and products."""
        if self.cells is not None:
            return self.cells.sizes, self.cells.arrays, self.products.arrays
        shape = self.shape
        sizes = tuple(map(np.uint64, (shape.horizon, shape.states, shape.actions, 0, 0, 0, 0)))
        return sizes, (NO_WORDS, NONE_F, NO_WORDS, NO_WORDS, (NONE_F,) * 4), self.products.arrays

    def _tallies(self) -> tuple[Any, ...]:
        states, actions = self.states.known, self.actions.known
        return self.start, self.shown[:states], self.led[:states], self.acted[:actions], self.begun

    def _finish(self) -> Fast:
        pa.default_memory_pool().release_unused()
        used, acted = np.flatnonzero(self.shown | self.led), np.flatnonzero(self.acted)
        states, actions = _codes(used, self.shape.states), _codes(acted, self.shape.actions)
        block, s = np.nonzero(self.start)
        zeros = np.zeros(len(s))
        start = StartMoments(block, states[s], self.start[block, s], zeros, zeros.copy())
        kinds = self.request.kinds
        made: dict[str, Any] = {
            "states": Labels(tuple(self.states.label(int(c)) for c in used)),
            "actions": Labels(tuple(self.actions.label(int(a)) for a in acted)),
            "start": start,
            "start_model": start if "model" in kinds else None,
            "truncated": self.carry.cut_off,
            "rewards": self.rewards,
            "unchecked": self.seen.unchecked,
        }
        if "trajectories" in kinds and not self.carry.cut_off:
            made["trajectories"] = self.products.moments(self.start.sum(axis=1))
            if made["trajectories"] is None:
                raise OutOfTheOrdinary
        made |= self.ends.moments(self.carry.cut_off)
        made["paced"] = None if self.carry.cut_off else self.paced.moments()
        made["lagged"] = self.lagged.moments(states, actions)
        made["left_out"] = dict(self.too_long)
        del self.lagged
        if self.cells is not None:
            self.cells.settle(self.policy, self.max_ratio)
            tables = self.cells.tables(kinds, states, actions)
            if tables is None:
                raise OutOfTheOrdinary
            made |= tables
        own = tuple(self.states.label(int(c)) for c in used if self.shown[c])
        identity = self.carry.identity(int(self.start.sum()))
        return Fast(made, own, self.carry.longest, identity, self.done)


def _codes(used: Ints, size: int) -> Ints:
    """New codes 0, 1, … of those that are used."""
    codes = np.full(size, -1, np.int64)
    codes[used] = np.arange(len(used))
    return codes


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As Arrow's arrays are: for others the kernel would be compiled again."""
    flags = array.flags
    if flags.c_contiguous and not flags.writeable:
        return array
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array
