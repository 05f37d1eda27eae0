"""Declared tables (`sums/tables.py`) as Ibis expressions over rows that are coded and in order.

Every table is summed from these columns:

    e, t, y, mu       as in `sql_rows.py`             s, a        codes (HIDDEN, NO_ACTION)
    s_next, t_next    what follows                    final       1 on an episode's last row
    s_before, a_before  of the step before            id          the episode's id as a number
    pi, rho           π(a|s), ρ = π/μ clipped         block       of the episode
    lr, zero          log ρ, and 1 where ρ is 0       cum, zeros  their sums up to the row
    return_so_far     Σ γ^t y up to the row

Only aggregated tables come back, with the codes of states and actions. Running products are summed
relative to exp(SPAN · k) with k by the size of the product, in one pass: the largest product of a
group need not be known beforehand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import ibis
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import UsageError
from reweigh.log import rules
from reweigh.log.states import END, HIDDEN, START, UNKNOWN, Labels, label_text
from reweigh.policy import Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.diagnostic_tables import LargestWeights
from reweigh.sums.engines.sql_connect import Database
from reweigh.sums.engines.sql_log import UNLISTED, Facts, Log, policy_states
from reweigh.sums.engines.sql_rows import (
    any_of,
    discounting,
    exponential,
    hex_digits,
    id_number,
    neighbors,
    one_if,
    only_if,
    up_to,
)
from reweigh.sums.keyed import (
    NO_ACTION,
    NO_SCALE,
    EpisodeSums,
    StartMoments,
    StepMoments,
    StepSums,
    TransitionMoments,
)
from reweigh.sums.read import Reading
from reweigh.sums.tables import BUILT_IN, Operations, Table, evaluated

SPAN = 100.0  # of log-products that are summed together: exp(-2·SPAN) is far from underflow
NO_PRODUCT = -(10**9)  # k of products that are 0
ZERO = ibis.literal("0").cast("float64")  # PostgreSQL takes a plain 0.0 for a decimal
OPERATIONS = Operations(ibis.least, ibis.greatest, lambda x: ibis.ifelse(x, 1.0, 0.0))


# ---- rows with codes, in order -----------------------------------------------------------------


def coded(db: Database, log: Log, facts: Facts, with_id: bool) -> Any:
    """Typed rows with codes for labels, and no more columns than sums need."""
    rows, parts = log.rows, range(sum(role.startswith("state") for role in log.layout))
    is_number = rows["e"].type().is_integer()  # then it is the id's number
    more = {"id": id_number(rows, log.layout)} if with_id and not is_number else {}
    if with_id and "time" in log.layout:
        more = {"id": rows["began"]}
    named = ("e", "t", "y", "mu", "q", "branch", "ended", "cut", "cl")
    plain = [name for name in named if name in rows.columns]
    labels = [f"{x}{j}" for x in "sn" for j in parts if f"{x}{j}" in rows.columns]
    rows = rows.select(*plain, *labels, action=rows["a"], **more)
    rows = _with_code(db, rows, [f"s{j}" for j in parts], facts.states, "s")
    if "next_state0" in log.layout:
        rows = _with_code(db, rows, [f"n{j}" for j in parts], facts.states, "n")
    if facts.actions is None:
        rows = rows.mutate(a=ibis.literal(NO_ACTION, "int32"))
    else:
        rows = _with_code(db, rows, ["action"], facts.actions, "a")
    return rows.drop("action", *labels)


def _with_code(db: Database, rows: Any, parts: list[str], labels: Labels, code: str) -> Any:
    """Rows with the code of the label whose parts these columns are: HIDDEN where one is null."""
    known: list[Any] = [v if isinstance(v, tuple) else (v,) for v in labels.values]
    columns: dict[str, Any] = {}
    for j, part in enumerate(parts):
        text = rows[part].type().is_string()
        values = [str(label_text(value[j])) if text else int(value[j]) for value in known]
        columns[f"p{j}"] = pa.array(values, pa.string() if text else pa.int64())
    kind = np.int16 if len(known) < 1 << 15 else np.int32
    columns["code"] = pa.array(np.arange(len(known), dtype=kind))
    codes = db.put(f"reweigh_codes_of_{code}", pa.table(columns))
    same = [rows[part] == codes[f"p{j}"] for j, part in enumerate(parts)]
    hidden = any_of([rows[part].isnull() for part in parts])
    otherwise = ibis.ifelse(hidden, HIDDEN, UNLISTED).cast(codes["code"].type())
    columns = {name: rows[name] for name in rows.columns}
    return rows.left_join(codes, same).select(
        **columns, **{code: ibis.coalesce(codes["code"], otherwise)}
    )


def with_target(db: Database, rows: Any, target: Policy, facts: Facts) -> Any:
    """Coded rows with `pi` = π(a|s): a small table that is joined, or a column."""
    if not isinstance(target, TablePolicy):
        return rows.rename(pi="q")
    if facts.actions is None:
        raise UsageError(
            "a table has no densities; for continuous actions give the target as a logged "
            "column (ColumnPolicy) or a function (FunctionPolicy)"
        )
    e, state = target._entries, policy_states(target, facts.states)
    action = facts.actions.translate(e.actions)[e.action]
    used = np.flatnonzero((state != UNLISTED) & (action >= 0) & (e.prob > 0))
    columns = {"ps": pa.array(state[used], pa.int32()), "pa": pa.array(action[used], pa.int32())}
    if e.step is not None:
        columns["pt"] = pa.array(e.step[used], pa.int64())
    policy = db.put("reweigh_policy", pa.table(columns | {"pp": pa.array(e.prob[used])}))
    same = [rows["s"] == policy["ps"], rows["a"] == policy["pa"]]
    same += [rows["t"] == policy["pt"]] if e.step is not None else []
    joined = rows.left_join(policy, same)
    return joined.select(*[rows[name] for name in rows.columns], pi=policy["pp"].fill_null(0.0))


def with_ratio(rows: Any, max_ratio: float | None) -> Any:
    """With the ratio ρ = π/μ and its logarithm (0 where ρ is 0: `zero` says so)."""
    rho = rows["pi"] / rows["mu"]
    if max_ratio is not None:
        rho = ibis.ifelse(rho > max_ratio, ibis.literal(max_ratio, "float64"), rho)
    rows = rows.mutate(rho=rho)
    positive = rows["rho"] > 0
    log_rho = ibis.ifelse(positive, rows["rho"], 1.0).ln()
    return rows.mutate(lr=log_rho, zero=one_if(~positive))


def in_order(
    rows: Any, reading: Reading, horizon: int, blocks: int, dialect: str, names: Collection[str]
) -> Any:
    """Rows before the horizon with their successors, and the window columns in `names`: all from
    one order of the rows by episode and step, and no more columns than are needed. `broken` is 1
    where a step is missing, or next_state is not the next row's state: no such log is summed."""
    beside, so_far = neighbors(rows), up_to(rows)
    of_window: dict[str, Any] = {
        "ls": rows["s"].lead().over(beside),
        "lt": rows["t"].lead().over(beside),
        "sb": rows["s"].lag().over(beside),
        "ab": rows["a"].lag().over(beside),
    }
    if "cum" in names:
        of_window |= {
            "cum": rows["lr"].sum().over(so_far),
            "zeros": rows["zero"].sum().over(so_far),
        }
    if "return_so_far" in names:
        discounted = discounting(reading.discount, rows["t"]) * rows["y"]
        of_window["return_so_far"] = discounted.sum().over(so_far)
    if blocks > 1:  # the first 8 hex digits of the MD5 of an id, hashed once, at the first row
        unit = rows["cl" if "cl" in rows.columns else "e"]  # a cluster stays in one block
        digits = hex_digits(unit.cast("string"), 0, dialect).cast("int64")
        at_first = only_if(rows["t"] == 0, (digits % blocks).cast("int32"))
        of_window["block"] = at_first.max().over(so_far)
    rows = rows.mutate(**of_window)
    # where no row follows, some engines give null and some 0; neither is t + 1
    goes_on = (rows["lt"] == rows["t"] + 1).fill_null(False)
    broken = rules.MISSING_STEP.broken(rows["lt"], rows["t"], ibis.literal(False)).fill_null(False)
    if "n" in rows.columns:
        known, follows = rows["n"] != HIDDEN, rows["ls"]
        differ = rules.NEXT_STATE.broken(goes_on, known & (follows != HIDDEN), rows["n"] != follows)
        broken = broken | differ
        if not reading.hidden:
            broken = broken | rules.NULL_NEXT_STATE.broken(goes_on, ~known)
    rows = rows.mutate(broken=one_if(broken).cast("int8"))
    rows = rows.filter((rows["t"] < horizon) | (rows["broken"] == 1))
    t, code = rows["t"], rows["s"].type()
    goes_on = (rows["lt"] == t + 1).fill_null(False)
    last = ~goes_on | (t == horizon - 1)
    ends = (t < horizon - 1) & ~rows["cut"] & (reading.short_episodes == "terminal")
    # an episode cut at the horizon continues in the log: its next row is known
    cases = [(last & (rows["ended"] | ends), END), (goes_on & (rows["ls"] != HIDDEN), rows["ls"])]
    if "n" in rows.columns:
        cases.append((last & (rows["n"] != HIDDEN), rows["n"]))
    columns = {
        "t": t.cast("int32"),
        "s_next": ibis.cases(*cases, (last, UNKNOWN), else_=HIDDEN).cast(code),
        "s_before": ibis.ifelse(t == 0, START, rows["sb"]).cast(code),
        "a_before": ibis.ifelse(t == 0, NO_ACTION, rows["ab"]).cast(rows["a"].type()),
        "final": one_if(last).cast("int8"),
    }
    columns = {n: v for n, v in columns.items() if n in {*names, "t", "s_next"}}
    wanted = dict.fromkeys(("e", "y", "mu", "pi", "s", "block", "broken", *names))
    kept = [rows[name] for name in wanted if name in rows.columns and name not in columns]
    return rows.select(*kept, **columns)


def completed(rows: Any, max_ratio: float | None, with_id: bool) -> Any:
    """With the columns that follow from a single row."""
    more = {"t_next": rows["t"] + 1}
    if "block" not in rows.columns:
        more["block"] = ibis.literal(0, "int32")
    if "id" not in rows.columns:
        more["id"] = rows["e"] if with_id else ibis.literal(0, "int64")
    return with_ratio(rows.mutate(**more), max_ratio)


# ---- sums --------------------------------------------------------------------------------------


def multiplies(table: Table) -> bool:
    """Whether its sums need products of ratios over the rows of an episode."""
    used = {"weighted_return", "running_product"} & {*table.keys, *table.names_used}
    return bool(used) or table.memory is not None


def aggregate(
    rows: Any, table: Table, keys: tuple[str, ...], gamma: float, horizon: int, shift: int = 0
) -> Any:
    """The sums of a table; `shift` is that of its buckets, which are named by their least id."""
    if table.rows == "stretch":
        rows = stretches(rows, gamma)
    elif table.memory is not None:
        from reweigh.sums.engines.sql_windows import windows

        rows = windows(rows, table.memory, horizon)
    elif table.rows == "episode":
        rows = episodes(rows, gamma, "weighted_return" in table.names_used)
    if table.where is not None:
        chosen = evaluated(table.where, _names(rows, table, gamma), OPERATIONS)
        rows = rows.filter(chosen != 0)
    if "bucket" in keys:
        size = 1 << shift
        # engines differ in the sign of the remainder of a negative number
        rows = rows.mutate(bucket=rows["id"] - ((rows["id"] % size) + size) % size)
    sums = _summed(rows, table, _names(rows, table, gamma))
    return rows.group_by([rows[key] for key in keys]).aggregate(n=rows.count(), **sums)


def _summed(rows: Any, table: Table, names: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: rows.count() * float(value) if isinstance(value, int | float) else value.sum()
        for name, value in table.values(names, OPERATIONS).items()
    }


def _names(rows: Any, table: Table, gamma: float) -> dict[str, Any]:
    """The names of a table's expressions, as columns of these rows."""
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


def stretches(rows: Any, gamma: float) -> Any:
    """From one observed state to the next: a hidden stretch is one long step.

    Over a stretch from t on:  R = ρ_{t:t+j},  z = Σ_j γ^j ρ_{t:t+j} y_{t+j}.
    """
    anchor = (rows["t"] == 0) | (rows["s"] != HIDDEN)
    rows = rows.mutate(stretch=one_if(anchor).sum().over(up_to(rows)), anchor=one_if(anchor))
    inside = up_to(rows, "stretch")
    rows = rows.mutate(
        cum=rows["lr"].sum().over(inside),
        zeros=rows["zero"].sum().over(inside),
        began=rows["t"].min().over(inside),
    )
    j = rows["t"] - rows["began"]
    # a stretch of one row has its own ratio, which exp(log ρ) would round
    product = ibis.ifelse(j == 0, rows["rho"], exponential(rows["cum"]))
    rows = rows.mutate(r=ibis.ifelse(rows["zeros"] > 0, 0.0, product), power=discounting(gamma, j))
    ends = rows["s_next"] != HIDDEN
    long = rows.group_by([rows[name] for name in ("e", "stretch", "block")]).aggregate(
        t=rows["t"].min(),
        t_next=rows["t"].max() + 1,
        s=only_if(rows["anchor"] == 1, rows["s"]).max(),
        s_next=only_if(ends, rows["s_next"]).max(),
        rho=only_if(ends, rows["r"]).max(),
        weighted_reward=(rows["power"] * rows["r"] * rows["y"]).sum(),
        y=(rows["power"] * rows["y"]).sum(),
        weighted_one=(rows["power"] * rows["r"]).sum(),
    )
    return long.mutate(pi=ZERO, mu=ZERO)


def episodes(rows: Any, gamma: float, weighted: bool) -> Any:
    """One row per episode; `weighted`: with Σ_t γ^t ρ_{0:t} y_t, which needs running products."""
    power = discounting(gamma, rows["t"])
    sums = {"total_return": (power * rows["y"]).sum()}
    if weighted:
        # a reward of 0 earns 0, also under a weight that overflows
        earns = (rows["zeros"] == 0) & (rows["y"] != 0)
        product = exponential(ibis.ifelse(earns, rows["cum"], 0.0))
        sums["weighted_return"] = ibis.ifelse(earns, power * product * rows["y"], 0.0).sum()
    whole = rows.group_by([rows["e"], rows["block"]]).aggregate(
        s=only_if(rows["t"] == 0, rows["s"]).max(),
        id=rows["id"].max(),
        length=rows.count(),
        cum=rows["lr"].sum(),
        zeros=rows["zero"].sum(),
        **sums,
    )
    return whole.mutate(t=ibis.literal(0, "int64"), start_value=ZERO)


def _scaled(rows: Any) -> Any:
    """With k and w = ρ_{0:t} / exp(SPAN · (k + 1)), between exp(-SPAN) and 1."""
    bounded = ibis.ifelse(rows["cum"].abs() < 1e9, rows["cum"], 0.0)  # of infinite ratios
    k = (bounded / SPAN).floor().cast("int64")
    rows = rows.mutate(k=ibis.ifelse(rows["zeros"] > 0, NO_PRODUCT, k))
    none = rows["k"] == NO_PRODUCT
    relative = rows["cum"] - SPAN * (rows["k"] + 1).cast("float64")
    return rows.mutate(w=ibis.ifelse(none, 0.0, exponential(ibis.ifelse(none, 0.0, relative))))


def step_products(rows: Any, horizon: int) -> Any:
    """By (block, t, k): the products of the living, and of those whose last row this is."""
    rows, table = _scaled(rows), BUILT_IN["steps"]
    over = (rows["final"] == 1) & (rows["t"] < horizon - 1)
    ended = {"running_product": ibis.ifelse(over, rows["w"], 0.0), "reward": 0.0}
    living = {"running_product": rows["w"], "reward": rows["y"]}
    return rows.group_by([rows["block"], rows["t"], rows["k"]]).aggregate(
        n=rows.count(),
        top=rows["cum"].max(),
        n_over=one_if(over).sum(),
        top_over=only_if(over, rows["cum"]).max(),
        **_summed(rows, table, living),
        **{f"{name}_over": value for name, value in _summed(rows, table, ended).items()},
    )


def episode_products(rows: Any, gamma: float) -> Any:
    """By (block, k): sums over episodes."""
    whole = _scaled(episodes(rows, gamma, weighted=True))
    names = {name: whole[name] for name in whole.columns} | {"running_product": whole["w"]}
    return whole.group_by([whole["block"], whole["k"]]).aggregate(
        n=whole.count(), top=whole["cum"].max(), **_summed(whole, BUILT_IN["episodes"], names)
    )


def largest(rows: Any, count: int, gamma: float) -> Any:
    """The largest whole products, one more than are kept of so many episodes."""
    whole = episodes(rows, gamma, weighted=False)
    whole = whole.filter(whole["zeros"] == 0).select(log_w=whole["cum"])
    return whole.order_by(ibis.desc("log_w")).limit(LargestWeights.kept(count) + 1)


# ---- the results ---------------------------------------------------------------------------


def floats(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    return np.asarray(table.column(name).cast(pa.float64()).fill_null(np.nan).to_numpy())


def ints(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(table.column(name).cast(pa.int64()).to_numpy(), np.int64)


def read_products(steps: pa.Table, whole: pa.Table, horizon: int) -> StepMoments:
    """Running products: from sums relative to exp(SPAN (k + 1)) to sums relative to the top."""
    living = _relative(StepSums, steps, "")
    ended = _carried(_relative(StepSums, steps, "_over").summed(), horizon)
    return StepMoments(living + ended, _relative(EpisodeSums, whole, "").summed())


def _relative(record: Any, answer: pa.Table, which: str) -> Any:
    """Sums relative to the largest product of each row of a result."""
    k, n = ints(answer, "k"), ints(answer, f"n{which}")
    none = (k == NO_PRODUCT) | (n == 0)
    scale = np.where(none, NO_SCALE, floats(answer, f"top{which}"))
    factor = np.exp(np.where(none, 0.0, SPAN * (k + 1.0) - np.where(none, 0.0, scale)))
    table: Table = record.TABLE
    sums = {
        name: np.where(none, 0.0, 1.0)
        if name in table.largest_of
        else floats(answer, f"{name}{which}") * factor**power
        for name, power in table.power.items()
    }
    t = ints(answer, "t") if "t" in answer.column_names else np.zeros(len(n), np.int64)
    relative = record(block=ints(answer, "block"), t=t, n=n, log_scale=scale, **sums)
    return relative.select(relative.n > 0)


def _carried(ended: StepSums, horizon: int) -> StepSums:
    """Episodes that have ended go on with their last product, at every step until the horizon."""
    blocks, at = np.unique(ended.block, return_inverse=True)
    table = StepSums.TABLE
    n, scale = np.zeros((horizon, len(blocks)), np.int64), np.full((horizon, len(blocks)), NO_SCALE)
    sums = {name: np.zeros(n.shape) for name in table.power}
    place = (ended.t + 1, at)  # from the step after their last row on
    n[place], scale[place] = ended.n, ended.log_scale
    for name, values in sums.items():
        values[place] = getattr(ended, name)
    for t in range(1, horizon):
        top = np.maximum(scale[t], scale[t - 1])
        before, now = np.exp(scale[t - 1] - top), np.exp(scale[t] - top)
        for name, values in sums.items():
            power = table.power[name]
            add = np.maximum if name in table.largest_of else np.add
            values[t] = add(values[t - 1] * before**power, values[t] * now**power)
        n[t] += n[t - 1]
        scale[t] = top
    step, which = np.nonzero(n > 0)
    some = {name: values[step, which] for name, values in sums.items()}
    return StepSums(
        blocks[which].astype(np.int64), step, n[step, which], scale[step, which], **some
    )


def starts_of(cells: TransitionMoments) -> StartMoments:
    """First states from cells, of which every episode fills one at step 0."""
    first = cells.select(cells.t == 0)
    nothing = np.zeros(len(first))
    return StartMoments(first.block, first.s, first.n, nothing, nothing).summed()
