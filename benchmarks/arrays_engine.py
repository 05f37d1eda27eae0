"""What the in-memory path costs, as ratios measured side by side in one process.

The yardstick is one stable sort of as many 64-bit keys as the log has rows, which is what a
group-by needs at least. Times are the minimum of the repetitions of CPU time, interleaved.

`benchmarks/page.py` runs it with the others and writes docs/benchmarks.md.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np

import reweigh as rw

STATES, ACTIONS, HORIZON, REPEATS = 100, 10, 100, 5
SIZES = (100_000, 1_000_000)


def arrays(n: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    states = rng.integers(0, STATES, (n, HORIZON + 1))
    actions = rng.integers(0, ACTIONS, (n, HORIZON))
    rewards = rng.random((n, HORIZON))
    mu = np.full((n, HORIZON), 1 / ACTIONS)
    pi = mu * rng.uniform(0.5, 1.5, (n, HORIZON))
    return states, actions, rewards, mu, pi


def tasks(rows: int) -> dict[str, Callable[[], object]]:
    given = arrays(rows // HORIZON)
    log = rw.log_from_arrays(*given)
    target = rw.ColumnPolicy("target_prob")
    keys = np.random.default_rng(1).integers(0, 2**62, rows)
    return {
        "one sort of the rows": lambda: np.argsort(keys, kind="stable"),
        "log_from_arrays": lambda: rw.log_from_arrays(*given),
        "evaluate mis": lambda: rw.evaluate(log, target, rw.mis()),
        **{
            f"evaluate {name}": partial(rw.evaluate_all, log, target, [name])
            for name in ("is", "wis", "dm", "dr", "wdr", "mdr", "mis-pooled")
        },
        "evaluate mis, wis, dm together": lambda: rw.evaluate_all(
            log, target, ["mis", "wis", "dm"]
        ),
        "moments for mis": lambda: rw.moments(log, target, ["mis"]),
        "moments for dm": lambda: rw.moments(log, target, ["dm"]),
    }


def measure(rows: int) -> list[tuple[str, float, float]]:
    """(task, CPU time over the yardstick's, peak bytes per row beyond the input)."""
    chosen = tasks(rows)
    best = dict.fromkeys(chosen, float("inf"))
    for _ in range(REPEATS):
        for name, run in chosen.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    yardstick = best["one sort of the rows"]
    measured = []
    for name, run in chosen.items():
        tracemalloc.start()
        run()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        measured.append((name, best[name] / yardstick, peak / rows))
    return measured
