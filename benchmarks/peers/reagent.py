"""ReAgent: importance sampling on lists of transition objects, in 32 bits.

Installed beside torch without its other dependencies, of which it pins versions that do not build
any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from peers.environment import Peer

PEER = Peer(
    name="ReAgent",
    package="reagent",
    version="0.1",
    module="reagent",
    installs=(("torch", "numpy"), ("--no-deps", "reagent==0.1")),
    environment="torch",
    rows=(100_000,),
    tolerance=1e-4,
    sequential=True,
    note="in 32 bits; installed without its dependencies",
)


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    from reagent.ope.estimators.sequential_estimators import (
        Action,
        ActionSpace,
        IPSEstimator,
        RLEstimatorInput,
        RLPolicy,
        State,
        Transition,
    )

    space = ActionSpace(data["table"].shape[1])

    class Table(RLPolicy):  # type: ignore[misc]
        """Distributions made once for every state."""

        def __init__(self) -> None:
            super().__init__(space)
            self.rows = [space.distribution(row) for row in data["table"].tolist()]

        def action_dist(self, state: Any) -> Any:
            return self.rows[state.value]

    states = [State(s) for s in range(len(data["table"]))]
    acts = [Action(a) for a in range(data["table"].shape[1])]

    def episode(i: int) -> list[Any]:
        length = int(data["lengths"][i])
        columns = (
            data[name][i, :length].tolist() for name in ("states", "actions", "mu", "rewards")
        )
        return [
            Transition(last_state=states[s], action=acts[a], action_prob=mu, reward=r)
            for s, a, mu, r in zip(*columns, strict=True)
        ]

    # Episodes of all first states under one key: their mean is what is asked for.
    log = {State(0): [episode(i) for i in range(len(data["rewards"]))]}
    given = RLEstimatorInput(gamma=1.0, log=log, target_policy=Table())

    def value(weighted: bool) -> float:
        estimates = IPSEstimator(weighted=weighted).evaluate(given).estimates
        # It leaves out estimates that are not finite, without a word.
        return float(estimates[0]) if len(estimates) else float(np.nan)

    return {"is": partial(value, False), "wis": partial(value, True)}
