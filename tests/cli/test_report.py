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
    assert "the policy “policy.csv”" in text
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
    for title in ("The curse of horizon", "Where the value comes from", "What the target wants"):
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
    assert "Verdict: refused" in text
    assert "no logged episode is possible under the target policy" in text
    assert "any step" in text  # what the log lacks, with counts


def test_demo_leaves_a_report(command: Command, tmp_path: Path) -> None:
    ran = command("demo", "-o", tmp_path)
    assert ran.code == 0, ran.err
    assert str(tmp_path / "report.html") in ran.out
    text = words(tmp_path / "report.html")
    assert "The truth, known here from the simulation, is 17.7" in text
    assert "--estimators all" in text


def test_demo_writes_nothing_where_its_report_exists(command: Command, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    ran = command("demo", "-o", tmp_path)
    assert ran.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_comparison_is_reported(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    other = write_policy(
        tmp_path / "even.csv", "state,action,prob\n0,0,.5\n0,1,.5\n1,0,.5\n1,1,.5\n"
    )
    out = tmp_path / "out.html"
    given = ("compare", log, "--target", policy, "--target", other, "--seed", "1", "--report", out)
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
    assert "180" in text.split("The log")[-1]  # its rows are described all the same
