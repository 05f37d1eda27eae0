"""Worlds with known true values: they simulate logs, and have the exact value of a policy.

ICUSepsis and Taxi read the tables of other packages (the extra `worlds`) when they are made.
"""

from reweigh.worlds.benchmark_worlds import ICUSepsis, Taxi
from reweigh.worlds.paper_worlds import ModelFail, ModelWin, MountainCar, TimeVarying
from reweigh.worlds.random_worlds import Bandit, RandomWorld, random_mdp
from reweigh.worlds.tabular import HiddenMDP, TabularMDP
from reweigh.worlds.world import TrueValue, World

__all__ = [
    "Bandit",
    "HiddenMDP",
    "ICUSepsis",
    "ModelFail",
    "ModelWin",
    "MountainCar",
    "RandomWorld",
    "TabularMDP",
    "Taxi",
    "TimeVarying",
    "TrueValue",
    "World",
    "random_mdp",
]
