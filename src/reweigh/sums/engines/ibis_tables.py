"""Declared tables (`sums/tables.py`) as Ibis expressions, and the sums that come back.

Only aggregated tables come back, with the codes of states and actions. Running products are summed
relative to exp(SPAN · k) with k by the size of the product, in one pass: the largest product of a
group need not be known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.log.states import HIDDEN, START, UNKNOWN
from reweigh.sums.diagnostic_tables import MOST_FETCHED, UNORDERED, Buckets, LargestWeights
from reweigh.sums.engines.ibis_coded_rows import UNLISTED
from reweigh.sums.engines.ibis_rows import exponential, frame, one_if
from reweigh.sums.keyed import ACTION_KEYS, STATE_KEYS
from reweigh.sums.tables import BUILT_IN, Operations, Table, evaluated
from reweigh.sums.trajectories import NO_SCALE, EpisodeSums, StepMoments, StepSums

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SPAN = 100.0  # of log-products that are summed together: exp(-2·SPAN) is far from underflow
NO_PRODUCT = -(10**9)  # k of products that are 0
AT_MOST = {"lagged": MOST_FETCHED + 1}  # rows that come back: one more than are kept


@dataclass(frozen=True)
class Ids:
    """The least and the largest id of a log whose ids are whole numbers."""

    low: int
    high: int

    def shift(self, of: type[Buckets]) -> int:
        """That of the buckets."""
        return of.shift_of(self.low, self.high)


def operations() -> Operations:
    import ibis

    return Operations(ibis.least, ibis.greatest, lambda condition: ibis.ifelse(condition, 1.0, 0.0))


def aggregate(rows: Any, table: Table, keys: tuple[str, ...], gamma: float, shift: int = 0) -> Any:
    """The sums of a table, of coded rows (`ibis_rows.py`); `shift` is that of its buckets, which
    are named by their least id."""
    if table.rows == "stretch":
        rows = stretches(rows, gamma)
    elif table.rows == "episode":
        rows = episodes(rows, gamma, "weighted_return" in table.names_used)
    names = _names(rows, table, gamma)
    if table.where is not None:
        rows = rows.filter(evaluated(table.where, names, operations()) != 0)
        names = _names(rows, table, gamma)
    if "bucket" in keys:
        rows = rows.mutate(bucket=_least(rows["id"], shift))
        names = _names(rows, table, gamma)
    sums = _summed(rows, table.values(names, operations()))
    found = rows.group_by([rows[key] for key in keys]).aggregate(n=rows.count(), **sums)
    return found.limit(AT_MOST[table.name]) if table.name in AT_MOST else found


def _summed(rows: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: rows.count() * float(value) if isinstance(value, int | float) else value.sum()
        for name, value in values.items()
    }


def _names(rows: Any, table: Table, gamma: float) -> dict[str, Any]:
    """The names of a table's expressions, as columns of these rows."""
    import ibis

    short = {"reward": "y", "behavior_prob": "mu", "target_prob": "pi", "ratio": "rho"}
    named = {name: rows[column] for name, column in short.items() if column in rows.columns}
    named |= {name: rows[name] for name in rows.columns}
    if table.rows == "row":
        named |= {"weighted_reward": rows["rho"] * rows["y"], "weighted_one": rows["rho"]}
        named |= {"discount": discounting(gamma, rows["t"]), "observed": one_if(rows["s"] >= 0)}
        if "s_before" in rows.columns:
            named["observed_before"] = one_if(rows["s_before"] >= 0)
    if "running_product" in table.names_used:
        product = exponential(ibis.ifelse(rows["zeros"] > 0, 0.0, rows["cum"]))
        named["running_product"] = ibis.ifelse(rows["zeros"] > 0, 0.0, product)
    return named


def _least(number: Any, shift: int) -> Any:
    """The least id of an id's bucket."""
    size = 1 << shift
    # engines differ in the sign of the remainder of a negative number
    return number - ((number % size) + size) % size


def discounting(gamma: float, t: Any) -> Any:
    """γ^t"""
    import ibis

    if gamma == 1.0:
        return ibis.literal(1.0, "float64")
    return ibis.literal(gamma, "float64") ** t.cast("float64")


def stretches(rows: Any, gamma: float) -> Any:
    """From one observed state to the next: a hidden stretch is one long step.

    Over a stretch from t on:  R = ρ_{t:t+j},  z = Σ_j γ^j ρ_{t:t+j} y_{t+j}.
    """
    import ibis

    anchor = (rows["t"] == 0) | (rows["s"] != HIDDEN)
    rows = rows.mutate(stretch=one_if(anchor).sum().over(frame(rows)), anchor=one_if(anchor))
    within = frame(rows, "stretch")
    rows = rows.mutate(
        cum=rows["lr"].sum().over(within),
        zeros=rows["zero"].sum().over(within),
        began=rows["t"].min().over(within),
    )
    j = rows["t"] - rows["began"]
    # a stretch of one row has its own ratio, which exp(log ρ) would round
    product = ibis.ifelse(j == 0, rows["rho"], exponential(rows["cum"]))
    rows = rows.mutate(r=ibis.ifelse(rows["zeros"] > 0, 0.0, product), power=discounting(gamma, j))
    ends = rows["s_next"] != HIDDEN

    def at(where: Any, value: Any) -> Any:
        return ibis.ifelse(where, value, ibis.null(value.type())).max()

    long = rows.group_by([rows[name] for name in ("e", "stretch", "block")]).aggregate(
        t=rows["t"].min(),
        t_next=rows["t"].max() + 1,
        s=at(rows["anchor"] == 1, rows["s"]),
        s_next=at(ends, rows["s_next"]),
        rho=at(ends, rows["r"]),
        weighted_reward=(rows["power"] * rows["r"] * rows["y"]).sum(),
        y=(rows["power"] * rows["y"]).sum(),
        weighted_one=(rows["power"] * rows["r"]).sum(),
    )
    nothing = ibis.literal(0.0, "float64")
    return long.mutate(pi=nothing, mu=nothing)


def episodes(rows: Any, gamma: float, weighted: bool) -> Any:
    """One row per episode; `weighted`: with Σ_t γ^t ρ_{0:t} y_t, which needs running products."""
    import ibis

    power = discounting(gamma, rows["t"])
    made = {"total_return": (power * rows["y"]).sum()}
    if weighted:
        # a reward of 0 earns 0, also under a weight that overflows
        earns = (rows["zeros"] == 0) & (rows["y"] != 0)
        product = exponential(ibis.ifelse(earns, rows["cum"], 0.0))
        made["weighted_return"] = ibis.ifelse(earns, power * product * rows["y"], 0.0).sum()
    if "id" in rows.columns:
        made["id"] = rows["id"].max()
    whole = rows.group_by([rows["e"], rows["block"]]).aggregate(
        s=ibis.ifelse(rows["t"] == 0, rows["s"], ibis.null(rows["s"].type())).max(),
        length=rows.count(),
        cum=rows["lr"].sum(),
        zeros=rows["zero"].sum(),
        **made,
    )
    return whole.mutate(t=ibis.literal(0, "int64"), start_value=ibis.literal(0.0, "float64"))


def _scaled(rows: Any) -> Any:
    """With k and w = ρ_{0:t} / exp(SPAN · (k + 1)), between exp(-SPAN) and 1."""
    import ibis

    log_w, zeros = rows["cum"], rows["zeros"]
    bounded = ibis.ifelse(log_w.abs() < 1e9, log_w, 0.0)  # of infinite ratios
    k = (bounded / SPAN).floor().cast("int64")
    rows = rows.mutate(k=ibis.ifelse(zeros > 0, NO_PRODUCT, k))
    relative = rows["cum"] - SPAN * (rows["k"] + 1).cast("float64")
    w = exponential(ibis.ifelse(rows["k"] == NO_PRODUCT, 0.0, relative))
    return rows.mutate(w=ibis.ifelse(rows["k"] == NO_PRODUCT, 0.0, w))


def step_products(rows: Any, horizon: int) -> Any:
    """By (block, t, k): the products of the living, and of those whose last row this is."""
    import ibis

    rows = _scaled(rows)
    over = (rows["final"] == 1) & (rows["t"] < horizon - 1)
    living = {"running_product": rows["w"], "reward": rows["y"]}
    ended = {"running_product": ibis.ifelse(over, rows["w"], 0.0), "reward": 0.0}
    return rows.group_by([rows["block"], rows["t"], rows["k"]]).aggregate(
        n=rows.count(),
        top=rows["cum"].max(),
        n_over=one_if(over).sum(),
        top_over=ibis.ifelse(over, rows["cum"], ibis.null("float64")).max(),
        **_summed(rows, BUILT_IN["steps"].values(living, operations())),
        **{
            f"{name}_over": value
            for name, value in _summed(rows, BUILT_IN["steps"].values(ended, operations())).items()
        },
    )


def episode_products(rows: Any, gamma: float) -> Any:
    """By (block, k): sums over episodes."""
    table = BUILT_IN["episodes"]
    whole = _scaled(episodes(rows, gamma, weighted=True))
    names = {name: whole[name] for name in whole.columns} | {"running_product": whole["w"]}
    return whole.group_by([whole["block"], whole["k"]]).aggregate(
        n=whole.count(), top=whole["cum"].max(), **_summed(whole, table.values(names, operations()))
    )


def largest(rows: Any, count: int, gamma: float) -> Any:
    """The largest whole products, one more than are kept of so many episodes."""
    import ibis

    whole = episodes(rows, gamma, weighted=False)
    whole = whole.filter(whole["zeros"] == 0).select(log_w=whole["cum"])
    return whole.order_by(ibis.desc("log_w")).limit(LargestWeights.kept(count) + 1)


# ---- what comes back -------------------------------------------------------------------------


def floats(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).cast(pa.float64()).fill_null(np.nan).to_numpy())


def ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(table.column(name).cast(pa.int64()).to_numpy(), np.int64)


class UnlistedLabelError(Exception):
    """A label that the first look at the log did not list."""


def columns_of(
    found: pa.Table, table: Table, keys: tuple[str, ...], as_state: int, shift: int = 0
) -> dict[str, Any]:
    """Keys, n and sums of a table; a hidden state has the code `as_state`."""
    special = table.hidden == "special"
    codes = {"s": START, "s_next": UNKNOWN, "s_before": HIDDEN} if special else {}
    arrays: dict[str, Any] = {}
    for key in keys:
        arrays[key] = ints(found, key)
        if np.any(arrays[key] == UNLISTED) and key in (*STATE_KEYS, *ACTION_KEYS):
            raise UnlistedLabelError(
                "the log gives a state or action in one query and not in another: it changed "
                "meanwhile, or its statistics contradict its rows; export it again"
            )
        if key in STATE_KEYS:
            hidden = codes.get(key, as_state)
            arrays[key] = np.where(arrays[key] == HIDDEN, hidden, arrays[key])
    if "bucket" in arrays:
        arrays["bucket"] = arrays["bucket"] >> (0 if shift == UNORDERED else shift)
    sums = {name: floats(found, name) for name in table.columns}
    return arrays | {"n": ints(found, "n")} | sums


def read_products(steps: pa.Table, whole: pa.Table, horizon: int) -> StepMoments:
    """Running products: from sums relative to exp(SPAN (k + 1)) to sums relative to the top."""
    living = _relative(StepSums, steps, "")
    ended = _carried(_relative(StepSums, steps, "_over").summed(), horizon)
    return StepMoments(living + ended, _relative(EpisodeSums, whole, "").summed())


def _relative(record: Any, found: pa.Table, which: str) -> Any:
    """Sums relative to the largest product of each row of an answer."""
    k, n = ints(found, "k"), ints(found, f"n{which}")
    none = (k == NO_PRODUCT) | (n == 0)
    scale = np.where(none, NO_SCALE, floats(found, f"top{which}"))
    factor = np.exp(np.where(none, 0.0, SPAN * (k + 1.0) - np.where(none, 0.0, scale)))
    table: Table = record.TABLE
    sums = {
        name: np.where(none, 0.0, 1.0)
        if name in table.largest_of
        else floats(found, f"{name}{which}") * factor**power
        for name, power in table.power.items()
    }
    t = ints(found, "t") if "t" in found.column_names else np.zeros(len(n), np.int64)
    made = record(block=ints(found, "block"), t=t, n=n, log_scale=scale, **sums)
    return made.where(made.n > 0)


def _carried(ended: StepSums, horizon: int) -> StepSums:
    """Episodes that have ended go on with their last product, at every step until the horizon."""
    blocks, at = np.unique(ended.block, return_inverse=True)
    shape = (horizon, len(blocks))
    n = np.zeros(shape, np.int64)
    scale, w, w2, wmax = np.full(shape, NO_SCALE), *(np.zeros(shape) for _ in range(3))
    place = (ended.t + 1, at)  # from the step after their last row on
    n[place], scale[place] = ended.n, ended.log_scale
    w[place], w2[place], wmax[place] = ended.w, ended.w2, ended.wmax
    for t in range(1, horizon):
        top = np.maximum(scale[t], scale[t - 1])
        before, now = np.exp(scale[t - 1] - top), np.exp(scale[t] - top)
        w[t] = w[t - 1] * before + w[t] * now
        w2[t] = w2[t - 1] * before**2 + w2[t] * now**2
        wmax[t] = np.maximum(wmax[t - 1] * before, wmax[t] * now)
        n[t] += n[t - 1]
        scale[t] = top
    step, which = np.nonzero(n > 0)
    some = (step, which)
    return StepSums(
        block=blocks[which] if len(blocks) else np.zeros(0, np.int64),
        t=step.astype(np.int64),
        n=n[some],
        log_scale=scale[some],
        w=w[some],
        w2=w2[some],
        wy=np.zeros(len(step)),
        wmax=wmax[some],
    )


def read_largest(found: pa.Table, episodes: int) -> LargestWeights:
    log_w = LargestWeights.even(floats(found, "log_w"))
    return LargestWeights(np.sort(log_w)[::-1].copy(), -math.inf, episodes).trimmed()
