"""Files that are missing, damaged, misnamed or written in another way: refused with the reason."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import reweigh as rw

from .samples import COLUMNS, csv_file, csv_text, table

GOOD = csv_text(COLUMNS)
HEADER = GOOD.splitlines()[0] + "\n"


def parquet_bytes() -> bytes:
    out = io.BytesIO()
    pq.write_table(table(), out)
    return out.getvalue()


def numpy_bytes() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    return out.getvalue()


def zip_bytes() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("../log.csv", GOOD)
    return out.getvalue()


def large_gzip() -> bytes:
    """More than one reading block, so that the damage is found late."""
    rng = np.random.default_rng(0)
    rows = [f"{i},0,{s},l,{s / 7},0.5\n" for i, s in enumerate(rng.integers(0, 10**6, 60_000))]
    return gzip.compress((HEADER + "".join(rows)).encode())


def damaged_parquet() -> bytes:
    content = bytearray(parquet_bytes())
    content[4:150] = b"\xff" * 146
    return bytes(content)


# name of the file, its content, words of the message
REFUSED: dict[str, tuple[str, Callable[[], bytes], list[str]]] = {
    "empty": ("log.csv", lambda: b"", ["log.csv", "empty"]),
    "empty gzip": ("log.csv.gz", lambda: gzip.compress(b""), ["log.csv.gz", "empty"]),
    "header only": ("log.csv", HEADER.encode, ["log.csv", "no rows"]),
    "header without a line end": ("log.csv", HEADER.strip().encode, ["log.csv", "no rows"]),
    "truncated gzip": ("log.csv.gz", lambda: gzip.compress(GOOD.encode())[:-12], ["log.csv.gz"]),
    "truncated large gzip": ("log.csv.gz", lambda: large_gzip()[:-5000], ["log.csv.gz"]),
    "gzip with a wrong checksum": (
        "log.csv.gz",
        lambda: large_gzip()[:-8] + b"\0" * 8,
        ["log.csv.gz"],
    ),
    "truncated parquet": (
        "log.parquet",
        lambda: parquet_bytes()[:-30],
        ["log.parquet", "complete Parquet"],
    ),
    "parquet of six bytes": ("log.parquet", lambda: parquet_bytes()[:6], ["log.parquet"]),
    "damaged parquet": ("log.parquet", damaged_parquet, ["log.parquet", "damaged"]),
    "csv named parquet": ("log.parquet", GOOD.encode, ["named like parquet", "contains csv"]),
    "parquet named csv": ("log.csv", parquet_bytes, ["named like csv", "contains parquet"]),
    "gzip named csv": (
        "log.csv",
        lambda: gzip.compress(GOOD.encode()),
        ["named like csv", "contains gzip"],
    ),
    "csv named gzip": ("log.csv.gz", GOOD.encode, ["named like gzip", "contains csv"]),
    "pickle": ("log.pkl", lambda: pickle.dumps(COLUMNS), ["pickle", "run code"]),
    "pickle named csv": ("log.csv", lambda: pickle.dumps(COLUMNS), ["pickle"]),
    "array file": ("log.npy", numpy_bytes, ["NumPy"]),
    "zip": ("log.zip", zip_bytes, ["zip archive"]),
    "zip named csv": ("log.csv", zip_bytes, ["zip archive"]),
    "too few cells": (
        "log.csv",
        GOOD.replace("a,1,y,r,0.0,0.25", "a,1,y,r,0.0").encode,
        ["line 3", "5 cells", "6", "1 of 6 rows", "never padded"],
    ),
    "too many cells": (
        "log.csv",
        GOOD.replace("b,2,y,l,0.0,0.5", "b,2,y,l,0.0,0.5,9").encode,
        ["line 7", "7 cells", "6"],
    ),
    "duplicate header": (
        "log.csv",
        GOOD.replace("action", "state").encode,
        ["line 1", "'state'", "3, 4"],
    ),
    "semicolons": (
        "log.csv",
        GOOD.replace(",", ";").encode,
        ["delimiter=';'", "episode;step;state"],
    ),
    "semicolons and decimal commas": (
        "log.csv",
        GOOD.replace(",", ";").replace(".", ",").encode,
        ["delimiter=';'", "decimal=','"],
    ),
    "tabs": ("log.csv", GOOD.replace(",", "\t").encode, [r"delimiter='\t'"]),
    "decimal commas": (
        "log.csv",
        GOOD.replace("0.5", '"0,5"').encode,
        ["'behavior_prob'", "line 2", "'0,5'", "decimal=','"],
    ),
    "NUL in a cell": (
        "log.csv",
        GOOD.replace("a,1,y", "a,1,y\0").encode,
        ["line 3, byte 6", "NUL"],
    ),
    "NUL in the header": ("log.csv", GOOD.replace("state", "st\0ate").encode, ["line 1", "NUL"]),
    "invalid UTF-8 in a cell": (
        "log.csv",
        lambda: GOOD.encode().replace(b"a,1,y", b"a,1,\xff"),
        ["line 3, byte 5", "save the file as UTF-8"],
    ),
    "invalid UTF-8 in the header": (
        "log.csv",
        lambda: GOOD.encode().replace(b"state", b"st\xffate"),
        ["line 1, byte 16", "UTF-8"],
    ),
    "UTF-16": ("log.csv", lambda: GOOD.encode("utf-16"), ["log.csv", "UTF-16", "UTF-8"]),
    "UTF-16, big end first": (
        "log.csv",
        lambda: b"\xfe\xff" + GOOD.encode("utf-16-be"),
        ["UTF-16", "UTF-8"],
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_file_is_refused_with_its_name_and_the_reason(what: str, tmp_path: Path) -> None:
    name, content, words = REFUSED[what]
    (tmp_path / name).write_bytes(content())
    with pytest.raises(rw.InputError) as error:
        rw.read_log(tmp_path / name)
    assert error.value.exit_code == 3
    for word in words:
        assert word in str(error.value)


def test_all_ragged_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(GOOD.replace("b,", "b,b,"))
    with pytest.raises(rw.InputError) as error:
        rw.read_log(path)
    [fault] = error.value.faults
    assert (fault.code, fault.count, fault.total) == ("ragged-row", 3, 6)
    assert [place.line for place in fault.places] == [5, 6, 7]


ACCEPTED: dict[str, tuple[str, Callable[[], bytes], dict[str, Any]]] = {
    "byte order mark": ("log.csv", lambda: b"\xef\xbb\xbf" + GOOD.encode(), {}),
    "CRLF": ("log.csv", GOOD.replace("\n", "\r\n").encode, {}),
    "blank last lines": ("log.csv", (GOOD + "\n\r\n\n").encode, {}),
    "gzip without a suffix": ("log", lambda: gzip.compress(GOOD.encode()), {}),
    "no last line end": ("log.csv", GOOD.rstrip("\n").encode, {}),
    "no suffix": ("log", GOOD.encode, {}),
    "semicolons and decimal commas": (
        "log.csv",
        GOOD.replace(",", ";").replace(".", ",").encode,
        {"delimiter": ";", "decimal": ","},
    ),
    "tabs": ("log.tsv", GOOD.replace(",", "\t").encode, {"delimiter": "\t"}),
    "everything quoted": (
        "log.csv",
        lambda: "".join(
            ",".join(f'"{cell}"' for cell in line.split(",")) + "\n" for line in GOOD.splitlines()
        ).encode(),
        {},
    ),
    "gzip in two members": (
        "log.csv.gz",
        lambda: gzip.compress(HEADER.encode()) + gzip.compress(GOOD[len(HEADER) :].encode()),
        {},
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_a_good_file_in_another_dress_is_the_same_log(what: str, tmp_path: Path) -> None:
    name, content, options = ACCEPTED[what]
    (tmp_path / name).write_bytes(content())
    assert rw.read_log(tmp_path / name, **options).digest() == rw.read_log(table()).digest()


@pytest.mark.parametrize("name", ["PK", "7z", "BZh1"])
def test_a_header_that_starts_like_an_archive_is_a_header(name: str, tmp_path: Path) -> None:
    columns = {name if c == "episode" else c: values for c, values in COLUMNS.items()}
    log = rw.read_log(csv_file(tmp_path / "log.csv", columns), episode=name)
    assert log.digest() == rw.read_log(table()).digest()


def test_a_line_that_starts_with_a_number_sign_is_data(tmp_path: Path) -> None:
    columns = {**COLUMNS, "episode": ["#a"] * 3 + ["b"] * 3}
    log = rw.read_log(csv_file(tmp_path / "log.csv", columns))
    assert sorted(log.steps.episode.tolist()) == ["#a", "b"]


@pytest.mark.parametrize("bad", ["inf", "oops"])
def test_the_line_of_a_fault_is_left_out_where_cells_hold_line_ends(
    bad: str, tmp_path: Path
) -> None:
    columns = {**COLUMNS, "reward": [1.0, 0.0, 2.0, 1.0, bad, 0.0]}
    for first, line in (("x", 6), ("two\nlines", None)):
        columns["state"] = [first, "y", "z", "x", "z", "y"]
        with pytest.raises(rw.InputError) as error:
            rw.read_log(csv_file(tmp_path / "log.csv", columns))
        place = error.value.faults[0].places[0]
        assert (place.row, place.line) == (5, line)


MISSING: dict[str, Callable[[Path], Any]] = {
    "file": lambda folder: folder / "no.csv",
    "file in no folder": lambda folder: folder / "no" / "log.csv",
    "pattern": lambda folder: str(folder / "no*.csv"),
    "empty directory": lambda folder: folder,
    "one of two": lambda folder: [csv_file(folder / "log.csv"), folder / "no.csv"],
}


@pytest.mark.parametrize("what", MISSING)
def test_a_file_that_is_not_there_is_a_resource_error(what: str, tmp_path: Path) -> None:
    given = MISSING[what](tmp_path)
    with pytest.raises(rw.ResourceError) as error:
        rw.read_log(given)
    assert error.value.exit_code == 6
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("same", ["path", "copy"])
def test_the_same_content_twice_is_refused(same: str, tmp_path: Path) -> None:
    first = csv_file(tmp_path / "a.csv")
    second = first if same == "path" else csv_file(tmp_path / "b.csv")
    with pytest.raises(rw.InputError, match="same content"):
        rw.read_log([first, second])


def test_files_of_one_size_are_told_apart_by_any_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reweigh.log.sources.BEGINNING", 8)
    rewards = {"a": "0.5", "b": "0.7", "c": "0.7", "d": "0.6"}  # the files begin alike
    paths = []
    for name, reward in rewards.items():
        cells = [reward, *COLUMNS["reward"][1:]]
        paths.append(csv_file(tmp_path / f"{name}.csv", COLUMNS | {"reward": cells}))
    assert len({path.stat().st_size for path in paths}) == 1
    with pytest.raises(rw.InputError, match=r"c\.csv' has the same content as .*b\.csv'"):
        rw.read_log(paths)
    with pytest.raises(rw.InputError) as error:  # one log of the same episodes twice
        rw.read_log([paths[0], paths[1], paths[3]])
    assert "same content" not in str(error.value)


def test_files_of_different_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.parquet").write_bytes(parquet_bytes())
    csv_file(tmp_path / "a.csv")
    with pytest.raises(rw.InputError, match=r"a\.csv \(csv\), b\.parquet \(parquet\)"):
        rw.read_log(tmp_path)


def test_a_file_that_lacks_a_column_of_the_others_is_named(tmp_path: Path) -> None:
    first = {name: values[:3] for name, values in COLUMNS.items()}
    second = {name: values[3:] for name, values in COLUMNS.items() if name != "reward"}
    paths = [csv_file(tmp_path / "a.csv", first), csv_file(tmp_path / "b.csv", second)]
    with pytest.raises(rw.InputError, match=r"b\.csv has no column 'reward'"):
        rw.read_log(paths)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_changed_since_it_was_read_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"log.{kind}"
    path.write_bytes(GOOD.encode() if kind == "csv" else parquet_bytes())
    log = rw.read_log(path)
    assert log.column("reward").sum() == 4.5
    fresh = rw.read_log(path)
    changed = table(reward=[9.0] * 6)
    if kind == "csv":
        path.write_text(csv_text(changed.to_pydict()))
    else:
        pq.write_table(changed, path)
    with pytest.raises(rw.ResourceError, match="changed") as error:
        fresh.column("reward")
    assert error.value.exit_code == 6


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_went_away_since_it_was_read_is_a_resource_error(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / f"log.{kind}"
    path.write_bytes(GOOD.encode() if kind == "csv" else parquet_bytes())
    log = rw.read_log(path)
    path.unlink()
    with pytest.raises(rw.ResourceError) as error:
        log.column("reward")
    assert error.value.exit_code == 6
