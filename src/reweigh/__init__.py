"""reweigh: off-policy evaluation you can act on."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "ESTIMATORS",
    "ActionGroups",
    "Certificate",
    "ColumnPolicy",
    "Columns",
    "Comparison",
    "Diagnostics",
    "EpisodeLog",
    "Estimate",
    "FittedBehavior",
    "FunctionPolicy",
    "Gain",
    "Grid",
    "InputError",
    "InputWarning",
    "Interval",
    "LowOverlapWarning",
    "Marginals",
    "Moments",
    "PartialError",
    "PlaceboWarning",
    "Quantiles",
    "Recipe",
    "Refusal",
    "RefusedError",
    "ResourceError",
    "ReweighError",
    "ReweighWarning",
    "Rounding",
    "RulePolicy",
    "SelectionWarning",
    "SmallSampleWarning",
    "StationaryWarning",
    "StepMoments",
    "SupportError",
    "Table",
    "TablePolicy",
    "TableWeights",
    "TransitionMoments",
    "UsageError",
    "adapters",
    "certify",
    "compare",
    "dm",
    "dr",
    "estimator",
    "evaluate",
    "evaluate_all",
    "features",
    "fit_behavior",
    "fqe",
    "is_",
    "load_moments",
    "log_from_arrays",
    "magic",
    "mdr",
    "mis",
    "mis_clusters",
    "moments",
    "mrdr",
    "point_values",
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
    from reweigh import adapters, theory, worlds
    from reweigh.decide.certificate import Certificate, certify
    from reweigh.decide.compare import compare
    from reweigh.decide.contenders import Comparison
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
    from reweigh.estimate.action_groups import ActionGroups
    from reweigh.estimate.estimator import Recipe
    from reweigh.estimate.presets import (
        ESTIMATORS,
        dm,
        dr,
        estimator,
        fqe,
        is_,
        magic,
        mdr,
        mis,
        mis_clusters,
        mrdr,
        ssd_is,
        trajectory_is,
        trajectory_wis,
        wdr,
        wis,
    )
    from reweigh.estimate.table_weights import TableWeights
    from reweigh.evaluation.evaluate import evaluate, evaluate_all, moments, point_values
    from reweigh.evaluation.result import Diagnostics, Estimate, Gain, Interval, Marginals, Refusal
    from reweigh.log import feature_maps as features
    from reweigh.log.abstractions import Grid, Quantiles, Rounding
    from reweigh.log.arrays import log_from_arrays
    from reweigh.log.log import Columns, EpisodeLog
    from reweigh.policy import ColumnPolicy, FunctionPolicy, read_policy
    from reweigh.policy.behavior import FittedBehavior, fit_behavior
    from reweigh.policy.rule import RulePolicy
    from reweigh.policy.table import TablePolicy
    from reweigh.sums.keyed import StepMoments, TransitionMoments
    from reweigh.sums.moments import Moments
    from reweigh.sums.read import read_log
    from reweigh.sums.store import load_moments
    from reweigh.sums.tables import Table

# Every name is imported when it is first used: `import reweigh` and `reweigh --help` stay quick.
_HOMES = {
    "reweigh.decide.certificate": "Certificate certify",
    "reweigh.decide.compare": "compare",
    "reweigh.decide.contenders": "Comparison",
    "reweigh.errors": (
        "InputError InputWarning LowOverlapWarning PartialError PlaceboWarning RefusedError "
        "ResourceError ReweighError ReweighWarning SelectionWarning SmallSampleWarning "
        "StationaryWarning SupportError UsageError"
    ),
    "reweigh.estimate.presets": (
        "ESTIMATORS dm dr estimator fqe is_ magic mdr mis mis_clusters mrdr ssd_is trajectory_is "
        "trajectory_wis wdr wis"
    ),
    "reweigh.estimate.action_groups": "ActionGroups",
    "reweigh.estimate.estimator": "Recipe",
    "reweigh.estimate.table_weights": "TableWeights",
    "reweigh.evaluation.evaluate": "evaluate evaluate_all moments point_values",
    "reweigh.log.arrays": "log_from_arrays",
    "reweigh.log.log": "Columns EpisodeLog",
    "reweigh.sums.read": "read_log",
    "reweigh.log.abstractions": "Grid Quantiles Rounding",
    "reweigh.sums.moments": "Moments",
    "reweigh.sums.store": "load_moments",
    "reweigh.sums.tables": "Table",
    "reweigh.sums.keyed": "StepMoments TransitionMoments",
    "reweigh.policy": "ColumnPolicy FunctionPolicy read_policy",
    "reweigh.policy.behavior": "FittedBehavior fit_behavior",
    "reweigh.policy.rule": "RulePolicy",
    "reweigh.policy.table": "TablePolicy",
    "reweigh.evaluation.result": "Diagnostics Estimate Gain Interval Marginals Refusal",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = {name: f"reweigh.{name}" for name in ("adapters", "theory", "worlds")}
_MODULES["features"] = "reweigh.log.feature_maps"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'reweigh' has no attribute {name!r}")
