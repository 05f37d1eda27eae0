"""Make the package data of the Mountain Car world: its Q table and its true values.

Q-learning on the aggregated states gives the table whose softmax policies are the world's target
and behavior; simulation of each policy gives its true value. The result is the same for the same
options.

    python scripts/mountain_car.py
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from reweigh.system.files import write_atomically
from reweigh.worlds import paper_worlds as car
from reweigh.worlds.world import Floats, TrueValue

Bools = NDArray[np.bool_]
PACKAGE_DATA = Path(__file__).parents[1] / "src" / "reweigh" / "worlds" / "data" / car.DATA
N_CELLS = len(car.X_CELLS) * len(car.V_CELLS)


def q_learning(
    rng: np.random.Generator,
    updates: int,
    *,
    cars: int = 4096,
    explore: float = 0.1,
    rate_first: float = 0.5,
    rate_last: float = 0.005,
) -> Floats:
    """Action values (cells, actions) of undiscounted Q-learning, reward -1 per step.

    Many cars learn one table at once: an update moves each (cell, action) toward the mean target
    of the cars in it. Cars start anew at the goal or after H steps; the cut after H steps is not
    an end, so the table counts the steps to the goal however many they are. Half of the cars
    start as the world's episodes do, half anywhere in the box of positions and velocities, so
    that every cell is visited.
    """
    anywhere = np.arange(cars) % 2 == 1

    def start(which: Bools) -> tuple[Floats, Floats]:
        x = rng.uniform(car.X_LEFT, car.X_GOAL, len(which))
        return x, rng.uniform(-car.V_MAX, car.V_MAX, len(which)) * which

    q = np.zeros((N_CELLS, car.N_ACTIONS))
    x, v = start(anywhere)
    age = rng.integers(0, car.HORIZON, cars)
    for update in range(updates):
        cell = car.cell_of(x, v)
        random = rng.integers(0, car.N_ACTIONS, cars)
        a = np.where(rng.random(cars) < explore, random, q[cell].argmax(axis=1))
        x, v = car.accelerate(x, v, a)
        home = x >= car.X_GOAL
        # Q(s,a) += rate (mean[-1 + max_a' Q(s',a')] - Q(s,a)),  with Q(goal, ·) = 0
        y = -1 + np.where(home, 0.0, q.max(axis=1)[car.cell_of(x, v)])
        pair = cell * car.N_ACTIONS + a
        visits = np.bincount(pair, minlength=q.size).reshape(q.shape)
        total = np.bincount(pair, y, minlength=q.size).reshape(q.shape)
        rate = rate_first * (rate_last / rate_first) ** (update / updates)
        q += rate * (total - visits * q) / np.maximum(visits, 1)
        age += 1
        anew = home | (age >= car.HORIZON)
        x[anew], v[anew] = start(anywhere[anew])
        age[anew] = 0
    return q


def true_value(
    rng: np.random.Generator, policy: Floats, episodes: int, batch: int = 50_000
) -> tuple[TrueValue, float]:
    """The policy's mean return with its standard error, and the share that ends before H."""
    n, total, squares, early = 0, 0.0, 0.0, 0
    while n < episodes:
        size = min(batch, episodes - n)
        lengths = car.drive_episodes(size, rng, policy)[2].astype(float)
        n += size
        total += lengths.sum()
        squares += (lengths**2).sum()
        early += int((lengths < car.HORIZON).sum())
    variance = (squares - total**2 / n) / (n - 1)
    return TrueValue(-total / n, float(np.sqrt(variance / n))), early / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=PACKAGE_DATA)
    parser.add_argument("--seed", type=int, default=2019)
    parser.add_argument("--updates", type=int, default=100_000, help="of Q-learning")
    parser.add_argument("--episodes", type=int, default=10_000_000, help="per true value")
    options = parser.parse_args()
    learn, drive_target, drive_behavior = np.random.default_rng(options.seed).spawn(3)

    clock = time.perf_counter()
    q = q_learning(learn, options.updates).astype(np.float32)
    print(f"Q-learning: {options.updates:,} updates in {time.perf_counter() - clock:.0f} s,")
    print(f"  values from {q.min():.2f} to {q.max():.2f} over {N_CELLS:,} cells")

    # The values belong to the table as it is stored, in single precision.
    policies = {
        "target": (car.softmax(q.astype(float), car.TARGET_TEMPERATURE), drive_target),
        "behavior": (car.softmax(q.astype(float), car.BEHAVIOR_TEMPERATURE), drive_behavior),
    }
    ratio = policies["target"][0] / policies["behavior"][0]
    print(f"  ratios of target to behavior from {ratio.min():.3g} to {ratio.max():.3g}")
    data: dict[str, Any] = {"q": q}
    for name, (policy, rng) in policies.items():
        clock = time.perf_counter()
        value, early = true_value(rng, policy, options.episodes)
        print(f"{name}: {value} from {options.episodes:,} episodes,", end=" ")
        print(f"{early:.1%} end before step {car.HORIZON}; {time.perf_counter() - clock:.0f} s")
        data[f"{name}_value"] = np.array(float(value))
        data[f"{name}_error"] = np.array(value.standard_error)
    data["episodes"] = np.array(options.episodes)

    def write(stream: BinaryIO) -> None:
        np.savez_compressed(stream, **data)

    write_atomically(options.output, write, overwrite=True)
    print(f"wrote {options.output} ({options.output.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
