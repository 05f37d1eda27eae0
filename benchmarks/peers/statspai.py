"""StatsPAI: one step; its importance sampling caps ratios at 1000 unless told not to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from peers.environment import Peer

PEER = Peer(
    name="StatsPAI",
    package="statspai",
    version="1.40.2",
    module="statspai",
    installs=(("statspai==1.40.2",),),
    environment="statspai",
    rows=(1_000_000,),
    note="one step; `clip=None`",
)


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    from statspai import ope

    states, actions, rewards = data["states"][:, 0], data["actions"][:, 0], data["rewards"][:, 0]
    pi, q = data["table"][states], data["q"]
    mu = np.repeat(data["mu"], pi.shape[1], axis=1)  # only the logged action's is read

    def model(x: Any, action: Any) -> Any:
        return q[x, action]

    return {
        "is": lambda: float(ope.ips(actions, rewards, mu, pi, clip=None).value),
        "wis": lambda: float(ope.snips(actions, rewards, mu, pi, clip=None).value),
        "dm": lambda: float(ope.direct_method(model, states, pi).value),
        "dr": lambda: float(
            ope.doubly_robust(states, actions, rewards, mu, pi, model, clip=None).value
        ),
    }
