"""Sums of the same episodes are refused, whichever engines made them; those of others add up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fixture
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh.log.steps import Identity, base, identity_of, key_of, marks
from reweigh.sums.engines.stream import StreamEngine

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")

TARGET = rw.ColumnPolicy("pi")
SIZE, HORIZON = 40, 3


def rows(seed: int = 0, **changes: Any) -> pa.Table:
    """Complete episodes of three steps; two states, two actions."""
    rng = np.random.default_rng(seed)
    n = SIZE * HORIZON
    columns: dict[str, Any] = {
        "episode": np.repeat(np.arange(SIZE), HORIZON),
        "step": np.tile(np.arange(HORIZON), SIZE),
        "state": rng.integers(0, 2, n),
        "action": rng.integers(0, 2, n),
        "reward": rng.normal(size=n),
        "behavior_prob": rng.uniform(0.2, 0.9, n),
        "pi": rng.uniform(0.1, 1.0, n),
    }
    return pa.table({**columns, **changes})


def readings(folder: Path, table: pa.Table, **reading: Any) -> dict[str, Any]:
    """The same rows by every engine, in several formats and orders."""
    pq.write_table(table, folder / "rows.parquet", row_group_size=50)
    pacsv.write_csv(table, folder / "rows.csv")
    turned = table.take(np.arange(table.num_rows)[::-1])
    stream = rw.read_log(folder / "rows.parquet", engine="stream", **reading)
    return {
        "arrays": rw.read_log(table, engine="arrays", **reading),
        "turned": rw.read_log(turned, engine="arrays", **reading),
        "csv": rw.read_log(folder / "rows.csv", engine="arrays", **reading),
        "stream": stream,
        "chunks": replace(stream, scanner=StreamEngine(batch=64, fast=False), _by_request={}),
        "csv stream": rw.read_log(folder / "rows.csv", engine="stream", **reading),
        "duckdb": rw.read_log(turned, engine="duckdb", **reading),
    }


def assert_one_log(logs: dict[str, Any], target: Any = TARGET, **options: Any) -> str:
    made = {name: rw.moments(log, target, **options) for name, log in logs.items()}
    assert len({sums.about.sources for sums in made.values()}) == 1, {
        name: sums.about.sources for name, sums in made.items()
    }
    for one, other in itertools.combinations(made.values(), 2):
        with pytest.raises(rw.InputError, match="count twice"):
            one + other
    [source] = made["arrays"].about.sources
    return source


@pytest.mark.parametrize("variant", fixture.VARIANTS)
@pytest.mark.parametrize("estimators", [["mis"], ["is"], ["mis", "dm"]])
def test_a_log_has_one_name_on_every_engine(variant, estimators, tmp_path) -> None:
    target = fixture.policies(variant)["table"]
    logs = readings(tmp_path, fixture.table(variant), **fixture.READING[variant])
    assert_one_log(logs, target, estimators=estimators, blocks=3)


IDS = {
    "digits": [str(7 * e) for e in range(SIZE)],
    "negative": [-(10**14) + e for e in range(SIZE)],
    "large": [2**62 + 977 * e for e in range(SIZE)],
    "too large to be signed": pa.array([2**64 - 1 - e for e in range(SIZE)], pa.uint64()),
    "texts": [f"Ärztin {e}" for e in range(SIZE)],
    "almost numbers": [f"{e:03d}" if e % 2 else f"-{e}" for e in range(SIZE)],
    "categories": pa.array([f"e{e}" for e in range(SIZE)]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_every_kind(kind, tmp_path) -> None:
    ids = pa.array(IDS[kind]).take(np.repeat(np.arange(SIZE), HORIZON))
    logs = readings(tmp_path, rows(episode=ids))
    if kind in ("large", "too large to be signed"):  # texts of more than 18 digits are texts
        del logs["csv"], logs["csv stream"]
    assert_one_log(logs, blocks=2)


HARD = [0.0, -0.0, 5e-324, 1e-300, 1e-9, 0.1, 2.0**20, 2.0**20 - 1e-10, 2.0**50, -(2.0**50) + 0.5,
        2.0**80, 1e30, -1e59, 1e60, 1.0, 3.0, 1e6, -1e15]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # their squares are infinite
def test_rewards_of_every_size(tmp_path) -> None:
    """Kernel, SQL and NumPy round alike."""
    reward = np.resize(np.array(HARD), SIZE * HORIZON)
    logs = readings(tmp_path, rows(reward=reward))
    with np.errstate(over="ignore", invalid="ignore"):
        names = {name: rw.moments(log, TARGET, ["mis"]).about.sources for name, log in logs.items()}
    assert len(set(names.values())) == 1, names


@pytest.mark.parametrize("kind", [pa.decimal128(12, 4), pa.decimal128(38, 18)], ids=str)
def test_decimals_in_every_column_of_numbers(kind, tmp_path) -> None:
    """They are read as the nearest float everywhere."""

    def written(values: Any, digits: int) -> pa.Array:
        return pa.array([Decimal(f"{value:.{digits}f}") for value in values], kind)

    rng = np.random.default_rng(2)
    n, digits = SIZE * HORIZON, kind.scale
    reward, mu, pi = rng.normal(0, 1e5, n), rng.uniform(0.2, 0.9, n), rng.uniform(0.1, 1.0, n)
    columns = {"reward": reward, "behavior_prob": mu, "pi": pi}
    assert_one_log(readings(tmp_path, rows(**{k: written(v, digits) for k, v in columns.items()})))


def test_the_parts_of_a_log_add_up_to_it() -> None:
    log = rw.read_log(rows())
    half = np.arange(SIZE) % 2 == 0
    parts = [identity_of(log.select(keep).steps) for keep in (half, ~half)]
    assert parts[0] + parts[1] == identity_of(log.steps)
    assert Identity() + parts[0] == parts[0]


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_other_episodes_are_added(engine) -> None:
    """Halves of a log; logs whose ids begin anew; and such logs where nothing was ever earned."""
    table = rows()
    ids = table.column("episode").to_numpy()
    halves = [table.filter(ids < SIZE // 2), table.filter(ids >= SIZE // 2)]
    equal = {"reward": np.zeros(SIZE * HORIZON), "behavior_prob": np.full(SIZE * HORIZON, 0.5)}
    pairs = [halves, [rows(), rows(1)], [rows(**equal), rows(1, **equal)]]
    for pair in pairs:
        one, other = (rw.moments(rw.read_log(part, engine=engine), TARGET) for part in pair)
        assert (one + other).n_episodes == one.n_episodes + other.n_episodes
    whole = rw.moments(rw.read_log(table, engine=engine), TARGET)
    assert whole.about.sources not in ((one.about.sources), (other.about.sources))


@pytest.mark.parametrize(
    ("column", "change"),
    [("reward", 1e-12), ("behavior_prob", 1e-12), ("episode", 1000)],
)
def test_the_smallest_change_makes_another_log(column, change) -> None:
    table = rows()
    values = table.column(column).to_numpy().copy()
    values[values == values[HORIZON]] += change
    changed = table.set_column(table.column_names.index(column), column, pa.array(values))
    assert rw.read_log(table).episodes_digest() != rw.read_log(changed).episodes_digest()


def test_marks_tell_apart_what_sums_do_not() -> None:
    """Equal Σy and Σt at equal μ; and no mark is more frequent than chance has it."""
    mu, t = np.full(2, 0.5), np.zeros(2)
    one, other = (marks(base(np.array(y), mu, t)) for y in ([1.0, 4.0], [2.0, 3.0]))
    assert one.sum() != other.sum()
    early, late = (marks(base(np.zeros(2), mu, np.array(t))) for t in ([1.0, 4.0], [2.0, 3.0]))
    assert early.sum() != late.sum()
    y = np.arange(100_000.0)
    found = marks(base(y, np.full(len(y), 0.5), np.zeros(len(y)))) / 2**24
    # the mean of n uniform numbers is within 4 of its standard errors √(1/12n)
    assert abs(found.mean() - 0.5) < 4 * np.sqrt(1 / (12 * len(y)))
    assert len(np.unique(found)) > 0.99 * len(y)


def test_keys_of_ids() -> None:
    for number in (0, -7, 123456789012345678):
        assert key_of(str(number)) == number
    # the first 64 bits of MD5("abc") = 900150983cd24fb0…, as a signed number
    assert key_of("abc") == 0x900150983CD24FB0 - 2**64
    for text in ("007", "-0", "1234567890123456789", "7\n", "", "1.0", "٣"):
        assert abs(key_of(text)) > 2**40, text
