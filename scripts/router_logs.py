"""The example logs of routers in examples/: made here, of no real requests.

`router.jsonl` has the fields that reweigh needs under their own names. The others hold decisions
of the same kind in the shapes that LiteLLM (its StandardLoggingPayload), vLLM's semantic router
(its event `routing_decision`) and the OpenTelemetry SDK for Python (a span per line) write. None of
these writes a propensity by itself: it stands where each lets users add fields of their own.

python scripts/router_logs.py --write
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "examples"
SESSIONS, SHORT, MOST_TURNS = 450, 60, 4
SAMPLES = 20
ROUTES = ("small", "medium", "large")
COST = {"small": 0.02, "medium": 0.08, "large": 0.25}
QUALITY = {
    "chat": {"small": 0.85, "medium": 0.9, "large": 0.92},
    "code": {"small": 0.45, "medium": 0.75, "large": 0.92},
    "math": {"small": 0.3, "medium": 0.6, "large": 0.9},
}
START = datetime(2026, 3, 2, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Decision:
    """One turn of a session: what the router saw, might do, did, and what came of it."""

    session: str
    turn: int
    time: datetime
    task: str
    tokens: int
    candidates: tuple[str, ...]
    route: str
    propensity: float
    draws: int  # of SAMPLES
    reward: float
    latency: float
    done: bool


def decisions(sessions: int, outages: bool, seed: int) -> Iterator[Decision]:
    """Routes drawn with a preference for cheap ones on chat; with outages, "large" is not always a
    candidate."""
    rng = np.random.default_rng(seed)
    for number in range(sessions):
        task = str(rng.choice(["chat", "code", "math"], p=[0.5, 0.3, 0.2]))
        time = START + timedelta(minutes=float(rng.uniform(0, 60 * 24 * 14)))
        turns = int(rng.integers(2, MOST_TURNS + 1))
        for turn in range(turns):
            offered = ROUTES[:2] if outages and rng.random() < 0.15 else ROUTES
            weights = np.array({"chat": [6, 3, 1], "code": [2, 5, 3], "math": [2, 3, 5]}[task])
            shares = weights[: len(offered)] / weights[: len(offered)].sum()
            k = int(rng.choice(len(offered), p=shares))
            route, tokens = offered[k], int(rng.lognormal(5, 0.8))
            solved = rng.random() < QUALITY[task][route] - 0.1 * (tokens > 400)
            done = turn == turns - 1 or bool(solved and rng.random() < 0.4)
            yield Decision(
                session=f"s{number:04d}",
                turn=turn,
                time=time,
                task=task,
                tokens=tokens,
                candidates=offered,
                route=route,
                propensity=round(float(shares[k]), 6),
                draws=max(1, round(float(shares[k]) * SAMPLES)),
                reward=round(float(solved) - COST[route], 2),
                latency=round(float(rng.gamma(4, 0.1 + COST[route])), 3),
                done=done,
            )
            time += timedelta(seconds=float(rng.uniform(20, 200)))
            if done:
                break


def plain(d: Decision) -> dict[str, Any]:
    return {
        "session": d.session,
        "turn": d.turn,
        "task": d.task,
        "tokens": d.tokens,
        "chosen": d.route,
        "propensity": d.propensity,
        "reward": d.reward,
        "latency": d.latency,
        "done": d.done,
    }


def litellm(d: Decision) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{d.session}-{d.turn}",
        "trace_id": d.session,
        "call_type": "acompletion",
        "status": "success",
        "model": d.route,
        "model_group": "auto",
        "response_cost": COST[d.route],
        "prompt_tokens": d.tokens,
        "startTime": d.time.timestamp(),
        "response_time": d.latency,
        "metadata": {
            "requester_metadata": {
                "task": d.task,
                "candidates": list(d.candidates),
                "propensity": d.propensity,
                "feedback": d.reward,
            }
        },
    }


def vllm(d: Decision) -> dict[str, Any]:
    return {
        "level": "info",
        "ts": d.time.isoformat(timespec="milliseconds"),
        "msg": "routing_decision",
        "request_id": f"{d.session}-{d.turn}",
        "session_id": d.session,
        "original_model": "auto",
        "selected_model": d.route,
        "category": d.task,
        "reasoning_enabled": d.task == "math",
        "routing_latency_ms": round(d.latency * 10, 1),
        "candidate_models": list(d.candidates),
        "draws_of_selected": d.draws,
        "draws": SAMPLES,
        "feedback": d.reward,
    }


def opentelemetry(d: Decision) -> dict[str, Any]:
    number = int(d.session[1:]) * 8 + d.turn
    return {
        "name": "chat auto",
        "context": {"trace_id": f"0x{number:032x}", "span_id": f"0x{number:016x}"},
        "kind": "SpanKind.CLIENT",
        "start_time": d.time.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": d.session,
            "gen_ai.request.model": "auto",
            "gen_ai.response.model": d.route,
            "gen_ai.usage.input_tokens": d.tokens,
            "router.task": d.task,
            "router.candidates": list(d.candidates),
            "router.propensity": d.propensity,
            "router.reward": d.reward,
        },
        "resource": {"attributes": {"service.name": "router"}},
    }


def lines(shape: Callable[[Decision], dict[str, Any]], sessions: int, outages: bool) -> str:
    made = decisions(sessions, outages, seed=21)
    return "".join(json.dumps(shape(d), separators=(",", ":")) + "\n" for d in made)


def logs() -> dict[str, str]:
    """The content of every file, by name."""
    return {
        "router.jsonl": lines(plain, SESSIONS, outages=False),
        "litellm.jsonl": lines(litellm, SHORT, outages=True),
        "vllm-router.jsonl": lines(vllm, SHORT, outages=True),
        "opentelemetry.jsonl": lines(opentelemetry, SHORT, outages=True),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the files")
    if parser.parse_args().write:
        FOLDER.mkdir(exist_ok=True)
        for name, text in logs().items():
            (FOLDER / name).write_text(text, encoding="utf-8")
