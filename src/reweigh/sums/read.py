"""read_log: a log from a file or a table, in memory or where it is."""

from __future__ import annotations

from typing import Any, Literal

from reweigh.errors import UsageError, check_horizon, must_be
from reweigh.log.arrays import check_options
from reweigh.log.columns import Names, ShortEpisodes, columns_of
from reweigh.log.csv_files import CsvFormat, refuse_elsewhere
from reweigh.log.log import EpisodeLog
from reweigh.log.read import assemble, read_roles
from reweigh.log.roles import RoleReader
from reweigh.log.sources import FileSource, TableSource, open_source
from reweigh.log.states import AnyAbstraction
from reweigh.sums.engines.choose import check_table, find_engine, in_memory, is_ibis_table
from reweigh.sums.scanned_log import Reading, ScannedLog
from reweigh.system.process import tell


def read_log(
    data: Any,
    *,
    episode: str = "episode",
    step: str = "step",
    state: Names = "state",
    action: str = "action",
    reward: str = "reward",
    behavior_prob: str | None = "behavior_prob",
    next_state: Names | None = None,
    target_prob: str | None = None,
    terminated: str | None = None,
    truncated: str | None = None,
    horizon: int | None = None,
    discount: float = 1.0,
    short_episodes: ShortEpisodes = "error",
    hidden: Literal["error", "allow"] = "error",
    continuous_actions: bool = False,
    abstraction: AnyAbstraction | None = None,
    delimiter: str = ",",
    decimal: str = ".",
    engine: str = "auto",
    table: str | None = None,
) -> EpisodeLog | ScannedLog:
    """Read and check a log with one row per step.

    `data` is a CSV (plain or gzip), Parquet or Arrow file, a list of files, a directory, a pattern,
    or a pandas, polars, pyarrow, Ibis or DuckDB table. Each role names its column. A null state
    is refused, or hidden with `hidden="allow"`. Episodes shorter than the horizon need the columns
    `terminated` or `truncated`, or `short_episodes`. `abstraction` makes states of the state
    columns.
    `behavior_prob=None` reads a log without propensities (see `fit_behavior`).

    `engine` is where the rows are read: "arrays" (into memory, now), "stream" (from files in little
    memory, whenever sums are asked for), "duckdb", "spark://host:port", "sc://host:port" (there),
    or "auto": by what the log is and how large. `table` names a table of a DuckDB database or of
    Spark (then `data` is None); an Ibis table may be given itself.
    """
    check_options(hidden, discount)
    horizon = None if horizon is None else check_horizon(horizon)
    if short_episodes not in ("error", "terminal", "truncated"):
        raise must_be("short_episodes", '"error", "terminal" or "truncated"', short_episodes)
    reading = Reading(
        columns=columns_of(
            episode=episode,
            step=step,
            state=state,
            action=action,
            reward=reward,
            behavior_prob=behavior_prob,
            next_state=next_state,
            target_prob=target_prob,
            terminated=terminated,
            truncated=truncated,
        ),
        horizon=horizon,
        discount=float(discount),
        short_episodes=short_episodes,
        hidden=hidden == "allow",
        continuous_actions=continuous_actions,
        abstraction=abstraction,
        csv=CsvFormat(delimiter, decimal),
        table=table,
    )
    return _read(data, reading, engine)


def _read(data: Any, reading: Reading, engine: str) -> EpisodeLog | ScannedLog:
    """The log in memory, or one that an engine reads where it is."""
    check_table(engine, data, reading.table)
    data = in_memory(data)
    in_database = reading.table is not None or is_ibis_table(data)
    source = data if in_database else open_source(data, reading.csv)
    is_csv = isinstance(source, FileSource) and source.kind == "csv"
    if not is_csv:
        csv, usual = reading.csv, CsvFormat()
        refuse_elsewhere(
            source.describe() if isinstance(source, FileSource | TableSource) else "a table",
            delimiter=None if csv.delimiter == usual.delimiter else csv.delimiter,
            decimal=None if csv.decimal == usual.decimal else csv.decimal,
        )
    scanner = find_engine(engine, source, getattr(source, "paths", None))
    if scanner is not None:
        return ScannedLog(source, reading, scanner)
    if in_database:
        raise UsageError(
            "a table of a database is read by an engine: give engine='duckdb' or 'spark://…'"
        )
    tell(0.0)
    rows = read_roles(
        source, reading.columns, reading.abstraction is not None, reading.continuous_actions
    )
    reader = RoleReader(
        rows,
        source,
        reading.columns,
        reading.hidden,
        reading.continuous_actions,
        reading.abstraction,
        reading.csv.decimal if is_csv else None,
    )
    return assemble(reader, reading.horizon, reading.discount, reading.short_episodes)
