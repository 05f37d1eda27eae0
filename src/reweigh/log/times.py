"""When a row was logged: the rows of an episode in the order of their times are its steps.

A time is a number (of any unit), a timestamp or a date of Arrow, or a text in ISO 8601. Each
becomes a number that grows with time: integers and floats as they are, all else as microseconds
since 1970, in UTC where there is an offset. The calendar below uses operators alone, which NumPy
arrays and Ibis columns share: engines in SQL (`sums/engines/sql_times.py`) get the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.log.csv_files import integers_if_all, numbers_if_all
from reweigh.log.states import floats, is_number, is_text, plain_numbers, texts

# year, month, day, then perhaps hour, minute, second, its fraction, and the offset
PARTS = {
    "year": "[0-9]{4}",
    "month": "0[1-9]|1[0-2]",
    "day": "0[1-9]|[12][0-9]|3[01]",
    "hour": "[01][0-9]|2[0-3]",
    "minute": "[0-5][0-9]",
    "second": "[0-5][0-9]",
    "fraction": "[0-9]{1,9}",
    "sign": "[+-]",
    "ahead": "[01][0-9]",
    "ahead_minutes": "[0-5][0-9]",
}
ISO_TEMPLATE = (
    "^{year}-{month}-{day}(?:[T ]{hour}:{minute}(?::{second}(?:[.,]{fraction})?)?"
    "(?: ?(?:Z|UTC|{sign}{ahead}(?::?{ahead_minutes})?))?)?$"
)
ISO = ISO_TEMPLATE.format(**{name: f"(?:{part})" for name, part in PARTS.items()})
NAMED = ISO_TEMPLATE.format(**{name: f"(?P<{name}>{part})" for name, part in PARTS.items()})
ZONE = "[T ].*(Z|UTC|[+-][0-9]{2}(:?[0-9]{2})?)$"  # of a text that is a time: it says its offset
MICROSECONDS = 1_000_000
LARGEST = 2**62  # of the numbers by which episodes are ordered
CYCLE_YEARS, CYCLE_DAYS, EPOCH = 400, 146_097, 719_468  # EPOCH: days from 0000-03-01 to 1970


def iso_with(group: str) -> str:
    """The expression of a time whose only group is this part: engines limit how many there are."""
    open_at = {name: "(" if name == group else "(?:" for name in PARTS}
    return ISO_TEMPLATE.format(**{name: f"{open_at[name]}{PARTS[name]})" for name in PARTS})


def is_temporal(kind: pa.DataType) -> bool:
    """Timestamps and dates of Arrow."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_time_kind(kind: pa.DataType) -> bool:
    """What a column of times may hold."""
    return is_temporal(kind) or is_number(kind) or is_text(kind)


def impossible_day(year: Any, month: Any, day: Any) -> Any:
    """The condition that a month has no such day; it has at most 31."""
    leap = ((year % 4 == 0) & (year % 100 != 0)) | (year % 400 == 0)
    short = (month == 4) | (month == 6) | (month == 9) | (month == 11)
    return (short & (day > 30)) | ((month == 2) & ((day > 29) | ((day > 28) & ~leap)))


def days_since_1970(year: Any, month: Any, day: Any) -> Any:
    """Of the proleptic Gregorian calendar.

    With y, m counted from March, m = 0 … 11 (so that a leap day is the last of its year):
    days = 365 y + ⌊y/4⌋ - ⌊y/100⌋ + ⌊y/400⌋ + ⌊(153 m + 2) / 5⌋ + day - 1.
    """
    y = year + CYCLE_YEARS - (14 - month) // 12  # above 0, where every // rounds one way
    m = (month + 9) % 12
    days = 365 * y + y // 4 - y // 100 + y // 400 + (153 * m + 2) // 5 + day - 1
    return days - CYCLE_DAYS - EPOCH


def microseconds(days: Any, hour: Any, minute: Any, second: Any, fraction: Any, offset: Any) -> Any:
    """Since 1970; `fraction` in microseconds, `offset` in minutes ahead of UTC."""
    return (((days * 24 + hour) * 60 + minute - offset) * 60 + second) * MICROSECONDS + fraction


def order_numbers(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Times as whole numbers, by which episodes are put into the order of their beginnings."""
    if values.dtype.kind == "f":
        values = np.clip(np.floor(values), -float(LARGEST), float(LARGEST))
    return values.astype(np.int64)


def plain_times(column: pa.ChunkedArray, decimal: str | None) -> pa.ChunkedArray:
    """The times of a log as read; those of a CSV (`decimal` says how it writes fractions) are
    numbers where all of them are."""
    if decimal is None or not is_text(column.type):
        return column
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = integers_if_all(coded)
    if not is_text(whole.type):
        return whole
    cells = texts(column)
    numbers = numbers_if_all(pc.replace_substring(cells, decimal, "."))
    return cells if is_text(numbers.type) else numbers


def time_values(
    column: pa.ChunkedArray,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(N,) numbers that grow with time, 0 where there is none; whether a cell is a time; and
    whether it says its offset from UTC. The caller has refused columns of other kinds."""
    kind, none = column.type, np.zeros(len(column), bool)
    if is_text(kind):
        return _of_texts(texts(column))
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us"))
    elif pa.types.is_timestamp(kind):
        # finer units are cut: one clock for all engines
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    if is_temporal(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_uint64(kind):
        large = pc.greater(column, pa.scalar(2**63 - 1, pa.uint64()))
        column = pc.if_else(large, pa.scalar(None, pa.uint64()), column).cast(pa.int64())
    elif pa.types.is_integer(kind):
        column = column.cast(pa.int64())
    else:
        column = floats(column)
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float64()))
    known = plain_numbers(column.is_valid())
    return plain_numbers(column.fill_null(0)), known, none


def _of_texts(
    column: pa.ChunkedArray,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    parts_of_texts = pc.extract_regex(column.combine_chunks(), NAMED)
    part = {name: pc.struct_field(parts_of_texts, name) for name in PARTS}

    def number(name: str) -> npt.NDArray[np.int64]:
        written = pc.if_else(pc.equal(part[name], ""), None, part[name])
        return plain_numbers(pc.cast(written, pa.int64()).fill_null(0))

    part["fraction"] = pc.utf8_slice_codeunits(pc.utf8_rpad(part["fraction"], 6, "0"), 0, 6)
    year, month, day = number("year"), number("month"), number("day")
    known = plain_numbers(parts_of_texts.is_valid())
    known = known & ~impossible_day(year, month, day)
    sign = np.where(np.asarray(pc.equal(part["sign"], "-").fill_null(False)), -1, 1)
    offset = sign * (number("ahead") * 60 + number("ahead_minutes"))
    value = microseconds(
        days_since_1970(year, month, day),
        number("hour"),
        number("minute"),
        number("second"),
        number("fraction"),
        offset,
    )
    zoned = np.asarray(pc.match_substring_regex(column, ZONE).fill_null(False), bool)
    return np.where(known, value, 0), known, zoned & known
