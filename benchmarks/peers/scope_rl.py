"""SCOPE-RL: importance sampling and doubly robust estimation over a fixed number of steps.

Installed without its dependencies (it pins old ones); what these estimators do not use is stubbed.
Its input is flat: `step_per_trajectory` rows for every episode. An episode that ends early has to
be brought to that length by its user, and three ways to do so are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from peers.environment import Peer
from peers.stubs import hollow, scikit_learn, stub

PEER = Peer(
    name="SCOPE-RL",
    package="scope-rl",
    version="0.2.1",
    module="scope_rl",
    installs=(("--no-deps", "scope-rl==0.2.1"),),
    environment="scope_rl",
    rows=(1_000_000, 100_000, 10_000_000),
    one_process=True,
    sequential=True,
    note="installed without its dependencies, unused imports stubbed",
)
ESTIMATORS = {
    "is": "PerDecisionImportanceSampling",
    "wis": "SelfNormalizedPDIS",
    "trajectory-is": "TrajectoryWiseImportanceSampling",
    "trajectory-wis": "SelfNormalizedTIS",
    "dr": "DoublyRobust",
    "wdr": "SelfNormalizedDR",
}


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    scikit_learn()
    stub("d3rlpy")
    stub("d3rlpy.preprocessing", ActionScaler=object)
    stub("gym", Env=object)
    stub("gym.spaces", Box=object, Discrete=object)
    hollow("scope_rl", "scope_rl.ope", "scope_rl.ope.discrete")
    from scope_rl.ope.discrete import basic_estimators

    given = flat(data)
    found: dict[str, Callable[[], float]] = {}
    for name, title in ESTIMATORS.items():
        if name.endswith("dr") and "state_action_value_prediction" not in given:
            continue
        estimator = getattr(basic_estimators, title)()
        found[name] = partial(estimator.estimate_policy_value, **given)
    unchecked = basic_estimators.PerDecisionImportanceSampling()._estimate_trajectory_value
    found["is, unchecked"] = lambda: float(unchecked(**given).mean())
    if np.any(data["lengths"] < data["rewards"].shape[1]):
        public = basic_estimators.PerDecisionImportanceSampling().estimate_policy_value
        found["is, rows as they come"] = partial(public, **as_they_come(data))
        found["is, zeros past the end"] = partial(public, **zeros_past_the_end(data))
    return found


def flat(data: dict[str, Any]) -> dict[str, Any]:
    """Every row with the target's probabilities of all actions; past an end the ratio is 1."""
    horizon = data["rewards"].shape[1]
    states = data["states"][:, :horizon].reshape(-1)
    given = {
        "step_per_trajectory": horizon,
        "action": data["actions"].reshape(-1),
        "reward": data["rewards"].reshape(-1),
        "pscore": data["mu"].reshape(-1),
        "evaluation_policy_action_dist": data["table"][states],
    }
    if "q" in data:
        given["state_action_value_prediction"] = data["q"][states]
    return given


def living(data: dict[str, Any]) -> Any:
    """The rows before an episode's end, (n·H,)."""
    steps = np.arange(data["rewards"].shape[1])
    return (steps < data["lengths"][:, None]).reshape(-1)


def as_they_come(data: dict[str, Any]) -> dict[str, Any]:
    """The logged rows one after the other, cut every H rows (as its `obtain_steps` does)."""
    given, horizon = flat(data), data["rewards"].shape[1]
    rows = np.flatnonzero(living(data))
    rows = rows[: len(rows) // horizon * horizon]
    return {
        name: values if isinstance(values, int) else values[rows] for name, values in given.items()
    }


def zeros_past_the_end(data: dict[str, Any]) -> dict[str, Any]:
    """Rows past the end as arrays of zeros leave them."""
    given, dead = flat(data), ~living(data)
    given["pscore"] = np.where(dead, 0.0, given["pscore"])
    given["action"] = np.where(dead, 0, given["action"])
    return given
