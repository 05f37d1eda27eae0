"""The role `features`: numbers that say where an episode is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.preprocessing import PolynomialFeatures

import reweigh as rw
from reweigh.log.feature_maps import FeatureMap, as_map, centers_of, sample_order

N, H = 12, 3


def frame(rng: np.random.Generator) -> pd.DataFrame:
    rows = N * H
    return pd.DataFrame({
        "episode": np.repeat(np.arange(N), H), "step": np.tile(np.arange(H), N),
        "bp": rng.normal(70, 9, rows), "hr": rng.integers(50, 120, rows),
        "action": rng.integers(0, 2, rows), "reward": rng.normal(size=rows),
        "behavior_prob": 0.5, "state": rng.integers(0, 3, rows),
    })  # fmt: skip


@pytest.fixture
def rows() -> pd.DataFrame:
    return frame(np.random.default_rng(0))


def test_features_alone_need_no_state(rows: pd.DataFrame, tmp_path: Path) -> None:
    rows.to_csv(tmp_path / "log.csv", index=False)
    for given in (rows, tmp_path / "log.csv"):
        log = rw.read_log(given, features=["bp", "hr"])
        assert log.columns.state == ()
        assert log.feature_names == ("bp", "hr")
        for j, name in enumerate(log.feature_names):
            assert np.array_equal(log.features[:, j], rows[name].to_numpy()[log.steps.source_row])
        assert np.array_equal(log.raw_states(), log.features)
        assert log.describe()["features"] == ["bp", "hr"]


def test_features_beside_a_state_leave_it_as_it_is(rows: pd.DataFrame) -> None:
    log, plain = rw.read_log(rows, features="bp", state="state"), rw.read_log(rows)
    assert np.array_equal(log.steps.state, plain.steps.state)
    assert log.features.shape == (N * H, 1)
    assert log.digest() != plain.digest()
    assert log.episodes_digest() == plain.episodes_digest()


def test_a_log_with_features_comes_back_from_its_table(rows: pd.DataFrame) -> None:
    log = rw.read_log(rows, features=["bp", "hr"])
    again = rw.read_log(log.to_table(), features=["bp", "hr"])
    assert again.digest() == log.digest()


def test_selections_and_copies_keep_their_features(rows: pd.DataFrame) -> None:
    log = rw.read_log(rows, features=["bp", "hr"])
    part = log.select(np.arange(N) % 3 == 0)
    assert np.array_equal(part.features, log.features[np.isin(log.steps.episode_index % 3, [0])])
    with pytest.raises(rw.RefusedError, match="has no features"):
        _ = rw.read_log(rows).features


def test_lists_are_as_many_features(rows: pd.DataFrame) -> None:
    values = np.random.default_rng(1).normal(size=(N * H, 4))
    table = pa.Table.from_pandas(rows)
    for kind in (pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float64(), 4)):
        held = table.append_column("e", pa.array(values.tolist(), kind))
        log = rw.read_log(held, features=["hr", "e"])
        assert log.feature_names == ("hr", "e[0]", "e[1]", "e[2]", "e[3]")
        assert np.allclose(log.features[:, 1:], values[log.steps.source_row], atol=1e-6)


def test_faults_name_row_column_episode_step_value_and_fix(rows: pd.DataFrame) -> None:
    rows.loc[4, "bp"], rows.loc[7, "bp"] = np.nan, np.inf
    with pytest.raises(rw.InputError) as found:
        rw.read_log(rows, features=["bp", "hr"])
    text = str(found.value)
    assert "column 'bp', row 5, episode 1, step 1: value None" in text
    assert "column 'bp', row 8, episode 2, step 1: value inf" in text
    assert "impute" in text


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([[1.0, 2.0]] * 5 + [[1.0]] + [[1.0, 2.0]] * (N * H - 6), "all have 2 numbers"),
        ([[1.0, 2.0]] * 5 + [None] + [[1.0, 2.0]] * (N * H - 6), "must not be null"),
        ([[1.0, None]] + [[1.0, 2.0]] * (N * H - 1), "must not be null"),
        ([["a"]] * (N * H), "must contain numbers"),
        (["high"] + ["low"] * (N * H - 1), "must be a number"),
        ([[]] * (N * H), "must contain numbers"),
    ],
)
def test_columns_that_are_no_features(rows: pd.DataFrame, column: list[object], words: str) -> None:
    table = pa.Table.from_pandas(rows)
    kind = pa.list_(pa.float64()) if column == [[]] * (N * H) else None
    with pytest.raises(rw.InputError, match=words):
        rw.read_log(table.append_column("e", pa.array(column, kind)), features="e")


def test_arrays(rows: pd.DataFrame) -> None:
    rng = np.random.default_rng(2)
    a, r, mu = rng.integers(0, 2, (N, H)), rng.normal(size=(N, H)), np.full((N, H), 0.5)
    x, lengths = rng.normal(size=(N, H, 2)), rng.integers(1, H + 1, N)
    log = rw.log_from_arrays(None, a, r, mu, features=x, lengths=lengths)
    steps = log.steps
    assert np.array_equal(log.features, x[steps.episode[steps.episode_index], steps.step])
    assert log.columns.state == ()
    both = rw.log_from_arrays(a, a, r, mu, features=x[:, :, 0])
    assert both.feature_names == ("x",)
    assert both.columns.state == ("state",)
    with pytest.raises(rw.UsageError, match="features"):
        rw.log_from_arrays(None, a, r, mu, features=x[:, :2])
    with pytest.raises(rw.UsageError, match="states"):
        rw.log_from_arrays(None, a, r, mu)
    x[3, 1, 0] = np.nan
    with pytest.raises(rw.InputError, match=r"feature 'x0' must be a finite number.*\n.*episode 3"):
        rw.log_from_arrays(None, a, r, mu, features=x)


def test_what_cannot_be_named_together(rows: pd.DataFrame) -> None:
    with pytest.raises(rw.UsageError, match="abstraction"):
        rw.read_log(rows, features="bp", abstraction=rw.Rounding(1))
    with pytest.raises(rw.UsageError, match="two roles"):
        rw.read_log(rows, features="reward")
    with pytest.raises(rw.InputError, match=r"no column 'hrr'.*features"):
        rw.read_log(rows, features="hrr")


MAPS = [
    rw.features.Fourier(30),
    rw.features.Polynomial(3),
    rw.features.Splines(4),
    rw.features.Tiles(5, 2),
    rw.features.Clusters(7),
    rw.features.sklearn(PolynomialFeatures(2)),
    as_map(np.sin, rw.features.Fourier()),
]


@pytest.mark.parametrize("kind", MAPS, ids=lambda kind: kind.describe()[:20])
def test_maps_are_rows_of_numbers_and_named(kind: FeatureMap) -> None:
    x = np.random.default_rng(3).normal(5, 3, (400, 2))
    fitted, again = kind.fit(x), kind.fit(x)
    phi = fitted(x)
    assert phi.shape[0] == 400
    assert np.array_equal(phi, again(x))
    assert fitted.fingerprint() == again.fingerprint()
    assert fitted.describe()
    if kind.describe() != "function sin":
        assert fitted.fingerprint() != kind.fit(x * 2 + 1).fingerprint()
    assert np.allclose(fitted(x[:7]), phi[:7])


def test_what_maps_span() -> None:
    x = np.random.default_rng(4).normal(size=(300, 2))
    z = (x - x.mean(0)) / x.std(0)
    poly = rw.features.Polynomial(2).fit(x)(x)
    expected = np.stack([z[:, 0] * 0 + 1, *z.T, z[:, 0] ** 2, z[:, 0] * z[:, 1], z[:, 1] ** 2], 1)
    assert np.allclose(poly, expected)
    for hot in (rw.features.Clusters(9).fit(x)(x), rw.features.Tiles(4, 1).fit(x)(x)):
        assert np.array_equal(hot.sum(axis=1), np.ones(300))
    # random features approximate the kernel exp(-|z - z'|²/(2 width²))
    phi = rw.features.Fourier(20_000, width=1.5).fit(x)(x[:40])[:, 1:]
    apart = ((z[:40, None] - z[None, :40]) ** 2).sum(-1)
    assert np.abs(phi @ phi.T / 20_000 - np.exp(-apart / 4.5)).max() < 0.05


def test_centers_find_groups_that_are_apart() -> None:
    rng = np.random.default_rng(5)
    groups = np.array([[0, 0], [9, 0], [0, 9], [9, 9]])
    z = groups[rng.integers(0, 4, 500)] + rng.normal(size=(500, 2)) * 0.3
    found = centers_of(z, 4, rng)
    assert np.allclose(np.sort(found.round(0), axis=0), np.sort(groups, axis=0))
    assert len(centers_of(np.zeros((10, 2)), 4, rng)) == 1


def test_the_sample_does_not_depend_on_the_order_of_the_log() -> None:
    rng = np.random.default_rng(6)
    ids = np.repeat(rng.integers(0, 2**32, 500), 4)
    steps, mixed = np.tile(np.arange(4), 500), rng.permutation(2000)
    one, other = sample_order(ids, steps, 600), sample_order(ids[mixed], steps[mixed], 600)
    assert np.array_equal(ids[one], ids[mixed][other])
    assert np.array_equal(steps[one], steps[mixed][other])
    assert 300 <= len(one) <= 600
    assert np.array_equal(np.unique(ids[one]), np.unique(ids[ids % 4 == 0]))


def test_maps_that_are_refused() -> None:
    with pytest.raises(rw.UsageError, match="whole number"):
        rw.features.Fourier(0)
    with pytest.raises(rw.UsageError, match="features"):
        as_map("Fourier", rw.features.Fourier())
    with pytest.raises(rw.UsageError, match="one row of finite numbers"):
        as_map(lambda x: x[:2], rw.features.Fourier()).fit(np.ones((5, 1)))(np.ones((5, 1)))
    with pytest.raises(rw.UsageError, match="fit and transform"):
        rw.features.sklearn("scaler")
