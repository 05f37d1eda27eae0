"""From where on a gate is amber, and red.

The limits are those of `docs/trust`, set on one half of the study's worlds and checked on the
other. Two were not: a checking world without overlap showed that a placebo must be able to be red
(a round number, not tuned), and one with a rare action that a model needs an effective size too
(the limit of MIS). Such a world also showed the need of the gate of unseen actions, whose limits
are of the setting half. What the study has no world for (cut-off episodes, stationarity, dependence
in sums, no interval) is judged by what must be so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reweigh.estimate.recipe import Marginal, Model, Recipe

Level = Literal["green", "amber", "red", "unknown"]
ORDER: tuple[Level, ...] = ("unknown", "green", "amber", "red")  # by how much they matter


@dataclass(frozen=True)
class Limit:
    """From where on a value is amber, and red (None: it never is). `above`: large is bad."""

    amber: float | None
    red: float | None
    above: bool = True

    def judge(self, value: float) -> Level:
        def beyond(limit: float | None) -> bool:
            return limit is not None and (value > limit if self.above else value < limit)

        return "red" if beyond(self.red) else "amber" if beyond(self.amber) else "green"

    def __str__(self) -> str:
        sign = ">" if self.above else "<"
        parts = (("amber", self.amber), ("red", self.red))
        return ", ".join(f"{name} {sign} {at:g}" for name, at in parts if at is not None)


MATERIAL = 0.01  # of what the placebo should be: by less it is amber, however small its error
HINTS = ("total mass",)  # fires on clean logs with large weights: told, but no verdict
LIMITS = {
    "support": Limit(0.01, 0.10),
    "effective size": Limit(100, 30, above=False),
    "effective size, products": Limit(1000, 600, above=False),  # a log may lack their tail by luck
    "effective size, plain": Limit(300, 100, above=False),  # their mass is noise too
    "effective size, model": Limit(100, None, above=False),  # by luck a rare action is no rare one
    "effective size, pooled": Limit(300, 200, above=False),  # below, no test sees steps differ
    "marginal size": Limit(300, 100, above=False),
    "marginal support": Limit(0.01, 0.10),
    "rare states": Limit(0.01, 0.05),
    "support, model": Limit(0.0001, 0.001),  # what a model has not seen counts as 0
    "rare states, model": Limit(0.01, 0.20),
    "total mass": Limit(0.10, 0.50),
    "heaviest episode": Limit(None, 0.05),
    "Pareto k": Limit(0.7, 1.0),
    "propensities": Limit(None, 0.01, above=False),
    "propensities, model": Limit(1e-6, None, above=False),  # it has no ratios: denied beyond doubt
    "estimated propensities": Limit(0.0, None),
    "policies": Limit(0.01, 0.10),
    "hidden policies": Limit(None, 0.01),  # what a fitted Q says of hidden states is wrong then
    "fitted values": Limit(0.01, 0.05),
    "unseen actions": Limit(0.5, 1.0),  # in errors: what is missing moves the whole interval
    "history": Limit(0.01, 0.001, above=False),
    "steadiness": Limit(0.5, 0.8),  # a test of little power, so no p-value; mis costs little more
    "drift": Limit(0.01, None, above=False),
    "hidden states": Limit(None, 0.0),
    "stationarity": Limit(0.0, 0.02),  # not in the study: never green
    "cut-off episodes": Limit(0.0, 0.05),
    "interval": Limit(0.0, None),
    "decisive episodes": Limit(20, 5, above=False),  # a sum of so few is skewed
    "dependence": Limit(0.05, None),  # then there is no interval but by deleting blocks
    "placebo": Limit(3.0, 6.0),  # six errors from a number that is known are no luck
    "episodes": Limit(30, 2, above=False),
    "episodes, within states": Limit(300, 2, above=False),  # its bias is one of few rows by state
}


Kind = Literal["model", "products", "plain", "pooled", "within states", "states"]


def kind_of(recipe: Recipe) -> Kind:
    """Of an estimator: whose limits are its own. Marginal weights that are not normalised are
    plain, those of all steps together pooled; others may be normalised within states."""
    if isinstance(recipe.weights, Model):
        return "model"
    if recipe.uses_trajectories:
        return "products"
    if isinstance(recipe.weights, Marginal) and recipe.weights.pooled:
        return "pooled"
    own: dict[str, Kind] = {"none": "plain", "state": "within states"}
    return own.get(recipe.normalize, "states") if isinstance(recipe.weights, Marginal) else "states"


def limit_of(name: str, kind: Kind = "states", limits: Mapping[str, Limit] = LIMITS) -> Limit:
    """A gate's limit; some are others for some kinds of estimators."""
    return limits.get(f"{name}, {kind}", limits[name])
