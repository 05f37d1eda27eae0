"""contextualbandits: one step; normalized importance sampling on probabilities, with its caps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peers.environment import Peer

PEER = Peer(
    name="contextualbandits",
    package="contextualbandits",
    version="0.3.30",
    module="contextualbandits",
    installs=(("contextualbandits==0.3.30",),),
    environment="contextualbandits",
    rows=(1_000_000,),
    note="one step; ratios above 1000 are left out",
)


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    from contextualbandits.evaluation import evaluateNCIS

    pi, rewards, mu = (data[name][:, 0] for name in ("pi", "rewards", "mu"))
    return {"wis": lambda: float(evaluateNCIS(pi, rewards, mu))}
