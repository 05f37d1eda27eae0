"""The conformance check of estimators, on our own; and it notices one that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from repeated import VARIANTS

import reweigh as rw
from reweigh.estimate.products import Stepwise
from reweigh.testing import check_estimator

OWN_Q = {"dr-own-q": rw.dr(np.ones((4, 2))), "mdr-own-q": rw.mdr(np.ones((4, 2)))}
TABLE = {name: make() for name, make in rw.ESTIMATORS.items()} | VARIANTS | OWN_Q


@pytest.mark.parametrize("name", TABLE)
def test_our_own_pass(name: str) -> None:
    check_estimator(TABLE[name])


class Doubled(Stepwise):
    def weigh(self, recipe, sums, n, discount):
        weighed = super().weigh(recipe, sums, n, discount)
        return replace(weighed, value=2 * weighed.value)


class NoFormula(Stepwise):
    formula = ""


class NoInfluence(Stepwise):
    def gradient(self, recipe, sums):
        return replace(super().gradient(recipe, sums), constant=0.3)


class Unnamed(Stepwise):
    kinds = frozenset({"trajectory"})


class FewNeeds(Stepwise):
    kinds = frozenset({"transitions"})


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (Doubled, "of the behavior itself is"),
        (NoFormula, "declares no formula"),
        (NoInfluence, "ψ has the mean"),
        (Unnamed, "needs tables that do not exist"),
        (FewNeeds, "refuses"),
    ],
)
def test_one_that_is_wrong_is_noticed(weights: Callable[[], Stepwise], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_estimator(rw.Recipe("wrong", weights()))
