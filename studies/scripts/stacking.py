"""Does stacking (OPERA, Nie et al. 2024) beat `auto`? A prototype, outside of the package.

    python studies/scripts/stacking.py [--logs 40] [--size 300] [--seed 0] [--worlds 14]

The stack is Σ α_k v_k with α on the simplex, minimizing αᵀÂα; Â is the covariance of the estimates
by their joint influence values (OPERA's bootstrap of the same matrix, to first order). "auto+"
stacks what `auto` chooses from, "all" all estimators that answer. The table has the RMSE of each
over that of the best single estimator of the world, and how often the normal 95 % interval of each
(of `auto` its own interval) holds the truth.
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

WORLDS: dict[str, Callable[[int], Any]] = {
    "usual": lambda k: random_mdp(100 * k + 1, reward_sd=0.3),
    "far apart": lambda k: random_mdp(100 * k + 2, overlap=0.2, reward_sd=0.3),
    "near": lambda k: random_mdp(100 * k + 3, overlap=0.9, reward_sd=0.3),
    "long": lambda k: random_mdp(100 * k + 4, horizon=20, reward_sd=0.3),
    "noisy": lambda k: random_mdp(100 * k + 5, reward_sd=3.0),
    "many actions": lambda k: random_mdp(100 * k + 6, n_actions=20, reward_sd=0.3),
    "many states": lambda k: random_mdp(100 * k + 7, n_states=40, reward_sd=0.3),
    "early ends": lambda k: random_mdp(100 * k + 8, terminal=1, reward_sd=0.3, horizon=8),
    "sparse": lambda k: random_mdp(100 * k + 9, concentration=0.1, reward_sd=0.3),
    "hidden": lambda k: RandomWorld(3 + k, hidden=1).build(),
    "unlike": lambda k: random_mdp(100 * k + 10, n_actions=10, overlap=0.05, reward_sd=0.3),
    "unlike, long": lambda k: random_mdp(100 * k + 11, overlap=0.05, horizon=10, reward_sd=0.3),
    "modelwin": lambda _: ModelWin(10),
    "modelfail": lambda _: ModelFail(10),
}


def stacked(log: rw.EpisodeLog, target: rw.Policy, names: tuple[str, ...]) -> tuple[float, float]:
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
    alpha = y / y.sum()
    return float(alpha @ values), float(np.std(alpha @ np.array(psi)) / np.sqrt(log.n_episodes))


Found = dict[str, list[float]]


def results_of(world: Any, options: argparse.Namespace) -> tuple[Found, Found]:
    """By name the errors of the values, and whether the intervals held the truth."""
    truth: float = world.value()
    off: Found = {name: [] for name in ("auto", "auto+", "all", *ALL)}
    held: Found = {name: [] for name in ("auto", "auto+", "all")}
    for log_number in range(options.logs):
        log = world.simulate(options.size, 10_000 + log_number)
        chosen = rw.evaluate(log, world.target, "auto")
        interval = chosen.interval()
        off["auto"].append(chosen.value - truth)
        held["auto"].append(interval is not None and interval.low <= truth <= interval.high)
        for name, among in (("auto+", CHOSEN_FROM), ("all", ALL)):
            value, error = stacked(log, world.target, among)
            off[name].append(value - truth)
            held[name].append(abs(value - truth) <= 1.96 * error)
        values = rw.point_values(log, world.target, list(ALL))
        for name, found in zip(ALL, values, strict=True):
            off[name].append(found - truth if isinstance(found, float) else np.nan)
    return off, held


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, usual in (("logs", 40), ("size", 300), ("seed", 0), ("worlds", len(WORLDS))):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options, shown = parser.parse_args(), ("auto", "auto+", "all")
    print(f"{'world':14}" + 2 * "".join(f"{name:>7}" for name in shown) + "  best single")
    rows = []
    for name in list(WORLDS)[: options.worlds]:
        off, held = results_of(WORLDS[name](options.seed), options)
        rmse = {one: float(np.sqrt(np.mean(np.square(errors)))) for one, errors in off.items()}
        best = min((one for one in ALL if np.isfinite(rmse[one])), key=rmse.__getitem__)
        rows.append([rmse[one] / rmse[best] for one in shown])
        covered = "".join(f"{np.mean(held[one]):7.2f}" for one in shown)
        print(
            f"{name:14}" + "".join(f"{r:7.2f}" for r in rows[-1]) + covered + f"  {best}",
            flush=True,
        )
    mean = np.exp(np.mean(np.log(rows), axis=0))
    print(f"{'geometric mean':14}" + "".join(f"{r:7.2f}" for r in mean))
    print(f"{'largest':14}" + "".join(f"{r:7.2f}" for r in np.max(rows, axis=0)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
