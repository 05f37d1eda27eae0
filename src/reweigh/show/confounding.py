"""Bounds on the value if the logged propensities are wrong: a record, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.system import number

if TYPE_CHECKING:
    from reweigh.system.frames import FrameKind

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Confounding:
    """Bounds on the target's value by Γ, how much the odds of the logged actions may be off.

    value           of `dm`, as the propensities were logged (Γ = 1)
    behavior_value  what the behavior earned; None if unknown
    gammas          (K,) rising, from 1 on
    low, high       (K,) the bounds of the value
    tipping         the least Γ from which the bounds allow that there is no gain, or no loss,
                    against the behavior; None if that is beyond `most`, or unknown
    most            the largest Γ that was tried for it
    unseen          the share of the target's behavior that the log has no data on, of which the
                    bounds know nothing
    """

    value: float
    behavior_value: float | None
    gammas: Floats
    low: Floats
    high: Floats
    tipping: float | None
    most: float
    unseen: float

    def to_dict(self) -> dict[str, Any]:
        columns = {"gamma": self.gammas, "low": self.low, "high": self.high}
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return {
            "value": self.value,
            "behavior_value": self.behavior_value,
            "bounds": [dict(zip(columns, row, strict=True)) for row in rows],
            "tipping": self.tipping,
            "most": self.most,
            "unseen": self.unseen,
        }

    def to_frame(self, kind: FrameKind | None = None) -> Any:
        """A row per Γ. `kind` is "pandas", "polars" or "arrow"; without it pandas, or Arrow where
        pandas is not installed."""
        from reweigh.system.frames import rows_frame

        return rows_frame(self.to_dict()["bounds"], kind)

    def rows(self) -> list[tuple[str, str, str]]:
        """(Γ, low, high) as they are printed."""
        columns = zip(self.gammas, self.low, self.high, strict=True)
        return [(f"{g:g}", number(float(low)), number(float(high))) for g, low, high in columns]

    @property
    def sentence(self) -> str:
        """From which Γ on the answer may change its sign."""
        if self.behavior_value is None:
            return "What the behavior earned is unknown, so no gain can be bounded."
        gain = self.value - self.behavior_value
        what = f"The {'gain' if gain >= 0 else 'loss'} of {number(abs(gain))} against the behavior"
        if self.tipping is None:
            return f"{what} stays if the odds of the logged actions are off by {self.most:g} times."
        return (
            f"{what} may be gone if hidden causes change the odds of the logged actions "
            f"{self.tipping:.3g} times."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the bounds leave out."""
        by_chance = "The bounds are those of a model (dm) on this log: chance errors come on top."
        if not self.unseen > 0:
            return (by_chance,)
        share = f"{self.unseen:.1%} of the target's behavior is not in the log: no bound covers it."
        return by_chance, share

    def __str__(self) -> str:
        cells = [("Γ", "at least", "at most"), *self.rows()]
        widths = [max(len(row[k]) for row in cells) for k in range(3)]
        table = ["  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in cells]
        return "\n".join([self.sentence, *table, *self.notes])

    __repr__ = __str__
