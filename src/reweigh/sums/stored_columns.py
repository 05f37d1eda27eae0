"""What the columns of saved sums may hold, one line per column, and what holds between tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.errors import InputError
from reweigh.kernels import Array, group_by
from reweigh.log.states import END, HIDDEN, START, UNKNOWN
from reweigh.sums.diagnostic_tables import VERSIONS
from reweigh.sums.keyed import NO_ACTION
from reweigh.sums.moments import Moments
from reweigh.sums.tables import BUILT_IN, CHOICES, RESERVED

ROUNDING = 1e-6  # relative, of sums of which one bounds another
UNDERFLOW = 1e-100  # per row: squares of less are 0, and bound nothing


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `low` to below `below` (the name of a size), or one of `special`."""

    low: int | None = 0
    below: str | None = None
    special: tuple[int, ...] = ()
    dtype = np.int64

    def wrong(self, values: Array, beside: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.below is None else sizes[self.below]
        bad = (values < low) | (values >= high)
        return bad & ~np.isin(values, self.special)

    def words(self, sizes: Mapping[str, int]) -> str:
        low = "" if self.low is None else f" from {self.low}"
        high = "" if self.below is None else f" to {sizes[self.below] - 1}"
        return f"a whole number{low}{high}" + "".join(f" or {code}" for code in self.special)


@dataclass(frozen=True)
class Real:
    """Numbers from `low` on.

    square  a sum of squares: infinite where it exceeds what a number can hold
    beyond  a sum that may do so in either direction, or both; its estimators then refuse
    within  two columns A, B of the same table with value² ≤ A·B (Cauchy and Schwarz)
    most    a column of the same table that is at least as large
    """

    low: float = -np.inf
    square: bool = False
    beyond: bool = False
    within: tuple[str, str] | None = None
    most: str | None = None
    dtype = np.float64

    def wrong(self, values: Array, beside: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
        bad = values < self.low
        if not self.beyond:
            bad |= np.isnan(values) if self.square else ~np.isfinite(values)
        limits = self.within or ((self.most, self.most) if self.most else ())
        if limits and all(name in beside for name in limits):
            one, other = (np.sqrt(np.maximum(beside[name], 0.0)) for name in limits)
            bad |= np.abs(values) > one * other * (1 + ROUNDING) + UNDERFLOW * beside["n"]
        return np.asarray(bad)

    def words(self, sizes: Mapping[str, int]) -> str:
        low = "a number" if np.isinf(self.low) else f"a number from {self.low:g} on"
        within = self.within and f", whose square is at most {' times '.join(self.within)}"
        return f"{low}{within or ''}{f', at most {self.most}' if self.most else ''}"


SQUARES = Real(0, square=True)
COLUMNS: dict[str, Whole | Real] = {
    # keys
    "block": Whole(0, "blocks"),
    "t": Whole(0, "horizon"),
    "t_next": Whole(1, "horizon + 1"),
    "s": Whole(0, "states"),
    "s_next": Whole(0, "states", (END, UNKNOWN)),
    "s_before": Whole(0, "states"),
    "a": Whole(0, "actions", (NO_ACTION,)),
    "a_before": Whole(0, "actions", (NO_ACTION,)),
    "bucket": Whole(None),
    # sums over cells of rows
    "n": Whole(0),
    "rho": Real(0, within=("n", "rho2")),
    "rho2": SQUARES,
    "z": Real(within=("n", "z2")),
    "rhoz": Real(beyond=True, within=("rho2", "z2")),
    "z2": SQUARES,
    "y": Real(within=("n", "y2")),
    "y2": SQUARES,
    "one": Real(0),
    "pi": Real(0, within=("n", "pi2")),
    "pi2": SQUARES,
    "mu": Real(0),
    # sums over episodes
    "g": Real(within=("n", "g2")),
    "g2": SQUARES,
    "log_scale": Real(),
    "w": Real(0, within=("n", "w2")),
    "w2": SQUARES,
    "wy": Real(),
    "wmax": Real(0, most="w"),
    "x": Real(beyond=True, within=("n", "x2")),
    "x2": Real(0, beyond=True),
    "wg": Real(within=("n", "wg2")),
    "wg2": SQUARES,
    "w2g": Real(beyond=True, within=("w2", "wg2")),
    "ret": Real(),
    "log_w": Real(),
}
OTHERWISE: dict[str, dict[str, Whole | Real]] = {  # what differs in one kind of table
    "policy": {"a": Whole(0, "actions"), "pi": Real(0, most="n")},
    "start": {"s": Whole(0, "states", (START,))},
    "transitions": {
        "s": Whole(0, "states", (START,)),
        "a": Whole(0, "none", (NO_ACTION,)),
    },
}
ALL_EPISODES = ("start", "start_model", "episodes", "ordered")  # every episode counts once in them
ROWS_OF_EPISODES = ("transitions", "model", "paced", "steps")  # and here once at step 0
DECLARED_KEYS: dict[str, Whole | Real] = {  # of the keys of a table from outside of the package
    "s": Whole(0, "states", (START, HIDDEN)),
    "s_next": Whole(0, "states", (END, UNKNOWN, HIDDEN)),
    "s_before": Whole(0, "states", (START, HIDDEN)),
}


def rule_of(kind: str, column: str) -> Whole | Real:
    if kind not in (*BUILT_IN, CHOICES.name):
        known = DECLARED_KEYS.get(column, COLUMNS.get(column) if column in RESERVED else None)
        return known or Real(beyond=True)
    return OTHERWISE.get(kind, {}).get(column) or COLUMNS[column]


def check_tables(moments: Moments, what: str) -> None:
    """InputError, which names `what`, unless these sums can be those of a log."""
    fault = next(_faults(moments), None)
    if fault is not None:
        raise InputError(f"{what} {fault}")


def _faults(moments: Moments) -> Iterator[str]:
    about = moments.about
    sizes = {
        "horizon": about.horizon,
        "horizon + 1": about.horizon + 1,
        "blocks": about.blocks,
        "states": len(moments.states),
        "actions": 0 if moments.actions is None else len(moments.actions),
        "none": 0,
    }
    tables = tables_of(moments)
    for kind, part in tables.items():
        columns = part.arrays()
        for name, values in columns.items():
            rule = rule_of(kind, name)
            with np.errstate(over="ignore", invalid="ignore"):
                bad = rule.wrong(values, {"n": np.ones(1)} | columns, sizes)
            if bad.any():
                row = int(np.argmax(bad))
                place = f"column {name!r} of the table {kind!r}, row {row + 1}"
                yield f"{place}: value {values[row].item()}; it must be {rule.words(sizes)}"
        if part.keys and len(group_by([columns[key] for key in part.keys])) < len(columns["n"]):
            yield f"table {kind!r}: two rows share the keys {', '.join(part.keys)}"
    yield from _miscounts(moments, tables)


def _miscounts(moments: Moments, tables: Mapping[str, Any]) -> Iterator[str]:
    """Counts that contradict each other: every episode begins once, and a row other than the first
    follows another."""
    episodes = moments.n_episodes
    if not episodes:
        yield "there are no episodes"
    if not 0 <= moments.truncated <= episodes:
        yield f"{moments.truncated:,} of {episodes:,} episodes are cut off"
    for kind, part in tables.items():
        if kind in ALL_EPISODES:
            count = int(part.n.sum())
        elif kind in ROWS_OF_EPISODES:
            count = int(part.n[part.t == 0].sum())
        else:
            count = part.n if kind == "largest" else episodes
        if count != episodes:
            yield f"table {kind!r} counts {count:,} episodes, and 'start' {episodes:,}"
    for kind in [kind for kind in ("transitions", "model") if kind in tables]:
        cells = tables[kind]
        if np.any(cells.t_next <= cells.t):
            yield f"table {kind!r}: a row is followed by one at the same step, or before it"
        # rows that enter (t, s), less those that leave it; an episode may be cut off there
        left, entered = cells.select(cells.t > 0), cells.select(cells.s_next >= 0)
        ends = zip(
            (left.block, left.t, left.s),
            (entered.block, entered.t_next, entered.s_next),
            strict=True,
        )
        groups = group_by([np.concatenate(both) for both in ends])
        if np.any(groups.sum(np.concatenate([-left.n, entered.n])) < 0):
            yield f"table {kind!r}: more rows leave a state at a step than enter it"
    largest = moments.largest
    if largest is not None:
        falling = np.append(largest.log_w, largest.floor)
        if len(largest.log_w) > largest.n or np.any(falling[1:] > falling[:-1]):
            yield "table 'largest': the weights do not fall, or are more than the episodes"


def tables_of(moments: Moments) -> dict[str, Any]:
    """The tables of these sums by their kind, those that there are."""
    paths = moments.trajectories
    tables = {
        "start": moments.start,
        "start_model": moments.start_model,
        "transitions": moments.transitions,
        "model": moments.model,
        "policy": moments.policy,
        "steps": None if paths is None else paths.steps,
        "episodes": None if paths is None else paths.episodes,
    } | {kind: getattr(moments, kind) for kind in VERSIONS}
    return {kind: part for kind, part in tables.items() if part is not None} | moments.tables
