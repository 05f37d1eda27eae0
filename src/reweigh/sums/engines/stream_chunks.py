"""Logs with adjacent rows of each episode: cut into chunks of whole episodes, each a small log.

Simple logs are read by compiled loops (`stream_simple.py`). Of any other log, and of one that
breaks a rule, every chunk goes through the code that reads a log into memory, so the rules and the
messages are the same. Faults are collected to the end of the log; once there is one, the rest is
only checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import KEPT_PLACES, Fault, InputError, Place, RefusedError, UsageError
from reweigh.log.log import EpisodeLog
from reweigh.log.read import assemble
from reweigh.log.roles import RoleReader
from reweigh.log.states import Codes, Label, Labels, is_label, plain_numbers
from reweigh.log.steps import key_of
from reweigh.sums.engines.stream_rows import ROW, Opened, RowSource
from reweigh.sums.read import Reading
from reweigh.system.process import read_ahead

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Visit = Callable[[EpisodeLog], None]
KEPT_IDS = 1 << 24  # runs of ids: 16 bytes each
LONGEST_EPISODE = 1 << 24  # rows
SIGN = np.uint64(1 << 63)  # so that the keys of -1, 0, 1 count up


class RowOrderError(Exception):
    """The rows of an episode are not adjacent in the order of their steps."""


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
                "engine='stream' reads only columns with a role and those that the target "
                f"names, not {name!r}; read the log with engine='arrays'"
            )
        return self.table.column(name)

    def place(self, row: int) -> Place:
        if ROW in self.table.column_names:  # the rows were sorted
            return self.whole.place(self.table.column(ROW)[row].as_py())
        return self.whole.place(self.first + row)


class ChunkReader(RoleReader):
    """Remembers which labels stand in the state column itself, and where no column counts steps,
    how long the longest episode without a fault is."""

    own: Labels = Labels(())
    longest: int = 1

    def steps(self, episode: Codes) -> Codes:
        steps = super().steps(episode)
        if self.columns.step is None and self.count:
            rows = ~np.isin(episode, episode[steps < 0]) & (episode >= 0)
            self.longest = max(int(np.bincount(episode[rows], minlength=1).max()), 1)
        return steps

    def states(self, names: tuple[str, ...], null_allowed: bool = False) -> tuple[Codes, Labels]:
        codes, labels = super().states(names, null_allowed)
        if names == self.columns.state:
            self.own = labels
        return codes, labels


@dataclass
class SeenIds:
    """The ids of episodes that are over, as runs of consecutive keys.

    Increasing ids need no memory. Others need 16 bytes each, up to 2^24 of them: beyond that, a
    repeated id is no longer detected (`full`), and the sums note it (`unchecked`).
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
            f"the log has more than {KEPT_IDS:,} episode ids that are not in increasing "
            "order, and only the first ones were kept in memory: a later id used for two "
            "episodes would not be noticed. engine='duckdb' checks all ids; increasing ids "
            "need no memory"
        )
        return (rule,)

    def repeated(self) -> bool:
        """Whether a key came twice."""
        if not self.starts:
            return False
        start, stop = np.concatenate(self.starts), np.concatenate(self.stops)
        order = np.argsort(start, kind="stable")
        return bool(np.any(start[order][1:] <= stop[order][:-1]))


@dataclass
class Findings:
    """What a scan has come across; `own` are the labels of the state column itself, `labels` and
    `actions` all labels that occur."""

    faults: list[Fault] = field(default_factory=list)
    target_faults: list[Fault] = field(default_factory=list)
    target_error: str = ""
    own: set[Label] = field(default_factory=set)
    labels: set[Label] = field(default_factory=set)
    actions: set[Label] = field(default_factory=set)
    seen: SeenIds = field(default_factory=SeenIds)
    rows: int = 0
    longest: int = 1

    def ordered_labels(self) -> list[Label]:
        """First those of the state column, then those that occur only in next_state."""
        return [*sorted(self.own), *sorted(self.labels - self.own)]  # type: ignore[type-var]


def scan(
    opened: Opened,
    rows: RowSource,
    reading: Reading,
    horizon: int,
    begin: Callable[[bool], Visit],
    fast: bool,
) -> Findings:
    """Check the whole log. The result of `begin` gets every chunk as a log, as long as no rule is
    broken; if the code that reads logs must start again, `begin` is called again. Its argument is
    whether chunks share their codes: one code is one label, as long as no new ones come up."""
    if fast:
        from reweigh.sums.engines.stream_simple import UnusualRowsError

        try:
            return _simple_scan(rows, reading, horizon, begin(True))
        except UnusualRowsError:
            pass
    return _checked_scan(opened, rows, reading, horizon, begin(False))


def _simple_scan(rows: RowSource, reading: Reading, horizon: int, visit: Visit) -> Findings:
    from reweigh.sums.engines.stream_simple import SimpleLog, UnusualRowsError

    found = Findings()
    simple = SimpleLog(rows, reading, horizon, found)
    for log in simple.chunks():
        try:
            visit(log)
        except InputError as error:
            raise UnusualRowsError from error
    if found.seen.repeated():
        raise RowOrderError
    found.own, found.actions = simple.labels_of("state"), simple.labels_of("action")
    found.labels = found.own | simple.labels_of("next_state")
    return found


def _checked_scan(
    opened: Opened, rows: RowSource, reading: Reading, horizon: int, visit: Visit
) -> Findings:
    """By the code that reads logs."""
    found = Findings()
    if rows.order:  # faults name the rows as they stood
        rows = rows.sorted_by(*rows.order, ROW)
    # ids of another type are a fault of the column: no episodes are made of them, and none are
    # looked for
    are_ids = is_label(rows.schema.field(reading.columns.episode).type)
    batches = read_ahead(rows.batches(), rows.threads)
    for first, table in (
        whole_episodes(batches, reading.columns.episode) if are_ids else numbered(batches)
    ):
        found.rows += table.num_rows
        if are_ids:
            keys = id_keys(table.column(reading.columns.episode))
            name = reading.columns.step
            step = None if name is None else _steps(table.column(name))
            _check_order(found, keys, run_starts(keys), step)
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
            gather(found.faults, reader.faults.faults)
            continue
        finally:
            found.longest = max(found.longest, reader.longest)
        found.own.update(reader.own.values)
        found.labels.update(log.states.values)
        found.actions.update(() if log.actions is None else log.actions.values)
        if found.faults:
            continue
        try:
            visit(log)
        except InputError as error:
            if not error.faults:
                raise
            found.target_error = found.target_error or str(error).split(":", 1)[0]
            gather(found.target_faults, error.faults)
    if found.seen.repeated():
        raise RowOrderError
    return found


def numbered(batches: Iterator[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
    """The batches, with the number of their first row."""
    first = 0
    for table in batches:
        yield first, table
        first += table.num_rows


def whole_episodes(batches: Iterator[pa.Table], name: str) -> Iterator[tuple[int, pa.Table]]:
    """Chunks that end where an episode does, with the number of their first row."""
    first, held = 0, None
    for table in batches:
        if held is None:
            held = table.slice(0, 0)
        # with the previous id, which shows whether the batch begins in the middle of an episode
        known = held.column(name).drop_null()
        before = known.slice(max(len(known) - 1, 0))
        ids = pa.chunked_array([*before.chunks, *table.column(name).chunks], before.type)
        cut = int(run_starts(cell_codes(ids))[-1]) - len(before)
        if cut < 0 or held.num_rows + cut == 0:
            held = pa.concat_tables([held, table])
            if held.num_rows > LONGEST_EPISODE:
                raise RefusedError(
                    "long-episode",
                    f"an episode has more than {LONGEST_EPISODE:,} rows, and each episode "
                    "must fit in memory. Check the episode column",
                )
            continue
        yield first, pa.concat_tables([held, table.slice(0, cut)])
        first, held = first + held.num_rows + cut, table.slice(cut)
    if held is not None:
        yield first, held


def run_starts(keys: npt.NDArray[Any]) -> Ints:
    """The first row of each run of equal keys."""
    return np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))


def cell_codes(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers that are equal where the cells are, within this column.

    A null repeats the previous cell: it is a separate fault, and does not split an episode.
    """
    if pa.types.is_integer(column.type) and column.null_count == 0:
        return plain_numbers(column)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    coded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    coded = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
    codes = plain_numbers(coded.indices)
    if column.null_count:
        known = plain_numbers(column.is_valid())
        codes = codes[np.maximum.accumulate(np.where(known, np.arange(len(codes)), 0))]
    return codes


def id_keys(column: pa.ChunkedArray) -> Words:
    """(rows,) one number per id, the same in every chunk: the integer (also of a text that is one's
    digits), or 8 bytes of the MD5."""
    codes = cell_codes(column)
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
    return plain_numbers(column).astype(np.int64)


def _check_order(found: Findings, keys: Words, starts: Ints, step: Ints | None) -> None:
    """Rows of an episode are adjacent, with their steps in order; faulty steps are left to the
    contract."""
    if len(np.unique(keys[starts])) < len(starts):
        raise RowOrderError
    found.seen.add(keys[starts])
    if step is None:
        return
    lengths = np.diff(np.append(starts, len(keys)))
    expected = np.arange(len(keys)) - np.repeat(starts, lengths)
    wrong = np.logical_or.reduceat(step != expected, starts)
    found.longest = max(found.longest, int(lengths[~wrong].max(initial=0)))
    for run in np.flatnonzero(wrong).tolist():
        rows = slice(int(starts[run]), int(starts[run] + lengths[run]))
        if np.array_equal(np.sort(step[rows]), expected[rows]):
            raise RowOrderError


# --- faults of the chunks, added up ------------------------------------------------------


def gather(found: list[Fault], more: Iterable[Fault]) -> None:
    """Add faults of a part of the log; the same rule broken at the same column is one fault."""
    for fault in more:
        for i, known in enumerate(found):
            if _subject(known) == _subject(fault):
                found[i] = _joined(known, fault)
                break
        else:
            found.append(fault)


def _joined(known: Fault, more: Fault) -> Fault:
    if known.unit == "rows":
        places = (known.places + more.places)[:KEPT_PLACES]
        return replace(known, places=places, count=known.count + more.count)
    # states that the target does not know: each of them once
    told = {place.value for place in known.places}
    fresh = tuple(place for place in more.places if place.value not in told)
    places = (known.places + fresh)[:KEPT_PLACES]
    return replace(
        known, places=places, count=known.count + len(fresh), total=max(known.total, more.total)
    )


def _subject(fault: Fault) -> tuple[str, str]:
    column = fault.places[0].column if fault.places else None
    return fault.code, column or fault.rule


def settle(found: list[Fault], rows: int) -> list[Fault]:
    """The faults of the whole log: with its number of rows, and without what only a part shows."""
    bad = [f.places[0].column for f in found if f.code in ("not-a-step", "not-a-number")]
    flags = [f.rule for f in found if f.code == "type" and "true/false" in f.rule]

    def only_there(fault: Fault) -> bool:
        # in a part without the bad cell, a column of texts looks as if it held nothing but texts
        if fault.code == "type":
            return any(f"column {name!r}" in fault.rule for name in bad)
        # and a flag seems right
        if fault.code == "rows-after-end":
            return any(f"column {fault.places[0].column!r}" in rule for rule in flags)
        return fault.code == "short-episode" and bool(flags)

    kept = [fault for fault in found if not only_there(fault)]
    return [replace(f, total=rows) if f.total and f.unit == "rows" else f for f in kept]
