"""The diagnostics' own sums (`diagnostic_tables.py`) as Ibis expressions, and what comes back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from reweigh.log.identity import NUMBER
from reweigh.log.states import HIDDEN, UNKNOWN, Labels
from reweigh.sums import diagnostic_tables as extras
from reweigh.sums.diagnostic_tables import (
    UNORDERED,
    Buckets,
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
)
from reweigh.sums.engines.ibis_rows import SEEN, Layout, neighbours, one_if
from reweigh.sums.engines.ibis_sums import codes_of, discounting, floats, ints, names_of
from reweigh.sums.transitions import NO_ACTION


@dataclass(frozen=True)
class Ids:
    """The least and the largest id of a log whose ids are whole numbers."""

    low: int
    high: int

    def shift(self, of: type[Buckets]) -> int:
        """That of the buckets."""
        return of.shift_of(self.low, self.high)


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


def id_sums(rows: Any, layout: Layout) -> dict[str, Any]:
    """The span of the ids, and how many first rows have an id that is no number."""
    import ibis

    first = (rows["t"] == 0).fill_null(False)
    number = ibis.ifelse(first, id_number(rows, layout), ibis.null("int64"))
    return {
        "id_low": number.min(),
        "id_high": number.max(),
        "id_texts": one_if(first & number.isnull()).sum(),
    }


def ids_of(told: dict[str, Any]) -> Ids | None:
    if told["id_low"] is None or told["id_texts"]:
        return None
    return Ids(int(told["id_low"]), int(told["id_high"]))


def lagged(rows: Any, width: int, with_action: bool) -> Any:
    """Cells by what came before, at most one more than are kept; `fx` as in `ibis_sums.cells`."""
    window = neighbours(rows)
    before = {f"b{j}": rows[f"s{j}"].lag().over(window) for j in range(width)}
    before["bhid"] = rows["hid"].lag().over(window)
    if with_action:
        before["ba"] = rows["a"].lag().over(window)
    rows = rows.mutate(z=rows["rho"] * rows["y"], **before)
    rows = rows.filter((rows["t"] > 0) & (rows["hid"] == 0) & (rows["bhid"] == 0))
    names = ["t", "fx", *(f"{part}{j}" for part in "bsf" for j in range(width))]
    names += ["ba"] if with_action else []
    rho, z = rows["rho"], rows["z"]
    return (
        rows.group_by([rows[name] for name in names])
        .aggregate(
            n=rows.count(),
            rho=rho.sum(),
            rho2=(rho * rho).sum(),
            z=z.sum(),
            rhoz=(rho * z).sum(),
            z2=(z * z).sum(),
        )
        .limit(extras.MOST_FETCHED + 1)
    )


def ordered(rows: Any, layout: Layout, ids: Ids | None, horizon: int, gamma: float) -> Any:
    """Logged returns by bucket, which is told by its least id: `low` = id - id mod 2^shift; one
    bucket where the ids are no whole numbers."""
    import ibis

    rows = rows.filter(rows["t"] < horizon)
    number = ibis.literal(0, "int64") if ids is None else id_number(rows, layout)
    rows = rows.mutate(number=number, gain=discounting(gamma, rows["t"]) * rows["y"])
    whole = rows.group_by([rows["e"], rows["number"]]).aggregate(g=rows["gain"].sum())
    shift, g = 0 if ids is None else ids.shift(OrderedMoments), whole["g"]
    whole = whole.mutate(low=_least(whole["number"], shift), g2=g * g)
    return whole.group_by([whole["low"]]).aggregate(
        n=whole.count(), g=whole["g"].sum(), g2=whole["g2"].sum()
    )


def _least(number: Any, shift: int) -> Any:
    """The least id of an id's bucket."""
    size = 1 << shift
    # engines differ in the sign of the remainder of a negative number
    return number - ((number % size) + size) % size


def paced(rows: Any, layout: Layout, ids: Ids, horizon: int) -> Any:
    """Logged rewards by bucket, told as in `ordered`, and step."""
    rows = rows.filter(rows["t"] < horizon)
    rows = rows.mutate(low=_least(id_number(rows, layout), ids.shift(PacedMoments)))
    y = rows["y"]
    return rows.group_by([rows["low"], rows["t"]]).aggregate(
        n=rows.count(), y=y.sum(), y2=(y * y).sum()
    )


def largest(rows: Any, episodes: int) -> Any:
    """The largest whole products, one more than are kept."""
    import ibis

    whole = rows.group_by([rows["e"]]).aggregate(log_w=rows["lr"].sum(), zeros=rows["zero"].sum())
    whole = whole.filter(whole["zeros"] == 0).select("log_w")
    return whole.order_by(ibis.desc("log_w")).limit(LargestWeights.kept(episodes) + 1)


# ---- what comes back -------------------------------------------------------------------------


def read_lagged(
    table: pa.Table, width: int, states: Labels, actions: Labels | None
) -> tuple[LaggedMoments | None, dict[str, str]]:
    fx = ints(table, "fx")
    s_next = codes_of(table, names_of("f", width), states)
    has_action = actions is not None and "ba" in table.column_names
    count = table.num_rows
    made = LaggedMoments(
        t=ints(table, "t"),
        s_before=codes_of(table, names_of("b", width), states),
        a_before=codes_of(table, ["ba"], actions) if has_action else np.full(count, NO_ACTION),  # type: ignore[arg-type]
        s=codes_of(table, names_of("s", width), states),
        s_next=np.where(fx == SEEN, s_next, np.where(fx == HIDDEN, UNKNOWN, fx)),
        n=ints(table, "n"),
        **{name: floats(table, name) for name in LaggedMoments.SUMS[1:]},  # type: ignore[arg-type]
    )
    return extras.bounded(made.summed(), states)


def read_ordered(table: pa.Table, ids: Ids | None) -> OrderedMoments:
    shift = UNORDERED if ids is None else ids.shift(OrderedMoments)
    bucket = ints(table, "low") >> shift
    made = OrderedMoments(shift, bucket, ints(table, "n"), floats(table, "g"), floats(table, "g2"))
    return made.summed()


def read_paced(table: pa.Table, ids: Ids) -> PacedMoments:
    shift = ids.shift(PacedMoments)
    n, t, bucket = ints(table, "n"), ints(table, "t"), ints(table, "low") >> shift
    return PacedMoments(shift, bucket, n, t, floats(table, "y"), floats(table, "y2")).summed()


def read_largest(table: pa.Table, episodes: int) -> LargestWeights:
    log_w = LargestWeights.even(floats(table, "log_w"))
    return LargestWeights(np.sort(log_w)[::-1].copy(), -math.inf, episodes).trimmed()
