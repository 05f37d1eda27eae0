"""Logs whose episodes stand together: cut into chunks of whole episodes, each checked as a log.

Every chunk goes through the code that reads a log into memory, so the rules and the messages are
the same. Faults are collected to the end of the log; once there is one, the rest is only checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import Fault, InputError, Place, RefusedError, UsageError
from reweigh.log.checks import value_of
from reweigh.log.identity import Identity, identity_of, key_of
from reweigh.log.log import EpisodeLog
from reweigh.log.read import assemble
from reweigh.log.roles import RoleReader, is_label
from reweigh.log.states import Codes, Label, Labels
from reweigh.sums.engines.stream_rows import Opened, RowSource
from reweigh.sums.engines.stream_sums import Words, gather
from reweigh.sums.scanned_log import Reading

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Visit = Callable[[EpisodeLog], None]
KEPT_IDS = 1 << 24  # runs of ids: 16 bytes each
LONGEST_EPISODE = 1 << 24  # rows
SIGN = np.uint64(1 << 63)  # so that the keys of -1, 0, 1 count up


class RowOrderError(Exception):
    """The rows of an episode do not stand together in the order of their steps."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


@dataclass(frozen=True, eq=False)
class ChunkSource:
    """The rows of a chunk, named as rows of the whole log."""

    whole: Opened
    table: pa.Table
    first: int

    @property
    def names(self) -> list[str]:
        return self.whole.names

    def describe(self) -> str:
        return self.whole.describe()

    def column(self, name: str) -> pa.ChunkedArray:
        if name not in self.table.column_names:
            raise UsageError(
                f"engine='stream' reads the columns that have a role and the one of a "
                f"ColumnPolicy, not {name!r}; read the log with engine='arrays'"
            )
        return self.table.column(name)

    def place(self, row: int) -> Place:
        return self.whole.place(self.first + row)


class ChunkReader(RoleReader):
    """Remembers which labels stand in the state column itself."""

    own: Labels = Labels(())

    def states(self, names: tuple[str, ...], null_allowed: bool = False) -> tuple[Codes, Labels]:
        codes, labels = super().states(names, null_allowed)
        if names == self.columns.state:
            self.own = labels
        return codes, labels


@dataclass
class SeenIds:
    """The ids of episodes that are over, as runs of consecutive keys.

    Ids that count up take no room. Others take 16 bytes each, up to 2^24 of them: beyond that, an
    id that comes back is no longer noticed (`full`), which the sums then say (`unchecked`).
    """

    starts: list[Words] = field(default_factory=list)
    stops: list[Words] = field(default_factory=list)
    held: int = 0
    full: bool = False

    def add(self, keys: Words) -> None:
        if len(keys) == 0:
            return
        if self.held > KEPT_IDS:
            self.full = True
            return
        keys = keys ^ SIGN
        breaks = np.flatnonzero((keys[1:] - keys[:-1] != 1) | (keys[1:] == 0))
        start = keys[np.concatenate([[0], breaks + 1])]
        stop = keys[np.append(breaks, len(keys) - 1)]
        if self.stops and int(self.stops[-1][-1]) + 1 == int(start[0]):
            self.stops[-1][-1] = stop[0]
            start, stop = start[1:], stop[1:]
        if len(start):
            self.starts.append(start)
            self.stops.append(stop)
            self.held += len(start)

    @property
    def unchecked(self) -> tuple[str, ...]:
        if not self.full:
            return ()
        rule = (
            f"of more than {KEPT_IDS:,} episode ids that do not count up, only the first were kept "
            "in mind: whether a later one is used for two episodes was not checked. "
            "engine='duckdb' checks all of them; ids that count up take no room"
        )
        return (rule,)

    def repeated(self) -> np.uint64 | None:
        """A key that came twice."""
        if not self.starts:
            return None
        start, stop = np.concatenate(self.starts), np.concatenate(self.stops)
        order = np.argsort(start, kind="stable")
        again = np.flatnonzero(start[order][1:] <= stop[order][:-1])
        return start[order][1:][again[0]] ^ SIGN if len(again) else None


@dataclass
class Findings:
    """What a scan has come across."""

    faults: list[Fault] = field(default_factory=list)
    target_faults: list[Fault] = field(default_factory=list)
    target_error: str = ""
    own: set[Label] = field(default_factory=set)
    seen: SeenIds = field(default_factory=SeenIds)
    rows: int = 0
    longest: int = 1
    identity: Identity = field(default_factory=Identity)


def scan(opened: Opened, rows: RowSource, reading: Reading, horizon: int, visit: Visit) -> Findings:
    """Check the whole log; `visit` sees every chunk as a log, as long as no rule is broken."""
    found = Findings()
    # ids of another type are a fault of the column: no episodes are made of them, and none are
    # looked for
    are_ids = is_label(rows.schema.field(reading.columns.episode).type)
    for first, table in (
        whole_episodes(rows.batches(), reading.columns.episode) if are_ids else numbered(rows)
    ):
        found.rows += table.num_rows
        if are_ids:
            keys = id_keys(table.column(reading.columns.episode))
            step = _steps(table.column(reading.columns.step))
            _check_order(found, first, keys, run_starts(keys), step)
        source = ChunkSource(opened, table, first)
        reader = ChunkReader(
            table,
            source,  # type: ignore[arg-type]
            reading.columns,
            reading.hidden,
            reading.continuous_actions,
            reading.abstraction,
        )
        reader.faults.total = table.num_rows
        try:
            log = assemble(reader, horizon, reading.discount, reading.short_episodes)
        except (InputError, RefusedError):
            gather(found.faults, reader.faults.found)
            continue
        found.own.update(reader.own.values)
        found.identity += identity_of(log.steps)
        if found.faults:
            continue
        try:
            visit(log)
        except InputError as error:
            if not error.faults:
                raise
            found.target_error = found.target_error or str(error).split(":", 1)[0]
            gather(found.target_faults, error.faults)
    again = found.seen.repeated()
    if again is not None:
        raise RowOrderError(_second_row(rows, reading.columns.episode, again))
    return found


def numbered(rows: RowSource) -> Iterator[tuple[int, pa.Table]]:
    """The batches, with the number of their first row."""
    first = 0
    for table in rows.batches():
        yield first, table
        first += table.num_rows


def whole_episodes(batches: Iterator[pa.Table], name: str) -> Iterator[tuple[int, pa.Table]]:
    """Chunks that end where an episode does, with the number of their first row."""
    first, held = 0, None
    for table in batches:
        if held is None:
            held = table.slice(0, 0)
        # with the id before, which says whether the batch begins in the middle of an episode
        known = held.column(name).drop_null()
        before = known.slice(max(len(known) - 1, 0))
        ids = pa.chunked_array([*before.chunks, *table.column(name).chunks], before.type)
        cut = int(run_starts(_codes(ids))[-1]) - len(before)
        if cut < 0 or held.num_rows + cut == 0:
            held = pa.concat_tables([held, table])
            if held.num_rows > LONGEST_EPISODE:
                raise RefusedError(
                    "long-episode",
                    f"an episode has more than {LONGEST_EPISODE:,} rows, and one episode at a time "
                    "is held in memory. Check the episode column",
                )
            continue
        yield first, pa.concat_tables([held, table.slice(0, cut)])
        first, held = first + held.num_rows + cut, table.slice(cut)
    if held is not None:
        yield first, held


def run_starts(keys: npt.NDArray[Any]) -> Ints:
    """The first row of each run of equal keys."""
    return np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))


def _codes(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers that are equal where the cells are, within this column.

    A null stands for the cell before: it is a fault of its own, and does not part an episode.
    """
    if pa.types.is_integer(column.type) and column.null_count == 0:
        return np.asarray(column.to_numpy())
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    coded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
    codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False))
    if column.null_count:
        known = column.is_valid().to_numpy()
        codes = codes[np.maximum.accumulate(np.where(known, np.arange(len(codes)), 0))]
    return codes


def id_keys(column: pa.ChunkedArray) -> Words:
    """(rows,) one number per id, the same in every chunk: the integer (also of a text that is one's
    digits), or 8 bytes of the MD5."""
    codes = _codes(column)
    if pa.types.is_integer(column.type) and column.null_count == 0:
        return codes.astype(np.int64, copy=False).view(np.uint64)
    _, first, place = np.unique(codes, return_index=True, return_inverse=True)
    numbers = np.array([key_of(text) for text in id_texts(column, first)], np.int64)
    return np.asarray(numbers[place].view(np.uint64))


def id_texts(column: pa.ChunkedArray, rows: Ints) -> list[str]:
    """Ids as texts; that of a truth value is that of the integer, as everywhere."""
    values = column.take(pa.array(rows)).to_pylist()
    return [str(int(value) if isinstance(value, bool) else value) for value in values]


def _steps(column: pa.ChunkedArray) -> Ints | None:
    if not pa.types.is_integer(column.type) or column.null_count:
        return None
    return np.asarray(column.to_numpy()).astype(np.int64)


def _check_order(found: Findings, first: int, keys: Words, starts: Ints, step: Ints | None) -> None:
    """Episodes stand together, with their steps in order; faulty steps are left to the contract."""
    unique, at = np.unique(keys[starts], return_index=True)
    if len(unique) < len(starts):
        back = np.setdiff1d(np.arange(len(starts)), at)
        raise RowOrderError(first + int(starts[back[0]]))
    found.seen.add(keys[starts])
    if step is None:
        return
    lengths = np.diff(np.append(starts, len(keys)))
    expected = np.arange(len(keys)) - np.repeat(starts, lengths)
    wrong = np.logical_or.reduceat(step != expected, starts)
    good = lengths[~wrong]
    found.longest = max(found.longest, int(good.max(initial=0)))
    for run in np.flatnonzero(wrong).tolist():
        rows = slice(int(starts[run]), int(starts[run] + lengths[run]))
        if np.array_equal(np.sort(step[rows]), expected[rows]):
            late = int(np.flatnonzero(step[rows] != expected[rows])[0])
            raise RowOrderError(first + rows.start + late)


def _second_row(rows: RowSource, name: str, key: np.uint64) -> int:
    """Where the id of this key comes back: only looked for when it does."""
    first, times, before = 0, 0, None
    for table in rows.batches([name]):
        keys = id_keys(table.column(name))
        for start in run_starts(keys).tolist():
            if keys[start] == key and (start > 0 or before != key):
                times += 1
                if times == 2:
                    return int(first + start)
        before = keys[-1]
        first += table.num_rows
    raise AssertionError("the key stands twice")


def order_fault(opened: Opened, rows: RowSource, reading: Reading, row: int, why: str) -> Fault:
    """The refusal of rows that do not stand in order."""
    columns = reading.columns
    done = 0
    for table in rows.batches([columns.episode, columns.step]):
        if row < done + table.num_rows:
            break
        done += table.num_rows
    episode, step = (value_of(table.column(n), row - done) for n in (columns.episode, columns.step))
    place = replace(
        opened.place(row),
        column=columns.episode,
        value=episode,
        episode=episode,
        step=step if isinstance(step, int) else None,
    )
    return Fault(
        "row-order",
        "the rows of an episode must stand together, in the order of their steps, to be streamed",
        "sort the rows by episode and step, or read them with engine='duckdb', which sorts; if an "
        f"id was used for two episodes, make the ids distinct ({why})",
        (place,),
    )
