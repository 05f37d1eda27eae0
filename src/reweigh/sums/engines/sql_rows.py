"""The rows of a log as Ibis expressions, typed by role, and which rows these are.

Columns of the tables here:

    e, t        episode and step (`sql_times.py`)     s0, s1, …   parts of the state, null if hidden
    hid         1 where the state is hidden           n0, n1, …   parts of the logged next state
    a           action                                y, mu       reward, μ(a|s)
    ended, cut  the flags                             q           the target's column
    cl          cluster of the episode
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import ibis
import pyarrow as pa

from reweigh.errors import InputError, InputWarning, ReweighError, input_error
from reweigh.kernels import FOLD, LARGE, MARKS, MIX, SPREAD
from reweigh.log.abstractions import Grid, Quantiles, Rounding, makes_labels
from reweigh.log.log import Columns
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import is_number, is_text
from reweigh.log.steps import NUMBER
from reweigh.policy import Policy
from reweigh.sums.engines import Request
from reweigh.sums.read import Reading

LARGEST = 1.7976931348623157e308
INT64 = 2**63
MOST_STEPS = 2**40  # no log has more, and a product with a larger step might not fit into 64 bits


class Role(NamedTuple):
    """A column with a role: its name here (c0, c1, …) and in the log, and its type."""

    column: str
    name: str
    kind: pa.DataType


Layout = dict[str, Role]  # by role: "state0", "state1" for the parts of a state


def wanted_columns(columns: Columns, policy: Mapping[str, str]) -> list[tuple[str, str]]:
    """(role, name) of the columns to read; `policy` are the target's own."""
    parts = {name: f"state{j}" for j, name in enumerate(columns.state)}
    parts |= {name: f"next_state{j}" for j, name in enumerate(columns.next_state or ())}
    roles = [(parts.get(name, role), name) for role, name in columns.by_role()]
    return [*roles, *policy.items()]


def parts_of(layout: Layout, role: str) -> list[str]:
    """The roles of a state's columns: "state" or "next_state"."""
    return [name for name in layout if name.rstrip("0123456789") == role]


# ---- conditions and numbers that mean the same on every engine ---------------------------------


def database_function(name: str, takes: Any, gives: Any) -> Callable[[Any], Any]:
    """A function of one argument that databases have; with `takes` None of any type."""
    declare = ibis.udf.scalar.builtin(name=name, signature=((takes,), gives))
    declared: Callable[[Any], Any] = declare(lambda x: x)
    return declared


list_min = database_function("list_min", list[float], float)
epoch_us = database_function("epoch_us", None, int)
encode = database_function("encode", str, bytes)
decode = database_function("decode", bytes, str)
md5 = database_function("md5", str, str)
to_hex = database_function("to_hex", str, str)
hexadecimal = database_function("hex", str, str)
to_utf8 = database_function("to_utf8", str, str)
MD5: dict[str, Callable[[Any], Any]] = {  # in hexadecimal digits; elsewhere md5 itself gives these
    "bigquery": lambda text: to_hex(md5(text)),
    "trino": lambda text: to_hex(md5(to_utf8(text))).lower(),
    "clickhouse": lambda text: hexadecimal(md5(text)).lower(),
}


def hex_digits(text: Any, begin: int, dialect: str) -> Any:
    """8 hex digits of a text's MD5 as a float, which is exact here: a position may be an integer
    of 32 bits."""
    digest = MD5.get(dialect, md5)(text)
    digits = [
        ibis.literal("0123456789abcdef").find(digest.substr(i, 1)).cast("float64")
        for i in range(begin, begin + 8)
    ]
    return reduce(lambda total, digit: total * 16.0 + digit, digits)


def finite(x: Any) -> Any:
    """Neither infinite nor NaN."""
    return (x.abs() <= LARGEST).fill_null(False)


def is_null(x: Any) -> Any:
    """Null alone: of a float, Ibis asks Spark for null or NaN. A comparison with NaN has a result,
    one with null has none."""
    return (x < 0).isnull() if x.type().is_floating() else x.isnull()


def any_of(conditions: Sequence[Any]) -> Any:
    return reduce(or_, conditions)


def one_if(condition: Any) -> Any:
    return ibis.ifelse(condition, 1, 0)


def only_if(condition: Any, value: Any) -> Any:
    """Null elsewhere."""
    return ibis.ifelse(condition, value, ibis.null(value.type()))


def exponential(x: Any) -> Any:
    """exp(x): 0 far below, infinite far above, where some engines refuse."""
    inside = ibis.ifelse((x > -700) & (x < 709.78), x, 0.0).exp()
    return ibis.cases((x <= -700, 0.0), (x >= 709.78, float("inf")), else_=inside)


def discounting(gamma: float, t: Any) -> Any:
    """γ^t"""
    if gamma == 1.0:
        return ibis.literal(1.0, "float64")
    return ibis.literal(gamma, "float64") ** t.cast("float64")


def within(rows: Any, *keys: str) -> Any:
    """The window of all rows of an episode (or a part of it)."""
    return ibis.window(group_by=[rows[key] for key in ("e", *keys)])


def up_to(rows: Any, *keys: str) -> Any:
    """All rows of an episode (or a part of it) up to this one, in the order of the steps."""
    group = [rows[key] for key in ("e", *keys)]
    return ibis.window(group_by=group, order_by=[rows["t"]], preceding=None, following=0)


def neighbors(rows: Any) -> Any:
    """The window of the row before and the row after."""
    return ibis.window(group_by=[rows["e"]], order_by=[rows["t"]])


# ---- roles -------------------------------------------------------------------------------------


def read_each(log: Any, kinds: Sequence[pa.DataType], dialect: str) -> Any:
    """The log with its columns c0, c1, … such that DuckDB looks at every float.

    The statistics of Parquet leave NaN out, and DuckDB uses them instead of the rows to decide
    whether a number is finite. It keeps none of the least number of a list.
    """
    if dialect != "duckdb":
        return log
    floats = [f"c{i}" for i, kind in enumerate(kinds) if pa.types.is_floating(kind)]
    return log.mutate(**{c: list_min(ibis.array([log[c].cast("float64")])) for c in floats})


def number(column: Any, kind: pa.DataType) -> Any:
    """A numeric column as float64, null where the column is of another type."""
    if pa.types.is_boolean(kind):
        return column.cast("int64").cast("float64")
    return column.cast("float64") if is_number(kind) else ibis.null("float64")


def is_whole(kind: pa.DataType) -> bool:
    """Whether labels of this type are integers (truth values count as 0 and 1)."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def is_label_kind(kind: pa.DataType) -> bool:
    return is_whole(kind) or bool(pa.types.is_null(kind)) or is_text(kind)


def label(column: Any, kind: pa.DataType) -> Any:
    """A column of labels: integers, or texts, which those are that may exceed 64 bits."""
    if not is_label_kind(kind):
        return ibis.null("string")
    return column.cast("int64" if is_whole(kind) and not pa.types.is_uint64(kind) else "string")


def signed(column: Any) -> Any:
    """Unsigned integers of 64 bits, null where 64 bits with a sign do not hold them."""
    return only_if(column < ibis.literal(INT64, "uint64"), column).cast("int64")


def step(column: Any, kind: pa.DataType) -> Any:
    """Steps; null where they are not known."""
    if not pa.types.is_integer(kind):
        return ibis.null("int64")
    return signed(column) if pa.types.is_uint64(kind) else column.cast("int64")


def truth(column: Any, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return column.fill_null(False)
    if is_text(kind):
        return column.lower().isin(["true", "1"]).fill_null(False)
    return (column == 1).fill_null(False)


TYPED: dict[str, tuple[str, Callable[[Any, pa.DataType], Any]]] = {  # name here, type by role
    "episode": ("e", label),
    "step": ("t", step),
    "reward": ("y", number),
    "behavior_prob": ("mu", number),
    "target_prob": ("tp", number),
    "policy": ("q", number),
    "cluster": ("cl", label),
}


def typed(log: Any, layout: Layout, reading: Reading) -> Any:
    """The log with its columns typed by role, beside the raw ones."""

    def of(role: str, read: Callable[[Any, pa.DataType], Any]) -> Any:
        return read(log[layout[role].column], layout[role].kind)

    if reading.abstraction is not None:
        log = with_cells(log, layout, reading.abstraction)
    states = _states(log, layout, reading)
    hidden = [states[f"s{j}"].isnull() for j in range(len(reading.columns.state))]
    reads = TYPED | {"action": ("a", number if reading.continuous_actions else label)}
    columns = {short: of(role, read) for role, (short, read) in reads.items() if role in layout}
    columns |= states | {"hid": one_if(any_of(hidden))}
    for role, short in (("terminated", "ended"), ("truncated", "cut")):
        columns[short] = of(role, truth) if role in layout else ibis.literal(False)
    if layout.keys() >= {"step"} and "time" not in layout:
        return log.mutate(**columns)
    from reweigh.sums.engines.sql_times import with_steps, with_times

    log = log.mutate(**columns)
    return with_steps(with_times(log, layout["time"]) if "time" in layout else log, reading)


def _states(log: Any, layout: Layout, reading: Reading) -> dict[str, Any]:
    """The parts of states and next states; all of them null where one is: it is hidden then."""
    columns: dict[str, Any] = {}
    shorts = ("s", "n") if reading.columns.next_state else ("s",)
    width = len(reading.columns.state)
    for j in range(width):
        roles = [layout[f"{role}{j}"] for role in ("state", "next_state")[: len(shorts)]]
        values = [label(log[role.column], role.kind) for role in roles]
        if not makes_labels(reading.abstraction, j):
            values = [log[f"cell_{role.column}"] for role in roles]
        elif any(value.type().is_string() for value in values):  # columns of different types
            values = [value.cast("string") for value in values]
        columns |= {f"{short}{j}": value for short, value in zip(shorts, values, strict=True)}
    if width == 1:
        return columns
    known = {x: ~any_of([columns[f"{x}{j}"].isnull() for j in range(width)]) for x in shorts}
    return {name: only_if(known[name[0]], value) for name, value in columns.items()}


def with_cells(log: Any, layout: Layout, abstraction: Any) -> Any:
    """With the Rounding, Grid or Quantiles of every part of a state as a column `cell_…`; null
    where it is null, not finite, or does not fit. In steps, because SQL has no names for the parts
    of an expression."""
    parts = [(layout[f"{r}{j}"], j) for r in ("state", "next_state")
             for j in range(len(parts_of(layout, r)))]  # fmt: skip
    if isinstance(abstraction, Grid | Quantiles):
        edges: Any = abstraction.edges
        cells = {}
        for role, j in parts:
            if edges[j] is None:  # a label as it is
                continue
            x = number(log[role.column], role.kind)
            cell = ibis.literal(0)
            for edge in edges[j]:  # the number of edges at or below x
                cell = cell + one_if(x >= edge)
            cells[f"cell_{role.column}"] = only_if(finite(x), cell.cast("int64"))
        return log.mutate(**cells)
    scaled = {role.column: scaled_by(abstraction, log, role, j) for role, j in parts}
    log = log.mutate(**{f"v_{c}": only_if(v.abs() < float(INT64), v) for c, v in scaled.items()})
    log = log.mutate(**{f"low_{c}": log[f"v_{c}"].floor().cast("int64") for c in scaled})
    cells = {}
    for c in scaled:
        # half to even, without a function that engines spell and round differently
        low = log[f"low_{c}"]
        over = log[f"v_{c}"] - low.cast("float64")
        cells[f"cell_{c}"] = low + one_if((over > 0.5) | ((over == 0.5) & (low % 2 != 0)))
    return log.mutate(**cells)


def scaled_by(rounding: Rounding, log: Any, role: Role, part: int) -> Any:
    scale = rounding.scale
    x = number(log[role.column], role.kind)
    return x * (scale if isinstance(scale, float) else scale[part])


def id_number(rows: Any, layout: Layout) -> Any:
    """The id as a whole number of 64 bits, null where it is none."""
    column, _, kind = layout["episode"]
    if is_whole(kind):
        return signed(rows[column]) if pa.types.is_uint64(kind) else rows[column].cast("int64")
    text = rows["e"].cast("string")
    return only_if(text.re_search(NUMBER).fill_null(False), text).cast("int64")


# ---- which rows these are: the marks of `log/steps.py` --------------------------------------


def with_marks(rows: Any, layout: Layout, dialect: str) -> Any:
    """Rows with `md` and `mg`, from which the marks of a row and of the episode that begins with it
    are made, and of a first row `id`, a whole number or null, and `began`, when its episode began
    (the id where the log has no times). In steps, because SQL has no names for the parts of an
    expression."""

    def known(x: Any) -> Any:  # a log with other numbers is refused, and its marks with it
        return ibis.ifelse(finite(x), x, 0.0)

    mu = rows["mu"] if "behavior_prob" in layout else ibis.literal(0.0)
    first = (rows["t"] == 0).fill_null(False)
    if "began" in rows.columns:
        began = only_if(first, rows["began"])
    else:
        began = only_if(first, id_number(rows, layout))
    rows = rows.mutate(my=known(rows["y"]), mm=known(mu), began=began)
    rows = _with_ids(rows, layout, dialect, first)
    rows = rows.mutate(my=_folded(rows["my"]), mm=_folded(rows["mm"]))
    # d = [(f(y) + 1) · (f(μ) + t + 2) · SPREAD]
    t = ibis.ifelse((rows["t"] >= 0) & (rows["t"] < MOST_STEPS), rows["t"], 0).cast("float64")
    d = _fraction((rows["my"] + 1.0) * (rows["mm"] + (t + 2.0)) * SPREAD)
    rows = rows.mutate(md=d, me=_folded(rows["me"]))
    # g = [(f(id) + 1) · (d_0 + 2) · SPREAD]
    return rows.mutate(mg=_fraction((rows["me"] + 1.0) * (rows["md"] + 2.0) * SPREAD))


def _with_ids(rows: Any, layout: Layout, dialect: str, where: Any) -> Any:
    """Rows with `id`, a whole number or null, and `me`, the id's number of `log/steps.py`; null and
    0 elsewhere."""
    column, _, kind = layout["episode"]
    halves: dict[str, Any] = {}  # of 64 bits: if an id is not a whole number, or exceeds them
    if pa.types.is_uint64(kind):
        bits = only_if(where, rows[column])
        halves = {"high": (bits >> 32).cast("float64"), "low": (bits & 0xFFFFFFFF).cast("float64")}
    elif not is_whole(kind):
        text = only_if(where, rows["e"].cast("string"))
        halves = {"high": hex_digits(text, 0, dialect), "low": hex_digits(text, 8, dialect)}
    rows = rows.mutate(id=only_if(where, id_number(rows, layout)), **halves)
    me = rows["id"].cast("float64")
    if halves:  # the bits of a signed number: each half is exact, their sum is rounded once
        high = ibis.ifelse(rows["high"] < 2.0**31, rows["high"], rows["high"] - 2.0**32)
        me = ibis.coalesce(me, high * 2.0**32 + rows["low"])
    return rows.mutate(me=me.fill_null(0.0))


def sampled(log: Any, column: str, kind: pa.DataType, share: float, dialect: str) -> Any:
    """The rows of the episodes, with their ids in `column`, that `memory_rows.sampled` takes:
    [d² · MIX] < share, d = [(f(id) + 1) · 2 · SPREAD]."""
    rows = log.mutate(e=label(log[column], kind))
    rows = _with_ids(rows, {"episode": Role(column, "", kind)}, dialect, ibis.literal(True))
    rows = rows.mutate(me=_folded(rows["me"]))
    rows = rows.mutate(md=_fraction((rows["me"] + 1.0) * 2.0 * SPREAD))
    return rows.filter(_fraction(rows["md"] * rows["md"] * MIX) < share)[log.columns]


def mark_sums(rows: Any, inside: Any) -> dict[str, Any]:
    """Over the rows `inside` the horizon: floor([d² · MIX] · 2^24), and the same of g."""

    def total(part: Any, where: Any) -> Any:
        mark = (_fraction(part * part * MIX) * MARKS).floor().cast("int64")
        return ibis.ifelse(where, mark, 0).sum()

    first = inside & (rows["t"] == 0)
    return {"marks": total(rows["md"], inside), "episode_marks": total(rows["mg"], first)}


def _fraction(x: Any) -> Any:
    return x - x.floor().cast("float64")


def _folded(x: Any) -> Any:
    """f(x) = [c(x) · SPREAD]"""
    large = LARGE / FOLD
    small = ibis.cases(
        (x.abs() < LARGE, x),
        (x.abs() < large, x * FOLD),
        (x.abs() < large / FOLD, x * FOLD * FOLD),
        else_=0.0,
    )
    return _fraction(small * SPREAD)


def with_rows(
    error: InputError, data: TableSource | FileSource, reading: Reading, target: Policy | None
) -> InputError:
    """The same faults, at the places that the stream finds for them."""
    from reweigh.sums.engines.stream import StreamEngine

    engine = StreamEngine(fast=False)
    places = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)  # that rows in no order were sorted
            if target is None:
                engine.describe(data, reading)
            else:
                engine.moments(data, reading, target, Request(frozenset({"transitions"})))
    except InputError as found:
        places = {(fault.code, fault.rule): fault.places for fault in found.faults}
    except ReweighError:
        return error
    what, _, _ = str(error).partition(f": {len(error.faults)} broken rule")
    faults = [replace(f, places=places.get((f.code, f.rule), f.places)) for f in error.faults]
    return input_error(what, faults)
