"""What the kernels cost, as ratios measured interleaved in one process; printed as JSON.

Times are the least CPU time of the repetitions. The yardstick of the core (the forward recursion
of MIS, which gives the value) is a vectorized read of the same bytes, added up in one loop: state,
ratio and reward of every row, or where propensities are those of a table (a function of state and
action) the row's pair and reward.

    python benchmarks/kernels.py            all sizes
    python benchmarks/kernels.py --small    a fast look
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np

import reweigh as rw
from reweigh import kernels as compute
from reweigh.estimate import direct
from reweigh.evaluation.resampling import resample

STATES, ACTIONS, HORIZON, REPEATS = 100, 10, 100, 7
SMALL = "--small" in sys.argv
SIZES = (100_000, 1_000_000) if SMALL else (100_000, 1_000_000, 10_000_000)
COLUMN = rw.ColumnPolicy("target_prob")
PEAK = "arrays to value and error, peak"


@numba.njit(fastmath=True, error_model="numpy")
def read(state: Any, rho: Any, reward: Any) -> float:
    """Every byte once; the order of the sums is free, so that the loop is vectorized."""
    code, a, b = np.uint32(0), 0.0, 0.0
    for k in range(len(state)):
        code ^= state[k]
        a += rho[k]
        b += reward[k]
    return code + a + b


@numba.njit(fastmath=True, error_model="numpy")
def read_pairs(pair: Any, reward: Any) -> float:
    code, a = np.uint16(0), 0.0
    for k in range(len(pair)):
        code ^= pair[k]
        a += reward[k]
    return code + a


def arrays(
    rows: int, horizon: int = HORIZON, states: int = STATES, *, table: bool = False
) -> tuple[np.ndarray, ...]:
    """The target's probabilities are those of a table, or every row has its own."""
    rng = np.random.default_rng(0)
    n = rows // horizon
    mu = np.full((n, horizon), 1 / ACTIONS)
    state, action = rng.integers(0, states, (n, horizon + 1)), rng.integers(0, ACTIONS, mu.shape)
    reward, own = rng.random(mu.shape), rng.uniform(0.5, 1.5, mu.shape)
    if table:
        ratio = rng.uniform(0.5, 1.5, (states, ACTIONS))
        ratio /= ratio.mean(axis=1, keepdims=True)  # probabilities, which add up to 1
        own = ratio[state[:, :horizon], action]
    return state, action, reward, mu, mu * own


def interleaved(tasks: dict[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """The least CPU seconds of each task."""
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(repeats + 1):  # the first round compiles and warms
        for name, run in tasks.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best


def whole_answer(log: rw.EpisodeLog) -> object:
    """What every user gets: the value, its interval and the verdict, of a log just read."""
    estimate = rw.evaluate(replace(log, _cache=dict(log._cache)), COLUMN, rw.mis())
    return estimate.interval(), estimate.verdict


def pieces(log: rw.EpisodeLog) -> dict[str, Callable[[], object]]:
    rows = direct.Rows.of(log, COLUMN, None)
    code, rho, reward = rows.columns[1], rows.rho, log.steps.reward
    return {
        "read": lambda: read_pairs(code, reward) if rows.pairs else read(code, rho, reward),
        "core": lambda: direct.forward(rows, True, keep=False),
        "value and error": lambda: direct.solve_rows(rows, rw.mis()),
    }


def at_size(rows: int, *, table: bool = False) -> dict[str, float]:
    given = arrays(rows, table=table)
    log = rw.log_from_arrays(*given)
    tasks = pieces(log)
    tasks["whole answer"] = lambda: whole_answer(log)
    tasks["log_from_arrays"] = lambda: rw.log_from_arrays(*given)
    tasks["arrays to value and error"] = lambda: direct.solve_rows(
        direct.Rows.of(rw.log_from_arrays(*given), COLUMN, None), rw.mis()
    )
    t = interleaved(tasks, max(REPEATS * 1_000_000 // rows, 3))
    return {
        "core / read of the same bytes": t["core"] / t["read"],
        "value and error / core": t["value and error"] / t["core"],
        "whole answer / value and error": t["whole answer"] / t["value and error"],
        "log_from_arrays / read": t["log_from_arrays"] / t["read"],
        "arrays to value and error / read": t["arrays to value and error"] / t["read"],
        "core, ns per transition": t["core"] / rows * 1e9,
        "arrays to value and error, ns per transition": t["arrays to value and error"] / rows * 1e9,
    }


def bootstrap(rows: int, replicates: int = 1000) -> dict[str, float]:
    """Against running the core as often on the log itself, and against drawing episodes, putting
    them into a log and asking it for its value, as one would do without a bootstrap."""
    log = rw.log_from_arrays(*arrays(rows))
    drawn = np.random.default_rng(0).poisson(1.0, log.n_episodes)

    def one_by_one() -> object:
        again = replace(log, steps=log.steps.repeated(drawn), _cache={})
        return rw.point_values(again, COLUMN, ["mis"])

    tasks = {
        "core": pieces(log)["core"],
        "one by one": one_by_one,
        "bootstrap": lambda: resample(log, [(COLUMN, rw.mis())], replicates, seed=0),
    }
    t = interleaved(tasks, 2)
    return {
        f"{replicates} replicates / re-runs of the core": t["bootstrap"] / t["core"] / replicates,
        f"{replicates} replicates / re-runs on drawn episodes": t["bootstrap"]
        / t["one by one"]
        / replicates,
    }


def growth(rows: int) -> dict[str, dict[str, float]]:
    """Cost per transition, relative to H = 100 and S = 100, each shape interleaved with that one.

    With many rows, so that the arrays over (t, s), which are a part of the answer, stay smaller
    than the log.
    """
    shapes = {f"H = {h}": (h, STATES) for h in (10, 1000, 10_000)}
    shapes |= {f"S = {s}": (HORIZON, s) for s in (2, 10, 1000, 10_000)}
    base = rw.log_from_arrays(*arrays(rows))
    found: dict[str, dict[str, float]] = {"core": {}, "value and error": {}}

    def compare(name: str, log: rw.EpisodeLog) -> None:
        here = {f"{piece}, here": run for piece, run in pieces(log).items()}
        t = interleaved(pieces(base) | here)
        for piece, ratios in found.items():
            ratios[name] = t[f"{piece}, here"] / t[piece] * base.steps.n_rows / log.steps.n_rows

    for name, (horizon, states) in shapes.items():
        compare(name, rw.log_from_arrays(*arrays(rows, horizon, states)))
    lengths = np.random.default_rng(1).integers(1, HORIZON // 5, rows // HORIZON)
    lengths[0] = HORIZON
    compare("10 % fill", rw.log_from_arrays(*arrays(rows), lengths=lengths))
    return found


def memory(rows: int, *, table: bool = False, copy: bool = True) -> dict[str, float]:
    """Peak bytes per transition beyond the user's arrays, from these to value and error, and what
    stays of it as the log."""
    given = arrays(rows, table=table)

    def solve() -> rw.EpisodeLog:
        log = rw.log_from_arrays(*given, copy=copy)
        direct.solve_rows(direct.Rows.of(log, COLUMN, None), rw.mis())
        return log

    solve()  # compiles
    tracemalloc.start()
    log = solve()
    stays, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del log
    return {PEAK: peak / rows, "the log": stays / rows}


def in_place(rows: int) -> dict[str, float]:
    """What it costs to read rewards and probabilities where they lie."""
    given = arrays(rows)

    def run(copy: bool) -> object:
        log = rw.log_from_arrays(*given, copy=copy, threads=1)
        return direct.solve_rows(direct.Rows.of(log, COLUMN, None), rw.mis())

    t = interleaved({"copied": lambda: run(True), "in place": lambda: run(False)}, 5)
    return {"arrays to value and error, in place / copied": t["in place"] / t["copied"]}


def vectorized() -> bool:
    """Whether the yardstick was compiled to packed additions."""
    [assembly] = read.inspect_asm().values()
    return "addpd" in assembly


def main() -> None:
    compute.COMPILED_FROM = 0
    of_table = {f"{rows:,}": at_size(rows, table=True) for rows in SIZES}
    found: dict[str, Any] = {
        "machine": {"processor": platform.processor(), "python": platform.python_version(),
                    "cores": os.cpu_count(),
                    "numpy": np.__version__, "numba": numba.__version__},
        "sizes": {f"{rows:,}": at_size(rows) for rows in SIZES},
        "sizes, propensities of a table": of_table,
        "bootstrap at 1,000,000": bootstrap(1_000_000, 128 if SMALL else 1000),
        "growth, per transition": growth(1_000_000 if SMALL else 10_000_000),
        "memory at 1,000,000, bytes per transition": memory(1_000_000),
        "memory, propensities of a table": memory(1_000_000, table=True),
        "memory, arrays read in place": memory(1_000_000, copy=False),
        "in place at 1,000,000": in_place(1_000_000),
        "the read is vectorized": vectorized(),
    }  # fmt: skip
    print(json.dumps(found, indent=1, default=float))


if __name__ == "__main__":
    main()
