"""Logs that stay where they are, scanned again: as small logs of whole episodes, one by one.

A stream is read in its order if the rows of an episode are adjacent. Rows in any other order are
sorted by DuckDB first, which uses the disk if memory is too small; so are those of the engine
duckdb. Spark and warehouses keep their rows, but for a sample of their episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import Place, RefusedError
from reweigh.kernels import Ints
from reweigh.log.log import EpisodeLog
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import Labels
from reweigh.log.times import is_temporal
from reweigh.policy import Policy
from reweigh.sums.engines.stream_chunks import RowOrderError, Visit, scan
from reweigh.sums.moments import Moments
from reweigh.sums.read import Reading, ScannedLog

BATCH = 1 << 18  # rows


def can_scan_again(log: ScannedLog) -> bool:
    """Whether the engine of this log gives its rows a second time."""
    if log.scanner.name in ("stream", "duckdb"):
        return True
    return log.scanner.name == "ibis" and log.data.get_backend().name == "duckdb"


def visit_episodes(
    log: ScannedLog, target: Policy, sums: Moments, begin: Callable[[], Visit]
) -> None:
    """Pass all episodes, as small logs with the codes of these sums, to the result of `begin`; if
    the rows turn out to be unordered, it is called a second time."""

    def recoded(visit: Visit) -> Visit:
        return lambda part: visit(with_codes_of(part, sums))

    horizon = sums.about.horizon
    with np.errstate(over="ignore", invalid="ignore"):
        in_files = isinstance(log.data, TableSource | FileSource) and can_scan_again(log)
        if in_files and log.reading.only is None:
            try:  # rows in order need no sort, whichever engine summed them
                _visit_stream(log, target, horizon, lambda _: recoded(begin()))
            except RowOrderError:
                _visit_sorted(log, "duckdb", target, horizon, lambda _: recoded(begin()))
            return
        engine = None if log.scanner.name == "ibis" else log.scanner.name
        _visit_sorted(log, engine, target, horizon, lambda _: recoded(begin()))


def visit_sample(
    log: ScannedLog, target: Policy, sums: Moments, share: float, begin: Callable[[], Visit]
) -> None:
    """The same of this share of the episodes, of a log whose rows stay where they are."""
    engine = None if log.scanner.name == "ibis" else log.scanner.name
    with np.errstate(over="ignore", invalid="ignore"):
        visit = begin()
        _visit_sorted(
            log,
            engine,
            target,
            sums.about.horizon,
            lambda _: lambda part: visit(with_codes_of(part, sums)),
            share,
        )


def with_codes_of(log: EpisodeLog, sums: Moments) -> EpisodeLog:
    """The same episodes, with the codes that states and actions have in these sums."""
    states = Labels(tuple(value for value in sums.states.values if value is not None))
    if (log.states, log.actions) == (states, sums.actions):
        return log
    code = states.translate(log.states)
    steps = log.steps
    state, ending = (_coded(codes, code) for codes in (steps.state, steps.ending))
    action = steps.action
    if sums.actions is not None and log.actions is not None:
        action = sums.actions.translate(log.actions)[action].astype(action.dtype)
    steps = replace(steps, state=state, ending=ending, action=action)
    return replace(log, steps=steps, states=states, actions=sums.actions, _cache={})


def _coded(codes: npt.NDArray[np.int32], table: Ints) -> npt.NDArray[np.int32]:
    seen = codes >= 0
    recoded = codes.copy()
    recoded[seen] = table[codes[seen]]
    return recoded


def _visit_stream(
    log: ScannedLog, target: Policy, horizon: int, begin: Callable[[bool], Visit]
) -> None:
    from reweigh.sums.engines.stream import StreamEngine

    engine = log.scanner if isinstance(log.scanner, StreamEngine) else StreamEngine()
    opened, rows = engine._open(log.data, log.reading, target)
    found = scan(opened, rows, log.reading, horizon, begin, engine.reads_fast(rows))
    _refuse_change(bool(found.faults or found.target_faults))


def _visit_sorted(
    log: ScannedLog,
    engine: str | None,
    target: Policy,
    horizon: int,
    begin: Callable[[bool], Visit],
    share: float | None = None,
) -> None:
    """All rows from DuckDB; or of a share of the episodes from anywhere."""
    from reweigh.sums.engines.sql_connect import open_database
    from reweigh.sums.engines.sql_log import policy_columns
    from reweigh.sums.engines.sql_rows import wanted_columns

    reading, policy = log.reading, policy_columns(target)
    with open_database(engine, log.data, reading, policy) as home:
        named = [name for _, name in wanted_columns(reading.columns, policy)]
        names = list(dict.fromkeys(named))
        rows = (
            SortedRows.of(home, names, reading)
            if share is None
            else SampledRows.of(home, names, reading, share)
        )
        found = scan(rows, rows, reading, horizon, begin, fast=False)  # type: ignore[arg-type]
    _refuse_change(bool(found.faults or found.target_faults))


def _refuse_change(broken: bool) -> None:
    if broken:
        raise RefusedError("changed", "the log changed between its first scan and the second")


@dataclass(frozen=True, eq=False)
class SortedRows:
    """The columns of a log in DuckDB, sorted by episode and step. Has the interfaces of an opened
    log and of its rows that `scan` uses."""

    home: Any
    names: list[str]
    schema: pa.Schema
    expression: Any
    threads: ClassVar[int] = 1
    order: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, home: Any, names: list[str], reading: Reading, share: float = 1.0) -> Self:
        from reweigh.sums.engines.sql_log import open_rows

        table, kinds = open_rows(home, reading, names)
        if share < 1:
            from reweigh.sums.engines.sql_rows import sampled

            at = names.index(reading.columns.episode)
            table = sampled(table, f"c{at}", kinds[at], share, home.dialect)
        by = [f"c{names.index(name)}" for name in reading.columns.order]
        ordered = table.order_by([table[name] for name in by])
        plain = [k.value_type if pa.types.is_dictionary(k) else k for k in kinds]
        plain = [pa.int64() if is_temporal(k) else k for k in plain]  # as they are held there
        return cls(home, names, pa.schema(list(zip(names, plain, strict=True))), ordered)

    def batches(self, names: list[str] | None = None) -> Iterator[pa.Table]:
        from reweigh.sums.engines.sql_databases import duckdb_errors

        connection = getattr(self.home, "connection", None) or self.home.backend.con
        with duckdb_errors(self.describe(), None):
            reader = connection.sql(self.home.sql(self.expression)).to_arrow_reader(BATCH)
            for batch in reader:
                if batch.num_rows:
                    table = pa.Table.from_batches([batch]).rename_columns(self.names)
                    yield table.cast(self.schema).select(names or self.names)

    def describe(self) -> str:
        return str(self.home.source)

    def place(self, row: int) -> Place:
        return Place(None)


class SampledRows(SortedRows):
    """Those of a share of the episodes, which are few: fetched at once, from any database."""

    def batches(self, names: list[str] | None = None) -> Iterator[pa.Table]:
        table = self.home.run(self.expression).rename_columns(self.names)
        yield table.cast(self.schema).select(names or self.names)
