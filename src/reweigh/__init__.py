"""reweigh: off-policy evaluation you can act on."""

import importlib
from typing import TYPE_CHECKING

from reweigh.errors import (
    InputError,
    InputWarning,
    LowOverlapWarning,
    PartialError,
    PlaceboWarning,
    RefusedError,
    ResourceError,
    ReweighError,
    ReweighWarning,
    SelectionWarning,
    SmallSampleWarning,
    StationaryWarning,
    SupportError,
    UsageError,
)
from reweigh.estimators.presets import (
    ESTIMATORS,
    dm,
    dr,
    estimator,
    is_,
    mdr,
    mis,
    ssd_is,
    trajectory_is,
    trajectory_wis,
    wdr,
    wis,
)
from reweigh.estimators.recipe import Recipe
from reweigh.evaluate import evaluate, evaluate_all, moments
from reweigh.logs.arrays import log_from_arrays
from reweigh.logs.columns import Columns
from reweigh.logs.log import EpisodeLog
from reweigh.logs.states import Grid, Rounding
from reweigh.moments.bundle import Moments
from reweigh.moments.trajectories import StepMoments
from reweigh.moments.transitions import TransitionMoments
from reweigh.policies import (
    ColumnPolicy,
    FittedBehavior,
    FunctionPolicy,
    TablePolicy,
    fit_behavior,
    read_policy,
)
from reweigh.results import Diagnostics, Estimate, Interval, Marginals, Refusal

__version__ = "0.1.0"

__all__ = [
    "ESTIMATORS",
    "Certificate",
    "ColumnPolicy",
    "Columns",
    "Comparison",
    "Diagnostics",
    "EpisodeLog",
    "Estimate",
    "FittedBehavior",
    "FunctionPolicy",
    "Grid",
    "InputError",
    "InputWarning",
    "Interval",
    "LowOverlapWarning",
    "Marginals",
    "Moments",
    "PartialError",
    "PlaceboWarning",
    "Recipe",
    "Refusal",
    "RefusedError",
    "ResourceError",
    "ReweighError",
    "ReweighWarning",
    "Rounding",
    "SelectionWarning",
    "SmallSampleWarning",
    "StationaryWarning",
    "StepMoments",
    "SupportError",
    "TablePolicy",
    "TransitionMoments",
    "UsageError",
    "certify",
    "compare",
    "dm",
    "dr",
    "estimator",
    "evaluate",
    "evaluate_all",
    "fit_behavior",
    "is_",
    "load_moments",
    "log_from_arrays",
    "mdr",
    "mis",
    "moments",
    "read_log",
    "read_policy",
    "ssd_is",
    "theory",
    "trajectory_is",
    "trajectory_wis",
    "wdr",
    "wis",
    "worlds",
]


if TYPE_CHECKING:
    from reweigh import theory, worlds
    from reweigh.certificate import Certificate, certify
    from reweigh.comparing import compare
    from reweigh.comparison import Comparison
    from reweigh.logs.read import read_log
    from reweigh.moments.store import load_moments

# What needs pyarrow, or is not needed by every user, is imported when it is first used:
# `import reweigh` stays quick.
_LATER = {
    "Certificate": "reweigh.certificate",
    "certify": "reweigh.certificate",
    "Comparison": "reweigh.comparison",
    "compare": "reweigh.comparing",
    "load_moments": "reweigh.moments.store",
    "read_log": "reweigh.logs.read",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    if name in ("theory", "worlds"):
        return importlib.import_module(f"reweigh.{name}")
    if name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'reweigh' has no attribute {name!r}")
