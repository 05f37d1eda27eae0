"""The rows of a log with codes for labels, what follows each row, and its ratio.

Every table is summed from these columns:

    e, t, y, mu       as above                        s, a        codes (HIDDEN, NO_ACTION)
    s_next, t_next    what follows                    final       1 on an episode's last row
    s_before, a_before  of the step before            id          the episode's id as a number
    pi, rho           π(a|s), ρ = π/μ clipped         block       of the episode
    lr, zero          log ρ, and 1 where ρ is 0       cum, zeros  their sums up to the row
    return_so_far     Σ γ^t y up to the row
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from reweigh.log.states import END, HIDDEN, START, UNKNOWN, Labels, label_text
from reweigh.sums.engines.ibis_connect import ROW, Home
from reweigh.sums.engines.ibis_rows import (
    Layout,
    any_of,
    frame,
    hash_of,
    id_number,
    neighbours,
    one_if,
)
from reweigh.sums.keyed import NO_ACTION
from reweigh.sums.read import Reading

RUNNING = {"cum": "lr", "zeros": "zero"}  # sums over the rows of an episode up to a row
UNLISTED = -9  # the code of a label that the query for all labels did not give


def with_code(home: Home, rows: Any, parts: list[str], labels: Labels, code: str) -> Any:
    """Rows with the code of the label whose parts these columns are: HIDDEN where one is null."""
    import ibis

    known: list[Any] = [v if isinstance(v, tuple) else (v,) for v in labels.values]
    columns: dict[str, Any] = {}
    for j, part in enumerate(parts):
        text = rows[part].type().is_string()
        values = [str(label_text(value[j])) if text else int(value[j]) for value in known]
        columns[f"p{j}"] = pa.array(values, pa.string() if text else pa.int64())
    kind = np.int16 if len(known) < 1 << 15 else np.int32
    columns["code"] = pa.array(np.arange(len(known), dtype=kind))
    codes = home.put(f"reweigh_codes_of_{code}", pa.table(columns))
    same = [rows[part] == codes[f"p{j}"] for j, part in enumerate(parts)]
    hidden = any_of([rows[part].isnull() for part in parts])
    otherwise = ibis.ifelse(hidden, HIDDEN, UNLISTED).cast(codes["code"].type())
    joined = rows.left_join(codes, same)
    return joined.select(
        *[rows[name] for name in rows.columns],
        **{code: ibis.coalesce(codes["code"], otherwise)},
    )


def coded(
    home: Home,
    rows: Any,
    layout: Layout,
    states: Labels,
    actions: Labels | None,
    with_id: bool,
) -> Any:
    """Typed rows with codes for labels, and no more columns than sums need."""
    import ibis

    is_number = rows["e"].type().is_integer()  # then it is the id's number
    more = {"id": id_number(rows, layout)} if with_id and not is_number else {}
    used = [f"{short}{j}" for short in "sn" for j in range(len(layout.parts("state")))]
    names = ("e", "t", "a", "y", "mu", "q", "ended", "cut", ROW, *used)
    rows = rows.select(*[rows[name] for name in names if name in rows.columns], **more)
    parts = [f"s{j}" for j in range(len(layout.parts("state")))]
    rows = with_code(home, rows, parts, states, "s")
    if layout.has("next_state0"):
        rows = with_code(home, rows, [f"n{part[1:]}" for part in parts], states, "n")
    if actions is None:
        rows = rows.mutate(a=ibis.literal(NO_ACTION, "int32"))
    else:
        rows = with_code(home, rows.rename(action="a"), ["action"], actions, "a")
    kept = [name for name in (*names[:8], ROW, "s", "n", "id") if name in rows.columns]
    return rows.select(*kept)


def with_ratio(rows: Any, max_ratio: float | None) -> Any:
    """With the ratio ρ = π/μ and its logarithm (0 where ρ is 0: `zero` says so)."""
    import ibis

    rho = rows["pi"] / rows["mu"]
    if max_ratio is not None:
        rho = ibis.ifelse(rho > max_ratio, ibis.literal(max_ratio, "float64"), rho)
    rows = rows.mutate(rho=rho)
    positive = rows["rho"] > 0
    log_rho = ibis.ifelse(positive, rows["rho"], 1.0).ln()
    return rows.mutate(lr=log_rho, zero=one_if(~positive))


def in_sequence(
    rows: Any,
    reading: Reading,
    horizon: int,
    blocks: int,
    dialect: str,
    names: Collection[str],
) -> Any:
    """Rows before the horizon with what follows each, and of `names` what windows tell: all from
    one order of the rows by episode and step, and no more columns than are needed."""
    import ibis

    window, so_far = neighbours(rows), frame(rows)
    of_window: dict[str, Any] = {
        "ls": rows["s"].lead().over(window),
        "lt": rows["t"].lead().over(window),
        "sb": rows["s"].lag().over(window),
        "ab": rows["a"].lag().over(window),
    }
    if "cum" in names:
        of_window |= {name: rows[of].sum().over(so_far) for name, of in RUNNING.items()}
    if "return_so_far" in names:
        power = ibis.literal(reading.discount, "float64") ** rows["t"].cast("float64")
        of_window["return_so_far"] = (power * rows["y"]).sum().over(so_far)
    if blocks > 1:  # an id is hashed once, at the first row
        block = (hash_of(rows["e"], dialect) % blocks).cast("int32")
        at_first = ibis.ifelse(rows["t"] == 0, block, ibis.null("int32"))
        of_window["block"] = at_first.max().over(so_far)
    rows = rows.mutate(**of_window).filter(rows["t"] < horizon)
    t, code = rows["t"], rows["s"].type()
    # where no row follows, some engines give null and some 0; neither is t + 1
    goes_on = (rows["lt"] == t + 1).fill_null(False)
    last = ~goes_on | (t == horizon - 1)
    ends = (t < horizon - 1) & ~rows["cut"] & (reading.short_episodes == "terminal")
    # an episode cut at the horizon goes on in the log: its next row is known
    cases = [(last & (rows["ended"] | ends), END), (goes_on & (rows["ls"] != HIDDEN), rows["ls"])]
    if "n" in rows.columns:
        cases.append((last & (rows["n"] != HIDDEN), rows["n"]))
    made = {
        "t": t.cast("int32"),
        "s_next": ibis.cases(*cases, (last, UNKNOWN), else_=HIDDEN).cast(code),
        "s_before": ibis.ifelse(t == 0, START, rows["sb"]).cast(code),
        "a_before": ibis.ifelse(t == 0, NO_ACTION, rows["ab"]).cast(rows["a"].type()),
        "final": one_if(last).cast("int8"),
    }
    wanted = ("e", "y", "mu", "pi", "s", "block", ROW, *(n for n in names if n not in made))
    kept = [rows[name] for name in dict.fromkeys(wanted) if name in rows.columns]
    return rows.select(*kept, **{n: v for n, v in made.items() if n in {*names, "t", "s_next"}})


def completed(rows: Any, max_ratio: float | None, with_id: bool) -> Any:
    """With what follows from the columns of a row by itself."""
    import ibis

    more = {"t_next": rows["t"] + 1}
    if "block" not in rows.columns:
        more["block"] = ibis.literal(0, "int32")
    if "id" not in rows.columns:
        more["id"] = rows["e"] if with_id else ibis.literal(0, "int64")
    return with_ratio(rows.mutate(**more), max_ratio)
