"""The sums of a log as Ibis expressions, and the tables that come back as moments.

Only aggregated tables come back. Running products are summed relative to exp(SPAN · k) with k by
the size of the product, in one pass: the largest product of a group need not be known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.log.states import END, HIDDEN, START, UNKNOWN, Labels, label_text
from reweigh.sums.engines.ibis_rows import SEEN, exponential, frame, one_if
from reweigh.sums.trajectories import NO_SCALE, EpisodeSums, StepMoments, StepSums
from reweigh.sums.transitions import NO_ACTION, StartMoments, TransitionMoments, summed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SPAN = 100.0  # of log-products that are summed together: exp(-2·SPAN) is far from underflow
NO_PRODUCT = -(10**9)  # k of products that are 0


def labels_shown(rows: Any, groups: Sequence[Sequence[str]]) -> Any:
    """Every label that these groups of columns show: `of` is the group, l0, l1, … are its texts."""
    import ibis

    width = max(len(names) for names in groups)
    parts = []
    for of, names in enumerate(groups):
        shown = rows.filter(*[rows[name].notnull() for name in names])
        unique = shown.select(*[shown[name] for name in names]).distinct()
        texts = [unique[name].cast("string") for name in names]
        texts += [ibis.null("string")] * (width - len(names))
        columns = {f"l{j}": text for j, text in enumerate(texts)}
        parts.append(unique.select(of=ibis.literal(of, "int64"), **columns))
    return ibis.union(*parts) if len(parts) > 1 else parts[0]


def starts(rows: Any, width: int) -> Any:
    first = rows.filter(rows["t"] == 0)
    keys = [first[name] for name in ("block", "hid", *names_of("s", width))]
    return first.group_by(keys).aggregate(n=first.count())


def cells(rows: Any, width: int, with_action: bool) -> Any:
    """One-step cells; `hid` and `fx` say where a state is hidden."""
    names = ["block", "t", "hid", "fx", *names_of("s", width), *names_of("f", width)]
    if with_action:
        names.append("a")
    rows = rows.mutate(z=rows["rho"] * rows["y"], one=rows["rho"])
    return rows.group_by([rows[name] for name in names]).aggregate(
        **_cell_sums(rows),
        pi=rows["pi"].sum(),
        pi2=(rows["pi"] * rows["pi"]).sum(),
        mu=rows["mu"].sum(),
        lost=_lost(rows),
    )


def stretches(rows: Any, width: int, gamma: float) -> Any:
    """Cells from one observed state to the next: a hidden stretch is one long step.

    Over a stretch from t on:  R = ρ_{t:t+j},  z = Σ_j γ^j ρ_{t:t+j} y_{t+j}.
    """
    import ibis

    anchor = (rows["t"] == 0) | (rows["hid"] == 0)
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
    ends = rows["fx"] != HIDDEN

    def at(where: Any, value: Any) -> Any:
        return ibis.ifelse(where, value, ibis.null(value.type())).max()

    keys = [rows[name] for name in ("e", "stretch", "block")]
    made = {f"s{j}": at(rows["anchor"] == 1, rows[f"s{j}"]) for j in range(width)}
    made |= {f"f{j}": at(ends, rows[f"f{j}"]) for j in range(width)}
    long = rows.group_by(keys).aggregate(
        t=rows["t"].min(),
        t_next=rows["t"].max() + 1,
        hid=at(rows["anchor"] == 1, rows["hid"]),
        fx=at(ends, rows["fx"]),
        rho=at(ends, rows["r"]),
        z=(rows["power"] * rows["r"] * rows["y"]).sum(),
        y=(rows["power"] * rows["y"]).sum(),
        one=(rows["power"] * rows["r"]).sum(),
        lost=_lost(rows),
        **made,
    )
    names = ["block", "t", "t_next", "hid", "fx", *names_of("s", width), *names_of("f", width)]
    return long.group_by([long[name] for name in names]).aggregate(
        **_cell_sums(long), lost=long["lost"].sum()
    )


def _lost(rows: Any) -> Any:
    """Rows whose state the policy does not know: where there are any, the sums mean nothing."""
    return (1 - rows["known"]).sum()


def _cell_sums(rows: Any) -> dict[str, Any]:
    rho, z, y = rows["rho"], rows["z"], rows["y"]
    return {
        "n": rows.count(),
        "rho": rho.sum(),
        "rho2": (rho * rho).sum(),
        "z": z.sum(),
        "rhoz": (rho * z).sum(),
        "z2": (z * z).sum(),
        "y": y.sum(),
        "y2": (y * y).sum(),
        "one": rows["one"].sum(),
    }


def discounting(gamma: float, t: Any) -> Any:
    """γ^t"""
    import ibis

    if gamma == 1.0:
        return ibis.literal(1.0, "float64")
    return ibis.literal(gamma, "float64") ** t.cast("float64")


def _running(rows: Any) -> Any:
    """log ρ_{0:t}, and whether the product is 0."""
    window = frame(rows)
    return rows.mutate(cum=rows["lr"].sum().over(window), zeros=rows["zero"].sum().over(window))


def _scaled(rows: Any, log_w: Any, zeros: Any) -> Any:
    """With k and w = ρ_{0:t} / exp(SPAN · (k + 1)), between exp(-SPAN) and 1."""
    import ibis

    bounded = ibis.ifelse(log_w.abs() < 1e9, log_w, 0.0)  # of infinite ratios
    k = (bounded / SPAN).floor().cast("int64")
    rows = rows.mutate(k=ibis.ifelse(zeros > 0, NO_PRODUCT, k), log_w=log_w)
    relative = rows["log_w"] - SPAN * (rows["k"] + 1).cast("float64")
    w = exponential(ibis.ifelse(rows["k"] == NO_PRODUCT, 0.0, relative))
    return rows.mutate(w=ibis.ifelse(rows["k"] == NO_PRODUCT, 0.0, w))


def step_products(rows: Any, horizon: int) -> Any:
    """By (block, t, k): the products of the living, and of those whose last row this is."""
    import ibis

    rows = _running(rows)
    rows = _scaled(rows, rows["cum"], rows["zeros"])
    over = (rows["final"] == 1) & (rows["t"] < horizon - 1)
    w, y = rows["w"], rows["y"]
    w_over = ibis.ifelse(over, w, 0.0)
    return rows.group_by([rows["block"], rows["t"], rows["k"]]).aggregate(
        n=rows.count(),
        top=rows["log_w"].max(),
        w=w.sum(),
        w2=(w * w).sum(),
        wy=(w * y).sum(),
        n_over=one_if(over).sum(),
        top_over=ibis.ifelse(over, rows["log_w"], ibis.null("float64")).max(),
        w_over=w_over.sum(),
        w2_over=(w_over * w_over).sum(),
        lost=_lost(rows),
    )


def episode_products(rows: Any, gamma: float) -> Any:
    """By (block, k): sums over episodes; x = Σ_t γ^t ρ_{0:t} y_t, W the product, G the return."""
    import ibis

    rows = _running(rows)
    power = discounting(gamma, rows["t"])
    # a reward of 0 earns 0, also under a weight that overflows
    earns = (rows["zeros"] == 0) & (rows["y"] != 0)
    product = exponential(ibis.ifelse(earns, rows["cum"], 0.0))
    rows = rows.mutate(
        part=ibis.ifelse(earns, power * product * rows["y"], 0.0), gain=power * rows["y"]
    )
    whole = rows.group_by([rows["e"], rows["block"]]).aggregate(
        x=rows["part"].sum(),
        gain=rows["gain"].sum(),
        cum=rows["lr"].sum(),
        zeros=rows["zero"].sum(),
    )
    whole = _scaled(whole, whole["cum"], whole["zeros"])
    x, w, g = whole["x"], whole["w"], whole["gain"]
    return whole.group_by([whole["block"], whole["k"]]).aggregate(
        n=whole.count(),
        top=whole["log_w"].max(),
        x=x.sum(),
        x2=(x * x).sum(),
        w=w.sum(),
        w2=(w * w).sum(),
        wg=(w * g).sum(),
        wg2=(w * g * w * g).sum(),
        w2g=(w * w * g).sum(),
        ret=g.sum(),
    )


def names_of(short: str, width: int) -> list[str]:
    return [f"{short}{j}" for j in range(width)]


# ---- what comes back -------------------------------------------------------------------------


def floats(table: pa.Table, name: str) -> Floats:
    return np.asarray(table.column(name).cast(pa.float64()).fill_null(np.nan).to_numpy())


def ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(table.column(name).cast(pa.int64()).to_numpy(), np.int64)


def labels_of(table: pa.Table, of: int, whole: Sequence[bool]) -> Labels:
    """The labels of one group of `labels_shown`, in the order that they have in memory.

    `whole`: whether a part of the label is an integer.
    """
    table = table.filter(pa.array(ints(table, "of") == of))
    parts = [
        [int(text) if is_int else text for text in table.column(f"l{j}").to_pylist()]
        for j, is_int in enumerate(whole)
    ]
    if len(parts) == 1:
        return Labels(tuple(sorted(parts[0])))
    return Labels(tuple(sorted(zip(*parts, strict=True))))


class UnlistedError(Exception):
    """A state or action that the query for all of them did not give."""


def codes_of(table: pa.Table, names: Sequence[str], labels: Labels) -> Ints:
    """The codes of a state or action, HIDDEN where null: each distinct one is looked up once."""
    total = np.zeros(table.num_rows, np.int64)
    words: list[list[Any]] = []
    for name in names:
        column = table.column(name).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        encoded = column.dictionary_encode()
        words.append([*encoded.dictionary.to_pylist(), None])
        index = encoded.indices.cast(pa.int64()).fill_null(len(words[-1]) - 1).to_numpy()
        total = total * len(words[-1]) + index
    unique, inverse = np.unique(total, return_inverse=True)
    found = []
    for code in unique.tolist():
        parts = []
        for part in reversed(words):
            code, at = divmod(code, len(part))
            parts.append(part[at])
        value = tuple(reversed(parts))
        text = label_text(value[0] if len(value) == 1 else value)
        if value[0] is not None and text not in labels.code_of:
            raise UnlistedError(text)
        found.append(HIDDEN if value[0] is None else labels.code_of[text])
    return np.array(found, np.int64)[inverse] if found else total


def read_starts(table: pa.Table, width: int, labels: Labels, hidden: int) -> StartMoments:
    """First states, from their own table or from cells, of which every episode fills one at 0."""
    if "t" in table.column_names:
        table = table.filter(pa.array(ints(table, "t") == 0))
    code = codes_of(table, names_of("s", width), labels)
    zeros = np.zeros(len(code))
    made = StartMoments(
        ints(table, "block"), np.where(code < 0, hidden, code), ints(table, "n"), zeros, zeros
    )
    return made.summed()


def read_cells(
    table: pa.Table, width: int, states: Labels, actions: Labels | None, as_state: int
) -> TransitionMoments:
    """Cells from a table of sums; a hidden state has the code `as_state`."""
    s = codes_of(table, names_of("s", width), states)
    fx = ints(table, "fx")
    following = codes_of(table, names_of("f", width), states)
    s_next = np.where(fx == SEEN, following, np.where(fx == HIDDEN, as_state, fx))
    assert np.all(np.isin(fx, [SEEN, HIDDEN, END, UNKNOWN]))
    t = ints(table, "t")
    n = len(t)
    stretch = "t_next" in table.column_names
    has_action = actions is not None and "a" in table.column_names
    return summed(
        TransitionMoments(
            block=ints(table, "block"),
            t=t,
            s=np.where(s < 0, START if stretch else as_state, s),
            a=codes_of(table, ["a"], actions) if has_action else np.full(n, NO_ACTION),  # type: ignore[arg-type]
            t_next=ints(table, "t_next") if stretch else t + 1,
            s_next=s_next,
            n=ints(table, "n"),
            **{
                name: floats(table, name)
                for name in ("rho", "rho2", "z", "rhoz", "z2", "y", "y2", "one")
            },
            **{
                name: np.zeros(n) if stretch else floats(table, name)
                for name in ("pi", "pi2", "mu")
            },
        )
    )


def read_products(steps: pa.Table, episodes: pa.Table, horizon: int) -> StepMoments:
    """Running products: from sums relative to exp(SPAN (k + 1)) to sums relative to the top."""
    living = _steps(steps, "")
    over = _carried(_steps(steps, "_over"), horizon)
    scale, shift, found = _shifted(episodes, "top", "n")
    zeros = np.zeros(len(scale))
    whole = EpisodeSums(
        block=ints(episodes, "block"),
        t=np.zeros(len(scale), np.int64),
        n=ints(episodes, "n"),
        log_scale=scale,
        x=floats(episodes, "x"),
        x2=floats(episodes, "x2"),
        w=floats(episodes, "w") * shift,
        w2=floats(episodes, "w2") * shift**2,
        wg=floats(episodes, "wg") * shift,
        wg2=floats(episodes, "wg2") * shift**2,
        w2g=floats(episodes, "w2g") * shift**2,
        wmax=found,
        g=zeros,
        g2=zeros,
        ret=floats(episodes, "ret"),
    )
    return StepMoments(living + over, whole + whole.where(np.zeros(len(scale), bool)))


def _shifted(table: pa.Table, top: str, count: str) -> tuple[Floats, Floats, Floats]:
    """The scale of each row, the factor from its k to it, and 1 where it holds a product."""
    k = ints(table, "k")
    none = (k == NO_PRODUCT) | (ints(table, count) == 0)
    scale = np.where(none, NO_SCALE, floats(table, top))
    factor = np.exp(np.where(none, 0.0, SPAN * (k + 1.0) - np.where(none, 0.0, scale)))
    return scale, factor, np.where(none, 0.0, 1.0)


def _steps(table: pa.Table, which: str) -> StepSums:
    scale, shift, found = _shifted(table, f"top{which}", f"n{which}")
    sums = StepSums(
        block=ints(table, "block"),
        t=ints(table, "t"),
        n=ints(table, f"n{which}"),
        log_scale=scale,
        w=floats(table, f"w{which}") * shift,
        w2=floats(table, f"w2{which}") * shift**2,
        wy=floats(table, "wy") * shift if which == "" else np.zeros(len(scale)),
        wmax=found,
    )
    return sums.where(sums.n > 0)


def _carried(ended: StepSums, horizon: int) -> StepSums:
    """Episodes that have ended go on with their last product, at every step until the horizon."""
    ended = ended + ended.where(np.zeros(len(ended.n), bool))  # one row per (block, t)
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
    some = n > 0
    at_step, which = np.nonzero(some)
    return StepSums(
        block=blocks[which] if len(blocks) else np.zeros(0, np.int64),
        t=at_step.astype(np.int64),
        n=n[some],
        log_scale=scale[some],
        w=w[some],
        w2=w2[some],
        wy=np.zeros(len(at_step)),
        wmax=wmax[some],
    )
