"""The commands do what the library does, on files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import reweigh as rw

from .commands import Command, log_table, write_log, write_policy

ENTRY = {"estimator", "value", "standard_error", "interval", "verdict", "warnings", "n_episodes",
         "horizon"}  # fmt: skip
OBJECT = {"estimates", "behavior_value", "log", "version"}


def test_check_prints_the_counts_and_ranges(command: Command, log: Path) -> None:
    ran = command("check", log)
    assert ran.code == 0
    for part in ("The log is fine", "log.csv", "episodes", "60", "180", "horizon", "0.5, 0.5"):
        assert part in ran.out
    assert ran.err == ""


def test_check_as_json_is_the_description(command: Command, log: Path) -> None:
    ran = command("check", log, "--json")
    assert ran.code == 0
    about = rw.read_log(log).describe()
    assert ran.json() == {
        "schema_version": 1, "ok": True, "faults": [], "warnings": [], "log": about
    }  # fmt: skip


def test_check_tells_every_fault_at_once(command: Command, tmp_path: Path) -> None:
    table = log_table(2, reward=[1.0, float("nan"), 2.0, float("inf"), 0.0, 1.0],
                      behavior_prob=[0.5, 0.5, 2.0, 0.5, 0.5, 0.5])  # fmt: skip
    path = write_log(tmp_path / "log.csv", table)
    ran = command("check", path)
    assert ran.code == 3
    for part in ("not-finite", "row 2 (line 3), episode 0, step 1: value nan", "probability-range",
                 "2 of 6 rows", "fix:"):  # fmt: skip
        assert part in ran.err
    ran = command("check", path, "--json")
    assert ran.code == 3
    report = ran.json()
    assert report["ok"] is False
    assert [fault["code"] for fault in report["faults"]] == ["not-finite", "probability-range"]
    first = report["faults"][0]
    assert (first["count"], first["total"]) == (2, 6)
    assert first["rule"]
    assert first["fix"]
    place = first["places"][0]
    assert [place[key] for key in ("column", "row", "line", "episode", "step")] == [
        "reward",
        2,
        3,
        0,
        1,
    ]
    assert place["value"] == "nan"


def test_check_looks_at_the_target_s_column_too(command: Command, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.csv", log_table(1, pi=[0.5, 1.5, 0.5]))
    assert command("check", path).code == 0
    ran = command("check", path, "--target-prob", "pi")
    assert ran.code == 3
    assert "column 'pi', row 2" in ran.err


@pytest.mark.parametrize("content", ["state;action\n1;2\n", "\0\0\0", "state,state\n1,2\n"])
def test_check_as_json_always_says_what_is_wrong(
    content: str, command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    ran = command("check", path, "--json")
    assert ran.code == 3
    report = ran.json()
    assert report["ok"] is False
    assert len(report["faults"]) > 0


def test_evaluate_prints_a_table(command: Command, log: Path, policy: Path) -> None:
    ran = command("evaluate", log, "--target", policy, "--estimators", "mis,wis")
    assert ran.code == 0
    estimate = rw.evaluate(rw.read_log(log), rw.read_policy(policy), rw.mis())
    assert re.search(rf"mis +{estimate.value:.2f}", ran.out)
    for part in ("wis", "95 % interval", "60 episodes, horizon 3", "today's policy earned"):
        assert part in ran.out


def test_evaluate_as_json_is_one_object_with_the_library_s_numbers(
    command: Command, log: Path, policy: Path
) -> None:
    ran = command("evaluate", log, "--target", policy, "--estimators", "mis,wis,dm", "--json")
    assert ran.code == 0
    found = ran.json()
    assert set(found) >= OBJECT
    assert found["version"] == rw.__version__
    data, target = rw.read_log(log), rw.read_policy(policy)
    assert found["log"] == data.describe()
    assert [entry["estimator"] for entry in found["estimates"]] == ["mis", "wis", "dm"]
    for entry in found["estimates"]:
        estimate = rw.evaluate(data, target, entry["estimator"])
        assert set(entry) >= ENTRY
        assert "refused" not in entry
        assert entry["value"] == estimate.value
        assert entry["standard_error"] == estimate.standard_error
        interval = estimate.interval(0.95)
        assert interval is not None
        assert set(entry["interval"]) == {"low", "high", "level", "method", "standard_error"}
        assert entry["interval"]["low"] == interval.low
        assert entry["interval"]["high"] == interval.high
        assert entry["interval"]["level"] == 0.95
        assert entry["verdict"] == estimate.verdict.level
        assert {gate["name"] for gate in entry["gates"]} >= {"support", "drift"}
        assert (entry["n_episodes"], entry["horizon"]) == (60, 3)
        assert found["behavior_value"] == pytest.approx(estimate.behavior_value, rel=1e-12)


def test_a_column_as_the_target_is_the_same_as_its_table(
    command: Command, log: Path, policy: Path
) -> None:
    first = command("evaluate", log, "--target", policy, "--json").json()
    second = command("evaluate", log, "--target-prob", "pi", "--json").json()
    assert first["estimates"][0]["value"] == pytest.approx(second["estimates"][0]["value"])


def test_evaluate_all_asks_every_estimator(command: Command, log: Path, policy: Path) -> None:
    ran = command("evaluate", log, "--target", policy, "--estimators", "all", "--json")
    assert ran.code == 0
    first, *others = [entry["estimator"] for entry in ran.json()["estimates"]]  # auto's choice
    assert [first, *others] == [first, *(name for name in rw.ESTIMATORS if name != first)]


def test_an_estimator_that_refuses_says_so_beside_those_that_answer(
    command: Command, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    table = log_table(action=rng.normal(size=180), pi=rng.uniform(0.1, 2, 180))
    path = write_log(tmp_path / "log.csv", table)
    options = ("--target-prob", "pi", "--continuous-actions", "--estimators", "dm,mis")
    ran = command("evaluate", path, *options, "--json")
    assert ran.code == 0
    refused, answered = ran.json()["estimates"]
    assert set(refused) >= ENTRY | {"refused"}
    assert refused["value"] is refused["standard_error"] is refused["interval"] is None
    assert set(refused["refused"]) == {"code", "reason"}
    assert "continuous" in refused["refused"]["reason"]
    assert isinstance(answered["value"], float)
    ran = command("evaluate", path, *options)
    assert ran.code == 0
    assert re.search(r"dm +refused", ran.out)
    ran = command("evaluate", path, *options, "--explain")
    assert "model needs every action several times, but actions are continuous" in ran.out


IMPOSSIBLE = "state,action,prob\n0,7,1\n1,7,1\n"
HOPELESS: dict[str, tuple[Any, str]] = {
    "no overlap": (lambda: log_table(), IMPOSSIBLE),
    "deterministic log": (
        lambda: log_table(behavior_prob=np.ones(180)),
        "state,action,prob\n0,0,1\n1,0,1\n",
    ),
}


@pytest.mark.parametrize("what", HOPELESS)
def test_when_all_refuse_no_value_is_printed_and_the_reason_is(
    what: str, command: Command, tmp_path: Path
) -> None:
    table, policy = HOPELESS[what]
    path = write_log(tmp_path / "log.csv", table())
    arguments = ("evaluate", path, "--target", write_policy(tmp_path / "p.csv", policy))
    ran = command(*arguments, "--estimators", "mis,is")
    assert ran.code == 4
    assert "error: " in ran.err
    assert not re.search(r"\d\.\d", ran.out)
    ran = command(*arguments, "--estimators", "mis,is", "--json")
    assert ran.code == 4
    assert [entry["value"] for entry in ran.json()["estimates"]] == [None, None]
    assert all(entry["refused"]["reason"] for entry in ran.json()["estimates"])


# options of read_log, under the names that the command line has for them
OPTIONS: dict[str, tuple[dict[str, Any], list[str], dict[str, Any]]] = {
    "renamed columns": (
        {"rename": {"episode": "e", "step": "t", "state": "s", "action": "a", "reward": "r",
                    "behavior_prob": "mu"}},
        ["--episode", "e", "--step", "t", "--state", "s", "--action", "a", "--reward", "r",
         "--behavior-prob", "mu"],
        {"episode": "e", "step": "t", "state": "s", "action": "a", "reward": "r",
         "behavior_prob": "mu"},
    ),
    "several state columns": (
        {},
        ["--state", "state", "--state", "k"],
        {"state": ["state", "k"]},
    ),
    "next state": ({}, ["--next-state", "after"], {"next_state": "after"}),
    "horizon": ({}, ["--horizon", "2"], {"horizon": 2}),
    "discount": ({}, ["--discount", "0.5"], {"discount": 0.5}),
    "short episodes end": (
        {"drop_last": True},
        ["--short-episodes", "terminal"],
        {"short_episodes": "terminal"},
    ),
    "short episodes are cut": (
        {"drop_last": True},
        ["--short-episodes", "truncated"],
        {"short_episodes": "truncated"},
    ),
    "flags": (
        {},
        ["--terminated", "over", "--truncated", "cut"],
        {"terminated": "over", "truncated": "cut"},
    ),
    "hidden": ({"hide": True}, ["--hidden", "allow"], {"hidden": "allow"}),
    "continuous actions": (
        {"continuous": True},
        ["--continuous-actions"],
        {"continuous_actions": True},
    ),
    "rounding": (
        {},
        ["--state", "x", "--round", "2"],
        {"state": "x", "abstraction": rw.Rounding(2.0)},
    ),
    "rounding per column": (
        {},
        ["--state", "x", "--state", "k", "--round", "2", "--round", "1"],
        {"state": ["x", "k"], "abstraction": rw.Rounding([2.0, 1.0])},
    ),
    "grid": (
        {},
        ["--state", "x", "--grid", "0,0.5"],
        {"state": "x", "abstraction": rw.Grid([[0, 0.5]])},
    ),
    "delimiter": (
        {"delimiter": ";"},
        ["--delimiter", ";", "--decimal", ","],
        {"delimiter": ";", "decimal": ","},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OPTIONS)
def test_every_option_of_read_log_has_its_name_on_the_command_line(
    what: str, command: Command, tmp_path: Path
) -> None:
    changes, arguments, options = OPTIONS[what]
    table = log_table(5)
    state = table.column("state").to_pylist()
    after = [s if t < 2 else 7 for s, t in zip([*state[1:], 0], [0, 1, 2] * 5, strict=True)]
    extra: dict[str, Any] = {
        "after": after,
        "k": [i % 2 for i in range(15)],
        "x": [i / 10 - 0.5 for i in range(15)],
        "over": [i % 6 == 5 for i in range(15)],
        "cut": [False] * 15,
    }
    for name, values in extra.items():
        table = table.append_column(name, [values])
    frame = table.to_pandas().rename(columns=changes.get("rename", {}))
    if changes.get("drop_last"):
        frame = frame.iloc[:-1]
    if changes.get("continuous"):
        frame["action"] += 0.5
    if changes.get("hide"):
        frame["state"] = frame["state"].astype("Int64").where(frame["step"] != 1)
    path = tmp_path / "log.csv"
    separated = changes.get("delimiter", ",")
    frame.to_csv(path, index=False, sep=separated, decimal="," if separated == ";" else ".")
    ran = command("check", path, *arguments, "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["log"] == rw.read_log(path, **options).describe()


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
@pytest.mark.parametrize(
    "given", [("--delimiter", ";"), ("--decimal", "_"), ("--delimiter", ";", "--decimal", ",")]
)
def test_options_of_csv_files_are_for_no_others(
    command: Command, tmp_path: Path, policy: Path, engine: str, given: tuple[str, ...]
) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(log_table(5), path)
    ran = command("evaluate", path, "--target", policy, "--engine", engine, *given)
    assert ran.code == 2
    for name, value in zip(given[::2], given[1::2], strict=True):
        assert f"{name} {value}" in ran.err
    assert "the log is parquet file log.parquet" in ran.err
    assert command("init", path, "-o", tmp_path / "x.toml", *given).code == 2


def test_the_behavior_can_be_estimated(command: Command, log: Path, policy: Path) -> None:
    arguments = ("evaluate", log, "--target", policy, "--json")
    found = command(*arguments, "--fit-behavior", "--smoothing", "1").json()
    data = rw.read_log(log, behavior_prob=None)
    fitted = data.with_behavior(rw.fit_behavior(data, smoothing=1.0))
    assert found["estimates"][0]["value"] == rw.evaluate(fitted, rw.read_policy(policy)).value
    assert "estimated" in found["log"]["behavior_prob_from"]
    assert command(*arguments, "--smoothing", "1").code == 2


def test_a_log_in_several_files_is_one_log(command: Command, tmp_path: Path, policy: Path) -> None:
    write_log(tmp_path / "log.csv")
    whole = command("evaluate", tmp_path / "log.csv", "--target", policy, "--json").json()
    table = log_table()
    folder = tmp_path / "parts"
    folder.mkdir()
    parts = [folder / "a.csv", folder / "b.csv"]
    write_log(parts[0], table.slice(0, 100))
    write_log(parts[1], table.slice(100))
    for given in (parts, [folder], [f"{folder}/*.csv"]):
        found = command("evaluate", *given, "--target", policy, "--json").json()
        assert found["estimates"] == whole["estimates"]


def test_a_policy_may_name_its_columns_as_the_log_does(command: Command, tmp_path: Path) -> None:
    table = log_table().rename_columns(
        ["episode", "step", "s", "a", "reward", "behavior_prob", "pi"]
    )
    path = write_log(tmp_path / "log.csv", table)
    options = ("--state", "s", "--action", "a", "--json")
    found = []
    for header in ("s,a,prob", "state,action,prob"):
        text = header + "\n0,0,0.4\n0,1,0.6\n1,0,0.3\n1,1,0.7\n"
        policy = write_policy(tmp_path / "p.csv", text)
        ran = command("evaluate", path, "--target", policy, *options)
        assert ran.code == 0, ran.err
        found.append(ran.json()["estimates"])
    assert found[0] == found[1]


def test_cut_off_episodes_are_refused_or_dropped(command: Command, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.csv", log_table().slice(0, 178))
    options = ("--short-episodes", "truncated", "--target-prob", "pi", "--estimators", "is,mis")
    refused, mis = command("evaluate", path, *options, "--json").json()["estimates"]
    assert refused["refused"]["code"] == "truncated"
    assert mis["n_episodes"] == 60
    ran = command("evaluate", path, *options, "--cut-episodes", "drop", "--json")
    assert ran.json()["estimates"][0]["n_episodes"] == 59
    assert "left out" in ran.json()["estimates"][0]["warnings"][0]


def test_what_one_call_tried_is_recorded(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    given = ("evaluate", log, "--target", policy, "--json")
    assert command(*given, "--estimators", "mis,wis,dm").json()["tried"] == 3
    assert command(*given).json()["tried"] == 1
    ledger = (*given, "--ledger", tmp_path / "tried.json")
    assert command(*ledger, "--estimators", "mis,wis").json()["tried"] == 2
    assert command(*ledger, "--estimators", "dm").json()["tried"] == 3


def test_a_gain_without_the_cut_off_episodes_says_what_it_is_over(
    command: Command, tmp_path: Path
) -> None:
    path = write_log(tmp_path / "log.csv", log_table().slice(0, 178))
    given = ("evaluate", path, "--short-episodes", "truncated", "--target-prob", "pi")
    given = (*given, "--cut-episodes", "drop", "--estimators", "dr,mis,wis")
    found = command(*given, "--json").json()
    dr, mis, _ = found["estimates"]
    assert found["behavior_value"] == mis["behavior_value"] != dr["behavior_value"]
    for entry in (dr, mis):
        assert entry["value"] - entry["behavior_value"] == pytest.approx(entry["gain"]["value"])
    page = tmp_path / "report.html"
    lines = command(*given, "--explain", "--report", page).out.splitlines()
    told = {line.split(":")[0]: line for line in lines if "better than today's policy?" in line}
    over = f"over the {dr['behavior_value']:.4g} earned in the episodes that were not cut off"
    for name, entry in (("dr", dr), ("mis", mis)):
        assert (name in told) == entry["reliable"]
    assert told["mis"].endswith(")")
    assert "dr" not in told or told["dr"].endswith(over)
    # a certificate would be refused: it is not advised
    assert "no certificate" in command(*given, "--reward-range", "-9", "9").out
    assert any(re.match(r" wis +[0-9.]+ +not reliable", line) for line in lines)


def test_warnings_are_printed_and_strict_takes_them_for_refusals(
    command: Command, tmp_path: Path, policy: Path
) -> None:
    few = write_log(tmp_path / "few.csv", log_table(10))
    arguments = ("evaluate", few, "--target", policy)
    ran = command(*arguments)
    assert ran.code == 0
    assert ran.out.startswith("Not reliable: ")
    explained = command(*arguments, "--explain").out
    assert "- amber: 10 episodes." in explained
    ran = command(*arguments, "--json")
    assert "10 episodes" in ran.json()["estimates"][0]["warnings"][0]
    ran = command(*arguments, "--strict")
    assert ran.code == 4
    assert "strict" in ran.err


def test_strict_is_content_where_nothing_is_to_be_warned_about(
    command: Command, log: Path, policy: Path
) -> None:
    assert command("evaluate", log, "--target", policy, "--strict").code == 0


def test_a_policy_that_had_to_be_normalized_is_a_warning(
    command: Command, log: Path, tmp_path: Path
) -> None:
    policy = write_policy(tmp_path / "p.csv", "state,action,prob\n0,0,0.4000001\n0,1,0.6\n1,0,1\n")
    arguments = ("evaluate", log, "--target", policy)
    assert "normalized" in command(*arguments).out
    assert any("normalized" in text for text in command(*arguments, "--json").json()["warnings"])
    assert command(*arguments, "--strict").code == 4


def test_one_episode_has_a_value_without_an_interval(
    command: Command, tmp_path: Path, policy: Path
) -> None:
    path = write_log(tmp_path / "one.csv", log_table(1))
    ran = command("evaluate", path, "--target", policy, "--json")
    assert ran.code == 0
    entry, *beside = ran.json()["estimates"]
    assert [other["estimator"] for other in beside] == ["mis", "wis"]
    assert isinstance(entry["value"], float)
    assert entry["interval"] is entry["standard_error"] is None
    assert "one episode" in entry["warnings"][0]


@pytest.mark.parametrize("mu", [1e-300, 1e-60, 1e-12])
def test_huge_ratios_print_no_number_that_json_lacks(
    mu: float, command: Command, tmp_path: Path, policy: Path
) -> None:
    path = write_log(tmp_path / "log.csv", log_table(behavior_prob=np.full(180, mu)))
    ran = command("evaluate", path, "--target", policy, "--estimators", "all", "--json")
    assert ran.code in (0, 4), ran.err
    for entry in ran.json()["estimates"]:
        assert "refused" in entry or np.isfinite(entry["value"])


# moments and merge


def test_moments_answer_as_the_log_does(command: Command, log: Path, policy: Path) -> None:
    out = log.parent / "m.parquet"
    ran = command("moments", log, "--target", policy, "-o", out)
    assert ran.code == 0
    assert "m.parquet" in ran.out
    assert "60 episodes" in ran.out
    names = "mis,is,dm,mis-state"
    found = command("evaluate", out, "--estimators", names, "--json").json()
    expected = command("evaluate", log, "--target", policy, "--estimators", names, "--json").json()
    for mine, theirs in zip(found["estimates"], expected["estimates"], strict=True):
        assert mine["value"] == pytest.approx(theirs["value"], rel=1e-12)
        assert mine["standard_error"] == pytest.approx(theirs["standard_error"], rel=1e-9)
    assert found["log"]["episodes"] == 60


def test_merged_moments_are_those_of_the_whole_log(
    command: Command, tmp_path: Path, log: Path, policy: Path
) -> None:
    parts = []
    for i, rows in enumerate((slice(0, 90), slice(90, 180))):
        part = write_log(tmp_path / f"{i}.csv", log_table().slice(rows.start, 90))
        parts.append(tmp_path / f"{i}.moments.parquet")
        assert command("moments", part, "--target", policy, "-o", parts[-1]).code == 0
    ran = command("merge", *parts, "-o", tmp_path / "all.parquet")
    assert ran.code == 0
    assert "60 episodes" in ran.out
    found = command("evaluate", tmp_path / "all.parquet", "--json").json()
    expected = command("evaluate", log, "--target", policy, "--json").json()
    assert found["estimates"][0]["value"] == pytest.approx(
        expected["estimates"][0]["value"], rel=1e-12
    )


def test_moments_with_blocks_serve_the_jackknife(command: Command, log: Path, policy: Path) -> None:
    out = log.parent / "m.parquet"
    ran = command("moments", log, "--target", policy, "--blocks", "10", "-o", out)
    assert ran.code == 0
    [entry] = command("evaluate", out, "--estimators", "wis", "--json").json()["estimates"]
    assert entry["standard_error"] > 0


MERGE_REFUSED: dict[str, tuple[list[str], int, str]] = {
    "the same twice": (["a", "a"], 3, "count twice"),
    "the same log again": (["a", "a2"], 3, "count twice"),
    "another horizon": (["a", "short"], 3, "horizon"),
    "another discount": (["a", "discounted"], 3, "discount"),
    "another target": (["a", "target"], 3, "target"),
    "other blocks": (["a", "blocks"], 3, "blocks"),
    "other kinds of sums": (["a", "kinds"], 3, "kinds"),
    "a log": (["a", "log"], 3, "moments"),
    "a text file": (["a", "text"], 3, "Parquet"),
    "no file": (["a", "nothing"], 6, "no file"),
    "one file": (["a"], 2, "two files"),
}


@pytest.mark.parametrize("what", MERGE_REFUSED)
def test_moments_that_do_not_belong_together_are_not_merged(
    what: str, command: Command, tmp_path: Path
) -> None:
    names, code, words = MERGE_REFUSED[what]
    policy = rw.TablePolicy([[0.4, 0.6], [0.3, 0.7]])
    first = rw.read_log(log_table(10))
    second = log_table(10, seed=1, first=100)
    make = {
        "a": lambda: rw.moments(first, policy),
        "a2": lambda: rw.moments(rw.read_log(log_table(10)), policy),
        "short": lambda: rw.moments(rw.read_log(second, horizon=2), policy),
        "discounted": lambda: rw.moments(rw.read_log(second, discount=0.9), policy),
        "target": lambda: rw.moments(rw.read_log(second), rw.TablePolicy([[0.5, 0.5]] * 2)),
        "blocks": lambda: rw.moments(rw.read_log(second), policy, blocks=10),
        "kinds": lambda: rw.moments(rw.read_log(second), policy, ["mis"]),
    }
    paths = []
    for name in names:
        path = tmp_path / f"{name}.parquet"
        paths.append(path)
        if path.exists():
            continue
        if name in make:
            make[name]().save(path)
        elif name == "log":
            pq.write_table(second, path)
        elif name == "text":
            path.write_text("kind,n\n")
    ran = command("merge", *paths, "-o", tmp_path / "out.parquet")
    assert ran.code == code
    assert words in ran.err
    assert not (tmp_path / "out.parquet").exists()


def test_moments_know_their_target_and_their_log(command: Command, log: Path, policy: Path) -> None:
    out = log.parent / "m.parquet"
    command("moments", log, "--target", policy, "-o", out)
    for more in (["--target", policy], ["--horizon", 2]):
        ran = command("evaluate", out, *more)
        assert ran.code == 2
        assert "include their target" in ran.err


# demo


def test_demo_leaves_its_files_and_a_command_that_repeats_it(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "a demo"
    ran = command("demo", "-o", folder)
    assert ran.code == 0
    assert {path.name for path in folder.iterdir()} >= {"log.parquet", "policy.csv"}
    for name in ("mdr-loo", "mis", "wis", "dm", "is"):
        assert re.search(rf"^ *{name} ", ran.out, re.MULTILINE), name
    assert f"{len(rw.ESTIMATORS) - 5} more estimators" in ran.out
    truth = float(re.search(r"whose true value is (-?[\d.]+)\.", ran.out)[1])  # type: ignore[index]
    repeat = ran.out.strip().splitlines()[-1].strip()
    words = shlex.split(repeat)
    assert words[:2] == ["reweigh", "evaluate"]
    again = command(*words[1:], "--json")
    assert again.code == 0, again.err
    entries = {entry["estimator"]: entry for entry in again.json()["estimates"]}
    assert sorted(entries) == sorted(rw.ESTIMATORS)
    for name in ("mis", "dm", "mdr-loo"):
        error = entries[name]["value"] - truth
        assert abs(error) < 4 * entries[name]["standard_error"]
    # it replaces its own files, but none that was changed since
    assert command("demo", "-o", folder).code == 0
    (folder / "policy.csv").write_text("mine")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    ran = command("demo", "-o", folder)
    assert ran.code == 2
    assert "policy.csv" in ran.err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["log.parquet", "policy.csv"])
def test_demo_writes_nothing_where_one_of_its_files_exists(
    name: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("mine")
    ran = command("demo", "-o", tmp_path)
    assert ran.code == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_version_and_help(command: Command) -> None:
    assert command("--version").out == f"reweigh {rw.__version__}\n"
    ran = command("--help")
    assert ran.code == 0
    for name in ("check", "evaluate", "moments", "merge", "demo"):
        assert name in ran.out
        assert command(name, "--help").code == 0


def test_the_help_names_every_estimator(command) -> None:
    shown = command("evaluate", "--help").out
    words = {word.strip(" │.,\n") for word in shown.replace(",", " ").split()}
    assert set(rw.ESTIMATORS) <= words


@pytest.mark.parametrize("names", ["mdr-loo,dm,auto", "auto,dm,mdr-loo"])
def test_what_auto_chose_and_was_named_too_stands_once(
    command: Command, log: Path, policy: Path, names: str
) -> None:
    ran = command("evaluate", log, "--target", policy, "--estimators", names)
    assert ran.code == 0
    assert sum(line.startswith(" mdr-loo ") for line in ran.out.splitlines()) == 1
    assert ran.out.count("auto chose mdr-loo: ") == 1
    assert "mdr-loo, mdr-loo" not in ran.out
    entries = command("evaluate", log, "--target", policy, "--estimators", names, "--json").json()[
        "estimates"
    ]
    assert [(e["estimator"], e["chosen"] is None) for e in entries] == [
        ("mdr-loo", False), ("dm", True),
    ]  # fmt: skip


# the default


def test_the_default_is_auto_with_the_papers_estimators_beside_it(
    command: Command, log: Path, policy: Path
) -> None:
    ran = command("evaluate", log, "--target", policy)
    assert ran.code == 0
    rows = re.findall(r"^ (mdr-loo|mis|wis) ", ran.out, re.MULTILINE)
    assert rows == ["mdr-loo", "mis", "wis"]
    assert re.search("^beside mdr-loo: mis .*(less|more): within chance .*; wis ", ran.out, re.M)
    assert "auto chose mdr-loo: " in ran.out
    auto = command("evaluate", log, "--target", policy, "--estimators", "auto", "--json").json()
    first, *others = command("evaluate", log, "--target", policy, "--json").json()["estimates"]
    [alone] = auto["estimates"]
    assert alone["beside"] == []
    assert first | {"beside": []} == alone
    for one, other in zip(first["beside"], others, strict=True):
        assert (one["estimator"], one["value"]) == (other["estimator"], other["value"])
        assert one["difference"] == pytest.approx(other["value"] - first["value"])
        assert one["error"] > 0


def test_what_stands_beside_the_answer_is_not_judged(
    command: Command, log: Path, policy: Path
) -> None:
    """One line is left with --quiet; an option of mis alone has mis."""
    quiet = command("evaluate", log, "--target", policy, "--quiet")
    assert len(quiet.out.splitlines()) == 1
    assert quiet.out.startswith("mdr-loo ")
    for options in (("--memory", "0"), ("--max-ratio", "3")):
        entries = command("evaluate", log, "--target", policy, *options, "--json").json()
        assert [e["estimator"] for e in entries["estimates"]] in (["mis-hajek"], ["mis"])


def test_cut_off_episodes_refuse_wis_and_leave_the_answer(
    command: Command, tmp_path: Path, policy: Path
) -> None:
    step, early = np.tile([0, 1, 2], 60), np.repeat(np.arange(60), 3) < 5
    table = log_table(cut=early & (step == 1)).take(np.flatnonzero(~early | (step < 2)))
    path = write_log(tmp_path / "log.csv", table)
    options = ("--truncated", "cut", "--horizon", "3")
    ran = command("evaluate", path, "--target", policy, *options, "--json")
    assert ran.code == 0, ran.err
    first, mis, wis = ran.json()["estimates"]
    assert first["value"] is not None
    assert mis["estimator"] == "mis"
    assert "running products need complete episodes" in wis["refused"]["reason"]
    assert [one["refused"] is None for one in first["beside"]] == [True, False]
