"""Certificates: the terms by hand, what they assume, and that they hold."""

from __future__ import annotations

import itertools
import json
import math
import random
from fractions import Fraction as F
from typing import Any

import build
import numpy as np
import pytest
import reference as ref

import reweigh as rw
from reweigh.decide import certificate
from reweigh.decide.certificate import outward
from reweigh.trust.bounds import lower_bound
from reweigh.worlds import ModelFail, TabularMDP, random_mdp

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
WORLD = random_mdp(4, n_states=3, n_actions=2, horizon=3, discount=0.9)  # rewards in [0, 1]


def terms(log: ref.Log, low: F, high: F) -> tuple[list[F], list[F]]:
    """X and Y of every episode, one step after the other; END earns 0 with the last product."""
    found: tuple[list[F], list[F]] = [], []
    for episode in log.episodes:
        x = y = F(0)
        product = F(1)
        for t in range(log.horizon):
            reward = F(0)
            if t < len(episode.rows):
                product *= episode.rows[t].rho
                reward = episode.rows[t].reward
            x += log.discount**t * product * (reward - low)
            y += log.discount**t * product * (high - reward)
        found[0].append(x)
        found[1].append(y)
    return found


@pytest.mark.parametrize("ends", [("complete",), ("complete", "terminated")])
def test_the_terms_by_hand(ends: tuple[str, ...]) -> None:
    for seed in range(20):
        tiny = build.random_log(random.Random(seed), n=5, ends=ends, hide=0.2, zeros=True)
        log = build.to_reweigh(tiny)
        declared = (1, 5) if seed % 2 else (-3, 6)
        rewards = [row.reward for episode in tiny.episodes for row in episode.rows]
        low, high = min(F(declared[0]), *rewards), max(F(declared[1]), *rewards)
        short = any(len(episode.rows) < tiny.horizon for episode in tiny.episodes)
        least, most = (min(low, F(0)), max(high, F(0))) if short else (low, high)
        found = rw.certify(log, build.TARGET, (float(low), float(high)), 0.9)
        total = sum(tiny.discount**t for t in range(tiny.horizon))
        assert found.trivial == pytest.approx((float(least * total), float(most * total)))
        X, Y = terms(tiny, least, most)
        order = [int(e) for e in log.steps.episode]
        x, y = (np.array([float(values[i]) for i in order]) for values in (X, Y))
        assert min(x.min(), y.min()) >= 0
        assert found.low == pytest.approx(float(least * total) + lower_bound(x, 0, 0.05), rel=1e-9)
        assert found.high == pytest.approx(float(most * total) - lower_bound(y, 0, 0.05), rel=1e-9)
        G = [
            sum(tiny.discount**t * row.reward for t, row in enumerate(e.rows))
            for e in tiny.episodes
        ]
        g, span = (
            np.array([float(G[i] - least * total) for i in order]),
            float((most - least) * total),
        )
        below, above = lower_bound(x + span - g, 0, 0.05), lower_bound(y + g, 0, 0.05)
        assert found.gain == pytest.approx((below - span, span - above), rel=1e-9)


def test_one_side_takes_the_whole_error_probability() -> None:
    log = WORLD.simulate(200, 1)
    both = rw.certify(log, WORLD.target, (0, 1), 0.9)
    lower = rw.certify(log, WORLD.target, (0, 1), 0.95, side="lower")
    upper = rw.certify(log, WORLD.target, (0, 1), 0.95, side="upper")
    assert (lower.low, upper.high) == pytest.approx((both.low, both.high), rel=1e-12)
    assert (lower.high, upper.low) == (lower.trivial[1], upper.trivial[0])
    assert both.trivial[0] < both.low < WORLD.value() < both.high < both.trivial[1]


def test_certificates_follow_the_scale_of_the_rewards() -> None:
    log = WORLD.simulate(100, 0)
    before = rw.certify(log, WORLD.target, (0, 1))
    moved = log.with_rewards(3 - 2 * log.steps.reward, np.zeros(100))
    after = rw.certify(moved, WORLD.target, (1, 3))
    shift = 3 * sum(0.9**t for t in range(3))
    assert after.low == pytest.approx(shift - 2 * before.high, rel=1e-9)
    assert after.high == pytest.approx(shift - 2 * before.low, rel=1e-9)


def test_they_hold_in_simulation_and_without_overlap() -> None:
    """300 logs at the level 80 %: misses must stay below 20 % (Monte-Carlo error 2.3 %); betting
    is cautious, so that they stay well below. In the second world the behavior never does half
    of what the target does: v is not identified, and the bounds hold all the same."""
    world = random_mdp(5, n_states=3, n_actions=2, horizon=4, overlap=0.3)
    truth = world.value()
    missed = 0
    for seed in range(300):
        try:
            found = rw.certify(world.simulate(60, seed), world.target, (0, 1), 0.8)
            missed += not found.low <= truth <= found.high
        except rw.RefusedError:  # no value is left: a miss too
            missed += 1
    assert 0 < missed / 300 < 0.2
    reward = np.zeros((1, 2, 1))
    reward[:, 1] = 1.0
    one = np.ones((1, 2, 1))
    lacking = TabularMDP(
        np.ones(1), one, reward, np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]]), horizon=2
    )
    log = rw.log_from_arrays(
        np.zeros((50, 3), int), np.zeros((50, 2), int), np.zeros((50, 2)),
        np.full((50, 2), 0.999), np.full((50, 2), 0.5),
    )  # fmt: skip
    found = rw.certify(log, rw.ColumnPolicy("target_prob"), (0, 1))
    assert found.low <= lacking.value() == 1.0 <= found.high


def test_the_order_is_the_seeds() -> None:
    log = WORLD.simulate(100, 0)
    first, again, other = (rw.certify(log, WORLD.target, (0, 1), seed=s) for s in (0, 0, 1))
    assert first == again
    assert first.low != other.low


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_ratio_may_be_the_largest_there_is(seed: int) -> None:
    """Every reward at the top of the range: rounding takes the sum beyond its largest value."""
    rng = np.random.default_rng(seed)
    behavior, target = (rng.dirichlet(5 * np.ones(3)) for _ in range(2))
    actions = rng.choice(3, (400, 3), p=behavior)
    log = rw.log_from_arrays(
        np.zeros((400, 4), int), actions, np.ones((400, 3)), behavior[actions], target[actions]
    )
    largest = float((target / behavior).max())
    policy = rw.ColumnPolicy("target_prob")
    for bound in (largest, largest * (1 - 9e-10)):
        found = rw.certify(log, policy, (0, 1), largest_ratio=bound)
        for low, high in found.compared.values():
            assert low <= found.low <= found.high <= high
    with pytest.raises(rw.InputError, match="largest-ratio"):
        rw.certify(log, policy, (0, 1), largest_ratio=largest * (1 - 1e-8))


@pytest.mark.parametrize("given", [("a", 1), (0, None), ("0", "1"), 3, (0, 1, 2), (1, 0)])
def test_a_range_is_two_numbers(given: object) -> None:
    with pytest.raises(rw.UsageError, match="'reward_range' must be two numbers"):
        rw.certify(WORLD.simulate(5, 0), WORLD.target, given)  # type: ignore[arg-type]


def test_hoeffding_and_bernstein_only_with_a_bound_on_the_ratios() -> None:
    log = WORLD.simulate(300, 0)
    assert rw.certify(log, WORLD.target, (0, 1)).compared == {}
    ratio = 3.0
    rho = WORLD.target.probabilities(log) / log.steps.behavior_prob
    assert rho.max() <= ratio
    found = rw.certify(log, WORLD.target, (0, 1), largest_ratio=ratio)
    most = sum(0.9**t * ratio ** (t + 1) for t in range(3))
    X, _, _ = certificate._terms(log, rho, 0.0, 1.0)
    margin = most * math.sqrt(math.log(2 / 0.05) / 600)
    assert found.compared["Hoeffding"][0] == pytest.approx(max(X.mean() - margin, 0), rel=1e-9)
    for low, high in found.compared.values():
        assert low <= found.low
        assert found.high <= high
    assert "no ratio exceeds 3" in str(found)
    with pytest.raises(rw.InputError, match=r"largest-ratio: .*0\.5"):
        rw.certify(log, WORLD.target, (0, 1), largest_ratio=0.5)


def test_it_says_what_it_is() -> None:
    log = WORLD.simulate(50, 0)
    for side in ("both", "lower", "upper"):
        found = rw.certify(log, WORLD.target, (0, 1), side=side, largest_ratio=3)  # type: ignore[arg-type]
        text = str(found)
        assert max(map(len, text.splitlines())) <= 80
        for part in ("finite-sample", "every reward lies within [0, 1], as declared",
                     "propensities are right", "episodes are independent", "betting"):  # fmt: skip
            assert part in text
        plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert plain["low"] == found.low
        assert len(plain["assumes"]) == 4
    positive = log.with_rewards(log.steps.reward + 1, np.zeros(50))
    assert "no episode can end before its 3 steps" in str(
        rw.certify(positive, WORLD.target, (1, 2))
    )


def test_printed_bounds_hold_as_well() -> None:
    assert outward(1.23456, down=True) == "1.234"
    assert outward(1.23411, down=False) == "1.235"
    assert outward(-1.23456, down=True) == "-1.235"
    assert outward(0.0, down=True) == "0"
    assert outward(12345.6, down=True) == "12,340"


def test_a_reward_outside_the_declared_range_is_named(tmp_path: object) -> None:
    table = WORLD.simulate(20, 0).to_table()
    rewards = table["reward"].to_numpy().copy()
    rewards[7], rewards[30] = 1.5, -0.5
    index = table.schema.get_field_index("reward")
    log = rw.read_log(table.set_column(index, "reward", [rewards]))
    with pytest.raises(rw.InputError) as caught:
        rw.certify(log, WORLD.target, (0, 1))
    [fault] = caught.value.faults
    assert (fault.code, fault.count, fault.total) == ("reward-range", 2, 60)
    assert [place.row for place in fault.places] == [8, 31]
    assert [place.value for place in fault.places] == [1.5, -0.5]
    assert fault.places[0].column == "reward"
    with pytest.raises(rw.InputError):
        rw.evaluate(log, WORLD.target, rw.mis(), reward_range=(0, 1))
    allowed = rw.evaluate(log, WORLD.target, rw.mis(), reward_range=(-1, 2)).uncertainty.value_range
    assert allowed == (-3, 6)


def test_what_it_refuses() -> None:
    log = WORLD.simulate(30, 0)
    with pytest.raises(rw.RefusedError) as caught:
        rw.certify(log.with_behavior(rw.fit_behavior(log)), WORLD.target, (0, 1))
    assert caught.value.code == "estimated-behavior"
    with pytest.raises(rw.RefusedError) as caught:
        rw.certify(rw.moments(log, WORLD.target), WORLD.target, (0, 1))  # type: ignore[arg-type]
    assert caught.value.code == "needs-log"
    tiny = build.random_log(random.Random(1), n=6, horizon=4, ends=("truncated",))
    with pytest.raises(rw.RefusedError) as caught:
        rw.certify(build.to_reweigh(tiny), build.TARGET, (-10, 10))
    assert caught.value.code == "truncated"
    for bad in ((1, 0), (0, math.inf), 3, (0, 1, 2)):
        with pytest.raises(rw.UsageError, match="reward_range"):
            rw.certify(log, WORLD.target, bad)  # type: ignore[arg-type]
    for options in ({"level": 1}, {"side": "left"}, {"largest_ratio": -1}, {"seed": -1}):
        with pytest.raises(rw.UsageError, match=next(iter(options))):
            rw.certify(log, WORLD.target, (0, 1), **options)  # type: ignore[arg-type]
    with pytest.raises(rw.UsageError, match=r"above 0\.5"):
        rw.certify(log, WORLD.target, (0, 1), 0.4, side="lower")


def test_wrong_propensities_may_leave_no_value() -> None:
    log = rw.log_from_arrays(
        np.zeros((400, 2), int), np.zeros((400, 1), int), np.full((400, 1), 0.5),
        np.full((400, 1), 0.1), np.full((400, 1), 0.9),
    )  # fmt: skip
    with pytest.raises(rw.RefusedError, match="propensities are wrong"):
        rw.certify(log, rw.ColumnPolicy("target_prob"), (0, 1))


def test_hidden_states_and_huge_ratios_are_no_obstacle() -> None:
    hidden = ModelFail(4)
    found = rw.certify(hidden.simulate(400, 0), hidden.target, (-1, 1))
    assert found.low <= hidden.value() <= found.high
    n, horizon = 10, 400
    rng = np.random.default_rng(0)
    log = rw.log_from_arrays(
        np.zeros((n, horizon), int), rng.integers(0, 2, (n, horizon)), np.ones((n, horizon)),
        np.full((n, horizon), 1e-3), np.full((n, horizon), 0.5),
    )  # fmt: skip
    with pytest.raises(rw.RefusedError, match="no value is possible"):  # weights of 500^400
        rw.certify(log, rw.ColumnPolicy("target_prob"), (-1, 2))
    rare = rw.log_from_arrays(
        np.zeros((n, horizon), int), np.zeros((n, horizon), int), np.ones((n, horizon)),
        np.full((n, horizon), 0.999), np.full((n, horizon), 1e-3),
    )  # fmt: skip
    found = rw.certify(rare, rw.ColumnPolicy("target_prob"), (-1, 2))
    assert found.low <= 0.002 * horizon
    assert math.isfinite(found.high)


# Gains: a logged policy takes the actions 0, 1, 2 with chances μ; they pay 0 or 1, 1, and 0.2
MU, PI, WIN = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.5, 0.4]), np.array([0.2, 1.0, 0.2])
EPISODES = [(0, 0.0, 0.6 * 0.8), (0, 1.0, 0.6 * 0.2), (1, 1.0, 0.3), (2, 0.2, 0.1)]


def one_step(action: np.ndarray, reward: np.ndarray, pi: np.ndarray) -> rw.EpisodeLog:
    n = len(action)
    given = (values.reshape(n, 1) for values in (action, reward, MU[action], pi[action]))
    return rw.log_from_arrays(np.zeros((n, 1), int), *given)


@pytest.mark.parametrize("covered", [True, False])
def test_exact_coverage_of_value_and_gain(covered: bool) -> None:
    """All 4^4 logs of four episodes. Without cover the target also takes, half of the time, an
    action that the log never shows and that pays nothing or all there is: the bounds hold."""
    n, alpha, cover = 4, 0.4, 1.0 if covered else 0.5
    behavior = float(MU @ WIN)
    values = [cover * float(PI @ WIN) + (1 - cover) * pay for pay in ([0] if covered else [0, 1])]
    missed = {name: [0.0] * len(values) for name in ("value", "gain", "p")}
    for episodes in itertools.product(EPISODES, repeat=n):
        chance = math.prod(p for _, _, p in episodes)
        action, reward, _ = (np.array(part) for part in zip(*episodes, strict=True))
        log = one_step(action, reward, cover * PI)
        target = rw.ColumnPolicy("target_prob")
        try:
            found = rw.certify(log, target, (0, 1), 1 - alpha)
        except rw.RefusedError:
            for shares in (missed["value"], missed["gain"]):
                shares[:] = [share + chance for share in shares]
            continue
        for i, value in enumerate(values):
            below, above = found.gain
            missed["value"][i] += chance * (not found.low <= value <= found.high)
            missed["gain"][i] += chance * (not below <= value - behavior <= above)
            if value <= behavior:
                missed["p"][i] += chance * (found.p_value <= alpha)
    assert all(0 <= share <= alpha for shares in missed.values() for share in shares)
    assert max(missed["value"]) > 0


def test_gains_shrink_to_the_truth() -> None:
    rng, n = np.random.default_rng(14), 100_000
    action = rng.choice(3, n, p=MU)
    reward = np.where(action == 0, (rng.random(n) < 0.2) * 1.0, WIN[action])
    target = rw.ColumnPolicy("target_prob")
    found = rw.certify(one_step(action, reward, PI), target, (0, 1))
    gain = float(PI @ WIN - MU @ WIN)
    assert gain - 0.02 < found.gain[0] < gain < found.gain[1] < gain + 0.02
    assert found.p_value < 1e-6
    same = rw.certify(one_step(action, reward, MU), target, (0, 1))
    assert same.p_value > 0.05, "the same policy is not better"


@pytest.mark.parametrize("side", ["lower", "both", "upper"])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_a_gain_is_significant_where_its_bound_leaves_out_zero(side: Any, level: float) -> None:
    """p is by the bets of the gain's lower end: they agree at what that end may err by."""
    rng = np.random.default_rng(15)
    alpha = (1 - level) / 2 if side == "both" else 1 - level
    decided = set()
    for n in (10, 30, 60, 100, 150, 200, 300, 1000):
        action = rng.choice(3, n, p=MU)
        log = one_step(action, WIN[action], PI)
        found = rw.certify(log, rw.ColumnPolicy("target_prob"), (0, 1), level, side=side)
        one_sided = rw.certify(log, rw.ColumnPolicy("target_prob"), (0, 1), 1 - alpha, side="lower")
        assert found.p_value == one_sided.p_value, "the same bets as the bound's"
        assert (found.p_value <= alpha) == (one_sided.gain[0] > 0)
        if side == "upper":
            assert found.gain[0] == found.trivial[0] - found.trivial[1]
            continue
        assert (found.p_value <= alpha) == (found.gain[0] > 0)
        decided.add(found.gain[0] > 0)
        if side == "lower":
            assert found.gain[1] == found.trivial[1] - found.trivial[0]
    assert decided == (set() if side == "upper" else {True, False})


def test_a_gain_whose_bounds_cross_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value's bounds leave the whole range, those of the gain nothing."""
    found = iter([0.0, 9.0, 0.0, 9.0])  # of X, of X + T - G, of Y, of Y + G
    monkeypatch.setattr(certificate, "lower_bound", lambda *_, **__: next(found))
    with pytest.raises(rw.RefusedError, match="no gain is possible"):
        rw.certify(WORLD.simulate(20, 0), WORLD.target, (0, 1))
