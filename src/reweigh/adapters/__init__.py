"""From what people hold to what reweigh reads: Minari, d3rlpy, Gymnasium, scikit-learn.

None of these packages is imported before it is needed.
"""

from reweigh.adapters.d3rlpy import from_d3rlpy
from reweigh.adapters.gymnasium import gym_policy, record, tabular_mdp
from reweigh.adapters.minari import from_minari
from reweigh.adapters.sklearn import (
    ClassifierPolicy,
    StateCodes,
    behavior_classifier,
    fit_states,
)

__all__ = [
    "ClassifierPolicy",
    "StateCodes",
    "behavior_classifier",
    "fit_states",
    "from_d3rlpy",
    "from_minari",
    "gym_policy",
    "record",
    "tabular_mdp",
]
