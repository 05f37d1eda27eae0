"""`make bench-peers`: every peer, into docs/benchmarks-peers.json and .md."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

import numba
import numpy as np

from peers.data import cases
from peers.environment import Peer
from peers.measure import of_ours, of_peer
from peers.page import page

DOCS = Path(__file__).parents[2] / "docs"
PEERS = (
    "scope_rl",
    "rllib",
    "offline_rl_ope",
    "reagent",
    "obp",
    "statspai",
    "contextualbandits",
    "vw_estimators",
    "causalrl",
    "offline_evaluation",
)


def peer(name: str) -> Peer:
    found: Peer = importlib.import_module(f"peers.{name}").PEER
    return found


def plain(found: Any) -> Any:
    """With words for numbers that JSON does not have."""
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items()}
    if isinstance(found, list):
        return [plain(value) for value in found]
    return str(found) if isinstance(found, float) and not math.isfinite(found) else found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, help="only these; what the page says of others stays"
    )
    parser.add_argument("--small", action="store_true", help="a hundredth of the rows, to try it")
    parser.add_argument("--to", type=Path, default=DOCS, help="the folder for the page")
    given = parser.parse_args()
    known = cases()
    found = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": numba.__version__,
        },
        "cases": {
            key: {"title": case.title, "text": case.text, "truth": case.truth}
            for key, case in known.items()
        },
        "ours": of_ours(known),
        "peers": {
            name: of_peer(peer(name), known, 100 if given.small else 1)
            for name in given.peers or PEERS
        },
    }
    given.to.mkdir(parents=True, exist_ok=True)
    kept = given.to / "benchmarks-peers.json"
    if given.peers and kept.exists():
        there = json.loads(kept.read_text(encoding="utf-8"))["peers"] | found["peers"]
        found["peers"] = {name: there[name] for name in PEERS if name in there}
    text = json.dumps(plain(found), indent=1, ensure_ascii=False, allow_nan=False)
    kept.write_text(text + "\n", encoding="utf-8")
    (given.to / "benchmarks-peers.md").write_text(page(json.loads(text)), encoding="utf-8")


if __name__ == "__main__":
    main()
