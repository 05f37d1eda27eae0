"""Fingerprints: equal for the same code in another process, different for other contents."""

from __future__ import annotations

import functools
import subprocess
import sys

import numpy as np
import pytest

from reweigh.system.fingerprint import digest_of_callable as digest


def base(s, a, t, *, p=0.5):
    return p


def other(s, a, t, *, p=0.5):
    return p + 0


class Model:
    def __init__(self, weights) -> None:
        self.weights = weights

    def __repr__(self) -> str:
        return "Model()"

    def prob(self, s, a, t):
        return self.weights

    def __call__(self, s, a, t):
        return self.weights


class Slotted:
    __slots__ = ("p",)

    def __init__(self, p) -> None:
        self.p = p

    def __call__(self, s, a, t):
        return self.p


def closing_over(x):
    return lambda s, a, t: x


def with_keyword(p):
    def f(s, a, t, *, p=p):
        return p

    return f


LARGE = np.arange(5000.0)
PAIRS = {
    "partial keywords": (functools.partial(base, p=0.1), functools.partial(base, p=0.9)),
    "partial functions": (functools.partial(base, p=0.1), functools.partial(other, p=0.1)),
    "keyword defaults": (with_keyword(0.1), with_keyword(0.9)),
    "slots": (Slotted(0.1), Slotted(0.9)),
    "bound methods": (Model(1).prob, Model(2).prob),
    "callable objects": (Model(1), Model(2)),
    "large arrays": (closing_over(LARGE), closing_over(LARGE + (LARGE == 2500))),
    "models in a closure": (closing_over(Model(LARGE)), closing_over(Model(LARGE + 1))),
    "called names": (lambda s, a, t: np.sin(a), lambda s, a, t: np.cos(a)),
    "ufuncs": (np.sin, np.cos),
    "unseen contents": (closing_over(iter([1])), closing_over(iter([1]))),
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_differs_has_another_name(what: str) -> None:
    first, second = PAIRS[what]
    assert digest(first) != digest(second)
    assert digest(first) == digest(first)


def test_functions_that_hold_themselves_have_a_name() -> None:
    def again(s, a, t):
        return again

    model = Model(None)
    model.weights = model
    assert digest(again) == digest(again)
    assert digest(model) == digest(model)

    def early():
        name = digest(lambda s, a, t: late)
        late = 1
        return name, late

    assert early()[0]


def test_the_same_code_has_the_same_name_in_every_process() -> None:
    code = (
        "from reweigh.system.fingerprint import digest_of_callable as d\n"
        "import numpy as np\n"
        "words = {'a', 'b', 'c'}\n"
        "def make(x): return lambda s, a, t: a in {'x', 'y', 'z'} and x\n"
        "print(d(make(words)), d(make(np.array(['u', None], object))))\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in "123"
    }
    assert len(seen) == 1
