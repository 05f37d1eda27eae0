"""Simple logs as chunks of whole episodes, by compiled loops.

Simple are columns of integers or texts, with few states and actions, logged probabilities and steps
in order. A thread of its own reads the columns of the next chunk into flat arrays, as codes; then
its episodes are checked and put time-major, as in a log in memory. Anything else, faults included,
raises `UnusualRowsError`: the code that reads logs then starts again, and reports the faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import Place
from reweigh.kernels import rows as kernels
from reweigh.log.csv_files import truth
from reweigh.log.log import EpisodeLog
from reweigh.log.rules import REWARDS, probability_range
from reweigh.log.states import (
    END,
    HIDDEN,
    UNKNOWN,
    Label,
    Labels,
    floats,
    is_label,
    is_number,
    is_text,
    label_array,
    plain_numbers,
)
from reweigh.log.steps import Steps
from reweigh.sums.engines.stream_chunks import Findings, id_keys, id_texts
from reweigh.sums.engines.stream_rows import RowSource
from reweigh.sums.read import Reading
from reweigh.system.process import read_ahead

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
MOST_LABELS = 1 << 12
MOST_STEPS = 1 << 31
PAGES = 60_000  # rows of a batch: writers make pages of 20,000, and whole ones are not copied again
LONGEST = 1 << 22  # rows of an episode
CODED = ("episode", "step", "state", "action")
NO_LIMITS = (-np.inf, np.inf)
RANGES = {"reward": REWARDS} | {
    role: probability_range(role, density=False) for role in ("behavior_prob", "target_prob")
}


class UnusualRowsError(Exception):
    """The code that reads logs must handle these rows."""


def require(fine: Any) -> None:
    if not fine:
        raise UnusualRowsError


@dataclass
class IntegerCodes:
    """Codes of integers in a known range: the distance from the smallest."""

    low: int
    size: int

    def __post_init__(self) -> None:
        self.labels = Labels(tuple(range(self.low, self.low + self.size)))

    def put(self, column: pa.ChunkedArray, codes: Array, null_allowed: bool = False) -> None:
        low = self.low - null_allowed  # so that a null is -1
        if column.null_count:
            column = column.fill_null(low)
        require(kernels.narrow(_integers(column), low, self.size + null_allowed, codes))
        codes -= null_allowed


@dataclass
class TextCodes:
    """Codes of texts in the order in which they come."""

    labels: Labels = field(default_factory=lambda: Labels(()))

    def put(self, column: pa.ChunkedArray, codes: Array, null_allowed: bool = False) -> None:
        if not pa.types.is_dictionary(column.type):
            column = pc.dictionary_encode(column)
        parts = [self._translate(chunk) for chunk in column.chunks]
        codes[:] = np.concatenate([*parts, np.zeros(0, np.int64)])
        require(null_allowed or codes.min(initial=0) >= 0)

    def _translate(self, chunk: pa.DictionaryArray) -> Ints:
        """Only words that occur get a code; -1 for none."""
        none = len(chunk.dictionary)
        place = plain_numbers(chunk.indices.fill_null(none))
        occurs = np.zeros(none + 1, bool)
        occurs[place] = True
        used = np.flatnonzero(occurs[:none])
        words = chunk.dictionary.take(pa.array(used)).to_pylist()
        new = [word for word in dict.fromkeys(words) if word not in {None, *self.labels.code_of}]
        if new:
            self.labels = Labels((*self.labels.values, *new))
        code = np.full(none + 1, -1)
        code[used] = [self.labels.code_of.get(word, -1) for word in words]
        codes: Ints = code[place]
        return codes


@dataclass(frozen=True, eq=False)
class FlatRows:
    """The rows of whole episodes in the order of the log.

    columns           by role; those of numbers as "column " and their name
    starts, ids       (n,) the first rows of the episodes, and their keys
    states, actions   labels of the codes
    id_texts          of the episodes' keys, where ids are texts
    """

    columns: dict[str, Array]
    starts: Ints
    ids: Ints
    states: Labels
    actions: Labels
    id_texts: dict[int, str]


@dataclass(frozen=True, eq=False)
class ChunkColumns:
    """The source of a chunk. Code that reads a column or a place needs it for a message about a
    row."""

    names: list[str]

    def describe(self) -> str:
        raise UnusualRowsError

    def column(self, name: str) -> pa.ChunkedArray:
        raise UnusualRowsError

    def place(self, row: int) -> Place:
        raise UnusualRowsError


class SimpleLog:
    """The rows of a simple log, chunk by chunk.

    found    gets what they show
    present  by role: whether each code occurs
    last     the episode and the step of the last row that was read
    time_major  memory for the columns of a chunk, which the next one takes again
    """

    def __init__(self, rows: RowSource, reading: Reading, horizon: int, found: Findings) -> None:
        columns = reading.columns
        self.rows, self.reading, self.horizon, self.found = rows, reading, horizon, found
        require(
            reading.abstraction is None
            and not reading.continuous_actions
            and len(columns.state) == 1
            and columns.behavior_prob is not None
            and horizon < MOST_STEPS
            and columns.step is not None
            and columns.time is None
            and columns.cluster is None
            and columns.weight is None
            and columns.features is None
            and pa.types.is_integer(self._kind(columns.step))
            and is_label(self._kind(columns.episode))
        )
        self.roles: dict[str, str] = dict(columns.by_role())
        self.optional = {"next_state", "terminated", "truncated"} & self.roles.keys()
        coded = {self.roles[role] for role in (*CODED, *self.optional)}
        self.numbers = [name for name in rows.names if name not in coded]  # also a target's column
        require(all(is_number(self._kind(name)) for name in self.numbers))
        self.last = np.array([0, -1])
        self.limits: dict[str, tuple[float, float]] = {}
        for role in RANGES.keys() & self.roles.keys():
            low, high = self.limits.get(self.roles[role], NO_LIMITS)
            limits = max(low, RANGES[role].low), min(high, RANGES[role].high)
            self.limits[self.roles[role]] = limits
        self.states = self._coder([*columns.state, *(columns.next_state or ())])
        self.actions = self._coder([columns.action])
        self.whole_ids = pa.types.is_integer(self._kind(columns.episode))
        self.id_texts: dict[int, str] = {}
        self.time_major: dict[str, Array] = {}
        self.present = {role: np.zeros(0, bool) for role in ("state", "next_state", "action")}

    def _kind(self, name: str) -> pa.DataType:
        return self.rows.schema.field(name).type

    def _coder(self, names: list[str]) -> IntegerCodes | TextCodes:
        kinds = [self._kind(name) for name in names]
        if all(pa.types.is_integer(kind) for kind in kinds):
            spans = [span for span in map(self.rows.range_of, names) if span is not None]
            low = min((span[0] for span in spans), default=0)
            size = max((span[1] for span in spans), default=0) - low + 1
            require(size <= MOST_LABELS and abs(low) < 2**62)
            return IntegerCodes(low, size)
        require(all(map(is_text, kinds)))
        return TextCodes()

    def chunks(self) -> Iterator[EpisodeLog]:
        """The log, as logs of some episodes after the other; the next one overwrites the rows."""
        for rows in read_ahead(self._read(), self.rows.threads):
            yield self._log(rows)

    # --- columns as codes, in the thread that reads ------------------------------------------

    def _read(self) -> Iterator[FlatRows]:
        """Whole episodes, of as many rows as a chunk has. Two pieces of memory are used in turns:
        while one is read, the other one is filled."""
        size, page, done = self.rows.size, min(self.rows.size, PAGES), 0
        room, spare = self._room(size + page), self._room(size + page)
        starts, ids = np.zeros((2, 0), np.int64)
        for table in self.rows.batches(size=page):
            many = table.num_rows
            if done + many > len(room["state"]):  # an episode is longer than a chunk
                require(done < LONGEST)
                room, spare = _copy_rows(room, 0, done, self._room(2 * done + page)), {}
            keys, first = self._put(
                table, {n: values[done : done + many] for n, values in room.items()}
            )
            starts, ids = np.append(starts, first + done), np.append(ids, keys[first])
            done += many
            begin = int(starts[-1])  # of the last episode
            if done >= size and begin > 0:
                yield self._flat(room, begin, starts[:-1], ids[:-1], {int(ids[-1])})
                spare = spare or self._room(len(room["state"]))  # no longer read
                room, spare, done = _copy_rows(room, begin, done, spare), room, done - begin
                starts, ids = starts[-1:] - begin, ids[-1:]
        if done:
            yield self._flat(room, done, starts, ids, set())

    def _flat(
        self, room: dict[str, Array], rows: int, starts: Ints, ids: Ints, after: set[int]
    ) -> FlatRows:
        """The first rows; `after` are the keys of those that go on after them."""
        texts = self.id_texts
        self.id_texts = {key: texts[key] for key in after & texts.keys()}
        columns = {name: values[:rows] for name, values in room.items()}
        return FlatRows(columns, starts, ids, self.states.labels, self.actions.labels, texts)

    def _room(self, rows: int) -> dict[str, Array]:
        kinds: dict[str, Any] = {"first": bool, "state": np.int32, "action": np.int32}
        kinds |= {role: np.int32 if role == "next_state" else bool for role in self.optional}
        kinds |= {f"column {name}": np.float64 for name in self.numbers}
        return {name: np.empty(rows, kind) for name, kind in kinds.items()}

    def _put(self, table: pa.Table, to: dict[str, Array]) -> tuple[Ints, Ints]:
        """The columns of a batch as numbers and codes; nulls are for the code that reads logs.
        Also the rows' episodes, and which rows are the first of theirs."""
        column = {role: table.column(self.roles[role]) for role in (*CODED, *self.optional)}
        require(not any(column[role].null_count for role in column if role != "next_state"))
        keys = _unwritable(id_keys(column["episode"]).view(np.int64))
        step = _integers(column["step"])
        require(kernels.in_sequence(keys, step, self.last, to["first"]))
        self.last[:] = keys[-1], step[-1]
        first = np.flatnonzero(to["first"])
        if not self.whole_ids:
            texts = id_texts(column["episode"], first)
            self.id_texts |= zip(keys[first].tolist(), texts, strict=True)
        self.states.put(column["state"], to["state"])
        self.actions.put(column["action"], to["action"])
        for role in self.optional:
            if role == "next_state":
                self.states.put(column[role], to[role], null_allowed=True)
            else:
                to[role][:] = _flags(column[role])
        for name in self.numbers:
            values = table.column(name)
            require(not values.null_count)
            numbers = _unwritable(plain_numbers(floats(values)))
            limits = self.limits.get(name, NO_LIMITS)
            fine = kernels.copied(numbers, *limits, to[f"column {name}"])
            require(fine or name not in self.limits)  # a policy refuses what it cannot take
        return keys, first

    # --- episodes, time-major ----------------------------------------------------------------

    def _log(self, flat: FlatRows) -> EpisodeLog:
        rows, horizon = flat.columns, self.horizon
        state, columns = rows["state"], self.reading.columns
        links = [rows.get(role, np.zeros(0, bool)) for role in ("terminated", "truncated")]
        next_state = rows.get("next_state", np.zeros(0, np.int32))
        require(kernels.links_hold(rows["first"], state, next_state, *links))
        self._note_labels(flat)
        starts = flat.starts
        lengths = np.diff(np.append(starts, len(state)))
        found = self.found
        found.rows += len(state)
        found.longest = max(found.longest, int(lengths.max()))
        found.seen.add(flat.ids.view(np.uint64))
        used = np.minimum(lengths, horizon)
        order = np.argsort(-used, kind="stable")
        ids = self._ids(flat, flat.ids[order])
        ending, truncated = self._endings(flat, starts, lengths)
        starts, used = starts[order], used[order]
        alive = len(used) - np.cumsum(np.bincount(used, minlength=horizon))[:horizon]
        offsets = np.concatenate([[0], np.cumsum(alive)]).astype(np.int64)
        numbers = {name: values for name, values in rows.items() if name.startswith("column ")}
        placed = {}
        for name, values in {"state": state, "action": rows["action"], **numbers}.items():
            if len(self.time_major.get(name, ())) < len(values):
                self.time_major[name] = np.empty(len(values) + PAGES, values.dtype)
            placed[name] = self.time_major[name][: int(offsets[-1])]
            kernels.put_time_major(values, starts, used, offsets, placed[name])
        steps = Steps(
            offsets=offsets,
            state=placed.pop("state"),
            action=placed.pop("action"),
            reward=placed[f"column {columns.reward}"],
            behavior_prob=placed[f"column {columns.behavior_prob}"],
            ending=ending[order].astype(np.int32),
            truncated=truncated[order],
            episode=ids,
            source_rows=None,
        )
        return EpisodeLog(
            steps=steps,
            states=flat.states,
            actions=flat.actions,
            discount=self.reading.discount,
            columns=columns,
            source=ChunkColumns(self.rows.names),
            _cache={**placed, "has_hidden": False},
        )

    def _ids(self, flat: FlatRows, keys: Ints) -> Array:
        if not self.whole_ids:
            return label_array([flat.id_texts[key] for key in keys.tolist()])
        unsigned = pa.types.is_uint64(self._kind(self.reading.columns.episode))
        return keys.view(np.uint64) if unsigned else keys

    def _endings(self, flat: FlatRows, starts: Ints, lengths: Ints) -> tuple[Array, Array]:
        """(n,) the state after each episode's last row in use, and whether it was cut off."""
        rows, horizon, short = flat.columns, self.horizon, self.reading.short_episodes
        last = starts + np.minimum(lengths, horizon) - 1
        none = np.zeros(len(last), bool)
        ended = rows["terminated"][last] if "terminated" in rows else none
        cut = rows["truncated"][last] if "truncated" in rows else none
        known = rows["next_state"][last] if "next_state" in rows else np.full(len(last), HIDDEN)
        # an episode that continues after the horizon has its next state in the log
        beyond = lengths > horizon
        known = np.where(beyond, rows["state"][np.where(beyond, last + 1, 0)], known)
        early = lengths < horizon
        require(short != "error" or not np.any(early & ~ended & ~cut))
        over = ended | (early & ~cut & (short == "terminal"))
        ending = np.where(over, END, np.where(known < 0, UNKNOWN, known))
        return ending, early & ~over

    def _note_labels(self, flat: FlatRows) -> None:
        for role, present in self.present.items():
            size = len(flat.actions if role == "action" else flat.states)
            if len(present) < size:
                present = self.present[role] = np.pad(present, (0, size - len(present)))
            if role in flat.columns:
                kernels.mark(present, flat.columns[role])

    def labels_of(self, role: str) -> set[Label]:
        """Those that occur in the column of the state, the next state or the action."""
        values = (self.actions if role == "action" else self.states).labels.values
        return {values[code] for code in np.flatnonzero(self.present[role]).tolist()}


def _copy_rows(
    room: dict[str, Array], begin: int, end: int, to: dict[str, Array]
) -> dict[str, Array]:
    """The same rows at the beginning of another piece of memory."""
    for name, values in room.items():
        to[name][: end - begin] = values[begin:end]
    return to


def _flags(column: pa.ChunkedArray) -> Array:
    flags = truth(column)
    if flags is None:
        raise UnusualRowsError
    return plain_numbers(flags)


def _integers(column: pa.ChunkedArray) -> Ints:
    """In 64 bits, for which alone the loops are compiled."""
    return _unwritable(plain_numbers(column).astype(np.int64, copy=False))


def _unwritable(values: Array) -> Array:
    """Read-only, as Arrow's arrays are: of others the loops would be compiled once more."""
    values = values.view()
    values.flags.writeable = False
    return values
