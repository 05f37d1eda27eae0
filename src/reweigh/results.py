"""What comes out: Estimate and its parts. They print themselves."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError, must_be

if TYPE_CHECKING:
    from reweigh.estimators.recipe import Recipe
    from reweigh.logs.states import Labels
    from reweigh.moments.bundle import Moments

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    level: float
    method: str

    def __str__(self) -> str:
        margin = (self.high - self.low) / 4
        return f"[{rounded(self.low, margin)}, {rounded(self.high, margin)}]"


@dataclass(frozen=True, eq=False)
class Marginals:
    """Where the target goes and where the log went: one entry per (step, state) reached."""

    step: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64]  # of the states, in `labels`
    labels: Labels
    target: Floats
    behavior: Floats

    @cached_property
    def state(self) -> list[str]:
        """The states' names."""
        codes = self.codes.tolist()
        names = {code: self.labels.name(code) for code in set(codes)}
        return [names[code] for code in codes]

    @property
    def weight(self) -> Floats:
        """w_t(s) = d_t^π(s)/d_t^μ(s), nan where the log has no row."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.behavior > 0, self.target / self.behavior, np.nan)

    def __repr__(self) -> str:
        return f"Marginals({len(self.step):,} (step, state) pairs)"


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """What the estimate rests on, computed before any normalisation.

    ess                (H,) effective number of episodes at each step, nan where there is none
    unseen_mass        (H,) target mass lost at each step for want of data, None where the
                       estimator has no state distribution
    placebo            the value if every reward were 1, END included, with its error; it
                       should be
    placebo_expected   Σ_t γ^t
    rare_mass          share of the target's mass on (step, state) pairs seen fewer than 10 times
    total_mass         (H,) Σ_s d_t(s) without normalisation, nan inside hidden stretches
    """

    ess: Floats
    unseen_mass: Floats | None
    placebo: float
    placebo_error: float | None
    placebo_expected: float
    rare_mass: float | None
    total_mass: Floats | None
    variance_by_step: Floats | None

    @property
    def worst_step(self) -> int | None:
        """The step with the smallest effective number of episodes."""
        return None if np.all(np.isnan(self.ess)) else int(np.nanargmin(self.ess))

    @property
    def worst_ess(self) -> float | None:
        return None if self.worst_step is None else float(self.ess[self.worst_step])

    @property
    def total_unseen(self) -> float | None:
        return None if self.unseen_mass is None else float(self.unseen_mass.sum())

    def to_dict(self) -> dict[str, Any]:
        found = {
            "worst_ess": self.worst_ess,
            "worst_step": self.worst_step,
            "unseen_mass": self.total_unseen,
            "rare_mass": self.rare_mass,
            "placebo": self.placebo,
            "placebo_error": self.placebo_error,
            "placebo_expected": self.placebo_expected,
        }
        return {name: _finite(value) for name, value in found.items()}


@dataclass(frozen=True, eq=False)
class Estimate:
    """What the target policy would have earned, and how far to trust it."""

    value: float
    standard_error: float | None
    error_method: str  # how the error was computed, or why there is none
    recipe: Recipe
    n_episodes: int
    horizon: int
    discount: float
    behavior_value: float | None
    per_step: Floats | None
    marginals: Marginals | None
    diagnostics: Diagnostics
    make_moments: Callable[[], Moments]
    verdict: None = None  # gates come with the diagnostics' thresholds
    warnings: tuple[Warning, ...] = field(default=())

    @cached_property
    def moments(self) -> Moments:
        """The sums behind the estimate; where it was made without them, they are made now."""
        return self.make_moments()

    @property
    def estimator(self) -> str:
        return self.recipe.name

    def interval(self, level: float = 0.95) -> Interval | None:
        """A normal interval from the standard error; None where there is no error."""
        if not isinstance(level, int | float) or not 0 < level < 1:
            raise must_be("level", "a number between 0 and 1", level)
        if self.standard_error is None:
            return None
        margin = NormalDist().inv_cdf(0.5 + level / 2) * self.standard_error
        return Interval(
            self.value - margin, self.value + margin, float(level), f"normal, {self.error_method}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `reweigh evaluate --json` prints them."""
        interval = self.interval()
        return {
            "estimator": self.estimator,
            "value": self.value,
            "standard_error": self.standard_error,
            "error_method": self.error_method,
            "interval": None if interval is None else vars(interval),
            "verdict": self.verdict,
            "warnings": [str(warning) for warning in self.warnings],
            "n_episodes": self.n_episodes,
            "horizon": self.horizon,
            "discount": self.discount,
            "behavior_value": self.behavior_value,
            "diagnostics": self.diagnostics.to_dict(),
        }

    def rows(self) -> list[tuple[str, str]]:
        """What is printed, as (label, text)."""
        interval = self.interval()
        d = self.diagnostics
        worst = "none"
        if d.worst_ess is not None:
            worst = f"{d.worst_ess:,.0f} of {self.n_episodes:,} episodes at step {d.worst_step}"
        unseen = "not computed" if d.total_unseen is None else number(d.total_unseen)
        lines = [
            ("value", rounded(self.value, self.standard_error)),
            ("95 % interval", "none" if interval is None else str(interval)),
            ("standard error", _error_text(self.standard_error, self.error_method)),
            ("behaviour's own value", number(self.behavior_value)),
            ("episodes, horizon", f"{self.n_episodes:,}, {self.horizon}"),
            ("effective size, worst", worst),
            ("mass on unseen states", unseen),
            ("placebo (reward 1)", f"{number(d.placebo)} (should be {number(d.placebo_expected)})"),
        ]
        return lines + [("warning", str(warning)) for warning in self.warnings]

    def __str__(self) -> str:
        lines = self.rows()
        width = max(len(label) for label, _ in lines)
        return "\n".join(
            [self.estimator, *(f"  {label:<{width}}  {text}" for label, text in lines)]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left;white-space:nowrap'>{html.escape(label)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for label, text in self.rows()
        )
        name = f"<caption style='text-align:left'>{html.escape(self.estimator)}</caption>"
        return f"<table>{name}<tbody>{cells}</tbody></table>"


@dataclass(frozen=True, eq=False)
class Refusal:
    """An estimator that gave no answer, and why."""

    recipe: Recipe
    error: RefusedError
    n_episodes: int
    horizon: int

    @property
    def estimator(self) -> str:
        return self.recipe.name

    def to_dict(self) -> dict[str, Any]:
        return {
            "estimator": self.estimator,
            "value": None,
            "standard_error": None,
            "interval": None,
            "verdict": None,
            "warnings": [],
            "n_episodes": self.n_episodes,
            "horizon": self.horizon,
            "refused": {"code": self.error.code, "reason": self.error.reason},
        }


def _finite(value: float | None) -> float | None:
    """What overflowed is not a number to hand on."""
    return value if value is not None and math.isfinite(value) else None


def rounded(value: float, error: float | None) -> str:
    """A number with as many decimals as its error supports (two digits of the error)."""
    if error is None or not error > 0:
        return number(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{min(decimals, 12)}f}"


def number(value: float | None) -> str:
    """A number with four significant digits."""
    if value is None:
        return "unknown"
    if value == 0 or 1e-4 <= abs(value) < 1e7:
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:.3e}"


def two_digits(value: float | None) -> str:
    """An error: two significant digits say all there is."""
    if value is None:
        return "none"
    return f"{value:.2e}" if value and not 1e-4 <= value < 1e5 else f"{value:#.2g}".rstrip(".")


def _error_text(error: float | None, method: str) -> str:
    return f"none: {method}" if error is None else f"{two_digits(error)} ({method})"
