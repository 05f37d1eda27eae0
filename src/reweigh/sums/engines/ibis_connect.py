"""Where the rows of a log are for Ibis: an Ibis table of the user's, DuckDB or Spark.

A home gives the log as an Ibis table whose columns are c0, c1, … by position, so that the names
a user gave to columns never reach a query; it takes small tables (a policy), and it runs
expressions. Ibis writes the SQL; the engine's own connection runs it and answers in Arrow, so that
plain Ibis is enough, without the packages that its own backends ask for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from reweigh.errors import InputError, Place, UsageError
from reweigh.log.column_types import is_text
from reweigh.log.sources import FileSource, TableSource
from reweigh.system.process import wait_for

if TYPE_CHECKING:
    from reweigh.sums.read import Reading

ROW = "row"  # from 0 on over all files; only messages need it
# backends of Ibis that find a column whatever the case of its name; a table that is made by an
# expression may still have two
CASELESS = ("bigquery", "databricks", "duckdb", "impala", "mssql", "mysql", "pyspark", "sqlite")


class Home(Protocol):
    """Where rows are, and who answers questions about them. `names` are the log's columns."""

    dialect: str
    names: list[str]
    rows: int | None  # where their number is known without a query
    holds: bool  # whether it can hold tables for the time

    def describe(self) -> str: ...

    def number_rows(self) -> bool:
        """From here on `open` gives the log with the column ROW; False where rows have no order."""
        ...

    def place(self, row: int | None) -> Place:
        """How a message names this row: nothing is said where rows are not numbered."""
        ...

    def open(self, names: Sequence[str]) -> tuple[Any, list[pa.DataType]]:
        """The log as an Ibis table of these columns, called c0, c1, …, and their types."""
        ...

    def put(self, name: str, table: pa.Table) -> Any:
        """A small table beside the log, as an Ibis table."""
        ...

    def run(self, expression: Any, sql: str | None = None) -> pa.Table:
        """The answer; `sql` is the expression's, where it has been written already, or what makes
        a table of it."""
        ...

    def sql(self, expression: Any) -> str: ...


def quoted(name: str) -> str:
    """A name as an SQL identifier: the one place where a name becomes SQL."""
    if "\0" in name:
        raise UsageError("a name must not hold a NUL character")
    return '"' + name.replace('"', '""') + '"'


def to_sql(expression: Any, dialect: str) -> str:
    """The SQL of an expression over tables that are known by name."""
    import importlib

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


def named_table(name: str, kinds: Sequence[pa.DataType], names: Sequence[str] | None = None) -> Any:
    """An Ibis table that is known by its name and the Arrow types of its columns."""
    import ibis

    names = [f"c{i}" for i in range(len(kinds))] if names is None else names
    schema = {n: ibis_kind(kind) for n, kind in zip(names, kinds, strict=True)}
    return ibis.table(schema, name=name)


def ibis_kind(kind: pa.DataType) -> str:
    """The Ibis type of an Arrow type; what reweigh does not read is "binary" (it is refused)."""
    if is_text(kind) or pa.types.is_null(kind):
        return "string"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return str(kind)
    if pa.types.is_floating(kind):
        return {"halffloat": "float16", "float": "float32"}.get(str(kind), "float64")
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return "binary"


def arrow_kind(kind: Any) -> pa.DataType:
    """The Arrow type of an Ibis type, for the same words in the same messages."""
    if kind.is_string():
        return pa.string()
    if kind.is_boolean():
        return pa.bool_()
    if kind.is_integer() or kind.is_floating():
        return getattr(pa, str(kind).lstrip("!").lower())()
    if kind.is_decimal():
        return pa.decimal128(kind.precision or 38, kind.scale or 0)
    if kind.is_null():
        return pa.null()
    return pa.binary()


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


def judged(given: Sequence[pa.DataType], held: Sequence[pa.DataType]) -> list[pa.DataType]:
    """The types by which the log's contract judges columns: what the database holds, unless Arrow
    says that there is nothing, or what reweigh does not read. Of such types databases hold what is
    inside, such as the integers of a duration."""
    refused = [pa.types.is_null(kind) or ibis_kind(kind) == "binary" for kind in given]
    return [g if no else h for g, h, no in zip(given, held, refused, strict=True)]


@contextlib.contextmanager
def open_home(
    engine: str | None, data: Any, reading: Reading, policy: str | None
) -> Iterator[Home]:
    """Connect to where the rows are; what was made there for the time is removed at the end.

    `policy` is a column that the target reads, beside those that play a role.
    """
    if isinstance(data, FileSource):
        data._refuse_change()
    with contextlib.ExitStack() as stack:
        home: Home
        if engine is None:
            home = TableHome(data, stack)
        elif engine == "duckdb":
            from reweigh.sums.engines.ibis_duckdb import open_duckdb

            home = open_duckdb(data, reading, policy, stack)
        else:
            from reweigh.sums.engines.ibis_spark import open_spark

            home = open_spark(engine, data, reading, policy, stack)
        yield home
    if isinstance(data, FileSource):
        data._refuse_change()


def needed(reading: Reading, policy: str | None, known: Sequence[str]) -> list[str]:
    """The columns that are read, of those that there are."""
    wanted = [name for _, name in reading.columns.by_role()]
    wanted += [] if policy is None else [policy]
    return [name for name in dict.fromkeys(wanted) if name in known]


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

    roles = reading.columns.by_role()
    numeric = {"action"} if reading.continuous_actions else set()
    if reading.abstraction is not None:
        numeric |= {"state", "next_state"}
    words = [name for role, name in roles if role in TEXT_ROLES and role not in numeric]
    table = data.read(names, words)
    for role, name in roles:
        if role in ("state", "next_state") and role not in numeric and name in names:
            at = table.column_names.index(name)
            column = floats_if_most(table.column(name), reading.csv.decimal)
            table = table.set_column(at, name, column)
    return table


@dataclass(eq=False)
class NamedHome:
    """A home whose tables are known to SQL by names that reweigh chose."""

    source: str
    columns: list[str]
    kinds: list[pa.DataType]
    dialect: str
    log: str  # the view of the log, with the columns c0, c1, … by position
    names: list[str]  # all columns of the source, of which the view may hold some
    rows: int | None = None
    holds: bool = False

    def describe(self) -> str:
        return self.source

    def number_rows(self) -> bool:
        return False

    def place(self, row: int | None) -> Place:
        return Place(None)

    def open(self, names: Sequence[str]) -> tuple[Any, list[pa.DataType]]:
        whole = named_table(self.log, self.kinds)
        at = [self.columns.index(name) for name in names]
        chosen = whole.select(**{f"c{i}": whole[f"c{j}"] for i, j in enumerate(at)})
        return chosen, [self.kinds[j] for j in at]

    def sql(self, expression: Any) -> str:
        return to_sql(expression, self.dialect)


@dataclass(eq=False)
class TextHome(NamedHome):
    """A log of which only the columns are known: it writes SQL and runs none."""

    def put(self, name: str, table: pa.Table) -> Any:
        return named_table(name, table.schema.types, table.column_names)

    def run(self, expression: Any, sql: str | None = None) -> pa.Table:
        raise UsageError(f"SQL for {self.dialect} is written here, not run")


@cache
def _text_bytes() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    import ibis

    def encode(text: str) -> bytes: ...  # type: ignore[empty-body]
    def decode(data: bytes) -> str: ...  # type: ignore[empty-body]

    return ibis.udf.scalar.builtin(encode), ibis.udf.scalar.builtin(decode)


@dataclass(eq=False)
class TableHome:
    """An Ibis table that the user handed in: it stays with the backend that it belongs to."""

    table: Any
    stack: contextlib.ExitStack
    dialect: str = ""
    rows: int | None = None
    holds: bool = False

    def __post_init__(self) -> None:
        self.backend = self.table.get_backend()
        self.dialect = self.backend.name
        self.names = list(self.table.columns)

    def describe(self) -> str:
        return f"Ibis table of {self.dialect}"

    def number_rows(self) -> bool:
        return False

    def place(self, row: int | None) -> Place:
        return Place(None)

    def open(self, names: Sequence[str]) -> tuple[Any, list[pa.DataType]]:
        # Ibis quotes identifiers; the names stand once in the query, inside this projection
        for name in names:
            quoted(name)
        if self.dialect in CASELESS:
            wanted = {name.lower() for name in names}
            twins = [name for name in self.names if name.lower() in wanted]
            refuse_twins(twins, f"the {self.describe()}", self.dialect)
        cells = [self._plain(self.table[name]) for name in names]
        chosen = self.table.select(**{f"c{i}": column for i, column in enumerate(cells)})
        return chosen, [arrow_kind(chosen[column].type()) for column in chosen.columns]

    def _plain(self, column: Any) -> Any:
        """A UUID as its text. In DuckDB a text may have a collation, which its bytes have not."""
        if column.type().is_uuid():
            column = column.cast("string")
        if column.type().is_string() and self.dialect == "duckdb":
            encode, decode = _text_bytes()
            return decode(encode(column))
        return column

    def put(self, name: str, table: pa.Table) -> Any:
        if self.dialect == "duckdb":
            self.backend.con.register(name, table)
            self.stack.callback(self.backend.con.unregister, name)
            return self.backend.table(name)
        if self.dialect == "pyspark":
            session = self.backend._session
            session.createDataFrame(table).createOrReplaceTempView(name)
            self.stack.callback(session.catalog.dropTempView, name)
            return self.backend.table(name)
        import ibis

        return ibis.memtable(table)

    def run(self, expression: Any, sql: str | None = None) -> pa.Table:
        if self.dialect == "duckdb":
            from reweigh.sums.engines.ibis_duckdb import duckdb_errors

            query, connection = sql or self.sql(expression), self.backend.con
            with duckdb_errors(self.describe(), None):
                return wait_for(
                    lambda: connection.sql(query).to_arrow_table(), connection.interrupt
                )
        if self.dialect == "pyspark":
            return self.backend._session.sql(sql or self.sql(expression)).toArrow()
        with _unfused():  # Ibis writes it again, beside the tables that it puts there
            return self.backend.to_pyarrow(expression)

    def sql(self, expression: Any) -> str:
        with _unfused():
            return str(self.backend.compile(expression, pretty=True))
