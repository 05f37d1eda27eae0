"""The sums of a log whose episodes have sampling weights.

Each table is made by groups of episodes of one weight, from rows that count once, and then scaled:
n and sums of one quantity of a row by the weight ω, sums of squares and products by ω². So every
estimator divides weighted sums by weighted sums, and effective sizes (Σωρ)²/Σω²ρ² are those of the
weighted rows. Weights are relative to their mean over the log: n adds up to the episodes, and a
value does not change when all weights are multiplied by one number.

Tables that only gates read (`lagged`, `ordered`, `paced`, `largest`) are not here: tests of a log
count its rows as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from reweigh.kernels import Floats, Ints
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.diagnostic_tables import VERSIONS
from reweigh.sums.keyed import KeyedTable, StepMoments
from reweigh.sums.moments import BY_BLOCK, Moments

if TYPE_CHECKING:
    from reweigh.sums.engines import ArraysEngine, Request

# Columns of two factors, for errors and effective sizes. Σπ² is not one of them: with Σπ it gives
# whether π is one number in a cell.
SQUARES = frozenset({"rho2", "rhoz", "z2", "y2", "g2", "w2", "x2", "wg2", "w2g"})


def unweighted(log: EpisodeLog) -> EpisodeLog:
    """The rows as they are, each counting once."""
    kept = {name: value for name, value in log._cache.items() if name != "clusters"}
    return replace(log, steps=replace(log.steps, weight=None), _cache=kept)


def weighted_moments(
    engine: ArraysEngine, log: EpisodeLog, target: Policy, request: Request, block: Ints
) -> Moments:
    """The sums by `block` (n,) of the episodes."""
    omega = log.steps.relative_weight
    assert omega is not None
    known, of = np.unique(omega, return_inverse=True)
    groups, group = np.unique(block * len(known) + of, return_inverse=True)
    weight, blocks = known[groups % len(known)], groups // len(known)
    request = replace(request, kinds=request.kinds - VERSIONS.keys(), named=False)
    made = engine.moments(unweighted(log), target, request, group)

    def scaled(table: Any) -> Any:
        if isinstance(table, StepMoments):
            return StepMoments(scaled(table.steps), scaled(table.episodes))
        return None if table is None else _scaled(table, weight, blocks)

    return replace(
        made,
        tables={name: scaled(table) for name, table in made.tables.items()},
        **{name: scaled(getattr(made, name)) for name in BY_BLOCK},
    )


def _scaled(table: KeyedTable, weight: Floats, blocks: Ints) -> KeyedTable:
    arrays = table.arrays()
    omega = weight[arrays["block"]]
    names = arrays.keys() - {*table.keys, "log_scale"}
    sums = {n: arrays[n] * (omega**2 if n in SQUARES else omega) for n in names}
    return table.holding(arrays | sums | {"block": blocks[arrays["block"]]}).summed()
