"""read_log: a log in memory, or one that stays where it is and is read for every request of sums.

`EpisodeLog` is the first, `ScannedLog` the second; which engine reads it is chosen by its name, or
by what the log is.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from reweigh.errors import UsageError, check_horizon, hints
from reweigh.log.log import Columns, Names, ShortEpisodes, check_options, columns_of
from reweigh.sums.tables import BUILT_IN
from reweigh.system import optional_module
from reweigh.system.files import files_behind

if TYPE_CHECKING:
    from reweigh.log.abstractions import AnyAbstraction
    from reweigh.log.csv_files import CsvFormat
    from reweigh.log.log import EpisodeLog
    from reweigh.policy import Policy
    from reweigh.sums.engines import Request
    from reweigh.sums.moments import About, Moments

ENGINES = ("auto", "arrays", "stream", "duckdb", "spark://host:port", "sc://host:port", "local[2]")
STREAM_FROM = 1 << 29  # bytes of files from which reading all into memory is no longer sensible
# of the state columns: their types, their numbers (None where they hold none), and which of the
# episodes they are of (`log/abstractions.py`)
StateValues = tuple[list[Any], list[Any], int]
SPARK = ("spark://", "sc://", "local[", "local")


@dataclass(frozen=True)
class Slice:
    """Of the episodes those whose first row holds this value in a column; None is a missing one."""

    column: str
    value: str | int | float | bool | None


@dataclass(frozen=True, eq=False)
class Reading:
    """How the rows of a log are to be understood: the options of `read_log`; `only` a group of the
    episodes, which engines of SQL know."""

    columns: Columns
    horizon: int | None
    discount: float
    short_episodes: ShortEpisodes
    hidden: bool
    continuous_actions: bool
    abstraction: AnyAbstraction | None
    csv: CsvFormat
    table: str | None = None
    only: Slice | None = None

    def about(self, target: Policy, request: Request, horizon: int) -> About:
        """What the sums of such a log are of, but for the name of the log."""
        from reweigh.log.abstractions import describe_abstraction
        from reweigh.sums.moments import About

        return About(
            horizon=horizon,
            discount=self.discount,
            target=target.fingerprint(),
            target_has_steps=target.has_steps,
            abstraction=describe_abstraction(self.abstraction),
            state_columns=self.columns.state,
            continuous_actions=self.continuous_actions,
            behavior="logged",
            max_ratio=request.max_ratio,
            control=request.control,
            blocks=request.blocks,
            sources=(),
            ordered_by=self.columns.ordered_by,
            cluster=self.columns.cluster,
        )


class Scanner(Protocol):
    """An engine that reads rows where they are. Code above it does not depend on which one it
    is."""

    name: str

    def moments(self, data: Any, reading: Reading, target: Policy, request: Request) -> Moments:
        """All sums of the request, in one scan; every break of the log's contract is refused."""
        ...

    def describe(self, data: Any, reading: Reading) -> dict[str, Any]:
        """The description of the log, as plain values (those of `EpisodeLog.describe` from one
        scan)."""
        ...


@dataclass(frozen=True, eq=False)
class ScannedLog:
    """A log too large for memory, or on another machine. Made by `read_log(…, engine=…)`.

    Estimators that need sums only work as on an EpisodeLog; those that weigh every row with a
    fitted Q refuse (their sums would need a second kind of scan).
    """

    data: Any
    reading: Reading
    scanner: Scanner
    _by_request: dict[tuple[str, Request], Moments] = field(default_factory=dict, repr=False)

    def moments(self, target: Policy, request: Request) -> Moments:
        """The sums of the request; they are computed only once."""
        key = (target.fingerprint(), request)
        if key not in self._by_request:
            with np.errstate(over="ignore", invalid="ignore"):  # estimators refuse what overflows
                sums = self.scanner.moments(self.data, self.reading, target, request)
            self._by_request[key] = replace(sums, files=files_behind(self, target))
        return self._by_request[key]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from: those of the rows, or a database."""
        if isinstance(self.data, str | os.PathLike):
            return (Path(self.data),)
        return tuple(getattr(self.data, "paths", ()))

    def describe(self) -> dict[str, Any]:
        """What the log is, as plain values; the log is read for it."""
        return self.scanner.describe(self.data, self.reading)

    def description(self) -> dict[str, Any]:
        """The description of the log without reading it again, as plain values: how it is read, and
        the values from the sums computed so far."""
        from reweigh.log.read import described

        reading, sums = self.reading, list(self._by_request.values())
        abstraction, bins = described(reading.abstraction, reading.columns.state)
        facts = {
            "source": self.source,
            "engine": self.scanner.name,
            "columns": {
                role: list(name) if isinstance(name, tuple) else name
                for role, name in vars(reading.columns).items()
                if name not in (None, False)
            },
            "horizon": reading.horizon,
            "discount": reading.discount,
            "state_columns": list(reading.columns.state),
            "abstraction": abstraction,
            "continuous_actions": reading.continuous_actions,
            "behavior_prob_from": self.behavior_source,
        } | ({} if abstraction is None else {"notes": list(bins)})
        # products alone do not count rows
        fullest = max(sums, key=lambda one: one.kinds != ("trajectories",), default=None)
        return facts if fullest is None else facts | fullest.describe()

    @property
    def source(self) -> str:
        """Where the rows are, in words."""
        if self.reading.table is not None:
            home = "Spark" if self.data is None else Path(self.data).name
            return f"table {self.reading.table!r} of {home}"
        if is_ibis_table(self.data):
            return f"Ibis table of {self.data.get_backend().name}"
        return str(self.data.describe())

    def sql(self, target: Policy, request: Request) -> str:
        """The queries that make the sums of the request, where the engine speaks SQL."""
        write = getattr(self.scanner, "sql", None)
        if write is None:
            raise UsageError(f"the engine {self.scanner.name} has no SQL; duckdb and Spark have")
        return str(write(self.data, self.reading, target, request))

    @property
    def behavior_source(self) -> str:
        return "logged"

    def __repr__(self) -> str:
        return f"ScannedLog({self.source}, engine={self.scanner.name!r})"


@hints
def read_log(
    data: Any,
    *,
    episode: str = "episode",
    step: str | None = None,
    state: Names | None = None,
    action: str = "action",
    reward: str = "reward",
    behavior_prob: str | None = "behavior_prob",
    next_state: Names | None = None,
    target_prob: str | None = None,
    terminated: str | None = None,
    truncated: str | None = None,
    time: str | None = None,
    bandit: bool = False,
    cluster: str | None = None,
    weight: str | None = None,
    features: Names | None = None,
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
    is refused, or hidden with `hidden="allow"`. `step` counts the rows of an episode 0, 1, 2, …
    (default: "step"). Without it `time` names timestamps, dates or numbers that order them, or
    `bandit=True` makes every row an episode. Episodes shorter than the horizon need the columns
    `terminated` or `truncated`, or `short_episodes`. `abstraction` makes states of the state
    columns; `features` are columns of numbers (or lists) in place of a state or beside it. Without
    propensities `behavior_prob=None` (`fit_behavior`). Errors are by `cluster`; `weight` samples.

    `engine` is where the rows are read: "arrays" (into memory, now), "stream" (from files with
    little memory, for every request of sums), "duckdb", "spark://host:port", "sc://host:port"
    (there), or "auto": by what the log is and how large. `table` names a table of a DuckDB database
    or of Spark (then `data` is None); an Ibis table may be given itself.
    """
    from reweigh.log.csv_files import CsvFormat

    check_options(hidden, discount, short_episodes)
    horizon = None if horizon is None else check_horizon(horizon)
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
            time=time,
            bandit=bandit,
            cluster=cluster,
            weight=weight,
            features=features,
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
    if reading.abstraction is not None and not reading.columns.state:
        raise UsageError(
            "abstraction= makes states of state columns, and only features are named: name them "
            "with state=…, or leave abstraction= out"
        )
    from reweigh.log.csv_files import CsvFormat, refuse_elsewhere
    from reweigh.log.sources import FileSource, TableSource, open_source

    if reading.table is not None and isinstance(engine, str):
        _check_table(engine, data, reading.table)
    if is_ibis_table(data):
        held = importlib.import_module("ibis.expr.operations").InMemoryTable
        data = data.to_pyarrow() if data.op().find(held) else data  # `ibis.memtable` holds rows
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
    scanner = find_engine(engine, source, getattr(source, "paths", ()))
    if scanner is not None and reading.columns.features and scanner.name != "stream":
        raise UsageError(
            f"features={list(reading.columns.features)} need the log in memory or as a stream, and "
            f"engine={scanner.name!r} reads it where it is: use engine='arrays' or 'stream'"
        )
    if scanner is not None and reading.columns.weight is not None:
        raise UsageError(
            f"weight={reading.columns.weight!r} needs the log in memory, and engine="
            f"{scanner.name!r} reads it where it is: use engine='arrays'"
        )
    if scanner is not None:
        return ScannedLog(source, _with_bins(source, reading, scanner), scanner)
    if in_database:
        raise UsageError(
            "a table of a database needs an engine: give engine='duckdb' or 'spark://…'"
        )
    from reweigh.log.read import assemble, read_roles
    from reweigh.log.roles import RoleReader
    from reweigh.system.process import report_share

    report_share(0.0)
    rows = read_roles(source, reading.columns, reading.abstraction, reading.continuous_actions)
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


def _with_bins(source: Any, reading: Reading, scanner: Scanner) -> Reading:
    """With the edges of quantiles, for which the log is read now, where there are any to find."""
    if reading.abstraction is None:
        return reading
    from reweigh.log.abstractions import Quantiles, refuse_empty

    abstraction = reading.abstraction
    if not isinstance(abstraction, Quantiles) or abstraction.edges is not None:
        return reading
    find = getattr(scanner, "state_values", None)
    if find is None:
        raise UsageError(
            f"the engine {scanner.name} does not find quantiles: give the edges, with Grid"
        )
    kinds, values, level = find(source, reading)
    refuse_empty(values, level)
    return replace(reading, abstraction=abstraction.fitted(kinds, values))


# ---- which engine ------------------------------------------------------------------------------


def find_engine(engine: str, data: Any, paths: tuple[Path, ...]) -> Scanner | None:
    """The scanner for a log, None for the engine in memory; `paths` are the log's files, if any."""
    in_ibis, kind = is_ibis_table(data), engine
    if engine == "auto":
        large = sum(path.stat().st_size for path in paths) >= STREAM_FROM
        kind = "sql" if in_ibis else "stream" if large else "arrays"
    elif isinstance(engine, str) and (engine == "duckdb" or is_spark(engine)):
        kind = "sql"
    elif engine not in ("arrays", "stream"):
        raise UsageError(f"there is no engine {engine!r} (engines: {', '.join(ENGINES)})")
    if in_ibis and engine != "auto":
        raise UsageError(
            f"an Ibis table is read by its own backend: omit engine={engine!r}, or give a file"
        )
    scanner: Scanner | None = None
    if kind == "stream":
        scanner = importlib.import_module("reweigh.sums.engines.stream").StreamEngine()
    elif kind == "sql":
        optional_module("ibis", "sql", "reading a log with SQL (DuckDB, Spark, databases)")
        named = None if in_ibis else engine
        scanner = importlib.import_module("reweigh.sums.engines.sql").IbisEngine(named)
    return scanner


def _check_table(engine: str, data: Any, table: str) -> None:
    """A table is in a DuckDB database, whose file is the log, or in Spark's catalog."""
    if engine == "duckdb" and not isinstance(data, str | os.PathLike):
        given = "nothing" if data is None else type(data).__name__
        raise UsageError(
            f"engine='duckdb' reads the table {table!r} from a database: give the database "
            f"file as the log; got {given}"
        )
    if is_spark(engine) and data is not None:
        raise UsageError(
            f"the table {table!r} of Spark is the log: give no files with it, or omit it"
        )


def is_spark(engine: str) -> bool:
    return engine.startswith(SPARK)


def is_ibis_table(data: Any) -> bool:
    """Without importing Ibis, which takes a second."""
    module = type(data).__module__
    return module.split(".")[0] == "ibis" and type(data).__name__ == "Table"


def is_moments_file(path: str | Path) -> bool:
    """True for a Parquet file that `Moments.save` wrote: by its metadata, or by its columns where
    the metadata is damaged."""
    try:
        with Path(path).open("rb") as stream:
            is_parquet = stream.read(4) == b"PAR1"
    except OSError:
        return False
    if not is_parquet:
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException, ValueError):  # a type or a name that is none
        return False
    columns = {"kind", *BUILT_IN["start"].keys, "n", *BUILT_IN["start"].columns}
    return b"reweigh" in (schema.metadata or {}) or columns <= set(schema.names)
