"""Open Bandit Pipeline: one step. The model of DM and DR is handed to it, as its users do.

Installed without its dependencies, and although it asks for Python below 3.11; what its estimators
do not use is stubbed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from peers.environment import Peer
from peers.stubs import hollow, scikit_learn, stub

PEER = Peer(
    name="Open Bandit Pipeline",
    package="obp",
    version="0.5.7",
    module="obp",
    installs=(("--no-deps", "--ignore-requires-python", "obp==0.5.7"),),
    environment="obp",
    rows=(1_000_000, 10_000_000),
    one_process=True,
    note="one step; installed without its dependencies, unused imports stubbed",
)
ESTIMATORS = {
    "is": "InverseProbabilityWeighting",
    "wis": "SelfNormalizedInverseProbabilityWeighting",
    "dm": "DirectMethod",
    "dr": "DoublyRobust",
    "wdr": "SelfNormalizedDoublyRobust",
}


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    scikit_learn()
    stub("torch", __getattr__=lambda name: object)
    hollow("obp", "obp.ope")
    from obp.ope import estimators

    states = data["states"][:, 0]
    given = {
        "action": data["actions"][:, 0],
        "reward": data["rewards"][:, 0],
        "pscore": data["mu"][:, 0],
        "action_dist": data["table"][states][:, :, None],
        "estimated_rewards_by_reg_model": data["q"][states][:, :, None],
    }
    return {
        name: partial(getattr(estimators, title)().estimate_policy_value, **given)
        for name, title in ESTIMATORS.items()
    }
