"""offline-evaluation: one step, a loop over the rows of a frame; its answer has two decimals.

Installed without its dependencies: it pins versions that do not build any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peers.environment import Peer

PEER = Peer(
    name="offline-evaluation",
    package="offline-evaluation",
    version="0.0.6",
    module="offline_evaluation",
    installs=(("pandas",), ("--no-deps", "offline-evaluation==0.0.6")),
    environment="offline_evaluation",
    rows=(100_000,),
    tolerance=0.02,
    note="one step; two decimals; installed without its dependencies",
)


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    import pandas as pd
    from ope.methods import inverse_propensity_scoring

    rows = {name: data[name][:, 0].tolist() for name in ("states", "actions", "mu", "rewards")}
    frame = pd.DataFrame(
        {
            "context": [{"state": s} for s in rows["states"]],
            "action": rows["actions"],
            "action_prob": rows["mu"],
            "reward": rows["rewards"],
        }
    )
    table = data["table"].tolist()

    def value() -> float:
        found = inverse_propensity_scoring.evaluate(frame, lambda seen: table[seen["state"]])
        return float(found["expected_reward_new_policy"]["mean"])

    return {"is": value}
