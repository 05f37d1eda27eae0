"""reweigh evaluate --report, on every kind of input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .commands import Command, write_policy


def words(path: Path) -> str:
    """The page's text without its scripts."""
    page = path.read_text(encoding="utf-8")
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_a_report_is_written_beside_the_table(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.html"
    ran = command("evaluate", log, "--target", policy, "--estimators", "mis,wis", "--report", out)
    assert ran.code == 0, ran.err
    assert ran.out.rstrip().endswith(f"report: {out}")
    text = words(out)
    assert text.count("The new policy would earn") + text.count("Not reliable: ") > 0
    assert "The answer above is that of mis." in text
    before = out.read_bytes()
    ran = command("evaluate", log, "--target", policy, "--report", out)
    assert ran.code == 2
    assert "--overwrite" in ran.err
    assert out.read_bytes() == before
    ran = command(
        "evaluate", log, "--target", policy, "--report", out, "--overwrite", "--level", "0.9",
        "--json",
    )  # fmt: skip
    assert ran.code == 0
    assert ran.json()["report"] == str(out)
    assert "90 % interval" in words(out).replace("\N{NO-BREAK SPACE}", " ")


def test_overwrite_belongs_to_a_report(command: Command, log: Path, policy: Path) -> None:
    ran = command("evaluate", log, "--target", policy, "--overwrite")
    assert ran.code == 2
    assert "--report" in ran.err


@pytest.mark.parametrize("engine", ["arrays", "stream", "duckdb"])
def test_every_engine_reports(
    command: Command, log: Path, policy: Path, tmp_path: Path, engine: str
) -> None:
    out = tmp_path / "out.html"
    ran = command(
        "evaluate", log, "--target", policy, "--engine", engine, "--estimators", "mis,is,dm",
        "--report", out,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    text = words(out)
    for title in (
        "How many episodes is this",
        "Where is the value earned?",
        "that the log never shows?",
    ):
        assert title in text
    assert ("--engine arrays" in text) == (engine != "arrays")  # in the command line's words
    assert "engine='arrays'" not in text
    page = out.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert {"forest", "ess", "largest", "difference", "variance_states"} <= set(data["specs"])


def test_moments_report(command: Command, log: Path, policy: Path, tmp_path: Path) -> None:
    sums, out = tmp_path / "m.parquet", tmp_path / "out.html"
    assert command("moments", log, "--target", policy, "-o", sums).code == 0
    ran = command("evaluate", sums, "--report", out)
    assert ran.code == 0, ran.err
    assert "60 logged episodes" in words(out)


def test_a_refusal_is_reported_too(command: Command, log: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path / "p.csv", "state,action,prob\n0,7,1\n1,7,1\n")
    out = tmp_path / "out.html"
    ran = command("evaluate", log, "--target", policy, "--report", out)
    assert ran.code == 4
    text = words(out)
    assert "No answer: " in text
    assert "no logged episode is possible under the target policy" in text
    assert "any step" in text  # what the log lacks, with counts


def test_demo_leaves_a_report(command: Command, tmp_path: Path) -> None:
    ran = command("demo", "-o", tmp_path)
    assert ran.code == 0, ran.err
    assert str(tmp_path / "report.html") in ran.out
    text = words(tmp_path / "report.html")
    assert "The true value, known because the log is simulated, is 17.7" in text
    assert "--estimators all" in text


def test_demo_writes_nothing_where_its_report_exists(command: Command, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    ran = command("demo", "-o", tmp_path)
    assert ran.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_demo_fits_a_screen_and_runs_again(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """25 lines of 80 columns. It replaces what it wrote, and nothing that somebody changed."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)  # a path longer than the screen stays in one piece
    first = command("demo", "-o", ".")
    assert first.code == 0, first.err
    lines = first.out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("The new policy would earn 17.851 per episode (95 % interval 17.690")
    assert "Reliable: every check passed." in lines[1]
    policy = (tmp_path / "policy.csv").read_text()
    again = command("demo", "-o", ".")
    assert (again.code, again.out) == (0, first.out)
    (tmp_path / "policy.csv").write_text(policy + "mine")
    refused = command("demo", "-o", ".")
    assert refused.code == 2
    assert "policy.csv' was changed since the demo wrote it" in refused.err
    assert (tmp_path / "policy.csv").read_text().endswith("mine")
    assert command("demo", "-o", ".", "--overwrite", "-q").code == 0
    assert (tmp_path / "policy.csv").read_text() == policy


def test_title_unit_and_the_name_of_the_policy(command: Command, log: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path / "more_fluids.csv")
    out = tmp_path / "out.html"
    given = ("evaluate", log, "--target", policy)
    ran = command(*given, "--report", out, "--title", "Fluids", "--unit", "dollars per patient")
    assert ran.code == 0, ran.err
    text = words(out)
    assert text.startswith("Fluids")
    assert "How many patients is this based on?" in text
    assert "Based on 60 logged patients" in text
    assert "per episode" not in out.read_text("utf-8").split('id="report-data"')[1].split("<")[0]
    assert command(*given, "--title", "Fluids").code == 2
    ran = command(*given, "--unit", "patients")
    assert ran.code == 2
    assert "the unit must be like" in ran.err


def test_a_comparison_is_reported(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    other = write_policy(
        tmp_path / "even.csv", "state,action,prob\n0,0,.5\n0,1,.5\n1,0,.5\n1,1,.5\n"
    )
    out = tmp_path / "out.html"
    given = ("compare", log, "--target", policy, "--target", other, "--seed", "1", "--report", out)
    given += ("--estimators", "mis")
    ran = command(*given)
    assert ran.code == 0, ran.err
    assert ran.out.rstrip().endswith(f"report: {out}")
    text = words(out)
    assert "Which of 2 policies is best?" in text
    assert "corrected for choosing the best of 2" in text
    assert "2 pairs of a policy and an estimator" in text
    before = out.read_bytes()
    assert command(*given).code == 2
    assert out.read_bytes() == before
    ledger = ("--ledger", tmp_path / "tried.json")
    ran = command(*given, "--overwrite", "--json", *ledger)
    assert ran.json()["report"] == str(out)
    ran = command(*given, "--overwrite", "--estimators", "wis,mis", "--quiet", *ledger)
    assert ran.out.startswith("best: policy ")
    assert "4 pairs of a policy and an estimator" in words(out)
    assert command("compare", log, "--target", policy, "--overwrite").code == 2


def test_a_comparison_without_an_answer_is_reported(
    command: Command, log: Path, tmp_path: Path
) -> None:
    away = write_policy(tmp_path / "away.csv", "state,action,prob\n0,7,1\n1,7,1\n")
    out = tmp_path / "out.html"
    command("compare", log, "--target", away, "--report", out)
    text = words(out)
    assert "No answer" in text
    assert "180" in text.split("What is in the log?")[-1]  # its rows are described all the same
