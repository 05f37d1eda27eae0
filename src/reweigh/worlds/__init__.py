"""Worlds whose truth is known: they make logs, and say what an estimate should have been."""

from reweigh.worlds.modelfail import ModelFail
from reweigh.worlds.modelwin import ModelWin
from reweigh.worlds.mountaincar import MountainCar
from reweigh.worlds.randomworld import random_mdp
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.timevarying import TimeVarying
from reweigh.worlds.world import TrueValue, World

__all__ = [
    "ModelFail",
    "ModelWin",
    "MountainCar",
    "TabularMDP",
    "TimeVarying",
    "TrueValue",
    "World",
    "random_mdp",
]
