"""causalrl: one step, a loop over lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peers.environment import Peer

PEER = Peer(
    name="causalrl",
    package="causalrl",
    version="3.0.0",
    module="causalrl",
    installs=(("causalrl==3.0.0",),),
    environment="causalrl",
    rows=(1_000_000,),
    note="one step",
)


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    from causalrl.ope.ipw import ipw_value

    rows = [data[name][:, 0].tolist() for name in ("actions", "rewards", "mu", "pi")]
    return {"is": lambda: float(ipw_value(*rows))}
