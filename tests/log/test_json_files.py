"""JSON Lines as logs: nested fields, broken lines, and every engine alike."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import reweigh as rw
from reweigh.log import json_files
from reweigh.log.csv_files import CsvFormat
from reweigh.log.json_files import JsonSource
from reweigh.log.sources import open_source

ROLES: dict[str, Any] = {"state": "seen.ward", "action": "done.drug", "reward": "reward"}
TARGET = rw.TablePolicy({"icu": {"a": 0.7, "b": 0.3}, "er": {"a": 0.2, "b": 0.8}})


def objects(episodes: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "episode": f"e{e}",
            "step": t,
            "seen": {"ward": "icu" if (e + t) % 3 else "er", "at": "2026-01-02T03:04:05"},
            "done": {"drug": "a" if (e * 7 + t) % 2 else "b", "others": ["x", "y"]},
            "reward": e % 5 - t if e else 0.5,
            "behavior_prob": 0.5,
            "prompt": "é" * 50,
        }
        for e in range(episodes)
        for t in range(3)
    ]


def written(path: Path, lines: list[str]) -> Path:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def source_of(path: Path) -> JsonSource:
    source = open_source(path, CsvFormat())
    assert isinstance(source, JsonSource)
    return source


@pytest.mark.parametrize("name", ["log.jsonl", "log.ndjson", "log.jsonl.gz"])
@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
@pytest.mark.parametrize("block", [300, 1 << 22])
def test_every_engine_reads_what_a_table_holds(
    name: str, engine: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    monkeypatch.setattr(json_files, "BLOCK", block)
    path = written(tmp_path / name, [json.dumps(line) for line in objects()])
    flat = [
        {**line, "seen.ward": line["seen"]["ward"], "done.drug": line["done"]["drug"]}
        for line in objects()
    ]
    names = ["episode", "step", "seen.ward", "done.drug", "reward", "behavior_prob"]
    table = pa.table(
        {key: [float(x[key]) if key == "reward" else x[key] for x in flat] for key in names}
    )
    here = rw.evaluate(rw.read_log(table, **ROLES), TARGET, rw.mis())
    there = rw.evaluate(rw.read_log(path, engine=engine, **ROLES), TARGET, rw.mis())
    assert there.value == pytest.approx(here.value, rel=1e-12)
    assert there.standard_error == pytest.approx(here.standard_error, rel=1e-9)


def test_fields_have_dotted_names_and_only_those_asked_for_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", [json.dumps(line) for line in objects(2)])
    source = source_of(path)
    assert source.names == [
        "episode", "step", "seen.ward", "seen.at", "done.drug", "done.others", "reward",
        "behavior_prob", "prompt",
    ]  # fmt: skip
    table = source.read(["seen.at", "done.others"], ())
    assert table.column_names == ["seen.at", "done.others"]
    assert table["seen.at"][0].as_py() == "2026-01-02T03:04:05"
    assert source.num_rows == 6


def test_a_field_that_some_lines_lack_is_null_there(tmp_path: Path) -> None:
    lines = ['{"a": 1}', '{"b": {"c": 2}}', "", '{"a": 2.5, "b": {"c": null}}']
    source = source_of(written(tmp_path / "log.jsonl", lines))
    assert source.read(["a", "b.c"], ()).to_pydict() == {
        "a": [1, None, 2.5],
        "b.c": [None, 2, None],
    }
    assert source.place(2).line is None  # there is an empty line


BROKEN = {
    '{"episode": "e", step: 3}': "line 4.: .*step: 3",
    '{"episode": "e"': "Expecting ',' delimiter at character",
    "[1, 2]": "holds a list, and must hold an object",
    "3": "holds a int, and must hold an object",
    '{"episode": "\udcff"}': "it is not UTF-8",
    "[" * 100_000: "nested too deeply|no JSON",
    '{"episode": 3}': r"line 4: Column\(/episode\) changed from string to number",
}


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_line_is_named(line: str, tmp_path: Path) -> None:
    good = [json.dumps(line) for line in objects(1)]
    path = tmp_path / "log.jsonl"
    path.write_bytes("\n".join([*good, line, *good]).encode(errors="surrogateescape"))
    with pytest.raises(rw.InputError, match=BROKEN[line]) as raised:
        rw.read_log(path, **ROLES)
    assert "line 4" in str(raised.value)


def test_a_fault_of_the_log_names_its_line(tmp_path: Path) -> None:
    lines = objects(3)
    lines[4]["behavior_prob"] = 1.5
    path = written(tmp_path / "log.jsonl", [json.dumps(line) for line in lines])
    for engine in ("arrays", "stream", "duckdb"):
        with pytest.raises(
            rw.InputError, match=r"row 5 \(line 5\), episode 'e1', step 1: value 1.5"
        ):
            rw.evaluate(rw.read_log(path, engine=engine, **ROLES), TARGET, rw.mis())


def test_other_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('[{"a": 1}]')
    with pytest.raises(rw.InputError, match="is named like json"):
        rw.read_log(path)
