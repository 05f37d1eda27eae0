"""`reweigh explain` says from a file what the evaluation said, and computes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import reweigh as rw
from reweigh.show.explanation import explained, main_of, results_of
from reweigh.show.first_screen import answer_sentence
from reweigh.worlds import random_mdp

from .commands import Command, log_table, write_log

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")


@pytest.fixture(scope="module")
def results() -> list[rw.Estimate | rw.Refusal]:
    """Of a log on which products of ratios fail: green, amber and red."""
    world = random_mdp(3, n_states=8, n_actions=3, horizon=8)
    return rw.evaluate_all(world.simulate(600, 0), world.target, list(rw.ESTIMATORS))


def saved(result: Any) -> Any:
    return json.loads(json.dumps(result.to_dict()))


def test_the_answer_is_that_of_the_evaluation(results: list[Any]) -> None:
    levels = set()
    for result in results:
        record = result.record()
        [found] = results_of(saved(result))
        assert answer_sentence(found) == answer_sentence(record)
        assert found.level == record.level
        assert found.reasons == record.reasons
        levels.add(found.level)
    assert levels == {"green", "amber", "red"}


def test_every_gate_is_there_once_with_its_question(results: list[Any]) -> None:
    from reweigh.trust.gates import all_gates

    questions = {gate.name: gate.question for gate in all_gates()}
    for result in results:
        [found] = results_of(saved(result))
        text = explained(found, [found], "per episode", 10_000)
        for gate in result.verdict.gates:
            line = f"- {questions[gate.name]} "
            assert text.count(line) == 1, (gate.name, text)
        for gate in result.verdict.reasons:
            if gate.level == result.verdict.level:
                assert f"- {gate.name}: " in text.split("What decided")[1]


def test_red_shows_no_interval(results: list[Any]) -> None:
    red = [result for result in results if result.verdict.level == "red"]
    assert red
    for result in red:
        [found] = results_of(saved(result))
        text = explained(found, [found], "per episode", 10_000)
        assert "% interval" not in text
        assert found.gain_interval is None
        assert "What to do" in text


def test_the_command_explains_what_the_commands_print(
    command: Command, log: Path, policy: Path, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    path.write_text(
        command("evaluate", log, "--target", policy, "--estimators", "wis,mis", "--json").out
    )
    ran = command("explain", path)
    assert ran.code == 0
    assert ran.out.startswith("mis: ")  # the answer, though it was named second
    for part in (
        "What decided",
        "What to do",
        "Are there enough episodes for an interval? 60 episodes.",
    ):
        assert part in ran.out
    assert "Also in this file: wis (" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100
    assert command("explain", path, "--of", "wis").out.startswith("wis: ")
    ran = command("explain", path, "--of", "wiss")
    assert ran.code == 2
    assert "did you mean 'wis'?" in ran.err

    path.write_text(command("compare", log, "--target", policy, "--seed", 1, "--json").out)
    assert command("explain", path).out.startswith("policy, mdr-loo: ")
    path.write_text(command("check", log, "--diagnose", "--target", policy, "--json").out)
    assert "it holds the checks alone" in " ".join(command("explain", path).out.split())


def test_a_refusal_is_explained(command: Command, policy: Path, tmp_path: Path) -> None:
    short = log_table(20).slice(0, 59).append_column("cut", [[False] * 58 + [True]])
    log, path = write_log(tmp_path / "cut.csv", short), tmp_path / "result.json"
    options = ("--target", policy, "--truncated", "cut", "--estimators", "wis", "--json")
    path.write_text(command("evaluate", log, *options).out)
    ran = command("explain", path)
    assert ran.code == 0
    assert ran.out.startswith("wis: No answer: ")
    assert "What to do" in ran.out


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", 3, "is not JSON"),
        ("[1]", 3, "it is a list"),
        ("{}", 3, "holds no result"),
        ('{"estimates": []}', 3, "holds no result"),
        ('{"estimates": [{"estimator": "mis"}]}', 3, "'gates'"),
        ('{"schema_version": 99, "estimates": []}', 3, "written by a newer reweigh"),
        ('{"estimates": [{"estimator": "nope", "gates": []}]}', 2, "nope"),
    ],
)
def test_what_is_no_result_is_refused(
    text: str, code: int, said: str, command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    ran = command("explain", path)
    assert ran.code == code, ran.err
    assert said in ran.err
    assert command("explain", tmp_path / "absent.json").code == 6


def test_a_verdict_that_its_gates_do_not_give_is_refused(results: list[Any]) -> None:
    red = next(saved(result) for result in results if result.verdict.level == "red")
    with pytest.raises(rw.InputError, match="the verdict is green, and its gates make it red"):
        results_of(red | {"verdict": "green"})


def test_the_answer_among_several_is_not_chosen_by_its_value(results: list[Any]) -> None:
    content = {"estimates": [saved(result) for result in results]}
    assert main_of(results_of(content)).estimator == "mis"
    without = [entry for entry in content["estimates"] if entry["estimator"] != "mis"]
    assert main_of(results_of({"estimates": without})).estimator == without[0]["estimator"]
