"""Where the rows of a log are for SQL: an Ibis table of the user's, DuckDB or Spark.

A database gives the log as an Ibis table whose columns are c0, c1, … by position, so that the
names a user gave to columns never reach a query; it takes small tables (a policy), and it runs
expressions. Ibis writes the SQL; the engine's own connection runs it and returns Arrow tables, so
plain Ibis is enough, without the packages that its backends need.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from reweigh.errors import InputError, UsageError
from reweigh.log.parquet_files import ParquetSource
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import is_text
from reweigh.log.times import days_since_1970, is_temporal, microseconds, plain_times
from reweigh.sums.read import Reading
from reweigh.system.process import wait_for

# backends of Ibis that find a column whatever the case of its name; a table that is made by an
# expression may still have two
CASELESS = ("bigquery", "databricks", "duckdb", "impala", "mssql", "mysql", "pyspark", "sqlite")
IBIS_NAMES = {"bool": "boolean", "halffloat": "float16", "float": "float32", "double": "float64"}


@dataclass(eq=False)
class Database:
    """The place of the rows, which runs queries on them. This one writes SQL and runs none, for a
    log with only its columns known.

    source   where the rows are, in words
    names    all columns of the log
    columns  those that the view `log` holds, as c0, c1, … by position; `kinds` are their types
    rows     how many, where that is known without a query
    holds    whether it can hold tables for the time
    """

    source: str
    names: list[str]
    columns: list[str]
    kinds: list[pa.DataType]
    dialect: str
    log: str
    rows: int | None = None
    holds: ClassVar[bool] = False

    def open(self, names: Sequence[str]) -> tuple[Any, list[pa.DataType]]:
        """The log as an Ibis table of these columns, called c0, c1, …, and their types."""
        whole = named_table(self.log, self.kinds)
        at = [self.columns.index(name) for name in names]
        chosen = whole.select(**{f"c{i}": whole[f"c{j}"] for i, j in enumerate(at)})
        return chosen, [self.kinds[j] for j in at]

    def put(self, name: str, table: pa.Table) -> Any:
        """A small table beside the log, as an Ibis table."""
        return named_table(name, table.schema.types, table.column_names)

    def sql(self, expression: Any) -> str:
        return to_sql(expression, self.dialect)

    def run(self, expression: Any, sql: str | None = None) -> pa.Table:
        """The result of a query; `sql` is the SQL of the expression, if it has been written
        already, or the one that makes a table of it."""
        return self.answer(sql or self.sql(expression))

    def answer(self, query: str) -> pa.Table:
        raise UsageError(f"SQL for {self.dialect} can be written here, but not run")


@contextlib.contextmanager
def open_database(
    engine: str | None, data: Any, reading: Reading, policy: Mapping[str, str]
) -> Iterator[Database]:
    """Connect to the database; temporary tables are removed at the end.

    `policy` are the columns that the target reads, by the names of their roles, beside those of
    the log's own roles.
    """
    if isinstance(data, FileSource):
        data.refuse_change()
    with contextlib.ExitStack() as stack:
        from reweigh.sums.engines.sql_databases import open_duckdb, open_spark

        if engine is None:
            yield TableDatabase(data, stack)
        elif engine == "duckdb":
            yield open_duckdb(data, reading, policy, stack)
        else:
            yield open_spark(engine, data, reading, policy, stack)
    if isinstance(data, FileSource):
        data.refuse_change()


# ---- SQL and types -----------------------------------------------------------------------------


def quoted(name: str) -> str:
    """A name as an SQL identifier: the one place where a name becomes SQL."""
    if "\0" in name:
        raise UsageError("a name must not contain a NUL character")
    return '"' + name.replace('"', '""') + '"'


def to_sql(expression: Any, dialect: str) -> str:
    """The SQL of an expression over tables that are known by name."""
    # Ibis's compiler for Spark reads an option that only its Spark backend registers; the one
    # for Databricks writes the same SQL and does not.
    name = "databricks" if dialect == "spark" else dialect
    try:
        compiler = importlib.import_module(f"ibis.backends.sql.compilers.{name}").compiler
    except ImportError as error:
        raise UsageError(f"Ibis has no SQL for {dialect!r}") from error
    with _unfused():
        return str(compiler.to_sqlglot(expression).sql(dialect=compiler.dialect, pretty=True))


@contextlib.contextmanager
def _unfused() -> Iterator[None]:
    """One subquery per step of an expression: merged into each other, they repeat what they use,
    and the text of a query grows without limit. Databases merge them without repeating."""
    import ibis

    before = ibis.options.sql.fuse_selects
    ibis.options.sql.fuse_selects = False
    try:
        yield
    finally:
        ibis.options.sql.fuse_selects = before


def numbered(count: int) -> list[str]:
    return [f"c{i}" for i in range(count)]


def named_table(name: str, kinds: Sequence[pa.DataType], names: Sequence[str] | None = None) -> Any:
    """An Ibis table that is known by its name and the Arrow types of its columns."""
    import ibis

    names = numbered(len(kinds)) if names is None else names
    schema = {n: ibis_kind(kind) for n, kind in zip(names, kinds, strict=True)}
    return ibis.table(schema, name=name)


def ibis_kind(kind: pa.DataType) -> str:
    """The Ibis type of an Arrow type; what reweigh does not read is "binary" (it is refused)."""
    if is_text(kind) or pa.types.is_null(kind):
        return "string"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if is_temporal(kind):
        return "int64"  # held as microseconds since 1970
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return IBIS_NAMES.get(str(kind), str(kind))
    return "binary"


def contract_types(given: Sequence[pa.DataType], held: Sequence[pa.DataType]) -> list[pa.DataType]:
    """The types by which the log's contract judges columns: the database's types, unless Arrow has
    null or a type that reweigh does not read. Databases store such types by their content, such as
    the integers of a duration."""
    refused = [
        pa.types.is_null(kind) or is_temporal(kind) or ibis_kind(kind) == "binary" for kind in given
    ]
    return [g if no else h for g, h, no in zip(given, held, refused, strict=True)]


def refuse_twins(names: Sequence[str], where: str, who: str, otherwise: str = "") -> None:
    """Where columns are found whatever the case of their names, one would be read for another."""
    known: dict[str, str] = {}
    for name in names:
        first = known.setdefault(name.lower(), name)
        if first != name:
            raise InputError(
                f"{where} has the columns {first!r} and {name!r}, which differ only in case: "
                f"{who} treats them as one; rename one of them{otherwise}"
            )


# ---- rows of files and of tables in memory -----------------------------------------------------


def needed(reading: Reading, policy: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """The columns that are read, of those that there are."""
    of_group = () if reading.only is None else (reading.only.column,)
    wanted = (*(name for _, name in reading.columns.by_role()), *policy.values(), *of_group)
    return [name for name in dict.fromkeys(wanted) if name in known]


def files_alike(
    data: ParquetSource, reading: Reading, policy: Mapping[str, str]
) -> tuple[pa.Schema, list[tuple[tuple[str, ...], list[Path]]]]:
    """The types of the needed columns over all Parquet files; and the files that have the same
    columns, of the same types, with the names of these: an engine reads such files together."""
    schemas = data.schemas()
    united = data.unite(schemas, needed(reading, policy, data.names))
    alike: dict[tuple[Any, ...], list[Path]] = {}
    for path, schema in zip(data.paths, schemas, strict=True):
        kinds = tuple(schema.field(name).type for name in united.names)
        alike.setdefault((tuple(schema.names), kinds), []).append(path)
    return united, [(names, paths) for (names, _), paths in alike.items()]


def arrow_rows(
    data: TableSource | FileSource, reading: Reading, policy: Mapping[str, str]
) -> pa.Table:
    """The needed columns of a log that is in memory, or in CSV or JSON files.

    A CSV file is read by reweigh's own reader on every engine: three parsers would be three
    contracts about quotes, empty cells and numbers.
    """
    names = needed(reading, policy, data.names)
    if isinstance(data, TableSource):
        return data.table.select(names)
    from reweigh.log.csv_files import floats_if_most
    from reweigh.log.read import id_columns

    words = id_columns(reading.columns, reading.abstraction, reading.continuous_actions)
    table = data.read(names, list(words))
    for at, name in enumerate(names):
        if data.kind == "csv" and words.get(name) in ("state", "next_state"):
            column = floats_if_most(table.column(name), reading.csv.decimal)
            table = table.set_column(at, name, column)
        if words.get(name) == "time":
            column = plain_times(table.column(name), reading.csv.decimal)
            table = table.set_column(at, name, column)
    return table


# ---- a table that the user handed in -----------------------------------------------------------


class TableDatabase(Database):
    """An Ibis table that the user handed in: it stays with the backend that it belongs to."""

    def __init__(self, table: Any, stack: contextlib.ExitStack) -> None:
        self.table, self.stack, self.backend = table, stack, table.get_backend()
        dialect = self.backend.name
        super().__init__(f"Ibis table of {dialect}", list(table.columns), [], [], dialect, "")

    def open(self, names: Sequence[str]) -> tuple[Any, list[pa.DataType]]:
        # Ibis quotes identifiers; the names occur once in the query, inside this projection
        for name in names:
            quoted(name)
        if self.dialect in CASELESS:
            wanted = {name.lower() for name in names}
            twins = [name for name in self.names if name.lower() in wanted]
            refuse_twins(twins, f"the {self.source}", self.dialect)
        cells = [self._plain(self.table[name]) for name in names]
        chosen = self.table.select(**{f"c{i}": column for i, column in enumerate(cells)})
        kinds = [self.table[name].type() for name in names]
        kinds = [column.type() if kind.is_uuid() else kind
                 for kind, column in zip(kinds, cells, strict=True)]  # fmt: skip
        read = [
            kind.is_string()
            or kind.is_boolean()
            or kind.is_numeric()
            or kind.is_null()
            or self._is_time(kind)
            for kind in kinds
        ]
        arrow = [k.to_pyarrow() if ok else pa.binary() for k, ok in zip(kinds, read, strict=True)]
        return chosen, arrow

    def _plain(self, column: Any) -> Any:
        """A UUID as its text, a time as microseconds since 1970. In DuckDB a text may have a
        collation, which its bytes have not."""
        if column.type().is_uuid():
            column = column.cast("string")
        from reweigh.sums.engines.sql_rows import decode, encode, epoch_us

        if self._is_time(column.type()):
            if self.dialect == "duckdb":
                return epoch_us(column)
            moment = column.cast("timestamp")
            names = ("year", "month", "day", "hour", "minute", "second", "microsecond")
            year, month, day, hour, minute, second, fraction = (
                getattr(moment, name)().cast("int64") for name in names
            )
            days = days_since_1970(year, month, day)
            return microseconds(days, hour, minute, second, fraction, 0)
        collates = column.type().is_string() and self.dialect == "duckdb"
        return decode(encode(column)) if collates else column

    def _is_time(self, kind: Any) -> bool:
        """A date or a time without a zone; with one only where the backend tells its instant."""
        zoned = kind.is_timestamp() and kind.timezone is not None
        plain = kind.is_date() or (kind.is_timestamp() and not zoned)
        return bool(plain or (zoned and self.dialect == "duckdb"))

    def put(self, name: str, table: pa.Table) -> Any:
        if self.dialect == "duckdb":
            self.backend.con.register(name, table)
            self.stack.callback(self.backend.con.unregister, name)
        elif self.dialect == "pyspark":
            session = self.backend._session
            session.createDataFrame(table).createOrReplaceTempView(name)
            self.stack.callback(session.catalog.dropTempView, name)
        else:
            import ibis

            return ibis.memtable(table)
        return self.backend.table(name)

    def run(self, expression: Any, sql: str | None = None) -> pa.Table:
        if self.dialect not in ("duckdb", "pyspark"):
            with _unfused():  # Ibis writes it again, beside the tables that it puts there
                return self.backend.to_pyarrow(expression)
        query = sql or self.sql(expression)
        if self.dialect == "pyspark":
            return self.backend._session.sql(query).toArrow()
        from reweigh.sums.engines.sql_databases import duckdb_errors

        connection = self.backend.con
        with duckdb_errors(self.source, None):
            return wait_for(lambda: connection.sql(query).to_arrow_table(), connection.interrupt)

    def sql(self, expression: Any) -> str:
        with _unfused():
            return str(self.backend.compile(expression, pretty=True))
