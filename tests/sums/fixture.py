"""The one log that every engine must agree on, and what "agree" means.

`table(variant)` is a log as a pyarrow table, `write(folder, variant, kind)` the same rows as three
files (one per site, "parquet" or "csv"), and `READING[variant]` the arguments with which `read_log`
understands it. Episodes are contiguous, their steps in order; the sites differ in which states and
actions they show. The variants:

    everything   ragged, hidden states, cut-off episodes, text states and actions, ρ = 0
    whole        the same without cut-off episodes: running products may be asked for
    integers     integer states and actions with a next_state column; ragged, ended and cut off
    pairs        two state columns (a text and an integer), ragged, ended only

`policies(variant)` are targets for it: a table, a table by step, the logged column, a function.
`assert_same(mine, other)` compares two `Moments`: the same keys, blocks and counts, and sums equal
to 1e-12 of the sum of absolute values (1e-10 for running products and the logarithms of weights).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import reweigh as rw
from reweigh.sums.diagnostic_tables import LaggedMoments
from reweigh.sums.keyed import TransitionMoments
from reweigh.sums.moments import Moments

KEYS, SUMS = TransitionMoments.KEYS, TransitionMoments.SUMS

SITES = ("north", "south", "west")
EPISODES, HORIZON, DISCOUNT = 60, 6, 0.9  # episodes per site
STATES = ("wach", "müde", "schläft", "007", "7")
ACTIONS = ("bleiben", "gehen", "rufen")
FLAGS = {"terminated": "terminated", "truncated": "truncated"}
PROBABILITIES = {"behavior_prob": "mu", "target_prob": "pi"}
READING: dict[str, dict[str, Any]] = {
    "everything": {**FLAGS, **PROBABILITIES, "hidden": "allow", "discount": DISCOUNT},
    "whole": {**FLAGS, **PROBABILITIES, "hidden": "allow", "discount": DISCOUNT},
    "integers": {**FLAGS, **PROBABILITIES, "next_state": "next_state", "discount": DISCOUNT},
    "pairs": {**FLAGS, **PROBABILITIES, "state": ["mood", "ward"]},
}
VARIANTS = tuple(READING)
HIDDEN_ACTION = 0  # what the target does where it sees nothing, with probability 1/2


def target_prob(state: int | None, action: int, step: int = 0) -> float:
    """π(a|s): the last action never, elsewhere by state; `step` shifts it for a table by step."""
    if state is None:
        return 0.5 if action == HIDDEN_ACTION else 0.25
    first = 0.2 + 0.1 * ((state + step) % 5)
    return (first, 1.0 - first, 0.0)[action]


def behavior_prob(state: int | None, action: int) -> float:
    weights = [1.0 + ((0 if state is None else state) + a) % 3 for a in range(len(ACTIONS))]
    return weights[action] / sum(weights)


def table(variant: str) -> pa.Table:
    """All sites' rows, site after site."""
    return pa.concat_tables([site_table(variant, site) for site in SITES])


def site_table(variant: str, site: str) -> pa.Table:
    """The rows of one site: episode 'north-3' has the steps 0, 1, 2, … in this order."""
    number = SITES.index(site)
    rng = np.random.default_rng([20190801, VARIANTS.index(variant), number])
    hides = 0.3 if variant in ("everything", "whole") else 0.0
    endings = ["complete", "ended"] + (["cut"] if variant in ("everything", "integers") else [])
    rows: dict[str, list[Any]] = {}
    for e in range(EPISODES):
        ending = endings[int(rng.integers(len(endings)))]
        length = HORIZON if ending == "complete" else int(rng.integers(1, HORIZON))
        # a site shows a part of the states: codes must not depend on which file comes first
        path = [int(s) for s in (rng.integers(0, 4, length + 1) + (2 - number)) % len(STATES)]
        seen = [None if rng.random() < hides else s for s in path]
        for t in range(length):
            action = int(rng.choice(len(ACTIONS), p=[behavior_prob(seen[t], a) for a in range(3)]))
            last = t == length - 1
            # what follows a cut is known in every other episode only
            after = None if last and (ending == "ended" or e % 2) else seen[t + 1]
            row = {
                "episode": f"{site}-{e}",
                "step": t,
                **_state_columns(variant, "state", seen[t]),
                "action": 10 * action if variant == "integers" else ACTIONS[action],
                "reward": round(float(rng.normal()), 6),
                "mu": behavior_prob(seen[t], action),
                "pi": target_prob(seen[t], action),
                **(_state_columns(variant, "next_state", after) if variant == "integers" else {}),
                "terminated": last and ending == "ended",
                "truncated": last and ending == "cut",
            }
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
    return pa.table({name: _array(name, values) for name, values in rows.items()})


def _state_columns(variant: str, role: str, state: int | None) -> dict[str, Any]:
    if variant == "integers":
        return {role: None if state is None else 7 * state - 3}
    if variant == "pairs":
        assert state is not None
        return {"mood": STATES[state % 3], "ward": state // 3}
    return {role: None if state is None else STATES[state]}


def _array(name: str, values: list[Any]) -> pa.Array:
    return pa.array(values, pa.int64() if name == "next_state" else None)


def write(folder: Path, variant: str, kind: str = "parquet", **options: Any) -> list[Path]:
    """One file per site; `options` go to Parquet's writer (row_group_size=…)."""
    paths = []
    for site in SITES:
        rows = site_table(variant, site)
        path = folder / f"{variant}-{site}.{kind}"
        if kind == "parquet":
            pq.write_table(rows, path, **options)
        else:
            pacsv.write_csv(rows, path)
        paths.append(path)
    return paths


def policies(variant: str) -> dict[str, Any]:
    """Targets by name: "table", "steps" (a table by step), "column" and "function"."""
    states: list[int | None] = [*range(len(STATES)), None]

    def label(state: int | None) -> Any:
        columns = tuple(_state_columns(variant, "state", state).values())
        return columns if variant == "pairs" else columns[0]

    def action_label(action: int) -> Any:
        return 10 * action if variant == "integers" else ACTIONS[action]

    if variant in ("integers", "pairs"):
        states = states[:-1]
    plain = {
        label(s): {action_label(a): target_prob(s, a) for a in range(len(ACTIONS))} for s in states
    }
    return {
        "table": rw.TablePolicy(plain),
        "steps": _by_step(variant, states, label, action_label),
        "column": rw.ColumnPolicy("pi"),
        "function": rw.FunctionPolicy(half_by_step, name="half by step"),
    }


def half_by_step(state: Any, action: Any, step: Any) -> Any:
    """A function of all that it is given, the same however the rows are cut into batches."""
    first = np.array([str(a) in ("bleiben", "0") for a in action.tolist()])
    shown = np.array([str(s) for s in state.tolist()])
    odd = np.array([len(text) % 2 == 1 for text in shown])
    return np.where(first, 0.5 + 0.25 * odd, (0.5 - 0.25 * odd) / 2) * np.where(step < 0, 0.0, 1.0)


def _by_step(variant: str, states: list[Any], label: Any, action_label: Any) -> rw.TablePolicy:
    rows: dict[str, list[Any]] = {}
    for t in range(HORIZON):
        for s in states:
            for a in range(len(ACTIONS)):
                key = label(s) if variant == "pairs" else (label(s),)
                names = ("mood", "ward") if variant == "pairs" else ("state",)
                cells = dict(zip(names, key, strict=True))
                cells |= {"action": action_label(a), "step": t, "prob": target_prob(s, a, t)}
                for name, value in cells.items():
                    rows.setdefault(name, []).append(value)
    names = ["mood", "ward"] if variant == "pairs" else "state"
    return rw.TablePolicy(pa.table(rows), state=names)


def assert_same(mine: Moments, other: Moments) -> None:
    """The agreement of engines: keys, blocks, counts and labels equal, sums within rounding."""
    assert mine.states == other.states
    assert mine.actions == other.actions
    assert mine.kinds == other.kinds
    assert (mine.truncated, mine.hidden) == (other.truncated, other.hidden)
    for name in ("start", "start_model"):
        _same_tables(getattr(mine, name), getattr(other, name), ("block", "s", "n"), {})
    for name in ("transitions", "model"):
        _same_tables(getattr(mine, name), getattr(other, name), (*KEYS, "n"), _cell_scales)
    if other.trajectories is not None:
        assert mine.trajectories is not None
        for part in ("steps", "episodes"):
            _same_products(getattr(mine.trajectories, part), getattr(other.trajectories, part))
    assert mine.left_out == other.left_out
    _same_tables(mine.lagged, other.lagged, (*LaggedMoments.KEYS, "n"), _lagged_scales)
    _same_tables(mine.ordered, other.ordered, ("shift", "bucket", "n"), _return_scales)
    _same_tables(mine.paced, other.paced, ("shift", "bucket", "t", "n"), _reward_scales)
    _same_tables(mine.largest, other.largest, ("n",), {})
    if other.largest is not None:
        assert len(mine.largest) == len(other.largest)
        for name in ("floor", "log_w"):
            values, expected = getattr(mine.largest, name), getattr(other.largest, name)
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-10)


def assert_alike(mine: Any, other: Any, place: str = "") -> None:
    """Plain values of the same shape with the same words, and numbers within rounding."""
    if isinstance(other, float) and isinstance(mine, float):
        assert math.isclose(mine, other, rel_tol=1e-7, abs_tol=1e-9) or mine != mine != other, place
    elif isinstance(other, dict):
        assert mine.keys() == other.keys(), place
        for key, value in other.items():
            assert_alike(mine[key], value, f"{place}.{key}")
    elif isinstance(other, list | tuple):
        assert len(mine) == len(other), place
        for i, value in enumerate(other):
            assert_alike(mine[i], value, f"{place}[{i}]")
    else:
        assert mine == other, (place, mine, other)


def without_extras(sums: Moments) -> Moments:
    """What does not hang on the order of the rows."""
    return replace(sums, lagged=None, ordered=None, paced=None, largest=None, left_out={})


def _lagged_scales(cells: Any) -> dict[str, Any]:
    scales = {name: np.abs(getattr(cells, name)) for name in ("rho", "rho2", "z2")}
    scales["z"] = np.sqrt(cells.n * cells.z2)
    scales["rhoz"] = np.sqrt(cells.rho2 * cells.z2)
    return scales


def _return_scales(order: Any) -> dict[str, Any]:
    """Of sums of returns, which are themselves sums: rewards may cancel."""
    return {"g": np.sqrt(order.n * order.g2) + order.n, "g2": order.g2 + order.n}


def _reward_scales(cells: Any) -> dict[str, Any]:
    return {"y": np.sqrt(cells.n * cells.y2), "y2": cells.y2}


def _same_tables(mine: Any, other: Any, exact: tuple[str, ...], scales: Any) -> None:
    assert (mine is None) == (other is None)
    if other is None:
        return
    for name in exact:
        np.testing.assert_array_equal(getattr(mine, name), getattr(other, name), err_msg=name)
    for name, scale in (scales(other) if scales else {}).items():
        off = np.abs(getattr(mine, name) - getattr(other, name))
        assert np.all(off <= 1e-12 * scale), (name, float(np.max(off - 1e-12 * scale)))


def _cell_scales(cells: Any) -> dict[str, Any]:
    """Σ|x| of each sum, or what bounds it: Σ|x y| ≤ √(Σx² Σy²)."""
    scales = {name: np.abs(getattr(cells, name)) for name in SUMS}
    scales["y"] = np.sqrt(cells.n * cells.y2)
    scales["z"] = np.sqrt(cells.n * cells.z2)
    scales["rhoz"] = np.sqrt(cells.rho2 * cells.z2)
    return scales


def _same_products(mine: Any, other: Any) -> None:
    for name in ("block", "t", "n"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(other, name), err_msg=name)
    np.testing.assert_allclose(mine.log_scale, other.log_scale, rtol=0, atol=1e-10)
    # Σ w|y| and Σ W|G| are at most √(Σw² Σy²): the squares' sums bound every signed sum
    for name in other.POWER:
        values, expected = getattr(mine, name), getattr(other, name)
        squares = {"x": "x2", "wg": "wg2", "w2g": "wg2", "ret": None}.get(name, name)
        scale = np.abs(expected)
        if squares is None or name == "wy":
            scale = np.maximum(scale, np.abs(expected).sum() + other.n)
        elif squares != name:
            scale = np.maximum(scale, np.sqrt(other.n * np.abs(getattr(other, squares))))
        assert np.all(np.abs(values - expected) <= 1e-10 * scale), name
