"""The control variate of DR, WDR and MDR, as it is declared: where its Q comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reweigh.errors import must_be
from reweigh.estimate.estimator import FOLDS
from reweigh.kernels import Array

OwnQ = Array | Callable[..., Any]


@dataclass(frozen=True, eq=False)
class ModelControl:
    """The control variate of DR, WDR, MDR: where Q comes from.

    fit      what Q is fitted to: the rewards ("model"), or the smallest variance ("variance")
    lengths  the estimates that MAGIC blends, by how many steps each weighs (`blending.py`); () are
             all or some evenly spread ones, None is no blending
    """

    q: str | OwnQ
    fit: Literal["model", "variance"] = "model"
    lengths: tuple[float, ...] | None = None

    FITS = ("in-sample", "split", "cross-fit", "features")

    def __post_init__(self) -> None:
        if isinstance(self.q, str):
            if self.q not in self.FITS:
                raise must_be("q", f"one of {self.FITS}, an array or a callable", self.q)
        elif not callable(self.q):
            array = np.asarray(self.q, float)
            if array.ndim not in (2, 3) or not np.all(np.isfinite(array)):
                raise must_be("q", "a finite (S, A) or (H, S, A) array", array.shape)
            object.__setattr__(self, "q", array)
        if self.on_features and (self.blends or self.fit == "variance"):
            raise must_be("q", "a Q by state: MAGIC and MRDR take none on features", self.q)
        if self.fit == "variance" and self.blocks == 1:
            raise must_be("q", '"split" or "cross-fit" where it minimizes the variance', self.q)

    @property
    def blends(self) -> bool:
        return self.lengths is not None

    @property
    def is_array_or_function(self) -> bool:
        return not isinstance(self.q, str)

    @property
    def on_features(self) -> bool:
        return isinstance(self.q, str) and self.q == "features"

    @property
    def blocks(self) -> int:
        """Folds of episodes, by the number of their block modulo this."""
        return {"split": 2, "cross-fit": FOLDS}.get(self.q, 1) if isinstance(self.q, str) else 1
