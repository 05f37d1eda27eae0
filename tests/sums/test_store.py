"""Files of moments: whole and consistent, or refused by name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh.cli.app import run
from reweigh.sums import store, stored_columns
from reweigh.sums.diagnostic_tables import VERSIONS
from reweigh.sums.moments import About, Moments
from reweigh.worlds import random_mdp

WORLD = random_mdp(np.random.default_rng(3), 4, 3, 5, discount=0.9)
LOG = WORLD.simulate(60, 5)
SUMS = rw.moments(LOG, WORLD.target, blocks=2)
NAMES = ("mis", "dm", "is", "trajectory-wis")
FLIPS = 400
pytestmark = pytest.mark.filterwarnings("ignore::reweigh.errors.ReweighWarning")


def values(sums: Moments) -> list[float]:
    return [rw.evaluate(sums, estimator=name).value for name in NAMES]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sums") / "m.parquet"
    SUMS.save(path)
    return path


def sample(good: bytes) -> list[int]:
    """Bits of the whole file; as many of its footer, which holds the header; and of both ends."""
    rng = np.random.default_rng(0)
    [footer] = struct.unpack("<I", good[-8:-4])
    end = 8 * len(good)
    chosen = [*rng.choice(end, FLIPS // 2), *rng.integers(end - 8 * (footer + 8), end, FLIPS // 2)]
    return [*map(int, chosen), *range(32), *range(end - 64, end)]


def flipped(good: bytes, bit: int) -> bytes:
    changed = bytearray(good)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_is_refused_or_changes_nothing(saved: Path, tmp_path: Path) -> None:
    good, expected = saved.read_bytes(), values(SUMS)
    path, refused = tmp_path / "damaged.parquet", []
    for bit in sample(good):
        path.write_bytes(flipped(good, bit))
        try:
            found = rw.load_moments(path)
        except rw.InputError as error:
            refused.append("damaged.parquet" in str(error))
            continue
        assert values(found) == expected, bit
    assert all(refused)
    assert len(refused) > FLIPS // 2


def test_the_command_line_exits_with_3_and_names_the_file(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, path = saved.read_bytes(), tmp_path / "damaged.parquet"

    def ran(bits: bytes) -> tuple[int, str, str]:
        path.write_bytes(bits)
        code = run(["evaluate", str(path), "--quiet"])
        out, err = capsys.readouterr()
        return code, out, err

    whole = ran(good)
    assert whole[0] == 0
    for bit in sample(good)[::4] + list(range(0, 32, 5)):
        code, out, err = ran(flipped(good, bit))
        if code:
            assert (code, out) == (3, ""), (bit, err)
            assert "damaged.parquet" in err, bit
        else:
            assert out == whole[1], bit


# --- the header


def with_header(
    source: Path, to: Path, change: Callable[[Any], Any], *, older: bool = True
) -> Path:
    """A copy of which the header is changed: as a file of the first format, without a checksum, or
    with the checksum that it had."""
    table = pq.read_table(source)
    found = json.loads(table.schema.metadata[store.KEY])
    if older:
        found = {k: v for k, v in found.items() if k not in ("checksum", "content")}
        found["format"] = 1
    changed = change(found)
    raw = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    pq.write_table(table.replace_schema_metadata({store.KEY: raw}), to)
    return to


def about(**changes: Any) -> Callable[[Any], Any]:
    return lambda found: found | {"about": found["about"] | changes}


def without(key: str, inside: str | None = None) -> Callable[[Any], Any]:
    def change(found: Any) -> Any:
        part = found if inside is None else found[inside]
        kept = {k: v for k, v in part.items() if k != key}
        return kept if inside is None else found | {inside: kept}

    return change


def text(words: str) -> Callable[[Any], Any]:
    return lambda found: words.encode()


HEADERS: dict[str, Callable[[Any], Any]] = {
    "no JSON": text("nothing"),
    "null": text("null"),
    "a list": text("[1]"),
    "a number": text("5"),
    "deep": text('{"format": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "not UTF-8": lambda found: b'{"format": "\xff"}',
    "NaN": lambda found: json.dumps(found).replace("0.9", "NaN").encode(),
    "a key twice": lambda found: b'{"format": 1, ' + json.dumps(found).encode()[1:],
    "a huge whole number": lambda found: json.dumps(about(horizon=7)(found)).replace(
        '"horizon": 7', '"horizon": ' + "9" * 5000
    ).encode(),
    "no format": without("format"),
    "a later format": lambda found: found | {"format": 99},
    "a format of another type": lambda found: found | {"format": [1]},
    "no about": without("about"),
    "about of another type": lambda found: found | {"about": [1]},
    "no horizon": without("horizon", "about"),
    "an unknown field": about(surprise=1),
    "horizon 0": about(horizon=0),
    "a horizon that is shorter than its rows": about(horizon=3),
    "a horizon beyond 64 bits": about(horizon=2**70),
    "a horizon that is a text": about(horizon="5"),
    "a horizon that is true": about(horizon=True),
    "discount 5": about(discount=5.0),
    "discount 0": about(discount=0.0),
    "discount that is a list": about(discount=[0.9]),
    "blocks 0": about(blocks=0),
    "fewer blocks than its rows": about(blocks=1),
    "a ratio of at most 0": about(max_ratio=0),
    "sources that are a text": about(sources="abc"),
    "state columns that are numbers": about(state_columns=[1]),
    "no states": without("states"),
    "states that are null": lambda found: found | {"states": None},
    "fewer states": lambda found: found | {"states": found["states"][:-1]},
    "a state twice": lambda found: found | {"states": [0, 1, 2, "2"]},
    "a state that is an object": lambda found: found | {"states": [0, 1, 2, {"a": 1}]},
    "a hidden state that is not": lambda found: found | {"states": [0, 1, 2, None]},
    "hidden without one": lambda found: found | {"hidden": True},
    "hidden that is a number": lambda found: found | {"hidden": 0},
    "fewer actions": lambda found: found | {"actions": found["actions"][:-1]},
    "more cut-off episodes than there are": lambda found: found | {"truncated": 61},
    "kinds that are null": lambda found: found | {"kinds": None},
    "an unknown kind": lambda found: found | {"kinds": [*found["kinds"], "other"]},
    "a kind less": lambda found: found | {"kinds": [k for k in found["kinds"] if k != "episodes"]},
    "a kind twice": lambda found: found | {"kinds": [*found["kinds"], "model"]},
    "no start": lambda found: found | {"kinds": [k for k in found["kinds"] if k != "start"]},
    "extras that are a list": lambda found: found | {"extras": [1]},
    "an extra without a version": lambda found: found | {"extras": {"lagged": {}}},
    "an extra without a scalar": lambda found: found | {"extras": {"ordered": {"version": 1}}},
    "a shift beyond all": lambda found: found
    | {"extras": found["extras"] | {"ordered": {"version": 1, "shift": 99}}},
    "other weights than episodes": lambda found: found
    | {"extras": found["extras"] | {"largest": {"version": 1, "floor": None, "n": 7}}},
    "a floor above its weights": lambda found: found
    | {"extras": found["extras"] | {"largest": {"version": 1, "floor": 1e9, "n": 60}}},
    "left out that is a list": lambda found: found | {"left_out": [1]},
    "unchecked that is a text": lambda found: found | {"unchecked": "abc"},
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_breaks_a_rule_is_refused_in_one_sentence(
    what: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_header(saved, tmp_path / "changed.parquet", HEADERS[what])
    assert run(["evaluate", str(path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "changed.parquet" in err
    assert len(err.splitlines()) == 1
    assert len(err) < 400 + len(str(path))


@pytest.mark.parametrize(
    "change", [about(discount=0.91), about(max_ratio=2.0), lambda found: found | {"truncated": 1}]
)
def test_a_header_that_was_changed_does_not_match_its_checksum(
    change: Callable[[Any], Any], saved: Path, tmp_path: Path
) -> None:
    path = with_header(saved, tmp_path / "changed.parquet", change, older=False)
    with pytest.raises(rw.InputError, match=r"changed\.parquet.*checksum"):
        rw.load_moments(path)
    with_header(saved, path, without("checksum"), older=False)
    with pytest.raises(rw.InputError, match=r"changed\.parquet.*checksum"):
        rw.load_moments(path)


def test_every_field_has_its_rule() -> None:
    assert set(store.ABOUT) == {f.name for f in fields(About)}
    assert set(store.RECORDS) - set(VERSIONS) == {
        "start", "start_model", "transitions", "model", "policy", "steps", "episodes",
    }  # fmt: skip
    assert set(VERSIONS) <= set(store.RECORDS)
    for kind, record in store.RECORDS.items():
        for f in fields(record):
            scalar = f.name in store.SCALARS.get(kind, ())
            assert scalar or f.name in stored_columns.COLUMNS, (kind, f.name)


def test_a_file_of_the_first_format_is_read_with_a_remark(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_header(saved, tmp_path / "older.parquet", lambda found: found)
    with pytest.warns(rw.InputWarning, match=r"older\.parquet.*without a checksum"):
        found = rw.load_moments(path)
    assert values(found) == values(SUMS)
    assert run(["evaluate", str(path), "--quiet"]) == 0
    assert "without a checksum" in capsys.readouterr().err
    other = rw.moments(WORLD.simulate(60, 6), WORLD.target, blocks=2)
    other.save(tmp_path / "other.parquet")
    both = [str(path), str(tmp_path / "other.parquet")]
    assert run(["merge", *both, "-o", str(tmp_path / "all.parquet")]) == 0
    assert f"! the file of moments {str(path)!r}" in capsys.readouterr().out
    assert rw.load_moments(tmp_path / "all.parquet").n_episodes == 120


# --- the tables


def with_column(
    source: Path, to: Path, kind: str, name: str, change: Callable[[Any], Any], *, older: bool
) -> Path:
    """A copy in which a column of one table is changed."""
    with_header(source, to, lambda found: found, older=older)
    table = pq.read_table(to)
    rows = np.asarray(pc.equal(table.column("kind"), kind))
    column = table.column(name)
    mask = np.asarray(column.is_null())
    filled = column.fill_null(0).to_numpy().copy()
    filled[rows] = change(filled[rows])
    mask[rows] = False
    at = table.column_names.index(name)
    pq.write_table(table.set_column(at, name, pa.array(filled, column.type, mask=mask)), to)
    return to


def first(value: Any) -> Callable[[Any], Any]:
    def change(found: Any) -> Any:
        found = found.copy()
        found[0] = value
        return found

    return change


TABLES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "z is 0 and its square is not": ("model", "z2", lambda v: 0 * v),
    "a negative square": ("transitions", "rho2", first(-1.0)),
    "a square too small for its sum": ("transitions", "rho2", lambda v: v / 100),
    "a negative sum of ratios": ("transitions", "rho", lambda v: -v),
    "an infinite sum": ("transitions", "z", first(np.inf)),
    "nan": ("model", "y", first(np.nan)),
    "a negative count": ("transitions", "n", first(-1)),
    "another count": ("transitions", "n", first(1000)),
    "a state beyond the table": ("transitions", "s", first(4)),
    "a state that is no state": ("model", "s", first(-7)),
    "a hidden first state in the model": ("model", "s", first(-4)),
    "an action beyond the table": ("model", "a", first(3)),
    "an action where there is none": ("transitions", "a", first(1)),
    "a next state beyond the table": ("model", "s_next", first(99)),
    "a step beyond the horizon": ("transitions", "t", first(5)),
    "a negative step": ("transitions", "t", first(-1)),
    "a next step that is the same": ("transitions", "t_next", first(0)),
    "a block beyond all": ("start", "block", first(2)),
    "the same key twice": ("start", "s", lambda v: 0 * v),
    "other episodes": ("start_model", "n", first(1000)),
    "other episodes in the products": ("episodes", "n", first(1000)),
    "a scale that is infinite": ("steps", "log_scale", first(np.inf)),
    "a largest weight above the sum": ("steps", "wmax", lambda v: v * 1000),
    "a state before that is no state": ("lagged", "s_before", first(-1)),
    "returns of other episodes": ("ordered", "n", first(1000)),
    "rewards at a step beyond the horizon": ("paced", "t", first(5)),
    "weights that rise": ("largest", "log_w", first(-1e9)),
}


@pytest.mark.parametrize("what", TABLES)
def test_sums_that_cannot_be_are_refused_without_a_checksum_too(
    what: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, name, change = TABLES[what]
    path = with_column(saved, tmp_path / "changed.parquet", kind, name, change, older=True)
    assert run(["evaluate", str(path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "changed.parquet" in err
    assert len(err.splitlines()) == 1


def test_sums_that_could_be_others_do_not_match_their_checksum(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "changed.parquet"
    with_column(saved, path, "transitions", "z", lambda v: 0 * v, older=False)
    with pytest.raises(rw.InputError, match=r"changed\.parquet.*checksum"):
        rw.load_moments(path)
    with_column(saved, path, "transitions", "z", lambda v: v, older=False)
    assert values(rw.load_moments(path)) == values(SUMS)


@pytest.mark.parametrize("older", [True, False])
def test_a_column_that_is_missing_or_of_another_type_is_refused(
    older: bool, saved: Path, tmp_path: Path
) -> None:
    path = with_header(saved, tmp_path / "changed.parquet", lambda found: found, older=older)
    table = pq.read_table(path)
    at = table.column_names.index("rho2")
    for other in (
        table.drop_columns(["rho2"]),
        table.drop_columns(["kind"]),
        table.set_column(at, "rho2", table.column("rho2").cast(pa.string())),
        table.set_column(0, "kind", pa.array(["other"] * len(table))),
        table.set_column(0, "kind", pa.nulls(len(table), pa.string())),
        table.slice(0, 0),
        *([] if older else [table.slice(0, len(table) - 1)]),  # one of the largest weights less
    ):
        pq.write_table(other, path)
        with pytest.raises(rw.InputError, match=r"changed\.parquet"):
            rw.load_moments(path)


def test_sums_that_would_be_refused_are_not_written(tmp_path: Path) -> None:
    assert SUMS.transitions is not None
    lost = replace(SUMS.transitions, z=SUMS.transitions.z * np.inf)
    with pytest.raises(rw.InputError, match="cannot be saved"):
        replace(SUMS, transitions=lost).save(tmp_path / "m.parquet")
    assert not list(tmp_path.iterdir())


def test_a_column_that_an_older_file_lacks_follows_from_what_it_holds(
    saved: Path, tmp_path: Path
) -> None:
    """Σπ² came later: without it π is taken for one number in each cell."""
    path = with_header(saved, tmp_path / "older.parquet", lambda found: found)
    pq.write_table(pq.read_table(path).drop_columns(["pi2"]), path)
    with pytest.warns(rw.InputWarning, match="without a checksum"):
        found = rw.load_moments(path)
    assert found.model is not None
    assert SUMS.model is not None
    np.testing.assert_allclose(found.model.pi2, SUMS.model.pi2, rtol=1e-12)
    assert values(found) == values(SUMS)
    pq.write_table(pq.read_table(path).drop_columns(["rho2"]), path)
    with pytest.raises(rw.InputError, match="has no column 'rho2'"):
        rw.load_moments(path)


# --- what they were made from


def test_no_result_replaces_a_file_that_it_was_made_from(tmp_path: Path) -> None:
    rows, policy = tmp_path / "log.parquet", tmp_path / "policy.parquet"
    pq.write_table(LOG.to_table(), rows)
    pq.write_table(WORLD.target.to_table(), policy)
    before = {path: path.read_bytes() for path in (rows, policy)}
    target = rw.read_policy(policy)
    for engine in ("arrays", "stream"):
        log = rw.read_log(rows, discount=0.9, engine=engine)
        sums = rw.moments(log, target)
        estimate = rw.evaluate(log, target, rw.mis())
        for path in before:
            for write in (
                lambda path=path, sums=sums: sums.save(path, overwrite=True),
                lambda path=path, e=estimate: e.report(path, overwrite=True),
                lambda path=path, e=estimate: e.moments.save(path, overwrite=True),
            ):
                with pytest.raises(rw.UsageError, match="same file"):
                    write()
    sums.save(tmp_path / "m.parquet")
    with pytest.raises(rw.UsageError, match="same file"):
        rw.load_moments(tmp_path / "m.parquet").save(tmp_path / "m.parquet", overwrite=True)
    sums.save(tmp_path / "m.parquet", overwrite=True)
    assert {path: path.read_bytes() for path in before} == before
