"""Policies that see more than the state: the model's share of an action is its mean over *all* rows
of a cell, so that the shares of a cell add up to 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from population import population_log, random_world
from repeated import derivative

import reweigh as rw
from reweigh.estimate.influence import influence_values
from reweigh.sums.engines import ArraysEngine, Request
from reweigh.worlds import random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
Floats = npt.NDArray[np.float64]
FAMILY = [
    name
    for name in rw.ESTIMATORS
    if name.startswith(("dm", "dr", "wdr", "mdr"))
]  # fmt: skip
# of ratios that differ within a cell mdr-loo needs the rows
FROM_SUMS = [n for n in FAMILY if n.startswith(("dm", "mdr")) and n != "mdr-loo"]
HORIZON = 10


def prefers_its_side(state: object, action: object, step: object) -> Floats:
    """0.9 for action 1 where x > 0 and for action 0 elsewhere."""
    right = (np.asarray(action) == 1) == (np.asarray(state, float) > 0)
    return np.where(right, 0.9, 0.1)


def side_table(n: int, seed: int, *, constant: bool) -> pa.Table:
    """x is drawn anew at every step, both policies follow its sign, the state is one cell of it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, HORIZON))
    action = np.where(rng.random(x.shape) < 0.8, x > 0, x <= 0).astype(int)
    mu = np.where((action == 1) == (x > 0), 0.8, 0.2)
    reward = np.ones_like(x) if constant else rng.normal(size=x.shape) + action * x
    columns = {
        "episode": np.repeat(np.arange(n), HORIZON),
        "step": np.tile(np.arange(HORIZON), n),
        "x": x,
        "cell": np.full(x.shape, "all"),
        "action": action,
        "reward": reward,
        "behavior_prob": mu,
        "target_prob": prefers_its_side(x, action, None),
    }
    return pa.table({name: pa.array(values.reshape(-1)) for name, values in columns.items()})


def side_log(n: int, seed: int = 0, *, constant: bool) -> rw.EpisodeLog:
    table = side_table(n, seed, constant=constant)
    log = rw.read_log(table, state="x", target_prob="target_prob", abstraction=rw.Grid([1e9]))
    assert isinstance(log, rw.EpisodeLog)
    return log


FUNCTION, COLUMN = rw.FunctionPolicy(prefers_its_side), rw.ColumnPolicy("target_prob")
TARGETS = {"function": FUNCTION, "column": COLUMN}


@pytest.mark.parametrize("n", [40, 400])
@pytest.mark.parametrize("kind", TARGETS)
def test_rewards_of_one_give_the_horizon(kind: str, n: int) -> None:
    """Whatever a policy does, it earns 10; 161 was the answer with π of the rows that took a."""
    log = side_log(n, constant=True)
    values = dict(zip(FAMILY, rw.point_values(log, TARGETS[kind], FAMILY), strict=True))
    for name, value in values.items():
        assert value == pytest.approx(HORIZON, rel=1e-12), name


def test_cells_that_lack_an_action() -> None:
    """From ratios the shares of what a cell shows add up to 1; a function says what is lost."""
    log = side_log(3, constant=True)
    for name in ("dm", "dm-renorm"):
        [value] = rw.point_values(log, COLUMN, [name])
        assert value == pytest.approx(HORIZON, rel=1e-12)
    assert rw.point_values(log, FUNCTION, ["dm-renorm"])[0] == pytest.approx(HORIZON, rel=1e-12)
    lost = rw.evaluate_all(log, FUNCTION, ["dm"])[0]
    assert isinstance(lost, rw.Refusal)
    assert lost.error.code == "out-of-range"


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_every_engine_says_the_same(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    ones, noisy = (side_table(200, 1, constant=constant) for constant in (True, False))
    for table in (ones, noisy):
        pq.write_table(table, path)
        log = rw.read_log(path, state="cell", target_prob="target_prob", engine=engine)
        memory = rw.read_log(table, state="cell", target_prob="target_prob", engine="arrays")
        found = rw.evaluate_all(log, COLUMN, FROM_SUMS)
        expected = rw.evaluate_all(memory, COLUMN, FROM_SUMS)
        for one, other in zip(found, expected, strict=True):
            if isinstance(other, rw.Refusal):  # halves of a scanned log need sums by blocks
                assert isinstance(one, rw.Refusal)
                continue
            assert isinstance(one, rw.Estimate)
            assert one.value == pytest.approx(other.value, rel=1e-12)
            assert (one.standard_error is None) == (other.standard_error is None)
            if one.standard_error is not None:
                assert one.standard_error == pytest.approx(other.standard_error, rel=1e-9)
            assert one.verdict.level == other.verdict.level, one.recipe.name


COARSE = np.array([0, 0, 1, 1, 1])  # the cell of each true state


def coarse_model(
    initial: Floats, T: Floats, r: Floats, pi: Floats, mu: Floats, coarse: npt.NDArray[np.int64]
) -> float:
    """The value of the model of cells, by enumeration: every mean over the true states of a cell is
    taken as the behavior visits them. T (H,S,A,S), r (H,S,A), π and μ (H,S,A)."""
    visited, d = initial, np.bincount(coarse, initial)
    value = 0.0
    for t in range(len(T)):
        after = np.zeros_like(d)
        for c in range(len(d)):
            inside = np.flatnonzero(coarse == c)
            rows = visited[inside]
            for a in range(pi.shape[2]):
                share = float(rows @ pi[t][inside, a]) / rows.sum()  # over all rows of the cell
                took = rows * mu[t][inside, a] / float(rows @ mu[t][inside, a])
                value += d[c] * share * float(took @ r[t][inside, a])
                after += d[c] * share * np.bincount(coarse, took @ T[t][inside, a], len(d))
        visited = np.einsum("s,sa,sax->x", visited, mu[t], T[t])
        d = after
    return value


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", TARGETS)
def test_whole_worlds_give_the_coarse_model_exactly(kind: str, seed: int) -> None:
    """Every trajectory as often as it is likely: nothing is left to chance."""
    world = random_world(seed, n_states=3, horizon=2)
    T, reward, pi, mu = (
        np.array(part, float)
        for part in (world.transition, world.reward, world.target, world.behavior)
    )
    coarse = np.array([0, 0, 1])
    exact = coarse_model(
        np.array(world.initial, float), T, np.sum(T * reward, axis=3), pi, mu, coarse
    )
    log = rw.read_log(
        population_log(world).to_table(),
        target_prob="target_prob",
        next_state=None,
        abstraction=lambda values: coarse[np.asarray(values).reshape(-1).astype(int)],
    )
    target: rw.Policy = COLUMN
    if kind == "function":
        target = rw.FunctionPolicy(
            lambda s, a, t: pi[t, np.asarray(s).reshape(-1).astype(int), np.asarray(a).astype(int)]
        )
    for name in ("dm", "dm-renorm"):
        assert rw.point_values(log, target, [name])[0] == pytest.approx(exact, rel=1e-12)


def coarse_log(n: int, seed: int) -> tuple[rw.worlds.TabularMDP, rw.EpisodeLog]:
    world = random_mdp(3, 5, 3, 4)
    table = world.simulate(n, seed).to_table()
    log = rw.read_log(
        table,
        behavior_prob="behavior_prob",
        target_prob="target_prob",
        next_state=None,
        abstraction=lambda values: COARSE[np.asarray(values).reshape(-1).astype(int)],
    )
    assert isinstance(log, rw.EpisodeLog)
    return world, log


def of_true_state(world: rw.worlds.TabularMDP) -> rw.FunctionPolicy:
    pi = world.target_array
    return rw.FunctionPolicy(
        lambda s, a, t: pi[t, np.asarray(s).reshape(-1).astype(int), np.asarray(a).astype(int)]
    )


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", ["dm", "dm-renorm", "mdr-crossfit"])
def test_a_coarse_state_gives_the_value_of_the_coarse_model(kind: str, name: str) -> None:
    world, log = coarse_log(40_000, 0)
    target = COLUMN if kind == "column" else of_true_state(world)
    estimate = rw.evaluate(log, target, name)
    assert estimate.standard_error is not None
    T = world.transition
    r = np.sum(T * world.reward, axis=3)
    exact = coarse_model(world.initial, T, r, world.target_array, world.behavior_array, COARSE)
    if name.startswith("dm"):
        assert abs(estimate.value - exact) < 4 * estimate.standard_error
    # MDR is MIS with less noise: it has MIS's own limit, not the model's
    else:
        mis = rw.evaluate(log, target, "mis")
        assert mis.standard_error is not None
        assert abs(estimate.value - mis.value) < 4 * mis.standard_error
    # the mean of π over the rows that took the action is another model altogether
    wrong = took_the_action(log, target)
    assert abs(wrong - exact) > 5 * estimate.standard_error


def took_the_action(log: rw.EpisodeLog, target: rw.Policy) -> float:
    """DM with the shares of before: forward, cell by cell."""
    steps, pi = log.steps, target.probabilities(log)
    cells, actions = len(log.states), len(log.actions or ())
    d = np.bincount(steps.state[steps.rows(0)], minlength=cells) / log.n_episodes
    value = 0.0
    for t in range(log.horizon):
        rows = steps.rows(t)
        s, a, after = steps.state[rows], steps.action[rows], steps.next_state[rows]
        following = np.zeros(cells)
        for c in range(cells):
            for action in range(actions):
                own = (s == c) & (a == action)
                share = d[c] * pi[rows][own].mean()
                value += share * steps.reward[rows][own].mean()
                if t + 1 < log.horizon:
                    following += share * np.bincount(after[own], minlength=cells) / own.sum()
        d = following
    return value


@pytest.mark.parametrize("name", FAMILY)
def test_a_policy_of_the_state_is_the_same_in_every_form(name: str) -> None:
    """As a table, a function and a column, also where propensities vary within (t, s, a)."""
    world = random_mdp(1, 4, 3, 5)
    log = world.simulate(300, 0)
    table = log.to_table()
    pi = world.target_array
    rng = np.random.default_rng(0)
    mu = np.asarray(table["behavior_prob"]) * rng.choice([0.9, 1.0], len(table))
    table = table.set_column(
        table.column_names.index("behavior_prob"), "behavior_prob", pa.array(mu)
    )
    log = rw.read_log(table, target_prob="target_prob", next_state=None)
    function = rw.FunctionPolicy(lambda s, a, t: pi[t, s.astype(int), a.astype(int)])
    [expected] = rw.point_values(log, world.target, [name])
    for target in (function, COLUMN):
        assert rw.point_values(log, target, [name])[0] == pytest.approx(expected, rel=1e-12)


def test_the_rule_is_that_of_the_whole_log() -> None:
    """A half, or a cell of one row, cannot tell what the policy sees: the log decides."""
    log = side_log(6, constant=True)
    sums = ArraysEngine().moments(log, COLUMN, Request(frozenset({"model"}), 2))
    assert sums.shares.rule == "ratios"
    assert sums.without(0).shares.rule == "ratios"
    by_state = ArraysEngine().moments(
        random_mdp(0, 3, 2, 4).simulate(30, 0),
        random_mdp(0, 3, 2, 4).target,
        Request(frozenset({"model"})),
    )
    assert by_state.shares.rule == "one number"
    # π = 0.9 of whichever action was taken: no row differs, but they add up to 1.8
    steep = replace(sums, policy=None, model=_with_one_probability(sums.model, 0.9))
    assert steep.shares.rule == "ratios"
    assert replace(steep, model=_with_one_probability(sums.model, 0.5)).shares.rule == "one number"


def _with_one_probability(cells, pi: float):
    return replace(cells, pi=pi * cells.n, pi2=pi**2 * cells.n)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", ["dm", "dm-renorm", "dr", "wdr", "mdr-crossfit"])
def test_errors_are_the_spread_over_logs(kind: str, name: str) -> None:
    """The mean error of 150 logs against the spread of their values, known to 1/√300 = 6 %."""
    values, errors = [], []
    for seed in range(150):
        found = rw.evaluate(side_log(100, seed, constant=False), TARGETS[kind], name)
        assert found.standard_error is not None
        values.append(found.value)
        errors.append(found.standard_error)
    ratio = np.mean(errors) / np.std(values, ddof=1)
    assert 0.82 < ratio < 1.2, ratio


@pytest.mark.parametrize("name", ["dm", "dm-renorm", "dr", "wdr"])
@pytest.mark.parametrize("kind", TARGETS)
def test_influence_values_are_the_derivative(kind: str, name: str) -> None:
    """By the number of times that an episode counts, in-sample."""
    log, target, recipe = side_log(12, 3, constant=False), TARGETS[kind], rw.estimator(name)
    by = np.zeros(12, int)
    by[[1, 4, 7]] = 1

    def value(part: rw.EpisodeLog) -> float:
        [found] = rw.point_values(part, target, [recipe])
        assert isinstance(found, float)
        return found

    psi = influence_values(log, target, recipe)
    moved = derivative(value, log, by)
    assert by @ psi / 12 == pytest.approx(moved, abs=1e-5 * (1 + abs(moved)))


def test_a_function_above_one_is_refused_by_name() -> None:
    """Probabilities of a row's actions that add up to 1.8 are none."""
    log = side_log(20, constant=True)
    target = rw.FunctionPolicy(lambda s, a, t: np.full(len(s), 0.9), name="steep")
    with pytest.raises(rw.InputError, match="must add up to at most 1") as caught:
        rw.evaluate(log, target, "dm")
    assert "1.8" in str(caught.value)


def test_moments_of_a_function_are_saved_and_added(tmp_path: Path) -> None:
    log = side_log(60, 2, constant=False)
    half = log.steps.episode_hash % 2 == 0
    parts = [rw.moments(log.select(which), FUNCTION, blocks=20) for which in (half, ~half)]
    both = parts[0] + parts[1]
    both.save(tmp_path / "both.parquet")
    loaded = rw.load_moments(tmp_path / "both.parquet")
    for name in ("dm", "mdr"):
        [expected] = rw.point_values(log, FUNCTION, [name])
        assert rw.evaluate(loaded, None, name).value == pytest.approx(expected, rel=1e-12)
    # which rows a cell holds is noise that sums do not hold: blocks tell
    assert rw.evaluate(loaded, None, "dm").error_method.startswith("jackknife")


def test_clipped_ratios_make_no_shares() -> None:
    """DM uses no ratio but here: sums whose ratios were clipped are refused."""
    clipped = rw.moments(side_log(60, constant=False), COLUMN, max_ratio=1.0)
    with pytest.raises(rw.RefusedError, match=r"max_ratio=1\.0"):
        rw.evaluate(clipped, None, "dm")
