"""Does stacking (OPERA, Nie et al. 2024) beat `auto`? A prototype, outside of the package.

    python studies/scripts/stacking.py [--logs 40] [--worlds 12]

The stack is Σ α_k v_k with α on the simplex, minimizing αᵀÂα; Â is the covariance of the estimates by
their joint influence values (OPERA's bootstrap of the same matrix, to first order). "auto+" stacks
what `auto` chooses from, "all" all estimators that answer. The table has the RMSE of each over the
best single estimator of the world.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import nnls

import reweigh as rw
from reweigh.estimate.influence import influence_values
from reweigh.worlds import ModelFail, ModelWin, RandomWorld, random_mdp

CHOSEN_FROM = ("mis-hajek", "mdr-loo", "wis")
ALL = (*CHOSEN_FROM, "mis", "dm-renorm", "mdr-crossfit", "is")
N = 300

WORLDS: dict[str, Callable[[], Any]] = {
    "usual": lambda: random_mdp(1, reward_sd=0.3),
    "far apart": lambda: random_mdp(2, overlap=0.2, reward_sd=0.3),
    "near": lambda: random_mdp(3, overlap=0.9, reward_sd=0.3),
    "long": lambda: random_mdp(4, horizon=20, reward_sd=0.3),
    "noisy": lambda: random_mdp(5, reward_sd=3.0),
    "many actions": lambda: random_mdp(6, n_actions=20, reward_sd=0.3),
    "many states": lambda: random_mdp(7, n_states=40, reward_sd=0.3),
    "early ends": lambda: random_mdp(8, terminal=1, reward_sd=0.3, horizon=8),
    "sparse": lambda: random_mdp(9, concentration=0.1, reward_sd=0.3),
    "hidden": lambda: RandomWorld(3, hidden=1).build(),
    "modelwin": lambda: ModelWin(10),
    "modelfail": lambda: ModelFail(10),
}


def stacked(log: rw.EpisodeLog, target: rw.Policy, names: tuple[str, ...]) -> float:
    values, psi = [], []
    for name in names:
        try:
            recipe = rw.estimator(name)
            [value] = rw.point_values(log, target, [recipe])
            if isinstance(value, float):
                psi.append(influence_values(log, target, recipe))
                values.append(value)
        except rw.RefusedError:
            continue
    square = np.cov(np.array(psi)) / log.n_episodes
    square = np.atleast_2d(square) / np.trace(np.atleast_2d(square))
    root, turn = np.linalg.eigh(square + 1e-9 * np.eye(len(values)))
    rows = np.vstack([np.sqrt(np.maximum(root, 0))[:, None] * turn.T, np.ones(len(values))])
    y = nnls(rows, np.append(np.zeros(len(values)), 1.0))[0]
    return float(y @ values / y.sum())


def errors_of(world: Any, logs: int) -> dict[str, float]:
    truth, found = world.value(), {name: [] for name in ("auto", "auto+", "all", *ALL)}
    for seed in range(logs):
        log = world.simulate(N, 10_000 + seed)
        found["auto"].append(rw.evaluate(log, world.target, "auto").value)
        found["auto+"].append(stacked(log, world.target, CHOSEN_FROM))
        found["all"].append(stacked(log, world.target, ALL))
        values = rw.point_values(log, world.target, list(ALL))
        for name, value in zip(ALL, values, strict=True):
            found[name].append(value if isinstance(value, float) else np.nan)
    return {name: float(np.sqrt(np.mean((np.array(v) - truth) ** 2))) for name, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--logs", type=int, default=40)
    parser.add_argument("--worlds", type=int, default=len(WORLDS))
    options = parser.parse_args()
    shown = ("auto", "auto+", "all")
    print(f"{'world':14}" + "".join(f"{name:>8}" for name in shown) + "  best single")
    ratios = []
    for name in list(WORLDS)[: options.worlds]:
        errors = errors_of(WORLDS[name](), options.logs)
        best = min((e for e in ALL if np.isfinite(errors[e])), key=errors.__getitem__)
        ratios.append([errors[one] / errors[best] for one in shown])
        print(f"{name:14}" + "".join(f"{r:8.2f}" for r in ratios[-1]) + f"  {best}", flush=True)
    mean = np.exp(np.mean(np.log(ratios), axis=0))
    print(f"{'geometric mean':14}" + "".join(f"{r:8.2f}" for r in mean))
    print(f"{'largest':14}" + "".join(f"{r:8.2f}" for r in np.max(ratios, axis=0)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
