"""reweigh beside SCOPE-RL 0.2.1 on the same data, as ratios measured interleaved in one process.

SCOPE-RL's per-decision importance sampling is called as its users call it, with its checks, and
with the checks left out. It is installed without its dependencies into an environment of its own
(build/peers), whose path is appended here; what its importance sampling does not use is stubbed.
First its value must be that of rw.is_(). Prints JSON.

    python benchmarks/peers.py
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import reweigh as rw

PEER = "scope-rl==0.2.1"
HOME = Path(__file__).parents[1] / "build" / "peers" / "scope_rl"
STATES, ACTIONS, HORIZON = 100, 10, 100
SIZES = (1_000_000, 10_000_000)


def installed() -> Path:
    """The peer's packages, installed without its dependencies if they are not there yet."""
    if not list(HOME.glob("lib/python*/site-packages/scope_rl")):
        subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
        pip = [str(HOME / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", PEER]
        subprocess.run(pip, check=True)
    [found] = HOME.glob("lib/python*/site-packages")
    return found


def stub(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def check_scalar(x: Any, name: str, target_type: Any, min_val: Any = None, **_: Any) -> Any:
    """What scikit-learn's function of this name checks, of what is used here."""
    if not isinstance(x, target_type) or (min_val is not None and x < min_val):
        raise ValueError(name)
    return x


def peer() -> Any:
    """SCOPE-RL's estimator, its package's own imports left out."""
    packages = installed()
    stub("sklearn")
    stub("sklearn.utils", check_scalar=check_scalar, check_random_state=None)
    stub("d3rlpy")
    stub("d3rlpy.preprocessing", ActionScaler=object)
    stub("gym", Env=object)
    stub("gym.spaces", Box=object, Discrete=object)
    for name in ("scope_rl", "scope_rl.ope", "scope_rl.ope.discrete"):
        stub(name, __path__=[str(packages / name.replace(".", "/"))])
    module = importlib.import_module("scope_rl.ope.discrete.basic_estimators")
    return module.PerDecisionImportanceSampling()


def measure(rows: int, estimator: Any) -> dict[str, float]:
    rng = np.random.default_rng(0)
    n = rows // HORIZON
    table = rng.dirichlet(np.full(ACTIONS, 20.0), STATES)
    states = rng.integers(0, STATES, (n, HORIZON + 1))
    actions = rng.integers(0, ACTIONS, (n, HORIZON))
    rewards = rng.random((n, HORIZON))
    mu = np.full((n, HORIZON), 1 / ACTIONS)
    # What SCOPE-RL asks for: the target's probabilities of all actions, row by row.
    flat = {
        "step_per_trajectory": HORIZON,
        "action": actions.reshape(-1),
        "reward": rewards.reshape(-1),
        "pscore": mu.reshape(-1),
        "evaluation_policy_action_dist": table[states[:, :HORIZON].reshape(-1)],
    }
    pi = table[states[:, :HORIZON], actions]

    def whole(target: rw.Policy, given: Any, name: str) -> rw.Estimate:
        log = rw.log_from_arrays(states, actions, rewards, mu, given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return rw.evaluate(log, target, name)

    tasks: dict[str, Callable[[], Any]] = {
        "public": lambda: estimator.estimate_policy_value(**flat),
        "bypassed": lambda: estimator._estimate_trajectory_value(**flat).mean(),
        "column": lambda: whole(rw.ColumnPolicy("target_prob"), pi, "mis").value,
        "table": lambda: whole(rw.TablePolicy(table), None, "mis").value,
    }
    ours = whole(rw.ColumnPolicy("target_prob"), pi, "is").value
    theirs = tasks["public"]()
    assert np.isclose(ours, theirs, rtol=1e-9), (ours, theirs)
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(5 if rows < 10**7 else 3):
        for name, run in tasks.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return {
        f"SCOPE-RL {call} / reweigh mis from arrays, target as {kind}": best[call] / best[kind]
        for call in ("public", "bypassed")
        for kind in ("column", "table")
    } | {"difference of the two per-decision IS values": float(ours - theirs)}


def main() -> None:
    estimator = peer()
    print(json.dumps({f"{rows:,}": measure(rows, estimator) for rows in SIZES}, indent=1))


if __name__ == "__main__":
    main()
