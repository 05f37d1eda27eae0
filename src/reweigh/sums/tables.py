"""Tables of sums, declared once: their keys, their columns as expressions of a row, how they merge.

Every engine reads these declarations: the NumPy scan (`numpy_scan.py`) and SQL (`engines/sql*.py`)
compute from them directly; the compiled kernels are checked against them
(`reweigh.testing.check_engine`). Your own table needs nothing more:

    capped = Table(
        "capped",
        keys=("t",),
        columns={
            "w": "least(running_product, 5)",
            "wy": "least(running_product, 5) * reward",
        },
    )

An expression is a text: the names below, numbers, + - * /, comparisons (1 where true, else 0),
`least(x, y)` and `greatest(x, y)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from reweigh.errors import UsageError, check_whole, nearest

RowKind = Literal["row", "stretch", "window", "episode", "step", "action"]
Merge = Literal["sum", "scaled", "buckets", "largest"]

# The kinds of rows, and the names that an expression may use there.
ROW_NAMES = {
    "t": "the step, from 0",
    "reward": "the reward y of the row",
    "behavior_prob": "μ(a|s) of the logged action",
    "target_prob": "π(a|s) of the logged action",
    "ratio": "ρ = π/μ, clipped if max_ratio is given",
    "weighted_reward": "z = ρ y",
    "weighted_one": "z if every reward were 1",
    "discount": "γ^t",
    "running_product": "ρ_{0:t}",
    "return_so_far": "Σ_{t' ≤ t} γ^t' y_t'",
    "observed": "1 where the state is observed",
    "observed_before": "1 where the state of the previous step is observed",
}
STRETCH_NAMES = {
    "t": "the step at which the stretch begins",
    "reward": "Σ_j γ^j y_{t+j} over the stretch",
    "behavior_prob": "μ(a|s); 0 where the log has hidden states",
    "target_prob": "π(a|s); 0 where the log has hidden states",
    "ratio": "the product of the ratios over the stretch",
    "weighted_reward": "z = Σ_j γ^j ρ_{t:t+j} y_{t+j}",
    "weighted_one": "z if every reward were 1",
}
WINDOW_NAMES = {
    "t": "the step a at which the window begins",
    "reward": "the reward y_t of its last step t; 0 after the episode's end",
    "ratio": "ρ_{a:t}, the product of its ratios; a step after the end has the ratio 1",
    "weighted_reward": "ρ_{a:t} y_t",
}
EPISODE_NAMES = {
    "length": "its number of rows",
    "running_product": "W = ρ_{0:T-1}, the whole product",
    "log_product": "log W",
    "total_return": "G = Σ_t γ^t y_t",
    "weighted_return": "Σ_t γ^t ρ_{0:t} y_t, and the start value",
    "start_value": "g(s_0) of a control variate, else 0",
}
NAMES: dict[RowKind, dict[str, str]] = {
    "row": ROW_NAMES,
    "stretch": STRETCH_NAMES,
    "window": WINDOW_NAMES,
    "episode": EPISODE_NAMES,
    "step": {"running_product": "ρ_{0:t}, frozen at the end", "reward": "y_t, 0 after the end"},
    "action": {"target_prob": "π(a|x) of any action a of the log, taken or not"},
}
KEYS: dict[RowKind, tuple[str, ...]] = {
    "row": ("block", "t", "s", "a", "t_next", "s_next", "s_before", "a_before", "bucket"),
    "stretch": ("block", "t", "s", "t_next", "s_next"),
    "window": ("block", "t", "s", "t_next", "s_next"),
    "episode": ("block", "t", "s", "bucket"),
    "step": ("block", "t"),
    "action": ("block", "t", "s", "a"),
}
# Of tables outside of the package.
ROW_KINDS: tuple[RowKind, ...] = ("row", "stretch", "window", "episode")
IDENTIFIER = re.compile("[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Table:
    """A declaration of sums by keys; beside the columns every table counts its rows as `n`.

    rows     the unit of the sum: each "row", each "stretch" from one observed state to the next,
             each "episode", each "window" of the last `memory` + 1 steps (below); the package's own
             tables also every "step" of every episode (one that has ended continues with its last
             product) and every "action" of every row
    columns  the summands, as expressions (`tables.NAMES` lists the names by kind of rows)
    where    an expression: rows where it is 0 are left out
    hidden   the code of a hidden state: that of a separate "state", or UNKNOWN or START
    merge    "sum"; "scaled": sums relative to exp(power · log_scale); "buckets": of ids, which
             grow as the ids spread; "largest": a list of the largest
    power    of scaled columns; columns in `largest_of` hold the largest value and not the sum
    memory   k of windows, else None. The window of step t begins at a = max(t - k, 0), or at the
             last observed state before it, and leads to t + 1: its keys are t = a, s = s_a,
             t_next = t + 1 and s_next. An episode that has ended has windows up to k steps further,
             with s_next END, as long as they begin before its end

    The tables of a user hold their sums by block of episodes too, as the others do.
    """

    name: str
    keys: tuple[str, ...]
    columns: Mapping[str, str] = field(hash=False)
    rows: RowKind = "row"
    where: str | None = None
    hidden: Literal["state", "special"] = "state"
    merge: Merge = "sum"
    power: Mapping[str, int] = field(default_factory=dict, hash=False)
    largest_of: tuple[str, ...] = ()
    memory: int | None = None

    def __post_init__(self) -> None:
        what = f"the table {self.name!r}"
        if not IDENTIFIER.fullmatch(self.name):
            raise UsageError(
                f"the name of a table must be a word such as capped_products; got {self.name!r}"
            )
        if self.rows not in NAMES:
            raise UsageError(f"{what} sums over {self.rows!r}; give one of {', '.join(ROW_KINDS)}")
        if (self.rows == "window") != (self.memory is not None):
            raise UsageError(f"{what} has the memory {self.memory!r}, which is for windows")
        if self.memory is not None:
            check_whole("memory", self.memory, 0)
        for key in self.keys:
            if key not in KEYS[self.rows]:
                raise UsageError(
                    f"{what} cannot have the key {key!r}{nearest(key, list(KEYS[self.rows]))} "
                    f"(keys: {', '.join(KEYS[self.rows])})"
                )
        for column in self.columns:
            if not IDENTIFIER.fullmatch(column) or column in RESERVED:
                raise UsageError(f"{what} cannot call a column {column!r}; choose another word")
        for text in (*self.columns.values(), *([] if self.where is None else [self.where])):
            _check(parsed(text, what), NAMES[self.rows], what)

    @property
    def names_used(self) -> frozenset[str]:
        """The names of a row that its expressions read."""
        texts = [*self.columns.values(), *([] if self.where is None else [self.where])]
        nodes = [node for text in texts for node in ast.walk(parsed(text))]
        return frozenset(node.id for node in nodes if isinstance(node, ast.Name)) - CALLS.keys()

    def values(self, names: Mapping[str, Any], operations: Operations) -> dict[str, Any]:
        """The summands of each column, from rows with these columns."""
        return {c: evaluated(text, names, operations) for c, text in self.columns.items()}

    def described(self) -> dict[str, Any]:
        """As plain values, from which `Table(**…)` makes the same."""
        plain = {"name": self.name, "keys": list(self.keys), "columns": dict(self.columns)}
        more = {} if self.memory is None else {"memory": self.memory}
        return plain | {"rows": self.rows, "where": self.where} | more


RESERVED = {"n", "kind", *(key for keys in KEYS.values() for key in keys)}


# ---- expressions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Operations:
    """How a kind of columns (NumPy's arrays, Ibis's columns) is compared."""

    least: Callable[[Any, Any], Any]
    greatest: Callable[[Any, Any], Any]
    one_if: Callable[[Any], Any]  # 1 where a condition holds, else 0


CALLS: dict[str, Callable[[Operations], Callable[[Any, Any], Any]]] = {
    "least": lambda operations: operations.least,
    "greatest": lambda operations: operations.greatest,
}
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda x, y: x + y,
    ast.Sub: lambda x, y: x - y,
    ast.Mult: lambda x, y: x * y,
    ast.Div: lambda x, y: x / y,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: lambda x, y: x < y,
    ast.LtE: lambda x, y: x <= y,
    ast.Gt: lambda x, y: x > y,
    ast.GtE: lambda x, y: x >= y,
    ast.Eq: lambda x, y: x == y,
    ast.NotEq: lambda x, y: x != y,
}


@cache
def parsed(text: str, what: str = "a table") -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{what} has the expression {text!r}, which cannot be read") from error


def _check(node: ast.expr, names: Mapping[str, str], what: str) -> None:
    """UsageError where an expression holds anything but what tables know."""
    inner: list[ast.expr] = []
    match node:
        case ast.Name(id=name):
            if name not in names:
                raise UsageError(
                    f"{what} uses the name {name!r}{nearest(name, list(names))} "
                    f"(names: {', '.join(names)})"
                )
        case ast.Constant(value=int() | float()):
            pass
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            inner = [left, right]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = [operand]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            inner = [left, right]
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in CALLS:
            inner = [left, right]
        case _:
            raise UsageError(
                f"{what} uses {ast.unparse(node)!r}; an expression may contain names, "
                "numbers, + - * /, comparisons, least(x, y) and greatest(x, y)"
            )
    for part in inner:
        _check(part, names, what)


def evaluated(text: str, names: Mapping[str, Any], operations: Operations) -> Any:
    """The value of an expression, with these columns for its names."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return names[name]
            case ast.Constant(value=number):
                return number
            case ast.BinOp(left=left, op=op, right=right):
                return ARITHMETIC[type(op)](value(left), value(right))
            case ast.UnaryOp(operand=operand):
                return -value(operand)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return operations.one_if(COMPARISONS[type(op)](value(left), value(right)))
            case ast.Call(func=ast.Name(id=name), args=[left, right]):
                return CALLS[name](operations)(value(left), value(right))
        raise AssertionError(ast.unparse(node))

    return value(parsed(text))


# ---- the package's own tables ----------------------------------------------------------------

MOVES = {  # of a row or a stretch
    "rho": "ratio",
    "rho2": "ratio * ratio",
    "z": "weighted_reward",
    "rhoz": "ratio * weighted_reward",
    "z2": "weighted_reward * weighted_reward",
}
CELL = MOVES | {
    "y": "reward",
    "y2": "reward * reward",
    "one": "weighted_one",
    "pi": "target_prob",
    "pi2": "target_prob * target_prob",
    "mu": "behavior_prob",
}
STARTS = {"g": "start_value", "g2": "start_value * start_value"}
BUILT_IN: dict[str, Table] = {
    table.name: table
    for table in (
        Table("start", ("block", "s"), STARTS, "episode", hidden="special"),
        Table("start_model", ("block", "s"), STARTS, "episode"),
        Table(
            "transitions", ("block", "t", "s", "t_next", "s_next"), CELL, "stretch",
            hidden="special",
        ),
        Table("model", ("block", "t", "s", "a", "t_next", "s_next"), CELL),
        Table("policy", ("block", "t", "s", "a"), {"pi": "target_prob"}, "action"),
        Table(
            "steps",
            ("block", "t"),
            {
                "w": "running_product",
                "w2": "running_product * running_product",
                "wy": "running_product * reward",
                "wmax": "running_product",
            },
            "step",
            merge="scaled",
            power={"w": 1, "w2": 2, "wy": 1, "wmax": 1},
            largest_of=("wmax",),
        ),
        Table(
            "episodes",
            ("block", "t"),
            {
                "x": "weighted_return",
                "x2": "weighted_return * weighted_return",
                "w": "running_product",
                "w2": "running_product * running_product",
                "wg": "running_product * total_return",
                "wg2": "running_product * total_return * running_product * total_return",
                "w2g": "running_product * running_product * total_return",
                "wmax": "running_product",
                "g": "start_value",
                "g2": "start_value * start_value",
                "ret": "total_return",
            },
            "episode",
            merge="scaled",
            power={"x": 0, "x2": 0, "w": 1, "w2": 2, "wg": 1, "wg2": 2, "w2g": 2, "wmax": 1,
                   "g": 0, "g2": 0, "ret": 0},
            largest_of=("wmax",),
        ),
        Table(
            "lagged",
            ("t", "s", "s_before", "a_before", "s_next"),
            MOVES,
            where="(t > 0) * observed * observed_before",
            hidden="special",
        ),
        Table(
            "ordered", ("bucket",),
            {"g": "total_return", "g2": "total_return * total_return"}, "episode", merge="buckets",
        ),
        Table("paced", ("bucket", "t"), {"y": "reward", "y2": "reward * reward"}, merge="buckets"),
        Table("largest", (), {"log_w": "log_product"}, "episode", merge="largest"),
    )
}  # fmt: skip
# What engines hold in place of `model` where that is too large and only gates read it.
CHOICES = Table("choices", ("block", "t", "s", "a"), CELL)
