"""The marks of `log/identity.py` in SQL: which rows these are, as sums that any engine makes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from reweigh.kernels.codes import FOLD, LARGE, MARKS, MIX, SPREAD
from reweigh.log.identity import NUMBER, Identity
from reweigh.sums.engines.ibis_rows import Layout, finite, hex_digits, md5_of
from reweigh.sums.read import Reading

MOST_STEPS = 2**40  # no log has more, and a product with a larger step might not fit into 64 bits


def with_marks(rows: Any, layout: Layout, reading: Reading, dialect: str) -> Any:
    """Rows with `md` and `mg`, from which the marks of a row and of the episode that begins with it
    are made. In steps, because SQL has no names for the parts of an expression."""
    import ibis

    mu = rows["mu"] if layout.has("behavior_prob") else ibis.literal(0.0)
    rows = rows.mutate(my=_known(rows["y"]), mm=_known(mu), **_of_id(rows, layout, dialect))
    rows = rows.mutate(my=_folded(rows["my"]), mm=_folded(rows["mm"]), me=_number(rows))
    # d = [(f(y) + 1) · (f(μ) + t + 2) · SPREAD]
    t = ibis.ifelse((rows["t"] >= 0) & (rows["t"] < MOST_STEPS), rows["t"], 0).cast("float64")
    d = _fraction((rows["my"] + 1.0) * (rows["mm"] + (t + 2.0)) * SPREAD)
    rows = rows.mutate(md=d, me=_folded(rows["me"]))
    # g = [(f(id) + 1) · (d_0 + 2) · SPREAD]
    return rows.mutate(mg=_fraction((rows["me"] + 1.0) * (rows["md"] + 2.0) * SPREAD))


def identity_sums(rows: Any, within: Any) -> dict[str, Any]:
    """Over the rows `within` the horizon: floor([d² · MIX] · 2^24), and the same of g."""
    import ibis

    def total(part: Any, where: Any) -> Any:
        mark = (_fraction(part * part * MIX) * MARKS).floor().cast("int64")
        return ibis.ifelse(where, mark, 0).sum()

    return {
        "marks": total(rows["md"], within),
        "episode_marks": total(rows["mg"], within & (rows["t"] == 0)),
    }


def identity_of(told: dict[str, Any], episodes: int) -> Identity:
    return Identity(episodes, int(told["marks"]), int(told["episode_marks"]))


def _known(x: Any) -> Any:
    """0 where a number is null, NaN or infinite: such a log is refused, and the marks with it."""
    import ibis

    return ibis.ifelse(finite(x), x, 0.0)


def _fraction(x: Any) -> Any:
    return x - x.floor().cast("float64")


def _folded(x: Any) -> Any:
    """f(x) = [c(x) · SPREAD]"""
    import ibis

    large = LARGE / FOLD
    small = ibis.cases(
        (x.abs() < LARGE, x),
        (x.abs() < large, x * FOLD),
        (x.abs() < large / FOLD, x * FOLD * FOLD),
        else_=0.0,
    )
    return _fraction(small * SPREAD)


def _of_id(rows: Any, layout: Layout, dialect: str) -> dict[str, Any]:
    """What the number of an id is made of, where an episode begins: the number itself, or 64 bits
    of the MD5 of its text in two halves."""
    import ibis

    first = (rows["t"] == 0).fill_null(False)
    kind = layout.kind("episode")
    column = rows[layout.column("episode")]
    if pa.types.is_uint64(kind):  # its halves, because the number is that of the signed bits
        shown = ibis.ifelse(first, column, ibis.null("uint64"))
        high, low = shown >> 32, shown & 0xFFFFFFFF
        made = {"mh": high.cast("float64"), "ml": low.cast("float64")}
        return {"mn": ibis.null("float64"), **made}
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        column = column.cast("int64") if pa.types.is_boolean(kind) else column
        return {"mn": ibis.ifelse(first, column.cast("float64"), 0.0)}
    text = ibis.ifelse(first, rows["e"].cast("string"), ibis.null("string"))
    is_number = text.re_search(NUMBER).fill_null(False)
    number = ibis.ifelse(is_number, text, ibis.null("string")).cast("int64").cast("float64")
    digest = md5_of(dialect)(text)
    return {"mn": number, "mh": hex_digits(digest, 0), "ml": hex_digits(digest, 8)}


def _number(rows: Any) -> Any:
    """The number of an id. As the bits are those of a signed number, each half is exact and their
    sum is rounded once."""
    import ibis

    if "mh" not in rows.columns:
        return rows["mn"].fill_null(0.0)
    high = ibis.ifelse(rows["mh"] < 2.0**31, rows["mh"], rows["mh"] - 2.0**32)
    return ibis.coalesce(rows["mn"], high * 2.0**32 + rows["ml"], 0.0)
