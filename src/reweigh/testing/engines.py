"""check_engine: one log, every declared table, on the engine that you wrote.

The expected sums are those of the NumPy scan, which computes a table from its declaration alone
(`sums/tables.py`), and a few values that are known exactly, by enumeration.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from reweigh.errors import InputWarning, RefusedError, ReweighError
from reweigh.log.log import EpisodeLog
from reweigh.policy import FunctionPolicy, Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.diagnostic_tables import Buckets
from reweigh.sums.engines import ArraysEngine, Request, ratios
from reweigh.sums.moments import Moments
from reweigh.sums.numpy_scan import NumpyScan, buckets_of, log_weights
from reweigh.sums.read import ScannedLog, Scanner, read_log
from reweigh.sums.stored_columns import tables_of
from reweigh.sums.tables import BUILT_IN, Table

TOLERANCE = 1e-10  # of the sum of absolute values: products of logarithms' sums round so
KINDS = frozenset({"transitions", "model", "trajectories", "lagged", "ordered", "paced", "largest"})
DECLARED = (  # a table of each kind of rows, as a user might declare them
    Table("own_rows", ("t", "s", "a_before"), {"c": "least(running_product, 2) * reward"}),
    Table("own_stretches", ("t", "s_next"), {"z": "weighted_reward", "late": "t > 2"}, "stretch"),
    Table("own_windows", ("t", "s", "t_next", "s_next"),
          {"w": "ratio", "w2": "ratio * ratio", "wy": "weighted_reward", "y": "reward"},
          "window", memory=2),
    Table("own_long_windows", ("t", "t_next"), {"w": "ratio"}, "window", memory=50),
    Table("own_episodes", ("s",), {"w": "running_product", "x": "weighted_return / length"},
          "episode"),
)  # fmt: skip
STATES, ACTIONS = ("north", "south", "west"), (0, 1)
ENGINES = ("arrays", "stream", "duckdb")


def sample_rows(hidden: bool, seed: int = 20190801) -> pa.Table:
    """Ragged episodes with whole numbers for ids; with `hidden`, three states in ten are null."""
    rng = np.random.default_rng([seed, hidden])
    rows: list[dict[str, Any]] = []
    for episode in range(90):
        length = int(rng.integers(1, 7))
        for t in range(length):
            state, action = STATES[int(rng.integers(3))], int(rng.random() < 0.4)
            rows.append(
                {
                    "episode": 7 * episode - 100,
                    "step": t,
                    "state": None if hidden and rng.random() < 0.3 else state,
                    "action": action,
                    "reward": round(float(rng.normal()), 6),
                    "behavior_prob": (0.6, 0.4)[action],
                    "next_state": None,
                    "terminated": t == length - 1,
                }
            )
    for row, following in pairwise(rows):
        row["next_state"] = None if row["terminated"] else following["state"]
    return pa.Table.from_pylist(rows)


def sample_target() -> TablePolicy:
    """It never takes action 0 in the west: some ratios are 0."""
    probabilities = dict(zip((*STATES, None), (0.3, 0.8, 1.0, 0.5), strict=True))
    return TablePolicy({s: {0: 1 - p, 1: p} for s, p in probabilities.items()})


def _of_action(state: Any, action: Any, step: Any) -> Any:
    return np.where(np.asarray(action) == 1, 0.75, 0.25)


def check_engine(engine: str | Scanner) -> tuple[str, ...]:
    """Check every table that an engine computes; AssertionError if a sum is not as declared.

    `engine` is a name that `read_log` takes, or your own `Scanner` (`sums/read.py`).
    Returns the names of the tables it can compute.
    """
    answered: set[str] = set()
    for hidden in (False, True):
        for blocks in (1, 3):
            data, target = sample_rows(hidden), sample_target()
            request = Request(KINDS, blocks, tables=DECLARED)
            sums = _sums(engine, data, hidden, target, request)
            log = _read("arrays", data, hidden)
            assert isinstance(log, EpisodeLog)
            _compare(sums, log, target, blocks)
            answered |= tables_of(sums).keys()
    _check_enumerated(engine)
    if _answers_policy(engine):
        answered.add("policy")
    return tuple(name for name in (*BUILT_IN, *(t.name for t in DECLARED)) if name in answered)


def _read(engine: str | Scanner, data: pa.Table, hidden: bool = False, **options: Any) -> Any:
    log = read_log(
        data,
        behavior_prob="behavior_prob",
        terminated="terminated",
        hidden="allow" if hidden else "error",
        discount=0.9,
        engine=engine if isinstance(engine, str) else "stream",
        **options,
    )
    if isinstance(engine, str):
        return log
    assert isinstance(log, ScannedLog)
    return replace(log, scanner=engine)


def _sums(
    engine: str | Scanner, data: pa.Table, hidden: bool, target: Policy, request: Request
) -> Moments:
    log = _read(engine, data, hidden)
    if isinstance(log, ScannedLog):
        return log.moments(target, request)
    return ArraysEngine().moments(log, target, request)


def _compare(sums: Moments, log: EpisodeLog, target: Policy, blocks: int) -> None:
    pi, rho = ratios(log, target, None)
    scan = NumpyScan(log, pi, None, log.steps.blocks(blocks))
    for name, held in tables_of(sums).items():
        if name == "largest":
            products = np.sort(log_weights(log, rho))[::-1]
            _same(name, "log_w", held.log_w, products[products > -np.inf])
            continue
        bucket = None
        if isinstance(held, Buckets):
            assert scan.ids is not None
            shift, bucket = buckets_of(scan.ids, type(held))
            assert held.shift == shift, f"{name}: shift {held.shift}, not {shift}"
        table: Table = BUILT_IN.get(name, held.declaration)
        keys = tuple(key for key in held.keys if key in table.keys or key == "block")
        expected = scan.sums(table, keys, bucket)
        arrays = held.arrays()
        for key in (*keys, "n"):
            np.testing.assert_array_equal(arrays[key], expected[key], err_msg=f"{name}.{key}")
        for column in table.columns:
            values = arrays[column]
            if table.merge == "scaled":
                values = values * np.exp(table.power[column] * held.log_scale)
            _same(name, column, values, expected[column])


def _same(table: str, column: str, values: Any, expected: Any) -> None:
    assert len(values) == len(expected), f"{table}.{column}: {len(values)} of {len(expected)} rows"
    off = np.abs(values - expected)
    limit = TOLERANCE * (np.abs(expected) + np.abs(expected).max(initial=1.0))
    assert np.all(off <= limit), f"{table}.{column} is off by {off.max():.3g}"


def _check_enumerated(engine: str | Scanner) -> None:
    """Every path of two steps once, under a behavior that takes both actions alike: then the means
    over the log are the expectations. Σ_i ρ_{0:t} = n, and the target earns 3/4 at each step."""
    paths = [(first, second) for first in ACTIONS for second in ACTIONS]
    rows = [(e, t, path[t]) for e, path in enumerate(paths) for t in range(2)]
    data = pa.table(
        {
            "episode": [e for e, _, _ in rows],
            "step": [t for _, t, _ in rows],
            "state": ["only"] * len(rows),
            "action": [a for _, _, a in rows],
            "reward": [float(a) for _, _, a in rows],
            "behavior_prob": [0.5] * len(rows),
            "terminated": [False] * len(rows),
        }
    )
    target = TablePolicy({"only": {0: 0.25, 1: 0.75}})
    request = Request(frozenset({"transitions", "model", "trajectories"}))
    sums = _sums(engine, data, False, target, request)
    if sums.trajectories is not None:
        steps = sums.trajectories.steps
        w, wy = (values * np.exp(steps.log_scale) for values in (steps.w, steps.wy))
        _same("steps", "w", w, np.array([4.0, 4.0]))
        _same("steps", "wy", wy, np.array([3.0, 3.0]))
    if sums.transitions is not None:
        _same("transitions", "z", sums.transitions.z, np.array([3.0, 3.0]))
    if sums.model is not None:
        by_action = sums.model.forget("block", "t", "t_next", "s_next")
        _same("model", "rho", by_action.rho, np.array([2.0, 6.0]))


def _answers_policy(engine: str | Scanner) -> bool:
    """What a policy that is a function of rows would do, for all actions."""
    target = FunctionPolicy(_of_action, name="function")
    try:
        sums = _sums(engine, sample_rows(False), False, target, Request(KINDS, policy=True))
    except RefusedError:
        return False
    if sums.policy is None:
        return False
    share = sums.policy.pi / sums.policy.n
    _same("policy", "pi", share, np.where(sums.policy.a == 1, 0.75, 0.25))
    return True


def _in_any_order() -> tuple[str, ...]:
    """The tables that the stream computes from unordered rows."""
    rows = sample_rows(False)
    mixed = rows.take(np.random.default_rng(3).permutation(rows.num_rows))
    log = _read("stream", mixed, next_state="next_state")
    answered: list[str] = []
    requests = [Request(frozenset({kind})) for kind in sorted(KINDS)]
    for request in (*requests, *(Request(tables=(table,)) for table in DECLARED)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", InputWarning)  # that the rows were sorted
                answered += tables_of(log.moments(sample_target(), request))
        except ReweighError:
            continue
    return tuple(answered)


def engine_matrix() -> str:
    """Which engine computes which table, as Markdown, from trying each one."""
    answers = {engine: check_engine(engine) for engine in ENGINES}
    answers["stream, rows in any order"] = _in_any_order()
    lines = ["| table | sums over | keys | " + " | ".join(answers) + " |"]
    lines.append("|---|---|---|" + "---|" * len(answers))
    for table in (*BUILT_IN.values(), *DECLARED):
        keys = ", ".join(table.keys) or "none: a list"
        name = f"`{table.name}`" if table.name in BUILT_IN else f"your own, by {table.rows}"
        marks = " | ".join("yes" if table.name in names else "–" for names in answers.values())
        lines.append(f"| {name} | each {table.rows} | {keys} | {marks} |")
    return "\n".join(lines)
