"""Where the rows of a log are for SQL: an Ibis table of the user's, DuckDB or Spark.

A home gives the log as an Ibis table whose columns are c0, c1, … by position, so that the names
a user gave to columns never reach a query; it takes small tables (a policy), and it runs
expressions. Ibis writes the SQL; the engine's own connection runs it and answers in Arrow, so that
plain Ibis is enough, without the packages that its own backends ask for.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from reweigh.errors import InputError, UsageError
from reweigh.log.parquet_files import ParquetSource
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import is_text
from reweigh.sums.read import Reading
from reweigh.system.process import wait_for

# backends of Ibis that find a column whatever the case of its name; a table that is made by an
# expression may still have two
CASELESS = ("bigquery", "databricks", "duckdb", "impala", "mssql", "mysql", "pyspark", "sqlite")
IBIS_NAMES = {"bool": "boolean", "halffloat": "float16", "float": "float32", "double": "float64"}


@dataclass(eq=False)
class Home:
    """Where rows are, and who answers questions about them. This one writes SQL and runs none, for
    a log of which only the columns are known.

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
        """The answer; `sql` is the expression's, where it has been written already, or what makes
        a table of it."""
        return self.answer(sql or self.sql(expression))

    def answer(self, query: str) -> pa.Table:
        raise UsageError(f"SQL for {self.dialect} is written here, not run")


@contextlib.contextmanager
def open_home(
    engine: str | None, data: Any, reading: Reading, policy: str | None
) -> Iterator[Home]:
    """Connect to where the rows are; what was made there for the time is removed at the end.

    `policy` is a column that the target reads, beside those that play a role.
    """
    if isinstance(data, FileSource):
        data.refuse_change()
    with contextlib.ExitStack() as stack:
        from reweigh.sums.engines.sql_databases import open_duckdb, open_spark

        if engine is None:
            yield TableHome(data, stack)
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
        raise UsageError("a name must not hold a NUL character")
    return '"' + name.replace('"', '""') + '"'


def to_sql(expression: Any, dialect: str) -> str:
    """The SQL of an expression over tables that are known by name."""
    # Ibis's compiler for Spark reads an option that only its Spark backend registers; the one
    # for Databricks writes the same SQL and does not.
    name = "databricks" if dialect == "spark" else dialect
    try:
        compiler = importlib.import_module(f"ibis.backends.sql.compilers.{name}").compiler
    except ImportError as error:
        raise UsageError(f"Ibis writes no SQL for {dialect!r}") from error
    with _unfused():
        return str(compiler.to_sqlglot(expression).sql(dialect=compiler.dialect, pretty=True))


@contextlib.contextmanager
def _unfused() -> Iterator[None]:
    """One subquery per step of an expression: merged into each other, they repeat what they use,
    and the text of a query grows beyond measure. Databases merge them without repeating."""
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
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return IBIS_NAMES.get(str(kind), str(kind))
    return "binary"


def judged(given: Sequence[pa.DataType], held: Sequence[pa.DataType]) -> list[pa.DataType]:
    """The types by which the log's contract judges columns: what the database holds, unless Arrow
    says that there is nothing, or what reweigh does not read. Of such types databases hold what is
    inside, such as the integers of a duration."""
    refused = [pa.types.is_null(kind) or ibis_kind(kind) == "binary" for kind in given]
    return [g if no else h for g, h, no in zip(given, held, refused, strict=True)]


def refuse_twins(names: Sequence[str], where: str, who: str, otherwise: str = "") -> None:
    """Where columns are found whatever the case of their names, one would be read for another."""
    known: dict[str, str] = {}
    for name in names:
        first = known.setdefault(name.lower(), name)
        if first != name:
            raise InputError(
                f"{where} holds the columns {first!r} and {name!r}, whose names differ in case "
                f"alone: {who} takes them for one; rename one of them{otherwise}"
            )


# ---- rows of files and of tables in memory -----------------------------------------------------


def needed(reading: Reading, policy: str | None, known: Sequence[str]) -> list[str]:
    """The columns that are read, of those that there are."""
    wanted = [name for _, name in reading.columns.by_role()]
    wanted += [] if policy is None else [policy]
    return [name for name in dict.fromkeys(wanted) if name in known]


def files_alike(
    data: ParquetSource, reading: Reading, policy: str | None
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


def arrow_rows(data: TableSource | FileSource, reading: Reading, policy: str | None) -> pa.Table:
    """The needed columns of a log that is in memory, or in CSV files.

    A CSV file is read by reweigh's own reader on every engine: three parsers would be three
    contracts about quotes, empty cells and numbers.
    """
    names = needed(reading, policy, data.names)
    if isinstance(data, TableSource):
        return data.table.select(names)
    from reweigh.log.csv_files import floats_if_most
    from reweigh.log.read import TEXT_ROLES

    numeric = {"action"} if reading.continuous_actions else set()
    if reading.abstraction is not None:
        numeric |= {"state", "next_state"}
    words = {n: r for r, n in reading.columns.by_role() if r in TEXT_ROLES and r not in numeric}
    table = data.read(names, list(words))
    for at, name in enumerate(names):
        if words.get(name) in ("state", "next_state"):
            column = floats_if_most(table.column(name), reading.csv.decimal)
            table = table.set_column(at, name, column)
    return table


# ---- a table that the user handed in -----------------------------------------------------------


class TableHome(Home):
    """An Ibis table that the user handed in: it stays with the backend that it belongs to."""

    def __init__(self, table: Any, stack: contextlib.ExitStack) -> None:
        self.table, self.stack, self.backend = table, stack, table.get_backend()
        dialect = self.backend.name
        super().__init__(f"Ibis table of {dialect}", list(table.columns), [], [], dialect, "")

    def open(self, names: Sequence[str]) -> tuple[Any, list[pa.DataType]]:
        # Ibis quotes identifiers; the names stand once in the query, inside this projection
        for name in names:
            quoted(name)
        if self.dialect in CASELESS:
            wanted = {name.lower() for name in names}
            twins = [name for name in self.names if name.lower() in wanted]
            refuse_twins(twins, f"the {self.source}", self.dialect)
        cells = [self._plain(self.table[name]) for name in names]
        chosen = self.table.select(**{f"c{i}": column for i, column in enumerate(cells)})
        kinds = [column.type() for column in cells]
        read = [
            kind.is_string() or kind.is_boolean() or kind.is_numeric() or kind.is_null()
            for kind in kinds
        ]
        arrow = [k.to_pyarrow() if ok else pa.binary() for k, ok in zip(kinds, read, strict=True)]
        return chosen, arrow

    def _plain(self, column: Any) -> Any:
        """A UUID as its text. In DuckDB a text may have a collation, which its bytes have not."""
        if column.type().is_uuid():
            column = column.cast("string")
        from reweigh.sums.engines.sql_rows import decode, encode

        collates = column.type().is_string() and self.dialect == "duckdb"
        return decode(encode(column)) if collates else column

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
