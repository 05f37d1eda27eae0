"""Whether a peer's numbers are ours, what it costs, and where it is wrong."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass
from typing import Any

from peers.data import HORIZON, Case, saved, to_time
from peers.environment import BUILD, NotInstalledError, Peer
from peers.talk import FaultError, OurFaultError, Sides, sides

SECONDS = 40.0  # of CPU, about what the repetitions of one comparison may take
FEWEST, MOST = 3, 9  # repetitions
ALSO = (  # ours beside the same estimator
    "mis",
    "mis, target as a table",
    "mis, value alone",
    "mis, value alone, target as a table",
)
PROBE = 20  # episodes, of which products are followed until they stop being numbers


@dataclass(frozen=True)
class Timing:
    """One estimator of a peer on one log; `ratios` are its CPU time over that of ours, by task."""

    estimator: str
    rows: int
    value: float
    ours: float
    difference: float
    same: bool
    seconds: float
    ratios: dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """What an estimator says where the truth is known; value None where it raised `said`."""

    estimator: str
    value: float | None
    standard_error: float | None
    said: list[str]
    fails_from: int | None = None


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def of_peer(peer: Peer, known: dict[str, Case], smaller: int) -> dict[str, Any]:
    """Everything measured with one peer; or why it could not be."""
    about = {
        "name": peer.name,
        "version": peer.version,
        "note": peer.note,
        "processes": 1 if peer.one_process else 2,
        "sequential": peer.sequential,
        "tolerance": peer.tolerance,
    }
    note(f"{peer.name} {peer.version}")
    try:
        with sides(peer) as both:
            timings = [
                timing
                for k, rows in enumerate(peer.rows)
                for timing in timed(peer, both, rows // smaller, everything=k == 0)
            ]
            outcomes = {}
            if peer.sequential:
                outcomes = {key: judged(peer, both, case, key) for key, case in known.items()}
    except NotInstalledError as fault:
        return about | {"missing": f"does not install: {fault}"}
    except OurFaultError:
        raise
    except FaultError as fault:
        return about | {"missing": f"does not run: {fault}"}
    return about | {
        "timings": [asdict(timing) for timing in timings],
        "cases": {key: [asdict(o) for o in found] for key, found in outcomes.items()},
    }


def timed(peer: Peer, both: Sides, rows: int, everything: bool) -> list[Timing]:
    """First the numbers, then the clock: all tasks in turn, the least CPU time of each."""
    folder = saved(to_time(rows, HORIZON if peer.sequential else 1), "to-time")
    names = both.load(folder)
    theirs = [name for name in names[peer.module] if everything or name.split(",")[0] == "is"]
    same = {name: name.split(",")[0] for name in theirs}
    also = ALSO if peer.sequential else ALSO[:1]
    tasks = [(peer.module, name) for name in theirs]
    tasks += [("ours", name) for name in dict.fromkeys([*same.values(), *also])]
    first = {task: both.run(*task) for task in tasks}  # also compiles and warms
    rounds = int(SECONDS / sum(answer["cpu"] for answer in first.values()))
    best = dict.fromkeys(tasks, math.inf)
    for _ in range(min(max(rounds, FEWEST), MOST)):
        for task in tasks:
            best[task] = min(best[task], both.run(*task)["cpu"])
    found = []
    for name, twin in same.items():
        value, ours = first[peer.module, name]["value"], first["ours", twin]["value"]
        difference = abs(value - ours) / abs(ours)
        seconds = best[peer.module, name]
        ratios = {task: seconds / best["ours", task] for task in (twin, *also)}
        agrees = difference <= peer.tolerance
        found.append(Timing(name, rows, value, ours, difference, agrees, seconds, ratios))
        note(f"  {rows:>10,} rows  {name:22} {difference:8.1e}  {ratios}")
    return found


def judged(peer: Peer, both: Sides, case: Case, key: str) -> list[Outcome]:
    """What a peer says in one case, and, where that is not a number, from which horizon on."""
    folder = saved(case.arrays, key)
    names = [name for name in both.load(folder)[peer.module] if "unchecked" not in name]
    found = [told(both, peer.module, name) for name in names]
    horizon = case.arrays["rewards"].shape[1]
    if key != "early":
        for k, outcome in enumerate(found):
            if outcome.value is not None and not math.isfinite(outcome.value):
                bad = first_bad(peer, both, key, outcome.estimator, horizon)
                found[k] = Outcome(**{**asdict(outcome), "fails_from": bad})
    for outcome in found:
        note(f"  {key:5} truth {case.truth:.4f}  {outcome}")
    return found


def told(both: Sides, module: str, name: str) -> Outcome:
    try:
        answer = both.run(module, name)
    except FaultError as fault:
        return Outcome(name, None, None, [str(fault)])
    return Outcome(name, answer["value"], answer["error"], answer["said"])


def first_bad(peer: Peer, both: Sides, key: str, name: str, horizon: int) -> int:
    """The least horizon at which the value of a few episodes is not a number (by halving)."""
    good, bad = 0, horizon
    while bad - good > 1:
        middle = (good + bad) // 2
        both.load(BUILD / "data" / key, episodes=PROBE, horizon=middle)
        value = told(both, peer.module, name).value
        fine = value is not None and math.isfinite(value)
        good, bad = (middle, bad) if fine else (good, middle)
    return bad


def of_ours(known: dict[str, Case]) -> dict[str, list[dict[str, Any]]]:
    """What reweigh says in every case."""
    note("reweigh")
    found = {}
    with sides(None) as both:
        for key, case in known.items():
            names = both.load(saved(case.arrays, key))["ours"]
            outcomes = [told(both, "ours", name) for name in names if "," not in name]
            for outcome in outcomes:
                note(f"  {key:5} truth {case.truth:.4f}  {outcome}")
            found[key] = [asdict(outcome) for outcome in outcomes]
    return found
