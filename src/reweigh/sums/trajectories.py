"""StepMoments: what estimators with running products of ratios need, by (block, t) and block.

Running products span hundreds of orders of magnitude, so every sum is stored relative to
exp(log_scale), the largest product among its rows: nothing over- or underflows before the
estimator divides.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import group_by

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NO_SCALE = -1e300  # of rows whose products are all 0: any other scale wins over it


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Sums relative to exp(log_scale · power)."""

    block: Ints
    t: Ints
    n: Ints
    log_scale: Floats

    def where(self: Table, keep: npt.NDArray[np.bool_]) -> Table:
        return type(self)(**{f.name: getattr(self, f.name)[keep] for f in fields(self)})

    def __add__(self: Table, other: Table) -> Table:
        joined = {
            f.name: np.concatenate([getattr(self, f.name), getattr(other, f.name)])
            for f in fields(self)
        }
        return _summed(type(self)(**joined), ("block", "t"))

    def total(self: Table) -> Table:
        """Summed over the blocks."""
        if np.all(self.block == self.block[:1]):  # one block: every step is there once
            return replace(self, block=np.zeros(len(self.t), np.int64))
        return _summed(self, ("t",))


Table = TypeVar("Table", bound=_Scaled)


@dataclass(frozen=True, eq=False)
class StepSums(_Scaled):
    """By (block, t), over all episodes; w is ρ_{0:t}, frozen once an episode has ended.

    n episodes, w Σw, w2 Σw², wy Σ w y_t, wmax the largest w.
    """

    w: Floats
    w2: Floats
    wy: Floats
    wmax: Floats

    POWER = {"w": 1, "w2": 2, "wy": 1, "wmax": 1}  # noqa: RUF012


@dataclass(frozen=True, eq=False)
class EpisodeSums(_Scaled):
    """By block, per-episode sums (t is 0).

    x = g(s_0) + Σ_t γ^t ρ_{0:t} y_t:  x, x2, unscaled (IS has no ratio to cancel a scale).
    With W the whole product and G = Σ_t γ^t y_t:  w, w2, wg, wg2 = Σ(WG)², w2g = Σ W²G, wmax.
    g, g2: the start value, unscaled. ret: ΣG, the logged returns, unscaled.
    """

    x: Floats
    x2: Floats
    w: Floats
    w2: Floats
    wg: Floats
    wg2: Floats
    w2g: Floats
    wmax: Floats
    g: Floats
    g2: Floats
    ret: Floats

    POWER = {  # noqa: RUF012
        "x": 0,
        "x2": 0,
        "w": 1,
        "w2": 2,
        "wg": 1,
        "wg2": 2,
        "w2g": 2,
        "wmax": 1,
        "g": 0,
        "g2": 0,
        "ret": 0,
    }


@dataclass(frozen=True, eq=False)
class StepMoments:
    """Both tables of one log."""

    steps: StepSums
    episodes: EpisodeSums

    def __add__(self, other: StepMoments) -> StepMoments:
        return StepMoments(self.steps + other.steps, self.episodes + other.episodes)


def _summed(table: Table, keys: tuple[str, ...]) -> Table:
    """Bring the rows of a group to their largest scale and add them."""
    groups = group_by([getattr(table, key) for key in keys])
    scale = groups.max(table.log_scale)
    shift = table.log_scale - scale[groups.index()]
    power: dict[str, int] = table.POWER  # type: ignore[attr-defined]
    sums = {}
    with np.errstate(over="ignore", invalid="ignore"):  # x and x² have no scale and may overflow
        for name, exponent in power.items():
            values = getattr(table, name) * np.exp(exponent * shift)
            sums[name] = groups.max(values) if name == "wmax" else groups.sum(values)
    known = dict(zip(keys, groups.keys, strict=True))
    block = known.get("block", np.zeros(len(scale), np.int64))
    return type(table)(block=block, t=known["t"], n=groups.sum(table.n), log_scale=scale, **sums)
