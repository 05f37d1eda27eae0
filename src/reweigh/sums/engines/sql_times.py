"""Steps where no column counts them, as Ibis expressions: rows in the order of their times, or one
row per episode. The twins of `RoleReader.steps`.

    time    a number that grows with time              timed   1 where it is known
    zoned   1 where a text says its offset from UTC    began   the time of the episode's first row
    tied    1 where the time is that of the row before mixed   1 where others give no offset
    again   1 where the id of a bandit log came before
"""

from __future__ import annotations

from typing import Any

import ibis
import pyarrow as pa

from reweigh.log import rules
from reweigh.log.states import is_number, is_text
from reweigh.log.times import (
    ISO,
    LARGEST,
    PARTS,
    ZONE,
    days_since_1970,
    impossible_day,
    is_temporal,
    iso_with,
    microseconds,
)
from reweigh.sums.engines import sql_rows as expr
from reweigh.sums.engines.sql_rows import Role, finite, one_if, only_if
from reweigh.sums.read import Reading


def with_times(log: Any, role: Role) -> Any:
    """With `time`, `timed` and `zoned`."""
    column, kind = log[role.column], role.kind
    if is_text(kind):
        return _of_texts(log, column)
    key: Any = ibis.null("int64")
    if is_temporal(kind):
        key = column  # microseconds since 1970: databases hold no timestamps
    elif pa.types.is_integer(kind):
        key = expr.signed(column) if pa.types.is_uint64(kind) else column.cast("int64")
    elif is_number(kind):
        x = column.cast("float64")
        key = only_if(finite(x), x)
    return log.mutate(time=key, timed=one_if(key.notnull()), zoned=ibis.literal(0))


def _of_texts(log: Any, column: Any) -> Any:
    """In steps, because SQL has no names for the parts of an expression."""
    # a text that is no time has no parts; a part that is absent is the empty text, or null
    parts = {name: column.re_extract(iso_with(name), 1) for name in PARTS}
    log = log.mutate(**{f"x_{name}": part.fill_null("") for name, part in parts.items()})
    numbers = {}
    for name in PARTS:
        text = log[f"x_{name}"]
        if name == "fraction":  # in microseconds
            text = ibis.ifelse(text == "", "", (text + "000000").substr(0, 6))
        numbers[f"i_{name}"] = ibis.ifelse(text == "", "0", text).cast("int64")
    log = log.mutate(**{n: v for n, v in numbers.items() if n != "i_sign"})
    date = [log[f"i_{name}"] for name in ("year", "month", "day")]
    written = column.re_search(ISO).fill_null(False)
    ahead = log["i_ahead"] * 60 + log["i_ahead_minutes"]
    log = log.mutate(
        days=days_since_1970(*date),
        timed=one_if(written & ~impossible_day(*date)),
        offset=ibis.ifelse(log["x_sign"] == "-", -ahead, ahead),
    )
    hour, minute, second = (log[f"i_{name}"] for name in ("hour", "minute", "second"))
    value = microseconds(log["days"], hour, minute, second, log["i_fraction"], log["offset"])
    zoned = (log["timed"] == 1) & column.re_search(ZONE).fill_null(False)
    names = [n for n in log.columns if n.startswith(("x_", "i_")) or n in ("days", "offset")]
    log = log.mutate(time=only_if(log["timed"] == 1, value).cast("int64"), zoned=one_if(zoned))
    return log.drop(*names)


def with_steps(log: Any, reading: Reading) -> Any:
    """With `t`, null where it is not known, of rows with `e` and perhaps `time`."""
    columns = reading.columns
    if columns.bandit:
        nth = ibis.row_number().over(ibis.window(group_by=[log["e"]], order_by=[log["e"]]))
        log = log.mutate(nth=nth)
        first = (log["nth"] == 0) | log["e"].isnull()
        again = rules.REPEATED_EPISODE.broken(None, first)
        log = log.mutate(t=only_if(first & log["e"].notnull(), ibis.literal(0, "int64")),
                         again=one_if(again))  # fmt: skip
    elif columns.step is None:
        log = log.mutate(timed=ibis.ifelse(log["e"].isnull(), 0, log["timed"]))
        # rows whose time is not known stand apart
        whole = ibis.window(group_by=[log["e"], log["timed"]])
        rising = ibis.window(group_by=[log["e"], log["timed"]], order_by=[log["time"]])
        log = log.mutate(
            nth=ibis.row_number().over(rising).cast("int64"),
            earlier=log["time"].lag().over(rising),
            least=log["zoned"].min().over(whole),
            most=log["zoned"].max().over(whole),
        )
        timed = log["timed"] == 1
        tied = rules.TIED_TIMES.broken(log["time"], log["earlier"], log["nth"] == 0)
        mixed = rules.MIXED_TIMES.broken(log["zoned"], log["least"])
        log = log.mutate(
            tied=one_if(timed & tied.fill_null(False) & (log["least"] == log["most"])),
            mixed=one_if(timed & mixed),
        )
        wrong = (log["tied"] == 1) | (log["mixed"] == 1)
        log = log.mutate(t=only_if((log["timed"] == 1) & ~wrong, log["nth"]))
        log = log.drop("earlier", "least", "most")
    if columns.time is not None:
        first = only_if((log["t"] == 0).fill_null(False), order_number(log["time"]))
        log = log.mutate(began=first.max().over(expr.within(log)))
    return log.drop("nth") if "nth" in log.columns else log


def order_number(time: Any) -> Any:
    """As whole numbers, by which episodes are put into the order of their beginnings."""
    if not time.type().is_floating():
        return time
    limit = float(LARGEST)
    inside = ibis.cases((time > limit, limit), (time < -limit, -limit), else_=time)
    return inside.floor().cast("int64")
