"""Decisions of routers and agents as logs: turns, propensities, candidates, and what is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import reweigh as rw
from reweigh.adapters import read_decisions, restrict_to_candidates

ROOT = Path(__file__).parents[2]
METADATA = "metadata.requester_metadata."
SHAPES: dict[str, dict[str, Any]] = {
    "litellm": {
        "session": "trace_id", "turn": "startTime", "state": f"{METADATA}task", "chosen": "model",
        "candidates": f"{METADATA}candidates", "propensity": f"{METADATA}propensity",
        "reward": f"{METADATA}feedback", "keep": ["response_time"],
    },
    "vllm-router": {
        "session": "session_id", "turn": "ts", "state": "category", "chosen": "selected_model",
        "candidates": "candidate_models", "count": "draws_of_selected", "samples": "draws",
        "reward": "feedback",
    },
    "opentelemetry": {
        "session": "attributes.gen_ai.conversation.id", "turn": "start_time",
        "state": "attributes.router.task", "chosen": "attributes.gen_ai.response.model",
        "candidates": "attributes.router.candidates",
        "propensity": "attributes.router.propensity", "reward": "attributes.router.reward",
    },
}  # fmt: skip


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "router_logs", ROOT / "scripts" / "router_logs.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["router_logs"] = module
    spec.loader.exec_module(module)
    return module


def test_the_examples_are_what_the_script_makes() -> None:
    for name, text in script().logs().items():
        assert (ROOT / "examples" / name).read_text(encoding="utf-8") == text


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_holds_the_same_decisions(shape: str) -> None:
    module = script()
    expected = list(module.decisions(module.SHORT, True, seed=21))
    log = read_decisions(ROOT / "examples" / f"{shape}.jsonl", **SHAPES[shape])
    assert (log.n_episodes, log.steps.n_rows) == (module.SHORT, len(expected))
    rows = sorted(log.to_table().to_pylist(), key=lambda row: (row["episode"], row["step"]))
    assert [(row["episode"], row["step"]) for row in rows] == [
        (d.session, d.turn) for d in expected
    ]
    assert [row["action"] for row in rows] == [d.route for d in expected]
    assert [row["reward"] for row in rows] == [d.reward for d in expected]
    assert [row["state_0"] for row in rows] == [d.task for d in expected]
    assert [row["state_1"] for row in rows] == [" | ".join(sorted(d.candidates)) for d in expected]
    counted = "count" in SHAPES[shape]
    mu = [d.draws / module.SAMPLES if counted else d.propensity for d in expected]
    assert [row["behavior_prob"] for row in rows] == mu


def lines(n: int = 600, seed: int = 0) -> list[dict[str, Any]]:
    """Sessions of two turns; "b" is not always offered, and "a" is drawn more often."""
    rng = np.random.default_rng(seed)
    made = []
    for k in range(n):
        offered = ["a", "b", "c"] if rng.random() < 0.7 else ["c", "a"]
        shares = {"a": 0.6, "b": 0.3, "c": 0.1} if "b" in offered else {"a": 0.6, "c": 0.4}
        chosen = str(rng.choice(list(shares), p=list(shares.values())))
        made.append(
            {
                "session": k // 2, "turn": 10 * (k % 2) + 5, "candidates": offered,
                "chosen": chosen, "propensity": shares[chosen],
                "reward": float(rng.random() + (chosen == "b")),
            }
        )  # fmt: skip
    return made


def read(tmp_path: Path, content: list[dict[str, Any]], **options: Any) -> rw.EpisodeLog:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in content))
    return read_decisions(path, **options)


def test_a_target_is_restricted_to_the_candidates(tmp_path: Path) -> None:
    """By the formula, line by line; and its value by importance weights done by hand."""
    content = lines()
    log = read(tmp_path, content)
    shares = {"a": 0.2, "b": 0.5, "c": 0.3}
    target = restrict_to_candidates(rw.RulePolicy("a=0.2, b=0.5, c=0.3"))
    place = log.steps.source_row
    for action, share in shares.items():
        expected = [
            share / sum(shares[a] for a in line["candidates"]) * (action in line["candidates"])
            for line in content
        ]
        assert np.allclose(target.of_action(log, action), np.array(expected)[place])
    pi = np.array([shares[x["chosen"]] / sum(shares[a] for a in x["candidates"]) for x in content])
    assert np.allclose(target.probabilities(log), pi[place])
    rho = (pi / [x["propensity"] for x in content]).reshape(-1, 2)
    y = np.array([x["reward"] for x in content]).reshape(-1, 2)
    by_hand = np.mean(rho[:, 0] * y[:, 0] + rho.prod(axis=1) * y[:, 1])
    assert rw.evaluate(log, target, rw.is_()).value == pytest.approx(by_hand, rel=1e-9)


def test_a_line_without_a_candidate_of_the_target_is_refused(tmp_path: Path) -> None:
    log = read(tmp_path, lines())
    with pytest.raises(rw.InputError, match="no-candidate") as raised:
        rw.evaluate(log, restrict_to_candidates(rw.RulePolicy("b=1")), rw.mis())
    [fault] = raised.value.faults
    assert fault.count == sum("b" not in line["candidates"] for line in lines())


def test_a_choice_that_is_no_candidate_names_its_line(tmp_path: Path) -> None:
    content = lines(20)
    content[6] |= {"chosen": "b", "candidates": ["a", "c"]}
    with pytest.raises(rw.InputError, match=r"not-a-candidate(.|\n)*line 7.: value 'b'"):
        read(tmp_path, content)


def test_argmax_logs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(rw.RefusedError, match=r"argmax.*Let it explore"):
        read(tmp_path, [line | {"propensity": 1.0} for line in lines()])


def test_uniform_propensities_that_the_choices_contradict_are_refused(tmp_path: Path) -> None:
    uniform = [line | {"propensity": 1 / len(line["candidates"])} for line in lines()]
    with pytest.raises(rw.RefusedError, match="1/n is not the probability"):
        read(tmp_path, uniform)
    with pytest.raises(rw.RefusedError, match="1/n is not the probability"):
        read(tmp_path, [x | {"propensity": 1 / 3} for x in lines()], candidates=None)


@pytest.mark.parametrize("seed", range(20))
def test_uniform_choices_are_accepted(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    content = lines(seed=seed)
    for line in content:
        offered = line["candidates"]
        line |= {"chosen": str(rng.choice(offered)), "propensity": 1 / len(offered)}
    assert read(tmp_path, content).n_episodes == 300


def test_lines_that_were_kept_by_sampling(tmp_path: Path) -> None:
    content = lines(40)
    with pytest.warns(rw.InputWarning, match="rates from 0.1 to 1"):
        log = read(
            tmp_path, [x | {"meta": {"SampleRate": 1 if x["session"] else 10}} for x in content]
        )
    assert sorted(log.steps.weight.tolist()) == [*[1.0] * (log.n_episodes - 1), 10.0]
    two = [x | {"meta": {"SampleRate": 1 if k else 10}} for k, x in enumerate(content)]
    with (
        pytest.warns(rw.InputWarning),
        pytest.raises(rw.InputError, match=r"two-weights: .*'1 over meta.SampleRate'"),
    ):
        read(tmp_path, two)
    for rate in (0.0, 4.0):
        with pytest.raises(rw.InputError, match="probabilities in"):
            read(
                tmp_path, [x | {"sampling_rate": 0.5 if k else rate} for k, x in enumerate(content)]
            )
    with pytest.warns(rw.InputWarning, match="whole sessions were kept"):
        read(tmp_path, [x | {"sampling_rate": 0.1} for x in content])


def test_counts_of_draws(tmp_path: Path) -> None:
    content = lines(40)
    log = read(tmp_path, [x | {"k": 3} for x in content], count="k", samples=8)
    assert set(log.steps.behavior_prob.tolist()) == {0.375}  # type: ignore[union-attr]
    content[5] |= {"k": 0}
    with pytest.raises(rw.InputError, match=r"(.|\n)*line 6.: value 0"):
        read(tmp_path, [{"k": 3} | x for x in content], count="k", samples=8)
    with pytest.raises(rw.UsageError, match="count and samples"):
        read(tmp_path, content, count="k")


def test_turns_are_ordered_and_ties_refused(tmp_path: Path) -> None:
    content = lines(10)
    shuffled = [content[k] for k in (3, 0, 2, 1, 4, 5, 9, 8, 7, 6)]
    assert read(tmp_path, shuffled).digest() == read(tmp_path, content).digest()
    content[1]["turn"] = 5
    with pytest.raises(rw.InputError, match=r"same 'turn'(.|\n)*line 2"):
        read(tmp_path, content)


def test_without_sessions_each_line_is_one(tmp_path: Path) -> None:
    log = read(tmp_path, lines(30), session=None, turn=None)
    assert (log.n_episodes, log.horizon) == (30, 1)


def test_a_field_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(rw.InputError, match="no field 'choosen'; did you mean 'chosen'"):
        read(tmp_path, lines(4), chosen="choosen")
