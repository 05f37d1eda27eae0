"""RLlib's off-policy estimators: a Python loop over episodes and steps, numbers of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from peers.environment import Peer

PEER = Peer(
    name="RLlib",
    package="ray",
    version="2.60.0",
    module="rllib",
    installs=(("ray[rllib]==2.60.0",),),
    environment="rllib",
    rows=(100_000, 1_000_000),
    tolerance=1e-5,
    sequential=True,
    note="its batches hold 32 bits",
)


class TablePolicy:
    """What the estimators ask of a policy: the log-likelihood of logged actions."""

    config: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, table: Any) -> None:
        self.log_table = np.log(table)

    def compute_log_likelihoods(self, actions: Any, obs_batch: Any, **_: Any) -> Any:
        return self.log_table[obs_batch, actions]


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    from ray.rllib.offline.estimators import ImportanceSampling, WeightedImportanceSampling
    from ray.rllib.policy.sample_batch import SampleBatch

    n, horizon = data["rewards"].shape
    alive = np.arange(horizon) < data["lengths"][:, None]
    batch = SampleBatch(
        {
            SampleBatch.EPS_ID: np.repeat(np.arange(n), data["lengths"]),
            SampleBatch.OBS: data["states"][:, :horizon][alive],
            SampleBatch.ACTIONS: data["actions"][alive],
            SampleBatch.REWARDS: data["rewards"][alive],
            "action_prob": data["mu"][alive],
        }
    )
    policy = TablePolicy(data["table"])

    def value(kind: Any) -> float:
        # One-step data take the path that the library keeps for it.
        return float(kind(policy, 1.0).estimate(batch, horizon > 1)["v_target"])

    return {
        "is": partial(value, ImportanceSampling),
        "wis": partial(value, WeightedImportanceSampling),
    }
