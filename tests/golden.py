"""Results of every estimator on every kind of log and engine, as they were: log × target ×
estimator × engine with value, error, interval, gain, verdict and refusals.

    python tests/golden.py --write      makes golden.json anew: a change of a result is a decision

`test_golden.py` compares. Logs are small and seeded; nothing here says that a result is right.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import reweigh as rw
from reweigh.worlds import Bandit, RandomWorld, TimeVarying, World, random_mdp

FILE = Path(__file__).with_name("golden.json")
ENGINES = ("arrays", "stream", "duckdb")
COLUMN = rw.ColumnPolicy("target_prob")
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A table of rows, how it is read, and the target. `engines`: those that take such a target."""

    table: pa.Table
    reading: dict[str, Any]
    target: rw.Policy
    engines: tuple[str, ...] = ENGINES
    prepare: Callable[[rw.EpisodeLog], rw.EpisodeLog] | None = None

    def log(self, engine: str, folder: Path) -> Any:
        path = folder / "log.parquet"
        pq.write_table(self.table, path)
        log = rw.read_log(path, engine=engine, **self.reading)
        return log if self.prepare is None else self.prepare(log)


def _side() -> pa.Table:
    """Policies of the sign of x, of which the state leaves nothing."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 5))
    action = np.where(rng.random(x.shape) < 0.8, x > 0, x <= 0).astype(int)
    right = (action == 1) == (x > 0)
    columns = {
        "episode": np.repeat(np.arange(120), 5),
        "step": np.tile(np.arange(5), 120),
        "x": x,
        "cell": np.full(x.shape, "all"),
        "action": action,
        "reward": rng.normal(size=x.shape) + action * x,
        "behavior_prob": np.where(right, 0.8, 0.2),
        "target_prob": np.where(right, 0.9, 0.1),
    }
    return pa.table({name: pa.array(values.reshape(-1)) for name, values in columns.items()})


def _of_x(state: Any, action: Any, step: Any) -> Any:
    right = (np.asarray(action) == 1) == (np.asarray(state, float).reshape(-1) > 0)
    return np.where(right, 0.9, 0.1)


def _cut(table: pa.Table) -> pa.Table:
    """Every third episode is cut off after its second step."""
    episode, step = (np.asarray(table[name]) for name in ("episode", "step"))
    cut = episode % 3 == 0
    kept = table.append_column("truncated", pa.array(cut & (step == 1)))
    kept = kept.append_column("terminated", pa.array(np.zeros(len(step), bool)))
    return kept.drop_columns(["next_state"]).filter(pa.array(~cut | (step <= 1)))


def cases() -> dict[str, Case]:
    world, ends = random_mdp(1, 4, 3, 5), random_mdp(2, 4, 3, 5, terminal=1)
    hidden, bandit = RandomWorld(3, hidden=1).build(), Bandit.random(0, 4)
    varying = TimeVarying(6, 0)
    rng = np.random.default_rng(0)
    zeros = np.array(world.target_array)
    zeros[:, :, 0] = 0.0
    zeros /= zeros.sum(axis=2, keepdims=True)
    plain: dict[str, Any] = {"next_state": "next_state", "discount": 0.9}
    column = {"target_prob": "target_prob"}
    flags = {"terminated": "terminated", "horizon": 5}
    cut = flags | {"truncated": "truncated"}
    blind = {"hidden": "allow", "next_state": None}
    numbers = column | {"continuous_actions": True, "next_state": None}
    of_x = rw.FunctionPolicy(_of_x, name="of x")
    side, memory = _side(), ("arrays",)

    def rows(of: World, n: int = 150) -> pa.Table:
        return of.simulate(n, rng).to_table()

    def fitted(log: rw.EpisodeLog) -> rw.EpisodeLog:
        return log.with_behavior(rw.fit_behavior(log))

    return {
        "complete": Case(rows(world), plain, world.target),
        "column": Case(rows(world), plain | column, COLUMN),
        "zeros": Case(rows(world), plain, rw.TablePolicy(zeros)),
        "ragged": Case(rows(ends), flags, ends.target),
        "hidden": Case(rows(hidden), blind, hidden.target),
        "cut": Case(_cut(rows(world)), cut, world.target),
        "continuous": Case(rows(varying, 80), numbers, COLUMN),
        "estimated": Case(rows(world), plain, world.target, memory, fitted),
        "one step": Case(rows(bandit, 200), {"next_state": None}, bandit.target),
        "one episode": Case(rows(world, 1), plain, world.target),
        "coarse column": Case(side, column | {"state": "cell"}, COLUMN),
        "coarse function": Case(side, {"state": "x", "abstraction": rw.Grid([0.5])}, of_x, memory),
    }


def record(result: rw.Estimate | rw.Refusal) -> Record:
    if isinstance(result, rw.Refusal):
        return {"refused": result.error.code}
    interval, gain = result.interval(), None
    try:
        gain = result.gain()
    except rw.RefusedError as error:
        gain = error.code
    found: Record = {
        "value": result.value,
        "error": result.standard_error,
        "interval": None if interval is None else [interval.low, interval.high],
        "gain": gain if isinstance(gain, str) else [gain.value, gain.standard_error],
        "verdict": result.verdict.level,
        "gates": {gate.name: gate.level for gate in result.verdict.gates if gate.level != "green"},
    }
    return found


def chosen(log: Any, target: rw.Policy) -> Record:
    """What the default takes, and why; its numbers are those of the estimator."""
    [result] = rw.evaluate_all(log, target, ["auto"])
    if isinstance(result, rw.Refusal):
        return {"estimator": result.estimator, "refused": result.error.code}
    return {"estimator": result.estimator, "chosen": result.chosen, "value": result.value}


def results(names: list[str] | None = None) -> Iterator[tuple[str, Record]]:
    """Of these cases, or of all: "case/engine/estimator" and what came out."""
    estimators = list(rw.ESTIMATORS)
    for name, case in cases().items():
        if names is not None and name not in names:
            continue
        for engine in case.engines:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                log = case.log(engine, Path(folder))
                for result in rw.evaluate_all(log, case.target, estimators):
                    yield f"{name}/{engine}/{result.recipe.name}", record(result)
                yield f"{name}/{engine}/auto", chosen(log, case.target)


def write() -> int:
    found = dict(results())
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return len(found)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    print(f"{write()} results")
