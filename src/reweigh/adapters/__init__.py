"""From what people hold to what reweigh reads: Minari, d3rlpy, Gymnasium, scikit-learn,
logs of LLM routers.

None of these packages is imported before it is needed. Another package adds an adapter, a function
that returns a log, a policy or an abstraction, by an entry point of the group `reweigh.adapters`;
it is then `reweigh.adapters.load(name)`, or an attribute of this module like ours.
"""

from typing import Any

from reweigh.adapters.datasets import from_d3rlpy, from_minari
from reweigh.adapters.decisions import read_decisions, restrict_to_candidates
from reweigh.adapters.gymnasium import gym_policy, record, tabular_mdp
from reweigh.adapters.sklearn import StateCodes, behavior_classifier, fit_states
from reweigh.errors import UsageError, nearest
from reweigh.policy.classifier import ClassifierPolicy
from reweigh.system import added, added_names

__all__ = [
    "ClassifierPolicy",
    "StateCodes",
    "behavior_classifier",
    "fit_states",
    "from_d3rlpy",
    "from_minari",
    "gym_policy",
    "load",
    "read_decisions",
    "record",
    "restrict_to_candidates",
    "tabular_mdp",
]


def load(name: str) -> Any:
    """The adapter of that name: one of ours, or one that another package adds."""
    adapter = globals()[name] if name in __all__ else added("adapters", name)
    if adapter is None:
        known = sorted({*__all__, *added_names("adapters")} - {"load"})
        raise UsageError(
            f"there is no adapter {name!r}{nearest(name, known)} (adapters: {', '.join(known)})"
        )
    return adapter


def __getattr__(name: str) -> Any:
    adapter = None if name.startswith("_") else added("adapters", name)
    if adapter is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return adapter


def __dir__() -> list[str]:
    return sorted({*globals(), *added_names("adapters")})
