"""`--confounding`: the bounds in the terminal and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reweigh.cli.app import run


def test_bounds_for_confounding(
    log: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(log), "--target", str(policy)]
    assert run([*words, "--gammas", "1.5,2"]) == 0
    shown = capsys.readouterr().out
    assert "If hidden causes change the odds of the logged actions by a factor up to Γ:" in shown
    assert "against the behavior" in shown
    assert run([*words, "--confounding", "--json"]) == 0
    bounds = json.loads(capsys.readouterr().out)["confounding"]
    assert [row["gamma"] for row in bounds["bounds"]] == [1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0]
    assert run([*words, "--gammas", "much"]) == 2
    assert "--gammas takes numbers such as 1.5,2,3, not 'much'" in capsys.readouterr().err
    assert run([*words, "--gammas", "0.5"]) == 2
