"""Gates step by step and their places: by hand over the rows, and that what is told adds up."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from scipy import stats

import reweigh as rw
from reweigh import kernels
from reweigh.estimate.solution import largest
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.trust.gates import Context, GateResult, measured

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
H, STATES, ACTIONS, GAMMA = 4, 5, 3, 0.9
PI = np.random.default_rng(1).dirichlet(np.full(ACTIONS, 0.7), STATES)
MU = np.random.default_rng(2).dirichlet(np.full(ACTIONS, 0.7), STATES)
TARGET = rw.TablePolicy({s: {a: float(PI[s, a]) for a in range(ACTIONS)} for s in range(STATES)})


def simulated(n: int = 80, seed: int = 0) -> rw.EpisodeLog:
    """Some states and actions are rare, some are never seen at a step."""
    rng = np.random.default_rng(seed)
    s = np.minimum(rng.geometric(0.5, (n, H + 1)) - 1, STATES - 1)
    a = np.array([[rng.choice(ACTIONS, p=MU[k]) for k in row] for row in s[:, :H]])
    return rw.log_from_arrays(s, a, rng.normal(size=(n, H)), MU[s[:, :H], a], discount=GAMMA)


@pytest.fixture(autouse=True)
def rows_are_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a large log in memory is solved by, for these small ones too."""
    monkeypatch.setattr(kernels, "COMPILED_FROM", 0)


LOG = simulated()
Cell = tuple[int, int, int]


def rows_of(log: rw.EpisodeLog) -> list[tuple[int, int, int, int, float]]:
    """(t, s, a, s', ρ) of every row."""
    steps = log.steps
    labels, actions = log.states.array(), log.actions.array()
    rho = TARGET.probabilities(log) / steps.behavior_prob
    s, after, a = labels[steps.state], labels[steps.next_state], actions[steps.action]
    return list(zip(steps.step.tolist(), s.tolist(), a.tolist(), after.tolist(), rho.tolist(),
                    strict=True))  # fmt: skip


ROWS = rows_of(LOG)
N = Counter((t, s) for t, s, *_ in ROWS)
NA = Counter((t, s, a) for t, s, a, *_ in ROWS)


def flow(from_model: bool) -> dict[tuple[int, int], float]:
    """d_t(s) of plain MIS, or of DM, one row at a time."""
    d: dict[tuple[int, int], float] = defaultdict(float)
    for t, s, *_ in ROWS:
        d[t, s] += (t == 0) / LOG.n_episodes
    for t in range(H):
        for step, s, a, after, rho in ROWS:
            if step == t:
                each = PI[s, a] / NA[t, s, a] if from_model else rho / N[t, s]
                d[t + 1, after] += d[t, s] * each
    return d


def gates_of(data: rw.EpisodeLog | rw.Moments, name: str) -> dict[str, GateResult]:
    target = None if isinstance(data, rw.Moments) else TARGET
    return {gate.name: gate for gate in rw.evaluate(data, target, name).verdict.gates}


SUMS = rw.moments(LOG, TARGET)


def of_sums(sums: rw.Moments) -> dict[str, GateResult]:
    """What gates say of sums, before any estimate."""
    return {gate.name: gate for gate in measured("sums", Context(sums))}


def gates_in_study(
    data: rw.EpisodeLog | rw.Moments, target: rw.Policy | None, name: str
) -> dict[str, GateResult]:
    """Of an estimate that can leave the range of what the rewards allow."""
    [found] = evaluate_in_study(data, target, [name])
    assert isinstance(found, rw.Estimate)
    return {gate.name: gate for gate in found.gates}


def name_of(place: tuple[int, ...]) -> tuple[int | str, ...]:
    return (place[0], *map(str, place[1:]))


@pytest.mark.parametrize("data", [LOG, SUMS], ids=["log", "sums"])
def test_rare_states_by_hand(data: rw.EpisodeLog | rw.Moments) -> None:
    found, d = gates_of(data, "mis-plain")["rare states"], flow(False)
    mass = {(t, s): d[t, s] for t in range(H) for s in range(STATES) if N[t, s] < 10}
    by_hand = [sum(m for (step, _), m in mass.items() if step == t) for t in range(H)]
    np.testing.assert_allclose(found.per_step, by_hand, rtol=1e-12)
    assert found.value == pytest.approx(np.mean(by_hand), rel=1e-12)
    assert (found.step, found.state) == name_of(max(mass, key=mass.__getitem__))
    assert found.action is None
    assert found.text.endswith(f", most at step {found.step} in state {found.state}")


@pytest.mark.parametrize("data", [LOG, SUMS], ids=["log", "sums"])
def test_a_models_rare_and_lost_mass_by_hand(data: rw.EpisodeLog | rw.Moments) -> None:
    found, d = gates_of(data, "dm"), flow(True)
    share: dict[Cell, float] = {}  # of what is shown, but seldom
    lost = np.zeros((H, STATES))
    rare = np.zeros((H, STATES))
    for t in range(H):
        for s in range(STATES):
            shown = [a for a in range(ACTIONS) if NA[t, s, a]]
            lost[t, s] = d[t, s] * (1 - PI[s, shown].sum())
            few = [a for a in shown if NA[t, s, a] < 10]
            rare[t, s] = d[t, s] * (1.0 if N[t, s] < 10 else PI[s, few].sum())
            share |= {(t, s, a): PI[s, a] for a in few}
    gate = found["rare states"]
    np.testing.assert_allclose(gate.per_step, rare.sum(axis=1), rtol=1e-12)
    assert gate.value == pytest.approx(np.mean(rare.sum(axis=1)), rel=1e-12)
    t, s = divmod(int(rare.argmax()), STATES)
    a = max((a for a in range(ACTIONS) if (t, s, a) in share), key=lambda a: share[t, s, a])
    assert (gate.step, gate.state, gate.action) == name_of((t, s, a))
    gate = found["support"]
    np.testing.assert_allclose(gate.per_step, lost.sum(axis=1), rtol=1e-12, atol=1e-15)
    t = int(lost.sum(axis=1).argmax())
    assert (gate.step, gate.state) == name_of((t, int(lost[t].argmax())))
    assert f"most of it at step {gate.step} in state {gate.state}" in gate.text
    gate = of_sums(SUMS)["fitted values"]
    each = rare / H + lost
    np.testing.assert_allclose(gate.per_step, each.sum(axis=1), rtol=1e-12)
    assert gate.value == pytest.approx(min(each.sum(), 1.0), rel=1e-12)
    assert (gate.step, gate.state) == name_of(divmod(int(each.argmax()), STATES))


@pytest.mark.parametrize("data", [LOG, SUMS], ids=["log", "sums"])
@pytest.mark.parametrize("name", ["mis-plain", "mis-state"])
def test_the_placebo_by_hand(data: rw.EpisodeLog | rw.Moments, name: str) -> None:
    """What normalizes within states has the placebo of the same weights before that."""
    gate, d = gates_of(data, name)["placebo"], flow(False)
    by_hand = np.zeros(H)
    for t, s, _, _, rho in ROWS:
        by_hand[t] += GAMMA**t * d[t, s] * rho / N[t, s]
    np.testing.assert_allclose(gate.per_step, by_hand, rtol=1e-12)
    assert gate.step == np.argmax(np.abs(by_hand - GAMMA ** np.arange(H)))
    assert gate.per_step.sum() == pytest.approx(rw.evaluate(LOG, TARGET, name).diagnostics.placebo)


def test_policies_by_hand() -> None:
    """Ratios that differ within the second step alone: a square of the whole is the mean of the
    steps' squares, weighted by Σρ²."""
    steps = LOG.steps
    mu = np.where((steps.step == 1) & (steps.episode_index % 2 == 0), 1.2, 1.0)
    log = rw.log_from_arrays(
        *(np.asarray(v).reshape(H, -1).T for v in (steps.state, steps.action, steps.reward)),
        (steps.behavior_prob / mu).reshape(H, -1).T,
    )
    target = rw.TablePolicy(
        {int(k): {a: float(PI[s, a]) for a in range(ACTIONS)}
         for k, s in enumerate(LOG.states.array())}
    )  # fmt: skip
    found = of_sums(rw.moments(log, target))["policies"]
    rho = target.probabilities(log) / log.steps.behavior_prob
    keys = np.stack([log.steps.step, log.steps.state, log.steps.action])
    _, where = np.unique(keys, axis=1, return_inverse=True)
    off = (rho - (np.bincount(where, rho) / np.bincount(where))[where]) ** 2
    within, square = (np.bincount(log.steps.step, v) for v in (off, rho**2))
    np.testing.assert_allclose(found.per_step, np.sqrt(within / square), atol=1e-7)
    assert found.value**2 == pytest.approx(found.per_step**2 @ square / square.sum())
    assert found.step == 1
    green = of_sums(SUMS)["policies"]
    assert (green.value, green.per_step.tolist()) == (0.0, [0.0] * H)


def test_stationarity_is_the_mean_of_its_steps() -> None:
    found = gates_of(LOG, "ssd-is")["stationarity"]
    marginals = rw.evaluate(LOG, TARGET, "mis").marginals
    d = np.zeros((H, STATES))
    d[marginals.step, marginals.codes] = marginals.target
    off = np.abs(d - d.mean(axis=0))
    np.testing.assert_allclose(found.per_step, off.sum(axis=1) / 2, rtol=1e-9)
    assert found.value == pytest.approx(found.per_step.mean(), rel=1e-12)
    step = int(off.sum(axis=1).argmax())
    assert (found.step, found.state) == (step, LOG.states.name(int(off[step].argmax())))


def test_drift_by_hand() -> None:
    """Welch's test of the rewards of every step: the first 40 ids and the others."""
    found = of_sums(SUMS)["drift"]
    y = LOG.steps.reward.reshape(H, -1)
    first = LOG.steps.episode.astype(int) < 40
    expected = stats.ttest_ind(y[:, first], y[:, ~first], axis=1, equal_var=False).pvalue
    np.testing.assert_allclose(found.per_step, expected, rtol=1e-9)
    assert found.step == np.argmin(expected)
    whole = stats.ttest_ind(*(GAMMA ** np.arange(H) @ y[:, of] for of in (first, ~first)),
                            equal_var=False)  # fmt: skip
    assert found.value == pytest.approx(whole.pvalue, rel=1e-9)


def test_what_belongs_to_no_step_has_none() -> None:
    found = gates_of(LOG, "wis") | gates_of(LOG, "mis-pooled")
    for name in ("episodes", "steadiness", "estimated propensities"):
        assert (found[name].per_step, found[name].step) == (None, None)
    tail = found["Pareto k"]  # of the whole products
    assert (tail.per_step, tail.step) == (None, H - 1)


@pytest.mark.parametrize("name", rw.ESTIMATORS)
def test_every_per_step_has_a_number_for_each_step(name: str) -> None:
    [result] = rw.evaluate_all(LOG, TARGET, [name])
    assert isinstance(result, rw.Estimate)
    for gate in result.verdict.gates:
        assert gate.per_step is None or gate.per_step.shape == (H,)
        assert gate.step is None or 0 <= gate.step < H
        assert gate.step is not None or gate.action is None


# --- what is lost --------------------------------------------------------------------------------


def lacking(seen: tuple[str, ...]) -> rw.EpisodeLog:
    """Two steps: from "start" to "b" and "c" in turns. In "b" half of the probability is on "go",
    which the second step never shows; the first, in which the last 20 episodes are in "b", shows
    the actions `seen` there."""
    n = 60
    states = [["start", "bc"[i % 2], "end"] for i in range(n - 20)]
    states += [["b", "c", "end"] for _ in range(20)]
    actions = [["stay", "stay"] for _ in range(n - 20)]
    actions += [[seen[i % len(seen)], "stay"] for i in range(20)]
    mu = [[0.5, 0.5] if row[0] == "b" else [1.0, 0.5 if row[1] == "b" else 1.0] for row in states]
    return rw.log_from_arrays(np.array(states), np.array(actions), np.ones((n, 2)), np.array(mu))


LOST = rw.TablePolicy(
    {"start": {"stay": 1.0}, "b": {"stay": 0.2, "go": 0.5, "jump": 0.3}, "c": {"stay": 1.0},
     "end": {"stay": 1.0}}
)  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "action"),
    [(("stay", "go", "jump"), "go"), (("stay", "go"), None), (("stay",), None)],
)
def test_a_model_names_an_action_that_no_other_can_be(
    seen: tuple[str, ...], action: str | None
) -> None:
    """Only where the state's rows of other steps account for all that is lost."""
    log = lacking(seen)
    for data, target in ((log, LOST), (rw.moments(log, LOST), None)):
        found = gates_in_study(data, target, "dm")["support"]
        if len(seen) == 3:  # else the first step loses more
            assert (found.step, found.state, found.action) == (1, "b", action)
            assert found.value == pytest.approx(20 / 60 * 0.8)
            assert "at step 1 in state b, action go (" in found.text
        assert found.state == "b"
        assert found.action == action


def test_ratios_name_the_state_whose_sum_is_short() -> None:
    """In "b" the ratios are 0.4 where they should average to 1."""
    log = lacking(("stay", "go", "jump"))
    for name in ("mis", "mis-state", "mis-plain"):
        for data, target in ((log, LOST), (rw.moments(log, LOST), None)):
            found = gates_in_study(data, target, name)["support"]
            assert (found.step, found.state, found.action) == (1, "b", None)
    assert found.per_step[1] == pytest.approx(20 / 60 * 0.6)
    marginal = of_sums(rw.moments(log, LOST))["marginal support"]
    assert (marginal.step, marginal.state) == (1, "b")


def test_of_equal_ones_the_first_is_named_whatever_rounding_says() -> None:
    assert largest(np.array([0.1, 0.3, 0.1 + 0.2, 0.3])) == 1
    assert largest(np.array([0.0, 0.0])) == 0
