"""Parquet files in DuckDB: what their statistics leave out, and columns that differ by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ibis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import test_ibis
from log.samples import EVERY_ROLE, ROLES, table, with_cell

import reweigh as rw

pytestmark = [
    pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning"),
    pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning"),
]

NAN, INF = float("nan"), float("inf")
SPREAD = [0.25, 0.5, 0.125, 0.5, 0.25, 0.75]
SAME = [0.5] * 6  # a column of one value, of which DuckDB knows every function
KINDS = {"double": pa.float64(), "float": pa.float32()}
COLUMNS = {
    "reward": {},
    "behavior_prob": {},
    "target_prob": {},
    "state": {"abstraction": rw.Rounding(4.0), "next_state": None},
}


def written(path: Path, statistics: bool = True, **columns: Any) -> Path:
    """The log of every role, with other columns in it, as pyarrow writes it."""
    pq.write_table(table(EVERY_ROLE, **columns), path, write_statistics=statistics)
    return path


def told_of_the_target(data: Any, engine: str) -> Any:
    try:
        rw.moments(rw.read_log(data, engine=engine, **ROLES), rw.ColumnPolicy("pi"), ["is"])
    except rw.InputError as error:
        return [(f.code, f.rule, f.count, [p.episode for p in f.places]) for f in error.faults]
    return None


def in_duckdb(path: Path, way: str) -> tuple[Any, str]:
    if way == "path":
        return path, "duckdb"
    connection = ibis.duckdb.connect()
    if way == "view":
        connection.raw_sql(f"CREATE VIEW log AS SELECT * FROM '{path}'")
        return connection.table("log"), "auto"
    return connection.read_parquet(path), "auto"


@pytest.mark.parametrize("way", ["path", "read", "view"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [SPREAD, SAME], ids=["spread", "same"])
@pytest.mark.parametrize("column", COLUMNS)
def test_a_number_that_statistics_leave_out_is_found(column, values, kind, way, tmp_path) -> None:
    """The least and largest value of a file are those without NaN."""
    given = pa.array([*values[:4], NAN, values[5]], KINDS[kind])
    path = written(tmp_path / "log.parquet", **{column: given})
    assert pq.read_metadata(path).row_group(0).column(0).statistics is not None
    reading = ROLES | COLUMNS[column]
    numbered = way == "path"
    expected = test_ibis.told(path, "arrays", reading, numbered)
    assert [(fault[0], fault[3]) for fault in expected] == [("not-finite", 1)]
    assert test_ibis.told(*in_duckdb(path, way), reading, numbered) == expected


@pytest.mark.parametrize("way", ["path", "read", "view"])
@pytest.mark.parametrize("values", [SPREAD, SAME], ids=["spread", "same"])
@pytest.mark.parametrize("wrong", [NAN, INF, 2.0])
def test_the_column_of_the_target_is_looked_at(wrong, values, way, tmp_path) -> None:
    path = written(tmp_path / "log.parquet", pi=[*values[:4], wrong, values[5]])
    expected = told_of_the_target(path, "arrays")
    assert len(expected) == 1
    assert told_of_the_target(*in_duckdb(path, way)) == expected


@pytest.mark.parametrize("statistics", [True, False])
def test_flags_that_are_no_numbers_are_refused(statistics, tmp_path) -> None:
    path = written(tmp_path / "log.parquet", statistics, terminated=[0.0, 0.0, NAN, 0.0, 0.0, 0.0])
    expected = test_ibis.told(path, "arrays", ROLES)
    assert expected[0][0] == "type"
    assert test_ibis.told(path, "duckdb", ROLES) == expected


def test_a_file_without_faults_has_none(tmp_path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(table(with_cell(EVERY_ROLE, "reward", 2, -0.0)), path)
    assert test_ibis.told(path, "duckdb", ROLES)["rows"] == 6


# ---- columns that differ -----------------------------------------------------------------------

NOWHERE = "spark://127.0.0.1:9"  # files are compared before it is asked


EVEN = rw.TablePolicy({0: {0: 0.5, 1: 0.5}, 1: {0: 0.5, 1: 0.5}})


def two_files(folder: Path, first: dict[str, Any] | None = None, **second: Any) -> list[Path]:
    """Two files of a log of whole numbers, which hold these columns instead."""
    half = {"episode": [0, 0, 1, 1], "step": [0, 1, 0, 1], "state": [0, 1, 1, 0]}
    half |= {"action": [0, 1, 1, 0], "reward": [1.0, 0.0, 0.5, 1.0], "behavior_prob": [0.5] * 4}
    other = half | {"episode": [2, 2, 3, 3]} | second
    half |= first or {}
    paths = [folder / "a.parquet", folder / "b.parquet"]
    for path, columns in zip(paths, (half, other), strict=True):
        pq.write_table(table(columns), path)
    return paths


@pytest.mark.parametrize("column", ["episode", "step", "state", "action", "reward"])
def test_files_of_different_types_are_refused_by_every_engine(column, tmp_path) -> None:
    texts = {"episode": list("2233"), "step": list("0101"), "reward": list("1111")}
    paths = two_files(tmp_path, **{column: texts.get(column, list("0110"))})
    said = set()
    for order in (paths, paths[::-1]):
        for engine in ("arrays", "stream", "duckdb", NOWHERE):
            with pytest.raises(
                rw.InputError, match=f"columns of the (Arrow )?files differ.*{column}.*types"
            ) as caught:
                rw.read_log(order, engine=engine).describe()
            said.add(str(caught.value))
    assert len(said) == 2  # the same on all engines, in the order of the files


def test_a_column_that_a_file_lacks_is_missed_by_every_engine(tmp_path) -> None:
    paths = two_files(tmp_path)
    pq.write_table(pq.read_table(paths[1]).drop_columns(["reward"]), paths[1])
    for engine in ("arrays", "stream", "duckdb", NOWHERE):
        with pytest.raises(rw.InputError, match=r"b\.parquet has no column 'reward'"):
            rw.read_log(paths, engine=engine).describe()


def test_numbers_of_different_widths_are_one_type(tmp_path) -> None:
    paths = two_files(
        tmp_path,
        state=pa.array([0, 1, 1, 0], pa.int8()),
        reward=pa.array([1.0, 0.0, 0.5, 1.0], pa.float32()),
        note=["of a column that is not read"] * 4,
    )
    expected = rw.read_log(paths, engine="arrays").describe()
    assert rw.read_log(paths, engine="duckdb").describe()["mean_return"] == expected["mean_return"]


WHOLE = {
    "int64 uint64": (pa.int64(), pa.uint64()),
    "uint64 int8": (pa.uint64(), pa.int8()),
    "int32 int64": (pa.int32(), pa.int64()),
    "uint8 int8": (pa.uint8(), pa.int8()),
    "uint64 uint8": (pa.uint64(), pa.uint8()),
}
LARGEST = 2**63 - 1


@pytest.mark.parametrize("pair", WHOLE)
@pytest.mark.parametrize("column", ["episode", "step", "state", "action", "reward"])
def test_integers_of_any_width_and_sign_are_one_kind(column, pair, tmp_path) -> None:
    """The same log as with one type in both files, on every engine."""
    one = {"episode": [0, 0, 1, 1], "step": [0, 1, 0, 1]}.get(column, [0, 1, 1, 0])
    two = [2, 2, 3, 3] if column == "episode" else one
    plain = two_files(tmp_path, {column: one}, **{column: two})
    expected = rw.moments(rw.read_log(plain, engine="arrays"), EVEN, ["mis", "is"])
    typed = [pa.array(values, kind) for values, kind in zip((one, two), WHOLE[pair], strict=True)]
    paths = two_files(tmp_path, {column: typed[0]}, **{column: typed[1]})
    for engine in ("arrays", "stream", "duckdb"):
        found = rw.moments(rw.read_log(paths, engine=engine), EVEN, ["mis", "is"])
        assert found.about.sources == expected.about.sources  # the same rows
        assert found.states == expected.states
        for name in ("mis", "is"):
            known = rw.evaluate(expected, None, name).value
            assert rw.evaluate(found, None, name).value == pytest.approx(known, rel=1e-12)


def test_the_ends_of_what_fits_are_kept(tmp_path) -> None:
    least = {"state": pa.array([-(2**63), 1, 1, 0], pa.int64())}
    paths = two_files(tmp_path, least, state=pa.array([LARGEST, 1, 1, 0], pa.uint64()))
    for engine in ("arrays", "stream", "duckdb"):
        known = rw.read_log(paths, engine=engine).describe()["state_examples"]
        assert known == [str(-(2**63)), "0", "1", str(LARGEST)]


TOO_LARGE = {
    "unsigned beside signed": ("state", pa.array([LARGEST + 1, 1, 1, 0], pa.uint64())),
    "unsigned ids": ("episode", pa.array([LARGEST + 1] * 2 + [3] * 2, pa.uint64())),
    "beside floats": ("reward", pa.array([2**53 + 1, 0, 0, 1], pa.int64())),
    "below floats": ("reward", pa.array([-(2**60), 0, 0, 1], pa.int64())),
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_integers_that_do_not_fit_are_refused_by_every_engine(kind, tmp_path) -> None:
    column, given = TOO_LARGE[kind]
    paths = two_files(tmp_path, **{column: given})
    said = set()
    for engine in ("arrays", "stream", "duckdb", NOWHERE):
        with pytest.raises(rw.InputError, match=f"column '{column}' is .* does not match") as told:
            rw.read_log(paths, engine=engine).describe()
        said.add(str(told.value))
    assert len(said) == 1
    assert said.pop().startswith("b.parquet")


def test_decimals_beside_other_types_are_refused_by_every_engine(tmp_path) -> None:
    paths = two_files(tmp_path, reward=pa.array([1, 0, 0, 1], pa.int64()).cast(pa.decimal128(19)))
    said = set()
    for engine in ("arrays", "stream", "duckdb", NOWHERE):
        with pytest.raises(
            rw.InputError, match=r"columns of the (Arrow )?files differ.*reward.*types"
        ) as caught:
            rw.read_log(paths, engine=engine).describe()
        said.add(str(caught.value))
    assert len(said) == 1


def test_integers_beside_floats_are_no_labels(tmp_path) -> None:
    for column, values in (("episode", [2.0, 2.0, 3.0, 3.0]), ("action", [0.0, 1.0, 1.0, 0.0])):
        paths = two_files(tmp_path, **{column: values})
        rules = set()
        for engine in ("arrays", "stream", "duckdb"):
            with pytest.raises(rw.InputError) as caught:
                rw.read_log(paths, engine=engine).describe()
            rules.add(tuple((fault.code, fault.rule) for fault in caught.value.faults))
        assert len(rules) == 1


# ---- names that differ in case -----------------------------------------------------------------


def with_twin(path: Path, name: str, at: int) -> None:
    """A column of zeros in the file, whose name SQL takes for that of a column of the log."""
    rows = pq.read_table(path)
    pq.write_table(rows.add_column(at, name, pa.array([0] * rows.num_rows)), path)


def values_of(data: Any, engine: str, **reading: Any) -> list[float]:
    names = ["mis", "is", "dm"]
    found = rw.evaluate_all(rw.read_log(data, engine=engine, **reading), EVEN, names)
    return [estimate.value for estimate in found]


@pytest.mark.parametrize("files", [[1], [0], [0, 1]], ids=str)
@pytest.mark.parametrize("at", [0, 6], ids=["before", "after"])
@pytest.mark.parametrize("name", ["Reward", "STATE", "Episode", "BEHAVIOR_prob"])
def test_names_that_differ_in_case_are_columns_of_their_own(name, at, files, tmp_path) -> None:
    paths = two_files(tmp_path)
    expected = values_of(paths, "arrays")
    for i in files:
        with_twin(paths[i], name, at)
    for engine in ("arrays", "stream", "duckdb"):
        assert values_of(paths, engine) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(rw.InputError, match=rf"'{name}'.*differ only in case.*rename.*'stream'"):
        rw.read_log(paths, engine=NOWHERE).describe()


def test_a_name_that_duckdb_would_give_to_another_column(tmp_path) -> None:
    """It calls the second of two names that it takes for one `state_1`."""
    [path, _] = two_files(tmp_path, {"state_1": [1, 0, 0, 1]})
    with_twin(path, "State", 0)
    for state in ("state", "state_1", "State"):
        expected = rw.read_log(path, state=state).describe()
        found = rw.read_log(path, engine="duckdb", state=state).describe()
        assert found["state_examples"] == expected["state_examples"]
        assert values_of(path, "duckdb", state=state) == pytest.approx(
            values_of(path, "arrays", state=state), rel=1e-12
        )


def test_columns_may_stand_in_another_order_in_every_file(tmp_path) -> None:
    paths = two_files(tmp_path)
    expected = values_of(paths, "arrays")
    rows = pq.read_table(paths[1])
    pq.write_table(rows.select(rows.column_names[::-1]), paths[1])
    assert values_of(paths, "duckdb") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("twin", ["Reward", "Note"])
def test_an_ibis_table_with_such_names_is_refused(twin, tmp_path) -> None:
    """An expression can have them, and SQL reads one for the other; none is read here of `Note`."""
    [path, _] = two_files(tmp_path, {"note": [1] * 4})
    rows = ibis.duckdb.connect().read_parquet(path)
    rows = rows.select(ibis.literal(0.0).name(twin), *rows.columns)
    if twin == "Note":
        assert rw.read_log(rows).describe()["rows"] == 4
        return
    with pytest.raises(rw.InputError, match=r"'Reward' and 'reward'.*duckdb treats them as one"):
        rw.read_log(rows).describe()


# ---- types that are not read -------------------------------------------------------------------

INSIDE = pa.array([0, 1, 2, 0, 1, 2])
ODD: dict[str, pa.Array] = {
    "duration": INSIDE.cast(pa.duration("s")),
    "time": INSIDE.cast(pa.time64("us")),
    "bool8": pa.ExtensionArray.from_storage(pa.bool8(), INSIDE.cast(pa.int8())),
    "json": pa.ExtensionArray.from_storage(pa.json_(), INSIDE.cast(pa.string())),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes([i]) * 16 for i in range(6)], pa.binary(16))
    ),
}


@pytest.mark.parametrize("where", ["file", "memory"])
@pytest.mark.parametrize("kind", ODD)
def test_types_that_are_not_read_are_refused_as_in_memory(kind, where, tmp_path) -> None:
    """Although DuckDB would read the numbers and texts inside."""
    for column in ("episode", "step", "state", "action", "reward", "behavior_prob"):
        data: Any = table(EVERY_ROLE, **{column: ODD[kind]})
        if where == "file":
            pq.write_table(data, tmp_path / "log.parquet")
            data = tmp_path / "log.parquet"
        expected = test_ibis.told(data, "arrays", ROLES)
        assert [fault[0] for fault in expected] == ["type"]
        assert str(ODD[kind].type) in expected[0][1]
        for engine in ("stream", "duckdb"):
            assert test_ibis.told(data, engine, ROLES) == expected


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=str)
def test_integers_beside_small_floats_are_not_rounded(kind, tmp_path) -> None:
    """Of both together DuckDB makes floats of 32 bits, which hold integers up to 2^24."""
    whole = pa.array([2**24 + 1, 2**24 + 3, 0, 1], kind)
    paths = two_files(tmp_path, {"reward": whole}, reward=pa.array([0.5] * 4, pa.float32()))
    expected = rw.read_log(paths, engine="arrays").describe()
    assert expected["reward_range"] == [0.0, 2**24 + 3]
    for engine in ("stream", "duckdb"):
        found = rw.read_log(paths, engine=engine).describe()
        assert found["mean_return"] == expected["mean_return"]
        assert found["reward_range"] == expected["reward_range"]
