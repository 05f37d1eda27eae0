"""StepMoments: what estimators with running products of ratios need, by (block, t) and block.

Running products span hundreds of orders of magnitude, so every sum is stored relative to
exp(log_scale), the largest product among its rows: nothing over- or underflows before the
estimator divides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from reweigh.kernels.groups import Groups
from reweigh.sums.keyed import Array, KeyedTable, Mask
from reweigh.sums.tables import BUILT_IN

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NO_SCALE = -1e300  # of rows whose products are all 0: any other scale wins over it


@dataclass(frozen=True, eq=False)
class ScaledTable(KeyedTable):
    """Sums relative to exp(log_scale · power)."""

    block: Ints
    t: Ints
    n: Ints
    log_scale: Floats

    def total(self) -> Self:
        """Summed over the blocks."""
        if np.all(self.block == self.block[:1]):  # one block: every step is there once
            return replace(self, block=np.zeros(len(self.t), np.int64))
        return self.forget("block")

    def _merged(self, groups: Groups, sums: dict[str, Array]) -> dict[str, Array]:
        """Bring the rows of a group to their largest scale and add them."""
        scale = groups.max(self.log_scale)
        shift = self.log_scale - scale[groups.index()]
        merged: dict[str, Array] = {"n": groups.sum(self.n), "log_scale": scale}
        with np.errstate(over="ignore", invalid="ignore"):  # x and x² have no scale, may overflow
            for name, exponent in self.TABLE.power.items():
                values = sums[name] * np.exp(exponent * shift)
                largest = name in self.TABLE.largest_of
                merged[name] = groups.max(values) if largest else groups.sum(values)
        return merged


Table = TypeVar("Table", bound=ScaledTable)


@dataclass(frozen=True, eq=False)
class StepSums(ScaledTable):
    """By (block, t), over all episodes; w is ρ_{0:t}, frozen once an episode has ended.

    n episodes, w Σw, w2 Σw², wy Σ w y_t, wmax the largest w.
    """

    w: Floats
    w2: Floats
    wy: Floats
    wmax: Floats

    TABLE = BUILT_IN["steps"]
    POWER = TABLE.power


@dataclass(frozen=True, eq=False)
class EpisodeSums(ScaledTable):
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

    TABLE = BUILT_IN["episodes"]
    POWER = TABLE.power


@dataclass(frozen=True, eq=False)
class StepMoments:
    """Both tables of one log."""

    steps: StepSums
    episodes: EpisodeSums

    def __add__(self, other: StepMoments) -> StepMoments:
        return self.together([self, other])

    @classmethod
    def together(cls, parts: Sequence[StepMoments]) -> StepMoments:
        """The sum of several."""
        steps = StepSums.together([part.steps for part in parts])
        return cls(steps, EpisodeSums.together([part.episodes for part in parts]))

    def keep_blocks(self, keep: Callable[[Any], Mask]) -> StepMoments:
        return StepMoments(self.steps.keep_blocks(keep), self.episodes.keep_blocks(keep))
