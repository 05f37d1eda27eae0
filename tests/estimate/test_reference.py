"""Every value and analytic error against an independent slow implementation in fractions."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import memory_reference
import pytest
import reference as ref
from build import TARGET, random_log, to_reweigh

import reweigh as rw
from reweigh.evaluation.evaluate import evaluate_in_study

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
LOGS = 120
SLOW_SQUARES = 12  # logs whose error is found by differences

Pair = tuple[Callable[[ref.Log], object], Callable[[ref.Log], object], Callable[[], rw.Recipe]]


def _mis(normalize: str, pooled: bool = False, reward: str = "logged") -> Pair:
    return (
        lambda log: ref.mis(log, normalize, pooled, reward),
        lambda log: ref.se2_mis(log, normalize, pooled, reward),
        lambda: rw.mis(normalize, pooled, reward),
    )


RECURSIVE: dict[str, Pair] = {
    "mis-plain": _mis("none"),
    "mis": _mis("simplex"),
    "mis-state": _mis("state"),
}
POOLED: dict[str, Pair] = {
    "mis-pooled-plain": _mis("none", True),
    "mis-pooled": _mis("simplex", True),
    "mis-pooled-state": _mis("state", True),
}
AVERAGED: dict[str, Pair] = {
    f"{norm}-{pooled}-averaged": _mis(norm, pooled, "averaged")
    for norm in ("none", "simplex", "state")
    for pooled in (False, True)
}
POOLED_REWARD: dict[str, Pair] = {
    f"{norm}-{pooled}-pooled": _mis(norm, pooled, "pooled")
    for norm in ("none", "simplex", "state")
    for pooled in (False, True)
}
MODEL: dict[str, Pair] = {
    "dm": (ref.dm, ref.se2_dm, lambda: rw.dm()),
    "dm-renorm": (
        lambda log: ref.dm(log, "renorm"),
        lambda log: ref.se2_dm(log, "renorm"),
        lambda: rw.dm("renorm"),
    ),
}
PRODUCTS: dict[str, Pair] = {
    "is": (ref.stepwise_is, ref.se2_is, rw.is_),
    "wis": (ref.stepwise_wis, ref.se2_wis, rw.wis),
    "trajectory-is": (ref.trajectory_is, ref.se2_trajectory_is, rw.trajectory_is),
    "trajectory-wis": (ref.trajectory_wis, ref.se2_trajectory_wis, rw.trajectory_wis),
}
CONTROLLED: dict[str, Pair] = {
    "dr": (lambda g: ref.dr(g, g), lambda g: ref.se2_dr(g, g), rw.dr),
    "wdr": (lambda g: ref.dr(g, g, True), lambda g: ref.se2_dr(g, g, True), rw.wdr),
    "mdr-in-sample": (
        lambda g: ref.mdr(g, g),
        lambda g: ref.se2_mdr(g, g),
        lambda: rw.mdr("in-sample"),
    ),
}
MEMORY: dict[str, Pair] = {
    f"memory-{k}": (
        lambda log, k=k: memory_reference.value(log, k),
        lambda log, k=k: memory_reference.square(log, k),
        lambda k=k: rw.mis(memory=k),
    )
    for k in (0, 1, 2)
}
# Without cut-off episodes it has two references.
WEIGHTED: dict[str, Pair] = {
    f"memory-{k}-by-weights": (
        lambda log, k=k: memory_reference.by_weights(log, k),
        lambda log, k=k: memory_reference.square(log, k),
        lambda k=k: rw.mis(memory=k),
    )
    for k in (0, 1, 3)
}
WHOLE = MEMORY | WEIGHTED
KINDS: dict[str, tuple[dict[str, object], dict[str, Pair]]] = {
    "complete": (
        {},
        RECURSIVE | POOLED | AVERAGED | POOLED_REWARD | MODEL | PRODUCTS | CONTROLLED | WHOLE,
    ),
    "known-next": ({"with_next": True}, RECURSIVE | POOLED | AVERAGED | MODEL | PRODUCTS | WHOLE),
    "varying-ratios": (
        {"function_ratios": False},
        RECURSIVE | POOLED | AVERAGED | PRODUCTS | WHOLE,
    ),
    "zeros": ({"zeros": True}, RECURSIVE | POOLED | MODEL | PRODUCTS | CONTROLLED | WHOLE),
    "terminated": (
        {"ends": ("complete", "terminated"), "with_next": True},
        RECURSIVE | POOLED | AVERAGED | POOLED_REWARD | MODEL | PRODUCTS | CONTROLLED | WHOLE,
    ),
    "truncated": (
        {"ends": ("complete", "terminated", "truncated")},
        RECURSIVE | POOLED | AVERAGED | MODEL | MEMORY,
    ),
    "truncated-known": (
        {"ends": ("complete", "truncated"), "with_next": True},
        RECURSIVE | POOLED | MODEL | MEMORY,
    ),
    "hidden": ({"hide": 0.4}, RECURSIVE | MODEL | PRODUCTS | CONTROLLED | WHOLE),
    "hidden-terminated": (
        {"hide": 0.4, "ends": ("complete", "terminated")},
        RECURSIVE | MODEL | PRODUCTS | CONTROLLED | WHOLE,
    ),
}
CASES = [(kind, name) for kind, (_, pairs) in KINDS.items() for name in pairs]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_value_and_error_equal_the_slow_reference(kind: str, name: str) -> None:
    options, pairs = KINDS[kind]
    value_of, square_of, recipe = pairs[name]
    rng = random.Random(f"{kind}/{name}")
    answered = 0
    logs = LOGS // 3 if name in WHOLE else LOGS
    for _ in range(logs):
        slow = random_log(rng, **options)
        fast = to_reweigh(slow)
        try:
            value = float(value_of(slow))
        except ZeroDivisionError:
            with pytest.raises(rw.RefusedError):
                rw.evaluate(fast, TARGET, recipe())
            continue
        [found] = evaluate_in_study(fast, TARGET, [recipe()])
        if isinstance(found, rw.Refusal):
            # The reference lets plain sums of zeros stand; reweigh never prints them.
            if found.error.code == "truncated":
                assert slow.truncated
                assert recipe().weights.memory >= slow.horizon - 1
                continue
            assert found.error.code == "no-overlap"
            assert options.get("zeros"), slow
            continue
        answered += 1
        assert found.value == pytest.approx(value, rel=1e-12, abs=1e-12), slow
        slow_square = name in WHOLE and answered > SLOW_SQUARES
        if found.standard_error is not None and name not in POOLED_REWARD and not slow_square:
            square = float(square_of(slow))
            assert found.standard_error**2 == pytest.approx(square, rel=1e-9, abs=1e-11), slow
    assert answered > logs // 4


@pytest.mark.parametrize("use", ["ratio", "plugin", "selfnorm"])
@pytest.mark.parametrize("kind", ["complete", "varying-ratios", "zeros", "hidden"])
def test_ssd_is_equals_the_slow_reference(kind: str, use: str) -> None:
    """It refuses where the reference finds no stationary vector, or nothing to divide by."""
    rng = random.Random(kind)
    answered = 0
    for _ in range(LOGS):
        slow = random_log(rng, n=rng.randint(3, 8), horizon=rng.randint(2, 4), **KINDS[kind][0])
        [found] = rw.point_values(to_reweigh(slow), TARGET, [rw.ssd_is(use)])
        try:
            value = float(ref.ssd_is(slow, use))
        except ZeroDivisionError:
            assert isinstance(found, rw.Refusal), (found, slow)
            continue
        answered += 1
        assert found == pytest.approx(value, rel=1e-9, abs=1e-9), slow
    assert answered > LOGS // 3


def test_behavior_value_is_the_reference_with_every_ratio_one() -> None:
    rng = random.Random(5)
    told = 0
    for _ in range(LOGS):
        slow = random_log(rng, ends=("complete", "terminated", "truncated"), n=4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = rw.evaluate(to_reweigh(slow), TARGET, rw.mis())
            except rw.RefusedError:
                continue
        if found.behavior_value is None:  # all of a state's episodes were cut off
            assert any(e.end == "truncated" for e in slow.episodes)
            continue
        told += 1
        assert found.behavior_value == pytest.approx(float(ref.behavior_value(slow)), abs=1e-12)
    assert told > LOGS // 3
