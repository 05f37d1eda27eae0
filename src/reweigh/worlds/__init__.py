"""Worlds whose truth is known: they make logs, and say what an estimate should have been.

ICUSepsis and Taxi read the tables of other packages (the extra `worlds`) when they are made.
"""

from reweigh.worlds.bandit import Bandit
from reweigh.worlds.described import RandomWorld
from reweigh.worlds.hidden import HiddenMDP
from reweigh.worlds.icu_sepsis import ICUSepsis
from reweigh.worlds.modelfail import ModelFail
from reweigh.worlds.modelwin import ModelWin
from reweigh.worlds.mountaincar import MountainCar
from reweigh.worlds.randomworld import random_mdp
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.taxi import Taxi
from reweigh.worlds.timevarying import TimeVarying
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
