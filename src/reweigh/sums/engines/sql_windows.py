"""Windows of the last k + 1 steps (`sums/products.py`) as Ibis expressions.

With `cum` = Σ log ρ up to a row, the product of a window is exp(cum_t - cum_{a-1}), and 0 where the
ratios that are 0 (`zeros`) are more at t than before a. The window of a row begins at the row k
steps before it, in one window function; the first rows have the first one. The steps after an
episode's end are joined to the rows at which their windows begin.
"""

from __future__ import annotations

from typing import Any

import ibis

from reweigh.log.states import END, HIDDEN
from reweigh.sums.engines.sql_rows import exponential, neighbors, one_if, only_if, up_to

BEGIN = ("begin", "s", "cum", "zeros")  # what a window takes from where it begins


def windows(rows: Any, memory: int, horizon: int) -> Any:
    """One row per window: block, t, s, t_next, s_next, rho, y, weighted_reward."""
    rows = _with_begins(rows)
    parts = [_of_rows(rows, memory)]
    if memory and horizon > 1:
        parts.append(_after_the_end(rows, memory, horizon))
    both = ibis.union(*parts) if len(parts) > 1 else parts[0]
    inside = both["cum"] - both["begin_cum"]
    # a window of one row has its own ratio, which exp(log ρ) would round
    product = ibis.ifelse(both["alone"] == 1, both["rho"], exponential(inside))
    rho = ibis.ifelse(both["zeros"] > both["begin_zeros"], 0.0, product)
    both = both.mutate(rho=rho)
    return both.select(
        "block", "t_next", "s_next", "y", "rho",
        t=both["begin"], s=both["begin_s"], weighted_reward=both["rho"] * both["y"],
    )  # fmt: skip


def _with_begins(rows: Any) -> Any:
    """With where a window begins whose first step this is: at the last observed state up to here,
    that of step 0 counting as one. `begin_cum` and `begin_zeros` are of the rows before it."""
    anchor = (rows["t"] == 0) | (rows["s"] != HIDDEN)
    rows = rows.mutate(
        stretch=one_if(anchor).sum().over(up_to(rows)), anchor=one_if(anchor).cast("int8")
    )
    inside, at = up_to(rows, "stretch"), rows["anchor"] == 1
    return rows.mutate(
        begin=rows["t"].min().over(inside),
        begin_s=only_if(at, rows["s"]).max().over(inside),
        begin_cum=only_if(at, rows["cum"] - rows["lr"]).max().over(inside),
        begin_zeros=only_if(at, rows["zeros"] - rows["zero"]).max().over(inside),
    )


def _of_rows(rows: Any, memory: int) -> Any:
    """The windows that end with a row: they begin where that of the row k steps before it does, or
    with the episode."""
    beside, begins = neighbors(rows), [f"begin_{name}" for name in BEGIN[1:]]
    if memory:
        lagged = {name: rows[name].lag(memory).over(beside) for name in ("begin", *begins)}
        first = only_if(rows["t"] == 0, rows["s"]).max().over(up_to(rows))
        start = {"begin": 0, "begin_s": first, "begin_cum": 0.0, "begin_zeros": 0}
        late = rows["t"] >= memory  # some engines lag to 0 where there is no row
        rows = rows.mutate(
            **{
                name: ibis.ifelse(late, column, ibis.literal(start[name]).cast(column.type())
                                  if name != "begin_s" else first)
                for name, column in lagged.items()
            }
        )  # fmt: skip
    return _columns(
        rows, rows["t"], rows["y"], rows["s_next"], alone=one_if(rows["begin"] == rows["t"])
    )


def _after_the_end(rows: Any, memory: int, horizon: int) -> Any:
    """The windows of steps after the end of an episode that begin before it."""
    ended = (rows["final"] == 1) & (rows["s_next"] == END) & (rows["t"] < horizon - 1)
    last = rows.filter(ended).select("e", "cum", "zeros", last="t")
    steps = ibis.range(1, horizon).unnest().name("later").as_table()
    beyond = last.cross_join(steps)
    beyond = beyond.filter(
        beyond["later"] > beyond["last"], beyond["later"] <= beyond["last"] + memory
    )
    back = beyond["later"] - memory
    beyond = beyond.select(
        later=beyond["later"].cast(rows["t"].type()),
        at=ibis.ifelse(back > 0, back, 0).cast(rows["t"].type()),
        episode=beyond["e"],
        last_cum=beyond["cum"],
        last_zeros=beyond["zeros"],
    )
    joined = rows.inner_join(beyond, [rows["e"] == beyond["episode"], rows["t"] == beyond["at"]])
    joined = joined.mutate(cum=joined["last_cum"], zeros=joined["last_zeros"])
    nothing = ibis.literal(0.0, "float64")
    end = ibis.literal(END).cast(rows["s_next"].type())
    return _columns(joined, joined["later"], nothing, end, alone=ibis.literal(0))


def _columns(rows: Any, step: Any, reward: Any, s_next: Any, alone: Any) -> Any:
    """The same columns of the same types, whatever the windows."""
    whole, real = ("block", "zeros", "begin", "begin_s", "begin_zeros"), ("rho", "cum", "begin_cum")
    return rows.select(
        t_next=step.cast("int64") + 1,
        s_next=s_next.cast("int64"),
        y=reward.cast("float64"),
        alone=alone.cast("int64"),
        **{name: rows[name].cast("int64") for name in whole},
        **{name: rows[name].cast("float64") for name in real},
    )
