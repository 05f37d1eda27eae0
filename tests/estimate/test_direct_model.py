"""The direct method and pooled MIS straight from rows: what the sums say, field by field."""

from __future__ import annotations

import random
from dataclasses import astuple, fields
from typing import Any

import numpy as np
import pytest
from build import TARGET, random_log, to_reweigh

import reweigh as rw
from reweigh.estimate import direct_model, direct_pooled
from reweigh.estimate.control import shape_log, shape_rows
from reweigh.estimate.nodes import Nodes
from reweigh.estimate.recipe import ModelControl
from reweigh.estimate.solution import Solution, solve_recursion
from reweigh.estimate.weakest_places import Place
from reweigh.kernels import choose as compute
from reweigh.kernels.twins import model as model_twin
from reweigh.kernels.twins import sums as sums_twin
from reweigh.sums.engines.arrays import ArraysEngine
from reweigh.worlds import ModelFail, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
KINDS: dict[str, dict[str, Any]] = {
    "complete": {},
    "known-next": {"with_next": True},
    "varying-ratios": {"function_ratios": False},
    "zeros": {"zeros": True},
    "terminated": {"ends": ("complete", "terminated"), "with_next": True},
    "truncated": {"ends": ("complete", "terminated", "truncated")},
    "truncated-known": {"ends": ("complete", "truncated"), "with_next": True},
    "hidden": {"hide": 0.4, "ends": ("complete", "terminated"), "with_next": True},
    "one-episode": {"n": 1},
    "larger": {
        "n": 60,
        "horizon": 6,
        "ends": ("complete", "terminated", "truncated"),
        "with_next": True,
        "zeros": True,
    },
}
ERRORS = ("standard_error", "placebo_error")
WORLD = random_mdp(np.random.default_rng(3), terminal=1, reward_sd=0.3, discount=0.9)
LOG = WORLD.simulate(400, 0)


@pytest.fixture(params=["kernels", "twins", "chunks"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both codes, whatever the size; the twins also with a few rows at a time."""
    if request.param == "kernels":
        pytest.importorskip("numba")
    if request.param == "chunks":
        for module in (model_twin, sums_twin):
            monkeypatch.setattr(module, "CHUNK", 3)
        monkeypatch.setattr(direct_model, "CHUNK", 1)
    monkeypatch.setattr(compute, "COMPILED_FROM", 0 if request.param == "kernels" else 10**18)
    monkeypatch.setattr(direct_model, "ROWS_PER_STEP", 0)
    return str(request.param)


def assert_same_nodes(found: Solution, expected: Solution, largest: float) -> None:
    mine, theirs = found.nodes, expected.nodes
    if mine is None or theirs is None:
        assert mine is theirs
        return
    for field in fields(Nodes):
        noise = 1e-12 * largest**2
        one, other = getattr(mine, field.name), getattr(theirs, field.name)
        if one is None or other is None:
            assert one is other, field.name
            continue
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=noise, err_msg=field.name)


def assert_same(found: Solution, expected: Solution) -> None:
    largest = max(1.0, abs(expected.value), expected.placebo)
    for field in fields(Solution):
        if field.name == "by_node":
            assert_same_nodes(found, expected, largest)
            continue
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if theirs is None or isinstance(theirs, str | bool | tuple | Place):
            assert mine == theirs, field.name
            continue
        noise = 1e-12 * largest**2
        if field.name in ERRORS:  # roots of differences of sums
            mine, theirs = mine**2, theirs**2
        elif hasattr(theirs, "__dataclass_fields__"):
            mine, theirs = astuple(mine), astuple(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=noise, err_msg=field.name)


def both(log: rw.EpisodeLog, target: Any, recipe: rw.Recipe, solve: Any) -> list[Solution | str]:
    """What the rows say, and what the sums say: a solution, or why there is none."""
    found: list[Solution | str] = []
    for way in (
        lambda: solve(log, target, recipe),
        lambda: solve_recursion(recipe, rw.moments(log, target, [recipe])),
    ):
        try:
            found.append(way())
        except rw.RefusedError as error:
            found.append(str(error))
    return found


SOLVERS = {
    "dm": (rw.dm(), direct_model.solve_model),
    "dm-renorm": (rw.dm("renorm"), direct_model.solve_model),
    "pooled": (rw.mis(pooled=True), direct_pooled.solve_pooled),
    "pooled-plain": (rw.mis("none", pooled=True), direct_pooled.solve_pooled),
    "pooled-state": (rw.mis("state", pooled=True), direct_pooled.solve_pooled),
    "pooled-clipped": (rw.mis(pooled=True, max_ratio=1.2), direct_pooled.solve_pooled),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_say_what_sums_say(code: str, kind: str, name: str) -> None:
    recipe, solve = SOLVERS[name]
    rng = random.Random(f"{kind}/{name}")
    solved = 0
    for _ in range(12):
        log = to_reweigh(random_log(rng, **KINDS[kind]))
        found, expected = both(log, TARGET, recipe, solve)
        if found is None:  # the usual road
            assert kind == "hidden" or np.any(np.diff(log.steps.offsets) == 0)
            continue
        if isinstance(expected, str):
            assert found == expected
            continue
        assert isinstance(found, Solution)
        assert_same(found, expected)
        solved += 1
    assert solved > 4 or kind == "hidden"


def test_hidden_states_are_a_state_of_the_model(code: str) -> None:
    world = ModelFail(6)
    log = world.simulate(100, 0)
    assert log.has_hidden
    for name in ("dm", "dm-renorm"):
        found, expected = both(log, world.target, rw.estimator(name), direct_model.solve_model)
        assert isinstance(found, Solution)
        assert isinstance(expected, Solution)
        assert_same(found, expected)
    assert direct_pooled.solve_pooled(log, world.target, rw.mis(pooled=True)) is None
    estimate = rw.evaluate(log, world.target, "dm")
    assert "?" in estimate.marginals.state


@pytest.mark.parametrize("q", ["in-sample", "split", "cross-fit"])
@pytest.mark.parametrize("kind", ["complete", "zeros", "terminated", "hidden", "larger-known"])
def test_rewards_are_shaped_alike(code: str, kind: str, q: str) -> None:
    """The rewards y = r - Q + γV' and g = V_0 by the model over rows and by that of sums."""
    options = KINDS.get(kind, {"n": 60, "horizon": 6, "ends": ("complete", "terminated")})
    rng = random.Random(f"{kind}/{q}")
    control, shaped = ModelControl(q), 0
    for _ in range(12):
        log = to_reweigh(random_log(rng, **{"n": 8, **options}))
        fit = ArraysEngine().moments(log, TARGET, rw.mdr(q).needs)
        try:
            expected = shape_log(log, TARGET, rw.mdr(q), fit)
        except rw.RefusedError as error:
            with pytest.raises(rw.RefusedError, match=error.code):
                shape_rows(log, TARGET, control)
            continue
        found = shape_rows(log, TARGET, control)
        assert found is not None
        assert found.name == expected.name
        for field in ("reward", "start_value", "state", "episode", "offsets"):
            mine, theirs = getattr(found.log.steps, field), getattr(expected.log.steps, field)
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12, err_msg=field)
        shaped += 1
    assert shaped > 4


def test_cut_off_episodes_are_not_shaped(code: str) -> None:
    log = to_reweigh(random_log(random.Random(5), n=20, horizon=4, ends=("complete", "truncated")))
    with pytest.raises(rw.RefusedError, match="cut off"):
        shape_rows(log, TARGET, ModelControl("in-sample"))


@pytest.mark.parametrize("name", ["dm", "dr", "wdr", "mdr", "dr-crossfit", "mis-pooled"])
def test_evaluate_takes_either_road_to_the_same_estimate(
    code: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = rw.evaluate(LOG, WORLD.target, name)
    with monkeypatch.context() as patch:
        patch.setattr(direct_model, "fits", lambda *_: False)
        patch.setattr("reweigh.estimate.control.fits", lambda *_: False)
        patch.setattr(direct_pooled, "CELLS_PER_ROW", 0)
        patch.setattr(direct_pooled, "FEW_CELLS", 0)
        usual = rw.evaluate(LOG, WORLD.target, name)
    assert quick.value == pytest.approx(usual.value, rel=1e-11)
    assert quick.standard_error == pytest.approx(usual.standard_error, rel=1e-9)
    assert quick.behavior_value == pytest.approx(usual.behavior_value, rel=1e-12)
    assert quick.moments.about == usual.moments.about
    assert quick.moments.kinds == usual.moments.kinds


def test_which_logs_and_recipes_take_this_road(monkeypatch: pytest.MonkeyPatch) -> None:
    assert direct_model.solve_model(LOG, WORLD.target, rw.dm()) is not None
    for recipe in (rw.mis(), rw.mis(pooled=True), rw.mdr(), rw.is_()):
        assert direct_model.solve_model(LOG, WORLD.target, recipe) is None
    for recipe in (rw.mis(), rw.mis(pooled=True, reward="averaged"), rw.dm()):
        assert direct_pooled.solve_pooled(LOG, WORLD.target, recipe) is None
    assert shape_rows(LOG, WORLD.target, ModelControl(np.zeros((9, 9)))) is None
    unlogged = rw.log_from_arrays(
        np.zeros((30, 3), int), np.zeros((30, 2), int), np.ones((30, 2)), None
    )
    assert direct_model.solve_model(unlogged, rw.TablePolicy([[1.0]]), rw.dm()) is None
    continuous = rw.log_from_arrays(
        np.zeros((30, 3), int), np.ones((30, 2)), np.ones((30, 2)), np.ones((30, 2)) / 2,
        continuous_actions=True,
    )  # fmt: skip
    assert not direct_model.fits(continuous)
    monkeypatch.setattr(direct_model, "FEW_GROUPS", 0)
    monkeypatch.setattr(direct_model, "GROUPS_PER_ROW", 0)
    assert not direct_model.fits(LOG)
    assert shape_rows(LOG, WORLD.target, ModelControl("in-sample")) is None


def test_sums_and_probabilities_are_made_once_for_all_estimators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kind of sums when the first estimator needs it; π once."""
    kinds: list[str] = []
    asked = 0
    make, look_up = ArraysEngine.moments, rw.TablePolicy.probabilities

    def count_kinds(engine: Any, log: Any, target: Any, request: Any) -> Any:
        kinds.extend(request.kinds)
        return make(engine, log, target, request)

    def count_asked(policy: Any, log: Any) -> Any:
        nonlocal asked
        asked += 1
        return look_up(policy, log)

    monkeypatch.setattr(ArraysEngine, "moments", count_kinds)
    monkeypatch.setattr(rw.TablePolicy, "probabilities", count_asked)
    monkeypatch.setattr(direct_model, "fits", lambda *_: False)
    rw.evaluate_all(LOG, WORLD.target, ["is", "wis", "dm", "ssd-is", "trajectory-is"])
    assert sorted(kinds) == ["model", "trajectories"]
    assert asked == 1
    kinds.clear()
    monkeypatch.undo()
    monkeypatch.setattr(ArraysEngine, "moments", count_kinds)
    [dm, wis] = rw.evaluate_all(LOG, WORLD.target, ["dm", "wis"])
    assert kinds == ["trajectories"]  # the model was solved over the rows
    assert set(wis.moments.kinds) == {"model", "trajectories"}  # for the user: all that they ask
    assert sorted(kinds) == ["model", "trajectories"]
    assert wis.moments.about == dm.moments.about == rw.moments(LOG, WORLD.target).about
