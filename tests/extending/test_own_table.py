"""A table of sums from outside of the package: declared once, the same on every engine.

Per-decision importance sampling with a capped running product, v = Σ_t γ^t Σ_i c_it y_it / n with
c = min(ρ_{0:t}, 5), needs Σ c, Σ c² and Σ c y by step. CONTRIBUTING.md shows the declaration.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from capped_is import capped

import reweigh as rw


def rows(seed: int = 1, episodes: int = 300, horizon: int = 7) -> pa.Table:
    """Episodes of random length that say where they end."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {
        name: [] for name in ("episode", "step", "state", "action", "reward", "mu", "terminated")
    }
    for e in range(episodes):
        length = int(rng.integers(1, horizon + 1))
        for t in range(length):
            action = int(rng.random() < 0.4)
            row = (f"{seed}-{e}", t, "ab"[int(rng.integers(2))], action, float(rng.normal()),
                   (0.6, 0.4)[action], t == length - 1 and length < horizon)  # fmt: skip
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value)
    return pa.table(columns)


TARGET = rw.TablePolicy({"a": {0: 0.1, 1: 0.9}, "b": {0: 0.3, 1: 0.7}})


def read(data: object, engine: str = "arrays") -> object:
    return rw.read_log(
        data, engine=engine, horizon=7, behavior_prob="mu", terminated="terminated", discount=0.9
    )


def capped_sums(data: object, engine: str, **options: object) -> rw.Moments:
    return rw.moments(read(data, engine), TARGET, ["mis"], gates=False, tables=[capped], **options)


def by_hand(data: pa.Table) -> dict[str, np.ndarray]:
    """Row by row, in Python."""
    found = {name: np.zeros(7) for name in ("n", "c", "cy")}
    prob = {("a", 0): 0.1, ("a", 1): 0.9, ("b", 0): 0.3, ("b", 1): 0.7}
    product = 1.0
    for row in data.to_pylist():
        product = 1.0 if row["step"] == 0 else product
        product *= prob[row["state"], row["action"]] / row["mu"]
        c = min(product, 5.0)
        for name, value in (("n", 1.0), ("c", c), ("cy", c * row["reward"])):
            found[name][row["step"]] += value
    return found


def assert_same(sums: object, expected: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(sums.t, np.arange(7))
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(sums, name), values, rtol=0, atol=1e-10 * 5 * 300)


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_every_engine_gives_the_sums_of_the_declaration(engine: str, tmp_path) -> None:
    pq.write_table(rows(), tmp_path / "log.parquet", row_group_size=100)
    sums = capped_sums(str(tmp_path / "log.parquet"), engine)
    assert_same(sums.tables["capped"], by_hand(rows()))


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_the_sums_are_saved_loaded_and_added(engine: str, tmp_path) -> None:
    for part in (1, 2):
        capped_sums(rows(part), engine).save(tmp_path / f"{part}.parquet")
    first, second = (rw.load_moments(tmp_path / f"{part}.parquet") for part in (1, 2))
    assert first.tables["capped"].table == capped
    assert_same((first + second).tables["capped"], by_hand(pa.concat_tables([rows(1), rows(2)])))
    both = capped_sums(pa.concat_tables([rows(1), rows(2)]), "arrays").tables["capped"]
    np.testing.assert_allclose((first + second).tables["capped"].cy, both.cy, rtol=1e-12)


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_the_sums_are_held_by_block(engine: str) -> None:
    """Without a block, the sums are those of the other episodes; all blocks add up to the whole."""
    sums = capped_sums(rows(), engine, blocks=5)
    table = sums.tables["capped"]
    assert set(table.block) == set(range(5))
    assert_same(table.forget("block"), by_hand(rows()))
    left = sums.without(2).tables["capped"]
    np.testing.assert_array_equal(left.cy, table.cy[table.block != 2])


def test_an_estimate_follows_from_the_sums() -> None:
    """With a cap that no product reaches it is IS, step by step."""
    free = rw.Table("free", ("t",), {"cy": "least(running_product, 1e9) * reward"})
    log = read(rows())
    table = rw.moments(log, TARGET, ["mis"], tables=[free]).tables["free"]
    value = float(np.sum(0.9**table.t * table.cy) / log.n_episodes)
    assert value == pytest.approx(float(rw.point_values(log, TARGET, ["is"])[0]), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"columns": {"c": "running_produkt"}}, "did you mean 'running_product'"),
        ({"columns": {"c": "exec(reward)"}}, "an expression may contain names, numbers"),
        ({"columns": {"c": "reward +"}}, "cannot be read"),
        ({"columns": {"t": "reward"}}, "cannot call a column 't'"),
        ({"keys": ("state",)}, "cannot have the key 'state'"),
        ({"name": "No name"}, "the name of a table must be a word"),
        ({"rows": "week"}, "sums over 'week'"),
    ],
)
def test_a_declaration_that_cannot_be_summed_is_refused(arguments, words) -> None:
    good = {"name": "mine", "keys": ("t",), "columns": {"c": "reward"}}
    with pytest.raises(rw.UsageError, match=words):
        rw.Table(**good | arguments)


def test_two_tables_of_one_name_are_refused() -> None:
    other = rw.Table("capped", ("t",), {"c": "reward"})
    with pytest.raises(rw.UsageError, match="there is already a table 'capped'"):
        rw.moments(read(rows()), TARGET, tables=[capped, other])
    with pytest.raises(rw.UsageError, match="there is already a table 'model'"):
        rw.moments(read(rows()), TARGET, tables=[rw.Table("model", ("t",), {"c": "reward"})])


def test_different_tables_of_one_name_are_not_added() -> None:
    other = rw.Table("capped", ("t",), {"c": "least(running_product, 6)", "cy": "reward"})
    first = capped_sums(rows(1), "arrays")
    second = rw.moments(read(rows(2)), TARGET, ["mis"], gates=False, tables=[other])
    with pytest.raises(rw.InputError, match="different tables with the name 'capped'"):
        first + second
    with pytest.raises(rw.InputError, match="different tables: capped and none"):
        first + rw.moments(read(rows(3)), TARGET, ["mis"], gates=False)
