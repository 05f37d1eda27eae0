"""How close estimators come to the Cramér–Rao bound, and how often their intervals cover: the table
of docs/trust/mdr-loo.md. `python studies/scripts/sharpness.py 100 >> …` writes its rows."""

from __future__ import annotations

import sys
import warnings

import numpy as np

import reweigh as rw
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.theory.exact import quantities
from reweigh.worlds import TabularMDP, random_mdp

NAMES = ("mis", "mis-hajek", "dm-renorm", "mdr-crossfit", "mdr-loo", "auto")
SIZES = (200, 1000)
# states, actions, steps; overlap; noise; terminal states
WORLDS = {
    "4 states, 3 actions, 5 steps": ((4, 3, 5), 0.5, 0.5, 0),
    "10, 2, 10": ((10, 2, 10), 0.6, 0.3, 0),
    "3, 4, 8, far target": ((3, 4, 8), 0.3, 0.5, 0),
    "20, 3, 4": ((20, 3, 4), 0.6, 0.5, 0),
    "5, 8, 4, many actions": ((5, 8, 4), 0.4, 0.5, 0),
    "6, 3, 6, early ends": ((6, 3, 6), 0.5, 0.5, 1),
    "2, 2, 1": ((2, 2, 1), 0.5, 1.0, 0),
    "4, 2, 20": ((4, 2, 20), 0.7, 0.3, 0),
    "8, 5, 3, noisy": ((8, 5, 3), 0.3, 1.0, 0),
    "30, 2, 5": ((30, 2, 5), 0.5, 0.2, 0),
    "3, 3, 5, rare actions": ((3, 3, 5), 0.05, 0.2, 0),
    "4, 10, 3, rare actions": ((4, 10, 3), 0.1, 0.2, 0),
}


def world(number: int) -> TabularMDP:
    shape, overlap, noise, terminal = list(WORLDS.values())[number]
    return random_mdp(number + 1, *shape, overlap=overlap, reward_sd=noise, terminal=terminal)


def measured(number: int, n: int, logs: int) -> dict[str, tuple[float, float]]:
    """Of each estimator: its RMSE over the bound's, and the share of intervals that cover."""
    of = world(number)
    truth, bound = float(of.value()), float(np.sqrt(quantities(of).cramer_rao / n))
    off: dict[str, list[float]] = {name: [] for name in NAMES}
    covered: dict[str, list[bool]] = {name: [] for name in NAMES}
    for seed in range(logs):
        results = evaluate_in_study(of.simulate(n, seed), of.target, NAMES[:-1])
        [chosen] = rw.evaluate_all(of.simulate(n, seed), of.target, ["auto"])
        for name, found in zip(NAMES, (*results, chosen), strict=True):
            if not isinstance(found, rw.Estimate):
                continue
            off[name].append(found.value - truth)
            interval = found.interval() if found.standard_error else None
            if interval is not None:
                covered[name].append(interval.low <= truth <= interval.high)
    return {
        name: (float(np.sqrt(np.mean(np.square(off[name])))) / bound, float(np.mean(covered[name])))
        for name in NAMES
    }


def main(logs: int) -> None:
    warnings.simplefilter("ignore")
    print(f"| world | n | {' | '.join(NAMES)} |\n|---|---|{'---|' * len(NAMES)}")
    for number, name in enumerate(WORLDS):
        for n in SIZES:
            found = measured(number, n, logs)
            cells = (f"{ratio:.2f}, {cover:.0%}" for ratio, cover in found.values())
            print(f"| {name} | {n:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
