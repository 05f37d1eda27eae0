"""Cells and running products: the compiled and the NumPy scan sum what a plain loop over the rows
sums."""

from __future__ import annotations

import hashlib
import math
import random
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction as F
from typing import Any

import numpy as np
import pytest
import reference as ref
from build import TARGET, random_log, to_reweigh

import reweigh as rw
from reweigh import kernels as compute
from reweigh.log.states import END, HIDDEN, START, UNKNOWN
from reweigh.sums import numpy_scan, products, scan
from reweigh.sums.engines import ArraysEngine, Request
from reweigh.sums.keyed import TransitionMoments
from reweigh.worlds import random_mdp

KEYS, SUMS = TransitionMoments.KEYS, TransitionMoments.SUMS

KINDS: dict[str, dict[str, Any]] = {
    "complete": {},
    "known-next": {"with_next": True},
    "varying-ratios": {"function_ratios": False},
    "zeros": {"zeros": True},
    "ragged": {"ends": ("complete", "terminated"), "with_next": True, "n": 12},
    "truncated": {"ends": ("complete", "terminated", "truncated"), "with_next": True, "n": 12},
    "hidden": {"hide": 0.4, "ends": ("complete", "terminated", "truncated"), "with_next": True},
    "one-episode": {"n": 1},
    "larger": {"n": 80, "horizon": 7, "ends": ("complete", "terminated"), "zeros": True},
}


@pytest.fixture(params=["dense", "ranked", "numpy"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The compiled scan, with a line for every possible cell and for those that occur, and the
    NumPy scan, whatever the size."""
    if request.param != "numpy":
        pytest.importorskip("numba")
    use(monkeypatch, request.param)
    return str(request.param)


def use(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(compute, "COMPILED_FROM", 10**18 if what == "numpy" else 0)
    monkeypatch.setattr(scan, "NODES_PER_ROW", 1000)
    monkeypatch.setattr(scan, "CELLS_PER_ROW", 0)
    monkeypatch.setattr(scan, "FEW_CELLS", 0 if what == "ranked" else 10**6)


def logs(kind: str, count: int = 12) -> list[tuple[ref.Log, rw.EpisodeLog]]:
    rng = random.Random(kind)
    made = [random_log(rng, **KINDS[kind]) for _ in range(count)]
    return [(log, to_reweigh(log)) for log in made]


def block_of(episode: int, blocks: int) -> int:
    return int(hashlib.md5(str(episode).encode()).hexdigest()[:8], 16) % blocks


Cells = dict[tuple[int, ...], list[F]]


def plain_cells(
    log: ref.Log, code: Callable[[Any], int], blocks: int, *, action: bool, stretches: bool
) -> Cells:
    """The table's definition, episode by episode in exact fractions: keys to the sums of SUMS."""
    found: Cells = defaultdict(lambda: [F(0)] * len(SUMS))
    for e, episode in enumerate(log.episodes):
        rows, length = episode.rows, len(episode.rows)
        t = 0
        while t < length:
            end = t + 1
            while stretches and end < length and rows[end].state is None:
                end += 1
            product, power = F(1), F(1)
            z = y = one = F(0)
            for row in rows[t:end]:
                product *= row.pi / row.mu
                z, y, one = (
                    z + power * product * row.reward,
                    y + power * row.reward,
                    (one + power * product),
                )
                power *= log.discount
            s = START if stretches and rows[t].state is None else code(rows[t].state)
            if end < length:
                after = code(rows[end].state)
            elif episode.end == "terminated":
                after = END
            elif episode.next_state is not None:
                after = code(episode.next_state)
            else:
                after = UNKNOWN
            a = rows[t].action if action else -1
            pi, mu = (F(0), F(0)) if stretches else (rows[t].pi, rows[t].mu)
            own = (pi, pi**2, mu)
            sums = (F(1), product, product**2, z, product * z, z**2, y, y**2, one, *own)
            key = (block_of(e, blocks), t, s, a, end, after)
            found[key] = [x + v for x, v in zip(found[key], sums, strict=True)]
            t = end
    return found


def tables(log: rw.EpisodeLog, blocks: int) -> dict[str, TransitionMoments]:
    """Cells without and with the action; the former of stretches where states are hidden, and once
    more with the hidden state as a state."""
    kinds = frozenset({"transitions", "model"})
    sums = ArraysEngine().moments(log, TARGET, Request(kinds, blocks))
    assert sums.transitions is not None
    assert sums.model is not None
    rows = sums.model.forget("a")
    return {"transitions": sums.transitions, "model": sums.model, "rows": rows}


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_what_a_loop_over_the_rows_finds(code: str, kind: str, blocks: int) -> None:
    for plain, log in logs(kind):
        hidden = len(log.states) if log.has_hidden else HIDDEN

        def code_of(state: Any, hidden: int = hidden, log: rw.EpisodeLog = log) -> int:
            return hidden if state is None else log.states.code_of[str(state)]

        for name, table in tables(log, blocks).items():
            long, action = name == "transitions" and log.has_hidden, name == "model"
            expected = plain_cells(plain, code_of, blocks, action=action, stretches=long)
            acts = log.actions.code_of
            keys = sorted(
                (*key[:3], acts[str(key[3])] if key[3] >= 0 else -1, *key[4:], *sums)
                for key, sums in expected.items()
            )
            np.testing.assert_array_equal(
                np.stack([getattr(table, k) for k in KEYS], axis=1),
                [key[:6] for key in keys],
            )
            for j, column in enumerate(SUMS):
                values = getattr(table, column)
                assert values.dtype == (np.int64 if column == "n" else np.float64)
                np.testing.assert_allclose(
                    values, [float(key[6 + j]) for key in keys], rtol=1e-12, atol=1e-12
                )


@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_the_same_for_any_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, every sum is taken in the order of the rows: the same to the bit."""
    pytest.importorskip("numba")
    for _, log in logs(kind, 4):
        for blocks in (1, 3):
            use(monkeypatch, "dense")
            expected = tables(log, blocks)
            for what, digits in (("ranked", 0.0), ("numpy", 1e-14)):
                use(monkeypatch, what)
                for name, table in tables(log, blocks).items():
                    for column, values in table.arrays().items():
                        other = getattr(expected[name], column)
                        np.testing.assert_allclose(values, other, rtol=digits, atol=digits)


def test_batches_of_episodes_add_up_to_the_log() -> None:
    pytest.importorskip("numba")
    log = random_mdp(3, 4, 3, 6, reward_sd=0.3, terminal=1).simulate(90, 0)
    target = probabilities(log)
    kinds = frozenset({*scan.CELLS, "lagged", "ordered", "paced", "largest"})
    shape = scan.Shape(kinds, log.states, len(log.actions), log.horizon, 0.9, 2, 3.0)
    whole, parts = scan.CompiledScan(shape), scan.CompiledScan(shape, batches=True)
    whole.add(batch(log, target))
    for part in range(3):
        some = log.select(np.arange(log.n_episodes) % 3 == part)
        parts.add(batch(some, target[np.isin(log.steps.episode_index % 3, part)]))
    expected = whole.tables()
    assert expected.keys() == kinds
    for kind, table in parts.tables().items():
        for name, values in table.arrays().items():
            other = expected[kind].arrays()[name]
            np.testing.assert_allclose(values, other, rtol=1e-12, atol=1e-12)


def probabilities(log: rw.EpisodeLog) -> np.ndarray:
    """Probabilities of a target that sees more than the state."""
    return np.random.default_rng(0).uniform(0.1, 0.9, log.steps.n_rows)


def batch(log: rw.EpisodeLog, pi: np.ndarray) -> scan.Batch:
    s = log.steps
    return scan.Batch(
        s.offsets, s.state, s.action, s.reward, s.behavior_prob, pi, s.ending, s.blocks(2),
        np.asarray(s.episode),
    )  # fmt: skip


def test_long_steps_are_sorted_by_several_digits(code: str) -> None:
    """Many states and actions: keys of some 40 bits, in steps longer than a chunk."""
    rng = np.random.default_rng(0)
    n, horizon = 20_000, 3
    log = rw.log_from_arrays(
        rng.choice(50_000, (n, horizon + 1)),
        rng.integers(0, 500, (n, horizon)),
        rng.normal(size=(n, horizon)),
        np.full((n, horizon), 0.5),
    )
    pi = rng.random(log.steps.n_rows)
    steps = log.steps
    log._cache["column pi"] = pi
    sums = ArraysEngine().moments(log, rw.ColumnPolicy("pi"), Request(frozenset({"model"}), 7))
    found = sums.model
    block = steps.blocks(7)[steps.episode_index]
    columns = [block, steps.step, steps.state, steps.action, steps.step + 1, steps.next_state]
    expected = np.unique(np.stack(columns, axis=1), axis=0)
    np.testing.assert_array_equal(np.stack([getattr(found, k) for k in KEYS], axis=1), expected)
    assert found.n.sum() == steps.n_rows
    assert found.y.sum() == pytest.approx(steps.reward.sum())


@pytest.mark.parametrize("kind", ["larger", "hidden"])
def test_keys_beyond_a_number_are_sorted(
    code: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(_, log)] = logs(kind, 1)
    expected = tables(log, 3)
    monkeypatch.setattr(scan, "LARGEST_KEY", 5)
    monkeypatch.setattr(compute, "LARGEST_KEY", 5)
    monkeypatch.setattr(numpy_scan, "DENSE", 0)
    assert scan.why_not(log) is not None  # the compiled scan has one number per cell
    for name, table in tables(log, 3).items():
        for column, values in table.arrays().items():
            other = getattr(expected[name], column)
            np.testing.assert_allclose(values, other, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("n", "states"), [(500, 3), (5, 40)])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("dense", [0, 10**6])
def test_starts_are_counted_as_they_are_sorted(
    n: int, states: int, blocks: int, dense: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many episodes in few first states, hidden ones among them, and few in many."""
    monkeypatch.setattr(numpy_scan, "DENSE", dense)
    rng = np.random.default_rng(0)
    seen = np.ma.array(rng.integers(0, states, (n, 3)), mask=rng.random((n, 3)) < 0.3)
    half = np.full((n, 2), 0.5)
    log = rw.log_from_arrays(seen, np.zeros((n, 2), int), half, half, half, hidden="allow")
    block = log.steps.blocks(blocks)
    first = log.steps.state[log.steps.rows(0)]
    sums = numpy_scan.NumpyScan(log, log.steps.behavior_prob, None, block)
    for kind, hidden in (("start", START), ("start_model", len(log.states))):
        state = np.where(first == HIDDEN, hidden, first)
        keys, count = np.unique(np.stack([block, state], axis=1), axis=0, return_counts=True)
        found = sums.starts(kind)
        np.testing.assert_array_equal(np.stack([found.block, found.s], axis=1), keys)
        np.testing.assert_array_equal(found.n, count)
        assert not found.g.any()


def test_a_ratio_of_0_ends_a_stretch_whatever_follows(code: str) -> None:
    """0 times a product beyond all numbers is 0: an episode that the target would not make."""
    states = np.ma.array(np.zeros((2, 4), int), mask=[[0, 1, 1, 0], [0, 1, 1, 0]])
    mu = np.array([[0.5, 1e-200, 1e-200], [0.5, 0.5, 0.5]])
    pi = np.array([[0.0, 1.0, 1.0], [0.5, 0.5, 0.5]])
    ones = np.ones((2, 3))
    log = rw.log_from_arrays(states, ones.astype(int), ones, mu, pi, hidden="allow")
    request = Request(frozenset({"transitions"}))
    with np.errstate(over="ignore"):
        table = ArraysEngine().moments(log, rw.ColumnPolicy("target_prob"), request).transitions
    assert (table.n.tolist(), table.rho.tolist(), table.z.tolist()) == ([2], [1.0], [3.0])


# Groups


@pytest.mark.parametrize("largest", [2**62, 1])
def test_groups_of_rows_in_order_and_out_of_it(
    largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "LARGEST_KEY", largest)
    rng = np.random.default_rng(0)
    for size in (1, 2, 50, 400):
        keys = [rng.integers(-4, 3, size), rng.integers(10, 14, size)]
        values, whole = rng.normal(size=size), rng.integers(0, 9, size)
        for first, second in (keys, [np.sort(keys[0]), np.zeros(size, int)]):
            found = compute.group_by([first, second])
            pairs, index = np.unique(np.stack([first, second], axis=1), axis=0, return_inverse=True)
            index = index.reshape(-1)
            np.testing.assert_array_equal(np.stack(found.keys, axis=1), pairs)
            np.testing.assert_array_equal(found.index(), index)
            np.testing.assert_array_equal(found.count(), np.bincount(index))
            np.testing.assert_allclose(found.sum(values), np.bincount(index, values), atol=1e-13)
            np.testing.assert_array_equal(found.sum(whole), np.bincount(index, whole).astype(int))
            assert found.sum(whole).dtype == np.int64
            largest_of = [values[index == i].max() for i in range(len(pairs))]
            np.testing.assert_array_equal(found.max(values), largest_of)
            np.testing.assert_array_equal(found.order, np.argsort(index, kind="stable"))
    assert len(compute.group_by([np.zeros(0, int)])) == 0


def test_the_order_of_codes_is_stable_for_any_size() -> None:
    rng = np.random.default_rng(1)
    for size in (2, 2**20, 2**61):
        codes = rng.integers(0, size, 1000)
        expected = np.argsort(codes, kind="stable")
        np.testing.assert_array_equal(compute.stable_order(codes, size), expected)


# Running products


def plain_products(log: ref.Log, blocks: int) -> dict[int, dict[str, Any]]:
    """By block: weights and rewards of every step, and x, W, G of the episodes, as fractions."""
    found: dict[int, dict[str, Any]] = {}
    for e, episode in enumerate(log.episodes):
        of = found.setdefault(
            block_of(e, blocks), {"w": [[] for _ in range(log.horizon)], "x": [], "W": [], "G": []}
        )
        weight, x, earned = F(1), F(0), F(0)
        for t in range(log.horizon):
            y = F(0)
            if t < len(episode.rows):
                row = episode.rows[t]
                weight *= row.pi / row.mu
                y = row.reward
            x += log.discount**t * weight * y
            earned += log.discount**t * y
            of["w"][t].append((weight, y))
        of["x"].append(x)
        of["W"].append(weight)
        of["G"].append(earned)
    return found


def logarithm(x: F) -> float:
    """Of a fraction that need not be a float."""
    bits = x.numerator.bit_length() - x.denominator.bit_length()
    return math.log(x / F(2) ** bits) + bits * math.log(2.0)


PRODUCTS = [kind for kind in KINDS if kind != "truncated"]


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("scale", [F(1), F(10) ** 150, F(10) ** -150])
def test_running_products_are_what_fractions_say(
    code: str, kind: str, blocks: int, scale: F
) -> None:
    """Also where a product is no number: every ratio times `scale`."""
    for plain, log in logs(kind, 6):
        if log.n_truncated:
            continue
        rho = TARGET.probabilities(log) / log.steps.behavior_prob * float(scale)
        found = products.trajectories(log.steps, log.steps.blocks(blocks), rho, log.discount)
        expected = plain_products(_scaled(plain, scale), blocks)
        steps, whole = found.steps, found.episodes
        assert sorted(expected) == whole.block.tolist()
        for i, b in enumerate(sorted(expected)):
            of = expected[b]
            rows = np.flatnonzero(steps.block == b)
            assert steps.t[rows].tolist() == list(range(log.horizon))
            for row, pairs in zip(rows, of["w"], strict=True):
                assert steps.n[row] == len(pairs)
                _same_scaled(
                    {name: getattr(steps, name)[row] for name in ("log_scale", *steps.POWER)},
                    [w for w, _ in pairs],
                    {
                        "w": sum(w for w, _ in pairs),
                        "w2": sum(w * w for w, _ in pairs),
                        "wy": sum(w * y for w, y in pairs),
                        "wmax": max(w for w, _ in pairs),
                    },
                    steps.POWER,
                )
            W, G = of["W"], of["G"]
            names = ("log_scale", "w", "w2", "wg", "wg2", "w2g", "wmax")
            _same_scaled(
                {name: getattr(whole, name)[i] for name in names},
                W,
                {
                    "w": sum(W),
                    "w2": sum(w * w for w in W),
                    "wg": sum(w * g for w, g in zip(W, G, strict=True)),
                    "wg2": sum((w * g) ** 2 for w, g in zip(W, G, strict=True)),
                    "w2g": sum(w * w * g for w, g in zip(W, G, strict=True)),
                    "wmax": max(W),
                },
                whole.POWER,
            )
            assert whole.n[i] == len(W)
            assert whole.ret[i] == pytest.approx(float(sum(G)), abs=1e-12)
            if scale <= 1:
                assert whole.x[i] == pytest.approx(float(sum(of["x"])), rel=1e-11, abs=1e-12)
                assert whole.x2[i] == pytest.approx(float(sum(x * x for x in of["x"])), rel=1e-11)


def _scaled(log: ref.Log, scale: F) -> ref.Log:
    episodes = [
        ref.Episode(
            tuple(ref.Row(r.state, r.action, r.reward, r.mu, r.pi * scale) for r in e.rows),
            e.end,
            e.next_state,
        )
        for e in log.episodes
    ]
    return ref.Log(tuple(episodes), log.horizon, log.discount)


def _same_scaled(
    found: dict[str, float], weights: list[F], expected: dict[str, F], power: dict[str, int]
) -> None:
    """Sums relative to exp(log_scale · power), the largest weight."""
    top = max(weights)
    if top == 0:
        assert all(found[name] == 0 for name in expected)
        return
    assert found["log_scale"] == pytest.approx(logarithm(top), abs=1e-11)
    for name, value in expected.items():
        relative = float(value / top ** power[name])
        assert found[name] == pytest.approx(relative, rel=1e-11, abs=1e-11), name


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("scale", [F(1), F(10) ** 150, F(10) ** -150])
def test_weighted_residuals_are_what_fractions_say(code: str, kind: str, scale: F) -> None:
    for plain, log in logs(kind, 6):
        if log.n_truncated:
            continue
        rho = TARGET.probabilities(log) / log.steps.behavior_prob * float(scale)
        exact = plain_products(_scaled(plain, scale), 1)[0]["w"]
        means = [sum(w for w, _ in pairs) / len(pairs) for pairs in exact]
        if min(means) == 0:
            continue  # refused before it comes to this
        centers = [F(t + 1, 3) for t in range(log.horizon)]
        expected = [
            sum(
                plain.discount**t * pairs[e][0] * (pairs[e][1] - center) / mean
                for t, (pairs, center, mean) in enumerate(zip(exact, centers, means, strict=True))
            )
            for e in range(len(plain.episodes))
        ]
        log_mean = np.array([logarithm(mean) for mean in means])
        found = products.weighted_residuals(
            log.steps, rho, log.discount, np.array(centers, float), log_mean
        )
        order = np.asarray(log.steps.episode)
        np.testing.assert_allclose(
            found, [float(expected[e]) for e in order], rtol=1e-10, atol=1e-10
        )


def test_a_long_product_keeps_its_digits(code: str) -> None:
    """Ten thousand ratios: the product's error is that of its factors, not of a logarithm's sum."""
    horizon = 10_000
    rng = np.random.default_rng(0)
    mu, pi = rng.uniform(0.1, 1, (2, 3, horizon))
    zero = np.zeros((3, horizon), int)
    log = rw.log_from_arrays(zero, zero, zero + 1.0, mu, pi)
    found = products.trajectories(
        log.steps, np.zeros(3, np.int64), (pi / mu).T.reshape(-1), 1.0
    ).episodes
    exact = []
    for ratios in pi / mu:
        product = F(1)
        for r in ratios.tolist():
            product *= F(r)
        exact.append(product)
    top = max(exact)
    assert found.w[0] == pytest.approx(float(sum(exact) / top), rel=1e-11)
    assert found.log_scale[0] == pytest.approx(logarithm(top), rel=1e-14)


def test_ratios_beyond_all_numbers_are_refused_by_name(code: str) -> None:
    """Densities may be that small, probabilities may not."""
    mu = np.full((40, 2), 1e-320)
    zero = np.zeros((40, 2), int)
    log = rw.log_from_arrays(zero, zero + 0.5, zero + 1.0, mu, zero + 1.0, continuous_actions=True)
    for name in ("is", "wis", "trajectory-is", "trajectory-wis"):
        with pytest.raises(rw.SupportError, match="overflow floating point"):
            rw.evaluate(log, rw.ColumnPolicy("target_prob"), name)


def test_whole_episodes_are_summed_alike() -> None:
    """Kernel and twin, with products far apart, products that are 0, and start values."""
    kernel = pytest.importorskip("reweigh.kernels.products")
    rng = np.random.default_rng(0)
    n, blocks = 200, 3
    block, e = rng.integers(0, blocks, n), rng.integers(-2, 2, n)
    m = rng.uniform(0.5, 2, n) * (rng.random(n) > 0.1)
    x, plain, g = rng.normal(size=(3, n))
    found = []
    for add in (kernel.episodes, products.add_episodes):
        top, sums = np.full(blocks, products.NOTHING), np.zeros((len(products.WHOLE), blocks))
        add(block, m, e, x, plain, g, top, sums)
        found.append((top, sums))
    (top, sums), (twin_top, twin_sums) = found
    assert top.tolist() == twin_top.tolist() == [1, 1, 1]
    np.testing.assert_allclose(sums, twin_sums, rtol=1e-12, atol=1e-12)
    W = m * 2.0 ** (256.0 * (e - 1))
    for name, values in (("w2g", W * W * plain), ("wg2", (W * plain) ** 2), ("g2", g * g)):
        expected = np.bincount(block, values)
        np.testing.assert_allclose(sums[products.WHOLE.index(name)], expected, rtol=1e-12)
