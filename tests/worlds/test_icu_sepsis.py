"""ICU-Sepsis against the package's files, its own environment, and its published returns."""

from __future__ import annotations

import importlib
import pickle
import sys
import types
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import reweigh as rw
from reweigh.errors import ReweighWarning, UsageError
from reweigh.worlds import ICUSepsis, World, benchmark_worlds
from reweigh.worlds.benchmark_worlds import BASELINES, CANDIDATES, DEATH, GONE, SURVIVAL

from .extras import needs

TERMINAL = (713, 714, 715)
LIVING = slice(0, 713)
Floats = NDArray[np.float64]
needs_tables = needs("icu_sepsis")


def assets() -> Path:
    """The package's own files, found by its list of files."""
    files = metadata.files("icu-sepsis")
    assert files is not None
    found = next(file for file in files if file.name == "dynamics.npz")
    return Path(str(found.locate())).parent


@pytest.fixture(scope="module")
def package() -> dict[str, Any]:
    with np.load(assets() / "dynamics.npz") as file:
        return {name: file[name] for name in ("d_0", "tx_mat", "r_mat", "expert_policy")}


@needs_tables
def test_tables_are_the_package_s(package: dict[str, Any]) -> None:
    world = ICUSepsis()
    P, r, expert = package["tx_mat"], package["r_mat"], package["expert_policy"]
    np.testing.assert_array_equal(world.initial, package["d_0"])
    np.testing.assert_array_equal(world.transition[0, LIVING], P[LIVING])
    np.testing.assert_array_equal(world.reward[0, LIVING], r[LIVING])
    np.testing.assert_array_equal(world.behavior_array[0, LIVING], expert[LIVING])
    assert world.terminal == TERMINAL == (DEATH, SURVIVAL, GONE)
    assert world.discount == 1.0
    assert not world.reward_sd.any()
    assert "gym" not in sys.modules  # reading them does not import what the package imports
    # what the docstring says of them
    assert np.abs(P.sum(axis=2) - 1).max() < 1e-12
    assert abs(package["d_0"].sum() - 1) < 1e-12
    assert not package["d_0"][list(TERMINAL)].any()
    arrival = np.zeros(716)
    arrival[SURVIVAL] = 1
    np.testing.assert_array_equal(r[LIVING], np.broadcast_to(arrival, (713, 25, 716)))
    assert not P[LIVING, :, GONE].any()
    sums = expert.sum(axis=1)
    assert tuple(np.flatnonzero(sums == 0)) == TERMINAL  # empty rows: the terminal states, no other
    assert np.abs(sums[LIVING] - 1).max() < 1e-12


@needs_tables
def test_inadmissible_actions_do_what_the_admissible_do_on_average() -> None:
    world = ICUSepsis()
    admissible, P, mu = world.admissible, world.transition[0], world.behavior_array[0]
    lines = (assets() / "admissible_actions.txt").read_text().splitlines()[1:]
    listed = [np.flatnonzero(row).tolist() for row in admissible]
    assert listed == [[int(a) for a in line.split()] for line in lines]
    for s in range(713):
        mean = P[s, admissible[s]].mean(axis=0)
        inadmissible = P[s, ~admissible[s]]
        np.testing.assert_allclose(inadmissible, np.broadcast_to(mean, inadmissible.shape))
    assert (mu[LIVING][admissible[LIVING]] > 0).all()
    assert 0.15 < mu[LIVING][~admissible[LIVING]].sum() / 713 < 0.16  # clinicians take them too


def chain(world: ICUSepsis) -> tuple[Floats, Floats]:
    """P_π among the living, and the chance to survive at once, by a loop over actions."""
    P, pi = world.transition[0], world.target_array[0]
    moves = np.zeros((713, 716))
    for a in range(25):
        moves += pi[LIVING, a, None] * P[LIVING, a]
    return moves[:, LIVING], moves[:, SURVIVAL]


PUBLISHED = {  # in the package's description: mean return and mean length of 50,000 episodes
    "random": (0.78, 9.45),
    "expert": (0.78, 9.22),
    "optimal": (0.88, 10.99),
}


@needs_tables
@pytest.mark.parametrize("name", BASELINES)
def test_published_returns_and_lengths(name: str) -> None:
    world = ICUSepsis(20, name)
    moves, survive = chain(world)
    solve = np.linalg.inv(np.eye(713) - moves)
    start = world.initial[LIVING]
    survival = float(start @ solve @ survive)
    # E[N] and E[N²] of the length N = 1 + N': E[N²|s] = 1 + 2 Σ P E[N'] + Σ P E[N'²]
    mean = solve @ np.ones(713)
    second = solve @ (1 + 2 * moves @ mean)
    length = float(start @ mean)
    spread = float(start @ second) - length**2
    rounding = 0.005
    published_return, published_length = PUBLISHED[name]
    error = 4 / np.sqrt(50_000)
    assert abs(survival - published_return) < rounding + error * np.sqrt(survival * (1 - survival))
    assert abs(length - published_length) < rounding + error * np.sqrt(spread)
    # and to the digits that one may check elsewhere
    exact = {"random": (0.780071, 9.462296), "expert": (0.781845, 9.237950)}
    exact["optimal"] = (0.875142, 10.991744)
    assert (survival, length) == pytest.approx(exact[name], abs=1e-6)


@needs_tables
@pytest.mark.parametrize("name", [*BASELINES, *CANDIDATES])
def test_values_until_the_horizon_by_the_forward_chain(name: str) -> None:
    world = ICUSepsis(20, name)
    moves, survive = chain(world)
    d, total = world.initial[LIVING], 0.0
    for _ in range(20):
        total += float(d @ survive)
        d = d @ moves
    assert world.value() == pytest.approx(total, abs=1e-12)
    assert world.value().standard_error == 0.0
    golden = {"expert": 0.691983, "random": 0.685447, "optimal": 0.726920}
    golden |= {"softened": 0.691397, "tilted": 0.711255, "optimal-mix": 0.702638}
    assert world.value() == pytest.approx(golden[name], abs=1e-6)
    assert world.behavior_value() == pytest.approx(golden["expert"], abs=1e-6)


@needs_tables
def test_candidates_are_as_described() -> None:
    arrays = {name: ICUSepsis(20, name).target_array[0] for name in (*BASELINES, *CANDIDATES)}
    world = ICUSepsis()
    mu, P = world.behavior_array[0], world.transition[0]
    for name, pi in arrays.items():
        np.testing.assert_allclose(pi.sum(axis=1), 1, atol=1e-12)
        np.testing.assert_array_equal(pi[713:], mu[713:])
        overlap = not ((pi > 0) & (mu == 0)).any()
        assert overlap == (name != "random")
    even = (mu > 0) / (mu > 0).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(arrays["softened"], 0.9 * mu + 0.1 * even, atol=1e-15)
    # the chance to survive from each state under the clinicians, and after one action
    moves, survive = chain(ICUSepsis(20, "expert"))
    V = np.zeros(716)
    V[LIVING] = np.linalg.solve(np.eye(713) - moves, survive)
    V[SURVIVAL] = 1
    advantage = P[LIVING] @ V - V[LIVING, None]
    pi = mu[LIVING] * np.exp(30 * advantage)
    np.testing.assert_allclose(arrays["tilted"][LIVING], pi / pi.sum(axis=1, keepdims=True))
    best = arrays["optimal"][LIVING]
    assert (best.max(axis=1) == 1).all()
    assert world.admissible[LIVING][best == 1].all()
    np.testing.assert_allclose(
        arrays["optimal-mix"][LIVING], 0.7 * mu[LIVING] + 0.3 * best, atol=1e-15
    )
    # no action of any kind is better than the optimal one: Bellman's equation
    moves, survive = chain(ICUSepsis(20, "optimal"))
    V[LIVING] = np.linalg.solve(np.eye(713) - moves, survive)
    np.testing.assert_allclose((P[LIVING] @ V).max(axis=1), V[LIVING], atol=1e-9)


@pytest.fixture
def environment() -> Iterator[Any]:
    """The package's environment, without the part of the package that imports gym."""
    shell = types.ModuleType("icu_sepsis")
    shell.__path__ = [str(assets().parents[1])]
    sys.modules["icu_sepsis"] = shell
    yield importlib.import_module("icu_sepsis.envs.sepsis").ICUSepsisEnv()
    for name in [name for name in sys.modules if name.split(".")[0] == "icu_sepsis"]:
        del sys.modules[name]


@needs_tables
@needs("gymnasium")
def test_episodes_of_the_package_s_environment(environment: Any) -> None:
    world = ICUSepsis(500, "expert")
    P, r, mu = world.transition[0], world.reward[0], world.behavior_array[0]
    np.testing.assert_array_equal(environment.expert_policy[LIVING], mu[LIVING])
    assert environment.gamma == world.discount
    rng = np.random.default_rng(0)
    returns, lengths = [], []
    state, _ = environment.reset(seed=0)
    for _ in range(400):
        assert world.initial[state] > 0
        total, steps, over = 0.0, 0, False
        while not over:
            action = int(rng.choice(25, p=mu[state]))
            after, reward, over, _, info = environment.step(np.array([action // 5, action % 5]))
            assert P[state, action, after] > 0
            assert reward == r[state, action, after]
            assert over == (after in world.terminal)
            listed = np.flatnonzero(world.admissible[after]).tolist()
            assert info["admissible_actions"] == listed
            state, total, steps = after, total + reward, steps + 1
        returns.append(total)
        lengths.append(steps)
        state, _ = environment.reset()
    for sample, truth in ((returns, 0.781845), (lengths, 9.237950)):
        assert abs(np.mean(sample) - truth) < 5 * np.std(sample) / np.sqrt(400)


@needs_tables
def test_logs_of_clinicians_tell_what_the_target_is_worth() -> None:
    world = ICUSepsis()
    rollout = world._rollout(20_000, 0)
    assert rollout.lengths is not None
    returns = rollout.returns()
    assert set(np.unique(returns)) == {0.0, 1.0}
    assert abs(returns.mean() - world.behavior_value()) < 5 * returns.std() / np.sqrt(20_000)
    living = np.arange(20) < rollout.lengths[:, None]
    rho = np.where(living, rollout.target_prob / rollout.behavior_prob, 1.0).cumprod(axis=1)
    weighted = (rho * rollout.rewards).sum(axis=1)
    assert abs(weighted.mean() - world.value()) < 5 * weighted.std() / np.sqrt(20_000)
    log = world.simulate(5_000, 1)
    assert (log.n_episodes, log.horizon) == (5_000, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReweighWarning)  # many states are seen few times
        estimate = rw.evaluate(log, world.target, rw.mis())
        logged = rw.evaluate(log, rw.ColumnPolicy("target_prob"), rw.mis())
    assert estimate.standard_error is not None
    assert abs(estimate.value - world.value()) < 5 * estimate.standard_error
    assert estimate.value == pytest.approx(logged.value, rel=1e-9)


@needs_tables
def test_instances_share_their_tables_and_pickle_as_arguments() -> None:
    one, other = ICUSepsis(20), ICUSepsis(7, "softened")
    assert isinstance(one, World)
    assert np.shares_memory(one.transition, other.transition)
    assert one._samplers is other._samplers
    assert repr(other) == "ICUSepsis(horizon=7, target='softened')"
    assert len(pickle.dumps(other)) < 200
    copy = pickle.loads(pickle.dumps(other))
    assert (repr(copy), copy.value()) == (repr(other), other.value())
    assert one.simulate(50, 3).digest() == ICUSepsis(20).simulate(50, 3).digest()
    with pytest.raises(ValueError, match="read-only"):
        one.target_array[0, 0, 0] = 1.0


@needs_tables
@pytest.mark.parametrize("bad", [{"horizon": 0}, {"target": "best"}])
def test_errors_name_the_parameter(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"'{next(iter(bad))}' must be"):
        ICUSepsis(**bad)


@pytest.fixture
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(benchmark_worlds, "_icu_tables", benchmark_worlds._icu_tables.__wrapped__)
    return monkeypatch


def test_without_the_package_the_extra_is_named(nothing_read: pytest.MonkeyPatch) -> None:
    nothing_read.setattr(benchmark_worlds, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'reweigh\[worlds\]'.*--no-deps .icu-sepsis"):
        ICUSepsis()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("nothing", "cannot read its tables"),
        ("no archive", "cannot read its tables"),
        ("a table is missing", "cannot read its tables"),
        ("pickled", "cannot read its tables"),
        ("other counts", "lists a different number of actions"),
        ("small", r"its tables are of shape \(2, 25, 2\)"),
    ],
)
def test_other_tables_are_refused(
    nothing_read: pytest.MonkeyPatch, tmp_path: Path, broken: str, message: str
) -> None:
    arrays: dict[str, Any] = {"d_0": np.ones(2), "tx_mat": np.ones((2, 25, 2))}
    arrays |= {"r_mat": np.ones((2, 25, 2)), "expert_policy": np.ones((2, 25))}
    if broken == "a table is missing":
        del arrays["r_mat"]
    if broken == "pickled":
        arrays["d_0"] = np.array([{}], dtype=object)
    if broken != "nothing":
        np.savez(tmp_path / "dynamics.npz", **arrays)
    if broken == "no archive":
        (tmp_path / "dynamics.npz").write_text("no archive")
    counts = "1 3" if broken == "other counts" else "1 2"
    (tmp_path / "admissible_actions.txt").write_text(f"{counts}\n0\n3 4\n")
    nothing_read.setattr(benchmark_worlds, "_icu_folder", lambda: tmp_path)
    with pytest.raises(UsageError, match=f"package icu-sepsis.*{message}.*icu-sepsis>=2,<3"):
        ICUSepsis()
