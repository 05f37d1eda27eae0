"""The rows of a log as Ibis expressions, typed by role.

Columns of the tables here:

    e, t        episode and step                      s0, s1, …   parts of the state, null if hidden
    hid         1 where the state is hidden           n0, n1, …   parts of the logged next state
    a           action                                y, mu       reward, μ(a|s)
    ended, cut  the flags                             q           the target's column
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from reweigh.log.column_types import is_number, is_text
from reweigh.log.columns import Columns
from reweigh.log.identity import NUMBER
from reweigh.log.states import Grid, Rounding
from reweigh.sums.engines.ibis_connect import ROW
from reweigh.sums.read import Reading

LARGEST = 1.7976931348623157e308
WHOLE = 2.0**53  # from here on every float is a whole number
INT64 = 2.0**63


@dataclass(frozen=True, eq=False)
class Layout:
    """Which of the columns c0, c1, … plays which role ("state0", "state1" for the parts)."""

    roles: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]

    def has(self, role: str) -> bool:
        return role in self.roles

    def column(self, role: str) -> str:
        return f"c{self.roles.index(role)}"

    def kind(self, role: str) -> pa.DataType:
        return self.kinds[self.roles.index(role)]

    def name(self, role: str) -> str:
        return self.names[self.roles.index(role)]

    def parts(self, role: str) -> list[str]:
        return [r for r in self.roles if r.startswith(role) and r[len(role) :].isdigit()]


def wanted_columns(columns: Columns, policy: str | None) -> list[tuple[str, str]]:
    """(role, name) of the columns to read."""
    found: list[tuple[str, str]] = []
    count = {"state": 0, "next_state": 0}
    for role, name in columns.by_role():
        if role in count:
            found.append((f"{role}{count[role]}", name))
            count[role] += 1
        else:
            found.append((role, name))
    if policy is not None:
        found.append(("policy", policy))
    return found


def is_label_kind(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
        or is_text(kind)
    )


def is_integer_label(layout: Layout, role: str, reading: Reading) -> bool:
    """Whether labels of this column are integers (truth values count as 0 and 1)."""
    if role.startswith(("state", "next_state")) and reading.abstraction is not None:
        return True
    kind = layout.kind(role)
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def as_text(layout: Layout, reading: Reading, part: int) -> bool:
    """Whether this part of the state is compared as text: where columns hold different types."""
    roles = [f"state{part}"]
    if layout.has(f"next_state{part}"):
        roles.append(f"next_state{part}")
    if reading.abstraction is not None:
        return False
    whole = [is_integer_label(layout, role, reading) for role in roles]
    return not all(whole) or any(str(layout.kind(role)) == "uint64" for role in roles)


def finite(x: Any) -> Any:
    """Neither infinite nor NaN, in a form that means the same on every engine."""
    return (x.abs() <= LARGEST).fill_null(False)


def is_null(x: Any) -> Any:
    """Null alone: of a float, Ibis asks Spark for null or NaN. A comparison with NaN has an answer,
    one with null has none."""
    return (x < 0).isnull() if x.type().is_floating() else x.isnull()


def read_each(log: Any, kinds: Sequence[pa.DataType], dialect: str) -> Any:
    """The log with its columns c0, c1, … such that DuckDB looks at every float.

    The statistics of Parquet leave NaN out, and DuckDB answers from them, without a look at the
    rows, whether a number is finite. It keeps none of the least number of a list.
    """
    import ibis

    if dialect != "duckdb":
        return log
    floats = [f"c{i}" for i, kind in enumerate(kinds) if pa.types.is_floating(kind)]
    least = _least()
    return log.mutate(**{c: least(ibis.array([log[c].cast("float64")])) for c in floats})


@cache
def _least() -> Callable[[Any], Any]:
    import ibis

    def list_min(numbers: list[float]) -> float: ...  # type: ignore[empty-body]

    return ibis.udf.scalar.builtin(list_min)  # type: ignore[no-any-return]


def one_if(condition: Any) -> Any:
    import ibis

    return ibis.ifelse(condition, 1, 0)


def count_if(condition: Any) -> Any:
    return one_if(condition).sum()


def number(column: Any, kind: pa.DataType) -> Any:
    """A numeric column as float64, null where the column is of another type."""
    import ibis

    if pa.types.is_boolean(kind):
        return column.cast("int64").cast("float64")
    return column.cast("float64") if is_number(kind) else ibis.null("float64")


def label(column: Any, kind: pa.DataType) -> Any:
    """A column of labels: integers, truth values as 0 and 1, or texts."""
    import ibis

    if not is_label_kind(kind):
        return ibis.null("string")
    if pa.types.is_boolean(kind):
        return column.cast("int64")
    if pa.types.is_integer(kind):
        return column.cast("string") if str(kind) == "uint64" else column.cast("int64")
    return column.cast("string")


def truth(column: Any, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return column.fill_null(False)
    if is_text(kind):
        return column.lower().isin(["true", "1"]).fill_null(False)
    return (column == 1).fill_null(False)


def step(column: Any, kind: pa.DataType) -> Any:
    """Steps; null where they are not known."""
    import ibis

    if not pa.types.is_integer(kind):
        return ibis.null("int64")
    if str(kind) == "uint64":
        column = ibis.ifelse(column > 2**63 - 1, ibis.null("uint64"), column)
    return column.cast("int64")


def typed(log: Any, layout: Layout, reading: Reading) -> Any:
    """The log with its columns typed by role, beside the raw ones."""
    import ibis

    if reading.abstraction is not None:
        log = with_cells(log, layout, reading.abstraction)

    def raw(role: str) -> tuple[Any, pa.DataType]:
        return log[layout.column(role)], layout.kind(role)

    made: dict[str, Any] = {"e": label(*raw("episode")), "t": step(*raw("step"))}
    made |= _states(log, layout, reading, "state", "s")
    made["hid"] = one_if(
        any_of([made[f"s{j}"].isnull() for j in range(len(layout.parts("state")))])
    )
    if layout.has("next_state0"):
        made |= _states(log, layout, reading, "next_state", "n")
    made["a"] = number(*raw("action")) if reading.continuous_actions else label(*raw("action"))
    made["y"] = number(*raw("reward"))
    for role, short in (("behavior_prob", "mu"), ("target_prob", "tp"), ("policy", "q")):
        if layout.has(role):
            made[short] = number(*raw(role))
    for role, short in (("terminated", "ended"), ("truncated", "cut")):
        made[short] = truth(*raw(role)) if layout.has(role) else ibis.literal(False)
    return log.mutate(**made)


def any_of(conditions: Sequence[Any]) -> Any:
    found = conditions[0]
    for condition in conditions[1:]:
        found = found | condition
    return found


def _states(log: Any, layout: Layout, reading: Reading, role: str, short: str) -> dict[str, Any]:
    """The parts of a state; all of them null where one is: the state is hidden then."""
    import ibis

    roles = layout.parts(role)
    parts = []
    for j, part in enumerate(roles):
        column, kind = log[layout.column(part)], layout.kind(part)
        if reading.abstraction is not None:
            value = log[f"cell{role[0]}{j}"]
        else:
            value = label(column, kind)
            if as_text(layout, reading, j):
                value = value.cast("string")
        parts.append(value)
    if len(parts) == 1:
        return {f"{short}0": parts[0]}
    hidden = any_of([value.isnull() for value in parts])
    return {
        f"{short}{j}": ibis.ifelse(hidden, ibis.null(value.type()), value)
        for j, value in enumerate(parts)
    }


def with_cells(log: Any, layout: Layout, abstraction: Any) -> Any:
    """With the Rounding or Grid of every part of a state as a column; null where it is null, not
    finite, or does not fit. In steps, because SQL has no names for the parts of an expression."""
    import ibis

    parts = [
        (role, j, role[0] + str(j))
        for kind in ("state", "next_state")
        for j, role in enumerate(layout.parts(kind))
    ]
    null = ibis.null("float64")
    x = {f"x{at}": number(log[layout.column(role)], layout.kind(role)) for role, _, at in parts}
    log = log.mutate(**x)
    log = log.mutate(
        **{name: ibis.ifelse(finite(log[name]), log[name], null) for name in x},
    )
    if isinstance(abstraction, Grid):
        return log.mutate(
            **{f"cell{at}": _cell(abstraction, log[f"x{at}"], j) for _, j, at in parts}
        )
    log = log.mutate(**{f"v{at}": scaled(abstraction, log[f"x{at}"], j) for _, j, at in parts})
    near = {
        f"near{at}": ibis.cases((log[f"v{at}"].abs() < WHOLE, log[f"v{at}"]), else_=0.0)
        for *_, at in parts
    }
    log = log.mutate(**near)
    log = log.mutate(**{f"low{at}": log[f"near{at}"].floor().cast("int64") for *_, at in parts})
    return log.mutate(**{f"cell{at}": _rounded(log, at) for *_, at in parts})


def _cell(grid: Grid, x: Any, part: int) -> Any:
    """The number of edges at or below x."""
    import ibis

    edges: Any = grid.edges
    cell = ibis.literal(0)
    for edge in edges[part]:
        cell = cell + one_if(x >= edge)
    return ibis.ifelse(x.isnull(), ibis.null("int64"), cell.cast("int64"))


def _rounded(log: Any, at: str) -> Any:
    """Half to even, without a function that engines spell and round differently."""
    import ibis

    v, near, low = log[f"v{at}"], log[f"near{at}"], log[f"low{at}"]
    over = near - low.cast("float64")
    up = (over > 0.5) | ((over == 0.5) & (low % 2 != 0))
    fits = (v.abs() >= WHOLE) & (v.abs() < INT64)
    return ibis.cases(
        (v.abs() < WHOLE, low + one_if(up)),
        (fits, ibis.ifelse(fits, v, 0.0).cast("int64")),
        else_=ibis.null("int64"),
    )


def scaled(abstraction: Rounding, x: Any, part: int) -> Any:
    scale = abstraction.scale
    return x * (scale if isinstance(scale, float) else scale[part])


@cache
def md5_of(dialect: str) -> Callable[[Any], Any]:
    """The MD5 of a text in lower hexadecimal digits."""
    import ibis

    function = ibis.udf.scalar.builtin

    def md5(text: str) -> str: ...  # type: ignore[empty-body]
    def md5_bytes(text: str) -> bytes: ...  # type: ignore[empty-body]
    def md5_of_bytes(data: bytes) -> bytes: ...  # type: ignore[empty-body]
    def to_hex(data: bytes) -> str: ...  # type: ignore[empty-body]
    def to_utf8(text: str) -> bytes: ...  # type: ignore[empty-body]

    if dialect == "bigquery":
        digest, hexadecimal = function(md5_bytes, name="md5"), function(to_hex, name="to_hex")
        return lambda text: hexadecimal(digest(text))
    if dialect == "trino":
        data, hexadecimal = function(to_utf8, name="to_utf8"), function(to_hex, name="to_hex")
        digest = function(md5_of_bytes, name="md5")
        return lambda text: hexadecimal(digest(data(text))).lower()
    if dialect == "clickhouse":
        digest, hexadecimal = function(md5_bytes, name="MD5"), function(to_hex, name="hex")
        return lambda text: hexadecimal(digest(text)).lower()
    return function(md5, name="md5")  # type: ignore[no-any-return]


def hash_of(e: Any, dialect: str) -> Any:
    """First 8 hex digits of the MD5 of an id's canonical text, as a number."""
    return hex_digits(md5_of(dialect)(e.cast("string")), 0).cast("int64")


def hex_digits(digest: Any, begin: int) -> Any:
    """8 hex digits as a float, which is exact here: a position may be an integer of 32 bits."""
    import ibis

    total: Any = None
    for i in range(begin, begin + 8):
        digit = ibis.literal("0123456789abcdef").find(digest.substr(i, 1)).cast("float64")
        total = digit if total is None else total * 16.0 + digit
    return total


def frame(rows: Any, *keys: str) -> Any:
    """All rows of an episode (or a part of it) up to this one, in the order of the steps."""
    import ibis

    group = [rows[key] for key in ("e", *keys)]
    return ibis.window(group_by=group, order_by=[rows["t"]], preceding=None, following=0)


def neighbours(rows: Any) -> Any:
    """The window of the row before and the row after; of two rows at one step, numbers decide."""
    import ibis

    order = [rows["t"], *([rows[ROW]] if ROW in rows.columns else [])]
    return ibis.window(group_by=[rows["e"]], order_by=order)


def id_number(rows: Any, layout: Layout) -> Any:
    """The id as a whole number of 64 bits, null where it is none."""
    import ibis

    kind, column = layout.kind("episode"), rows[layout.column("episode")]
    if pa.types.is_uint64(kind):
        return ibis.ifelse(
            column < ibis.literal(2**63, "uint64"), column, ibis.null("uint64")
        ).cast("int64")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast("int64")
    text = rows["e"].cast("string")
    is_number = text.re_search(NUMBER).fill_null(False)
    return ibis.ifelse(is_number, text, ibis.null("string")).cast("int64")


def exponential(x: Any) -> Any:
    """exp(x): 0 far below, infinite far above, where some engines refuse."""
    import ibis

    inside = ibis.ifelse((x > -700) & (x < 709.78), x, 0.0).exp()
    return ibis.cases((x <= -700, 0.0), (x >= 709.78, float("inf")), else_=inside)
