"""`reweigh schema` prints what `--json` really prints. (Every other test that reads an output by
`Ran.json` validates it as well.)"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reweigh.cli.app import COMMANDS, function_of
from reweigh.cli.outputs import OUTPUTS
from reweigh.cli.schema import schema_of
from reweigh.cli.terminal import SCHEMA_VERSION

from .commands import Command, log_table, validator, write_log

EVALUATE = [
    ["--estimators", "all"],
    ["--estimators", "auto"],
    ["--estimators", "mis,wis", "--sensitivity", "--reward-range", "-9", "9"],
    ["--estimators", "mis,wis", "--interval", "percentile", "--replicates", "999", "--seed", "1"],
    ["--estimators", "mis", "--one-sided", "lower"],
    ["--estimators", "mis,wis", "--engine", "stream"],
    ["--estimators", "mis,wis", "--engine", "duckdb"],
    ["--estimators", "mis", "--fit-behavior"],
]


@pytest.mark.parametrize("options", EVALUATE, ids=" ".join)
def test_what_evaluate_prints_has_its_schema(
    options: list[str], command: Command, log: Path, policy: Path
) -> None:
    ran = command("evaluate", log, "--target", policy, "--json", *options)
    found = ran.json()
    assert next(iter(found)) == "schema_version"
    assert found["schema_version"] == SCHEMA_VERSION


def test_what_the_other_commands_print_has_their_schema(
    command: Command, policy: Path, tmp_path: Path
) -> None:
    log = write_log(tmp_path / "log.csv", log_table(200))
    other = tmp_path / "other.csv"
    other.write_text("state,action,prob\n0,0,0.5\n0,1,0.5\n1,0,0.5\n1,1,0.5\n")
    two = ["--target", policy, "--target", other, "--seed", 1]
    for run in (
        ["init", log, "-o", tmp_path / "r.toml"],
        ["check", log],
        ["check", log, "--diagnose", "--target", policy],
        ["check", log, "--diagnose", "--target", policy, "--engine", "duckdb"],
        ["compare", log, *two],
        ["compare", log, *two, "--holdout", 0.3, "--estimators", "mis,wis"],
        ["compare", log, *two, "--estimators", "auto"],
        ["plan", log, "--target", policy, "--half-width", 0.1, "--estimators", "mis,is,dm"],
        ["plan", log, "--target", policy, "--difference", 0.5],
    ):
        ran = command(*run, "--json")
        assert ran.code == 0, ran.err
        ran.json()


def test_sums_and_refusals_have_the_schema_too(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    sums = tmp_path / "sums.parquet"
    assert command("moments", log, "--target", policy, "-o", sums).code == 0
    command("evaluate", sums, "--estimators", "mis,wis", "--json").json()
    cut = write_log(tmp_path / "cut.csv", log_table(20, cut=[False, False, True] * 20))
    short = log_table(20).slice(0, 59)
    write_log(cut, short.append_column("cut", [[False] * 58 + [True]]))
    ran = command(
        "evaluate",
        cut,
        "--target",
        policy,
        "--truncated",
        "cut",
        "--estimators",
        "mis,wis",
        "--json",
    )
    refused = [entry for entry in ran.json()["estimates"] if "refused" in entry]
    assert [entry["estimator"] for entry in refused] == ["wis"]
    assert refused[0]["reliable"] is False
    broken = write_log(tmp_path / "broken.csv", log_table(2, behavior_prob=[2.0] * 6))
    assert command("check", broken, "--json").json()["ok"] is False


def test_every_command_with_json_has_a_schema(command: Command) -> None:
    with_json = {
        name for name in COMMANDS if "as_json" in inspect.signature(function_of(name)).parameters
    }
    assert with_json == set(OUTPUTS)
    for name in OUTPUTS:
        ran = command("schema", name)
        assert ran.code == 0
        assert json.loads(ran.out) == schema_of(name, OUTPUTS[name])
    ran = command("schema", "evalute")
    assert ran.code == 2
    assert "did you mean 'evaluate'?" in ran.err


def _changed(found: dict[str, Any], change: str) -> dict[str, Any]:
    entry = found["estimates"][0]
    if change == "a new key":
        entry["surprise"] = 1
    elif change == "a missing key":
        del entry["verdict"]
    elif change == "a wrong word":
        entry["verdict"] = "blue"
    elif change == "text for a number":
        entry["interval"]["low"] = "1"
    else:
        found["schema_version"] = SCHEMA_VERSION + 1
    return found


@pytest.mark.parametrize(
    "change",
    ["a new key", "a missing key", "a wrong word", "text for a number", "another version"],
)
def test_an_output_that_drifts_is_noticed(
    change: str, command: Command, log: Path, policy: Path
) -> None:
    found = command("evaluate", log, "--target", policy, "--json").json()
    with pytest.raises(jsonschema.ValidationError):
        validator("evaluate").validate(_changed(found, change))


def test_the_reference_page_names_every_output() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text("utf-8")
    for name in OUTPUTS:
        assert f"`reweigh schema {name}`" in page
