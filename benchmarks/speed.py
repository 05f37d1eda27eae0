"""Whether something became slower: ratios of CPU time on small data, against recorded ones.

Seconds depend on the machine and on who else uses it; a ratio of two tasks that take turns in one
process hardly does. A ratio over its bound, FACTOR times the recorded one, is measured again, and
only one that stays there counts. `tests/test_speed.py` runs this too.

    python benchmarks/speed.py            the check (`make bench-check`)
    python benchmarks/speed.py --write    record today's ratios in tests/speed.json
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import kernels
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import stream

import reweigh as rw
from reweigh.evaluation.resampling import delete_blocks, resample
from reweigh.worlds import random_mdp

ROWS, FEW_STATES = 1_000_000, 10
FACTOR, TRIES, REPEATS = 2.0, 6, 5
RECORD = Path(__file__).parents[1] / "tests" / "speed.json"
RATIOS = {  # name: what is timed, over what
    "core / read": ("core", "read"),
    "value and error / core": ("value and error", "core"),
    "whole answer / value and error": ("whole answer", "value and error"),
    "whole answer from a file / pyarrow's read of the columns": ("whole answer, file", "pyarrow"),
    "evaluate mis / read": ("evaluate mis", "read"),
    "evaluate is / read": ("evaluate is", "read"),
    "evaluate dm / one sort of the rows": ("evaluate dm", "sort"),
    # a column that differs within (t, s, a): over the sums
    "evaluate dm by ratios / one sort of the rows": ("evaluate dm by ratios", "sort"),
    "64 bootstrap replicates / core": ("bootstrap", "core"),
    "64 replicates of wis, dm and mdr / one": ("many", "one"),
    "jackknife of wis, dm and mdr / one": ("jackknife", "one"),
    "log_from_arrays / a copy of the arrays": ("log_from_arrays", "copy"),
    "arrays to mis, as pairs / a copy of the arrays": ("arrays to mis, as pairs", "copy"),
    "arrays to its value alone / a copy of the arrays": ("arrays to the value", "copy"),
    "read_log / pyarrow's read of the columns": ("read_log", "pyarrow"),
    "stream / pyarrow's read of the columns": ("stream", "pyarrow"),
    "stream with all gates / stream": ("stream with gates", "stream"),
    # without a path of its own: sorted first, then as any other stream
    "stream of rows in no order / stream": ("stream unordered", "stream"),
}
Tasks = dict[str, Callable[[], object]]
Times = dict[str, float]


def tasks(folder: Path) -> Tasks:
    """Everything that is timed; the file for the streaming engine goes into `folder`."""
    given, of_table = kernels.arrays(ROWS), kernels.arrays(ROWS, table=True)
    log, by_state = rw.log_from_arrays(*given), rw.log_from_arrays(*of_table)
    pieces = kernels.pieces(log)
    keys = np.random.default_rng(1).integers(0, 2**62, ROWS)
    world = random_mdp(1, n_states=10, n_actions=3, horizon=20)
    small, names = world.simulate(1000, 0), ["wis", "dm", "mdr"]
    pairs = [(world.target, rw.estimator(name)) for name in names]
    path, target = file(folder), rw.TablePolicy(stream.policy()[:FEW_STATES])
    return {
        **pieces,
        "whole answer": lambda: kernels.whole_answer(log),
        "whole answer, file": lambda: whole_answer_from(path, target),
        "evaluate mis": lambda: rw.evaluate(log, kernels.COLUMN, rw.mis()),
        "evaluate is": lambda: rw.evaluate(log, kernels.COLUMN, rw.is_()),
        "evaluate dm": lambda: rw.evaluate_all(by_state, kernels.COLUMN, ["dm"]),
        "evaluate dm by ratios": lambda: rw.evaluate_all(log, kernels.COLUMN, ["dm"]),
        "sort": lambda: np.argsort(keys, kind="stable"),
        "bootstrap": lambda: resample(log, [(kernels.COLUMN, rw.mis())], 64, seed=0),
        "many": lambda: resample(small, pairs, 64, seed=0),
        "jackknife": lambda: delete_blocks(small, pairs),
        "one": lambda: rw.point_values(small, world.target, names),
        "log_from_arrays": lambda: rw.log_from_arrays(*given),
        "arrays to mis, as pairs": lambda: rw.evaluate(
            rw.log_from_arrays(*of_table), kernels.COLUMN, rw.mis()
        ),
        "arrays to the value": lambda: rw.point_values(
            rw.log_from_arrays(*of_table), kernels.COLUMN, ["mis"]
        ),
        "read_log": lambda: rw.read_log(str(path), engine="arrays"),
        "copy": lambda: [array.copy() for array in given],
        "stream": lambda: rw.evaluate(
            rw.moments(rw.read_log(str(path), engine="stream"), target, ["mis"], gates=False)
        ),
        "stream with gates": lambda: rw.evaluate(
            rw.read_log(str(path), engine="stream"), target, rw.mis()
        ),
        "stream unordered": lambda: _unordered(stream.shuffle([path]), target),
        "pyarrow": lambda: stream.read_lean([path]),
    }


def _unordered(path: Path, target: rw.Policy) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rw.InputWarning)  # that the rows were sorted
        log = rw.read_log(str(path), engine="stream")
        rw.evaluate(rw.moments(log, target, ["mis"], gates=False))


def file(folder: Path) -> Path:
    """The rows of the benchmark of streaming, in few states: many more rows than sums."""
    table = stream.rows_of(0, ROWS)
    where = table.column_names.index("state")
    few = pa.array(table["state"].to_numpy() % FEW_STATES)
    path = folder / "log.parquet"
    pq.write_table(table.set_column(where, "state", few), path)
    return path


def whole_answer_from(path: Path, target: rw.Policy) -> object:
    """The value, its interval and the verdict, by the engine that is the default for the file."""
    estimate = rw.evaluate(rw.read_log(str(path), engine="stream"), target, rw.mis())
    return estimate.interval(), estimate.verdict


def ratios(times: Times, names: Iterable[str] = RATIOS) -> dict[str, float]:
    return {name: times[RATIOS[name][0]] / times[RATIOS[name][1]] for name in names}


def slower(measure: Callable[[], Times], recorded: dict[str, float]) -> dict[str, float]:
    """The ratios that are still over their bounds after TRIES measurements.

    Of each task the least time of all measurements counts: it is the one with the least of others'
    work in it.
    """
    least: Times = {}
    over: dict[str, float] = {}
    for _ in range(TRIES):
        for task, seconds in measure().items():
            least[task] = min(seconds, least.get(task, seconds))
        over = {
            name: ratio
            for name, ratio in ratios(least, recorded).items()
            if ratio > FACTOR * recorded[name]
        }
        if not over:
            break
    return over


def recorded() -> dict[str, float]:
    found: dict[str, float] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = tasks(Path(folder))
        if "--write" in sys.argv:
            found = ratios(kernels.interleaved(run, REPEATS * TRIES))
            text = json.dumps(
                {name: float(f"{ratio:.3g}") for name, ratio in found.items()}, indent=1
            )
            RECORD.write_text(text + "\n", encoding="utf-8")
            return
        bounds = recorded()
        over = slower(lambda: kernels.interleaved(run, REPEATS), bounds)
    for name, ratio in over.items():
        print(f"{name}: {ratio:.3g}, recorded {bounds[name]:.3g}", file=sys.stderr)
    if over:
        sys.exit(1)
    print(f"no ratio is more than {FACTOR:g} times its recorded one")


if __name__ == "__main__":
    main()
