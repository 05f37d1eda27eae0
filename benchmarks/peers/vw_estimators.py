"""vw-estimators, of the makers of Vowpal Wabbit: one step, one call per row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from peers.environment import Peer

PEER = Peer(
    name="vw-estimators",
    package="vw-estimators",
    version="0.2.2",
    module="vw_estimators",
    installs=(("vw-estimators==0.2.2",),),
    environment="vw_estimators",
    rows=(1_000_000,),
    note="one step",
)


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], float]]:
    from estimators.bandits import ips, snips

    rows = [data[name][:, 0].tolist() for name in ("mu", "rewards", "pi")]

    def value(module: Any) -> float:
        estimator = module.Estimator()
        for row in zip(*rows, strict=True):
            estimator.add_example(*row)
        return float(estimator.get())

    return {"is": partial(value, ips), "wis": partial(value, snips)}
