"""offline_rl_ope: importance sampling on lists of tensors, one pair per episode.

It needs packages that it does not declare, and d3rlpy only for what is not used here. Rewards are
copied into 32-bit tensors, so its numbers agree to about seven digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from peers.environment import Peer
from peers.stubs import hollow, stub

PEER = Peer(
    name="offline_rl_ope",
    package="offline-rl-ope",
    version="7.0.0",
    module="offline_rl_ope",
    installs=(
        ("torch", "numpy", "pandas", "jaxtyping", "typeguard==2.13.3"),
        ("--no-deps", "offline-rl-ope==7.0.0"),
    ),
    environment="torch",
    rows=(100_000, 1_000_000),
    tolerance=1e-6,
    sequential=True,
    note="rewards in 32 bits",
)
ESTIMATORS = {
    "is": ("VanillaISPDIS", "per_decision"),
    "wis": ("PDWIS", "per_decision"),
    "trajectory-is": ("VanillaISPDIS", "vanilla"),
    "trajectory-wis": ("WIS", "vanilla"),
}


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    import torch

    stub("d3rlpy")
    for name in ("d3rlpy.algos", "d3rlpy.algos.qlearning"):
        stub(name, QLearningAlgoBase=object)
    hollow("offline_rl_ope.api")
    from offline_rl_ope.api import StandardEstimators
    from offline_rl_ope.components.ImportanceSampler import ISWeightOrchestrator
    from offline_rl_ope.components.Policy import Policy
    from offline_rl_ope.types import TorchPolicyReturn

    def per_episode(name: str) -> list[Any]:
        return [
            torch.from_numpy(values[:length, None].astype(float))
            for values, length in zip(data[name], data["lengths"], strict=True)
        ]

    states, actions = per_episode("states"), per_episode("actions")
    rewards = per_episode("rewards")
    probabilities = {"pi": per_episode("pi"), "mu": per_episode("mu")}

    def policy(name: str) -> Any:
        """The probabilities of the logged actions, episode after episode."""
        turns = iter(probabilities[name])
        return Policy(lambda state, action: TorchPolicyReturn(action, next(turns)))

    def value(title: str, kind: str) -> float:
        weights = ISWeightOrchestrator(kind, behav_policy=policy("mu"))
        weights.update(states=states, actions=actions, eval_policy=policy("pi"))
        estimator = getattr(StandardEstimators, title)()
        return float(
            estimator.predict(
                rewards=rewards,
                states=states,
                actions=actions,
                weights=weights[kind].traj_is_weights,
                discount=1.0,
                is_msk=weights.weight_msk,
            )
        )

    return {name: partial(value, *how) for name, how in ESTIMATORS.items()}
