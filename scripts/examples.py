"""The example logs of examples/: a hospital, ad impressions, a game. Made here, of no real people.

python scripts/examples.py --write
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "examples"
START = datetime(2024, 1, 1)
PATIENTS, MOST_VISITS = 420, 6
IMPRESSIONS = 2_000
GAMES, MOST_MOVES = 360, 6


def hospital() -> str:
    """Vitals every few hours, a vasopressor or none, and how the stay ended."""
    rng = np.random.default_rng(21)
    rows: list[list[Any]] = []
    for patient in range(PATIENTS):
        charted = START + timedelta(hours=float(rng.uniform(0, 24 * 180)))
        ward = ("icu", "step-down")[int(rng.random() < 0.4)]
        pressure = rng.normal(64 if ward == "icu" else 70, 8)
        lactate = float(np.exp(rng.normal(0.8, 0.4)))
        for visit in range(MOST_VISITS):
            given = rng.random() < 1 / (1 + np.exp((pressure - 64) / 5))
            risk = 1 / (1 + np.exp((pressure - 46) / 4 - (lactate - 2) / 2))
            died = bool(rng.random() < 0.25 * risk)
            well = pressure > 68 and lactate < 2.2
            discharged = not died and visit > 0 and well and bool(rng.random() < 0.4)
            rows.append(
                [
                    f"P{patient + 1:04d}",
                    charted.strftime("%Y-%m-%d %H:%M:%S"),
                    ward,
                    f"{pressure:.1f}",
                    f"{lactate:.2f}",
                    "vasopressor" if given else "none",
                    int(discharged) - int(died),
                    int(died),
                    int(discharged),
                ]
            )
            if died or discharged:
                break
            charted += timedelta(hours=float(rng.uniform(2, 6)))
            pressure += 5.0 * given - 1.5 + 0.1 * (70 - pressure) + rng.normal(0, 4)
            lactate *= float(np.exp(-0.12 + 0.01 * max(65 - pressure, 0) + rng.normal(0, 0.15)))
    names = ["patient_id", "charttime", "ward", "map_bp", "lactate", "treatment", "outcome", "died",
             "discharged"]  # fmt: skip
    order = np.argsort([row[1] for row in rows], kind="stable")  # as a data base exports it
    return _csv(names, [rows[k] for k in order])


def ads() -> str:
    """One impression a row: which ad was drawn for whom, how likely, and whether it was clicked."""
    rng = np.random.default_rng(22)
    banners, segments = ("sports", "travel", "books"), ("student", "family", "retired")
    served = START.replace(tzinfo=UTC)
    rows: list[list[Any]] = []
    for impression in range(IMPRESSIONS):
        served += timedelta(seconds=float(rng.exponential(40)))
        s, mobile = int(rng.integers(3)), bool(rng.random() < 0.6)
        shares = np.array([0.2, 0.2, 0.2]) + 0.4 * (np.arange(3) == s)
        a = int(rng.choice(3, p=shares / shares.sum()))
        rate = 0.04 + 0.10 * (a == (s + 1) % 3) + 0.03 * (mobile and a == 0)
        rows.append(
            [
                f"i{impression + 1:05d}",
                served.strftime("%Y-%m-%dT%H:%M:%SZ"),
                segments[s],
                "mobile" if mobile else "desktop",
                banners[a],
                f"{shares[a] / shares.sum():.2f}",
                int(rng.random() < rate),
            ]
        )
    names = ["impression_id", "served_at", "segment", "device", "ad", "propensity", "click"]
    return _csv(names, rows)


def game() -> str:
    """Moves of a dungeon game, with the probability with which the computer drew each."""
    rng = np.random.default_rng(23)
    moves, rooms = ("fight", "flee", "search"), ("hall", "cave", "vault")
    rows: list[list[Any]] = []
    for number in range(GAMES):
        played = START + timedelta(minutes=7 * number + float(rng.uniform(0, 5)))
        room, health = int(rng.integers(2)), 3
        for _ in range(MOST_MOVES):
            shares = np.array([[0.5, 0.2, 0.3], [0.3, 0.4, 0.3], [0.2, 0.2, 0.6]])[room]
            a = int(rng.choice(3, p=shares))
            hurt = rng.random() < (0.45, 0.1, 0.2)[a] + 0.1 * room
            points = ((3, 0, 1), (4, 0, 2), (6, 0, 9))[room][a] * int(not hurt)
            before, health = health, health - int(hurt)
            over = health == 0
            stamp = int((played - datetime(1970, 1, 1)).total_seconds() * 1000)
            rows.append([number + 1, stamp, rooms[room], before, moves[a], f"{shares[a]:.1f}",
                         points, int(over)])  # fmt: skip
            if over:
                break
            room = int(rng.choice(3, p=[0.3, 0.4, 0.3]))
            played += timedelta(seconds=float(rng.uniform(2, 20)))
    names = ["game_id", "played_at", "room", "health", "action", "action_prob", "points",
             "game_over"]  # fmt: skip
    return _csv(names, rows)


LOGS = {"hospital": hospital, "ads": ads, "game": game}


def _csv(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write them into examples/")
    chosen = parser.parse_args()
    for name, make in LOGS.items():
        text = make()
        print(f"{name}.csv: {len(text.encode()):,} bytes, {text.count(chr(10)) - 1:,} rows")
        if chosen.write:
            (FOLDER / f"{name}.csv").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
