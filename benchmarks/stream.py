"""What streaming a large log costs, against reading the same columns with pyarrow.

Writes a log of S = H = 100, A = 10 as Parquet into a temporary folder, then measures, each in a
process of its own: reading its columns batch by batch with pyarrow, as its defaults have it
(`read`) and with the options that cost it least (`read_lean`: no threads, no read-ahead), and the
value, standard error and interval of MIS from the files (`stream`). CPU time counts all threads.
The first run in a process loads the compiled kernels, so `cold` includes that and `warm`, the best
run, does not; peak memory is that of the whole process.

    python benchmarks/stream.py                      10 million rows
    python benchmarks/stream.py --rows 250000000     5 GB of files
    python benchmarks/stream.py --rows 1000000000    the headline
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STATES, ACTIONS, HORIZON = 100, 10, 100
GROUP, FILE = 1_000_000, 25_000_000  # rows
TARGET_PER_FULL_READ, MEMORY_GIB = 2.5, 0.5
FOLDER = Path(tempfile.gettempdir()) / "reweigh-stream"
COLUMNS = ["episode", "step", "state", "action", "reward", "behavior_prob"]


def policy() -> np.ndarray:
    """(S, A) a target that prefers some actions; the behaviour changes from row to row."""
    weights = 1.0 + (np.arange(STATES)[:, None] + 3 * np.arange(ACTIONS)[None, :]) % 5
    return weights / weights.sum(axis=1, keepdims=True)


def rows_of(group: int, rows: int) -> pa.Table:
    """One row group: whole episodes; the action is drawn with the probability that is logged."""
    rng = np.random.default_rng([7, group])
    episodes = rows // HORIZON
    p = rng.uniform(0.1, 0.9, rows)
    second = rng.random(rows) < p
    action = 2 * rng.integers(0, ACTIONS // 2, rows) + second
    state = rng.integers(0, STATES, rows)
    return pa.table(
        {
            "episode": np.repeat(np.arange(episodes) + group * (GROUP // HORIZON), HORIZON),
            "step": np.tile(np.arange(HORIZON), episodes),
            "state": state,
            "action": action,
            "reward": 0.01 * state + rng.standard_normal(rows),
            "behavior_prob": np.where(second, p, 1 - p) / (ACTIONS // 2),
        }
    )


def write(folder: Path, rows: int) -> list[Path]:
    """The files of a log of this size; those that are there are kept."""
    paths = [folder / f"part-{i:04d}.parquet" for i in range(-(-rows // FILE))]
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    for i, path in enumerate(paths):
        partial = path.with_suffix(".partial")
        left = min(rows - i * FILE, FILE)
        with pq.ParquetWriter(partial, rows_of(0, HORIZON).schema) as writer:
            for g in range(-(-left // GROUP)):
                size = min(left - g * GROUP, GROUP)
                writer.write_table(rows_of(i * (FILE // GROUP) + g, size))
        partial.rename(path)
    return paths


def read(paths: list[Path]) -> dict[str, object]:
    """pyarrow alone: every batch of the columns is decoded and dropped."""
    rows = 0
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(columns=COLUMNS):
            rows += batch.num_rows
    return {"rows": rows}


def read_lean(paths: list[Path]) -> dict[str, object]:
    """The same with the options that the engine uses."""
    rows = 0
    for path in paths:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
        for batch in file.iter_batches(1 << 17, columns=COLUMNS, use_threads=False):
            rows += batch.num_rows
    return {"rows": rows}


def stream(paths: list[Path]) -> dict[str, object]:
    """Value and interval from the files."""
    import reweigh as rw

    log = rw.read_log([str(path) for path in paths], engine="stream")
    estimate = rw.evaluate(log, rw.TablePolicy(policy()), rw.mis())
    interval = estimate.interval(0.95)
    return {
        "value": estimate.value,
        "standard_error": estimate.standard_error,
        "interval": [interval.low, interval.high],
        "episodes": estimate.n_episodes,
    }


TASKS = {"read": read, "read_lean": read_lean, "stream": stream}


def measure(task: str, paths: list[Path], repeats: int) -> dict[str, object]:
    """In this process: CPU time of each run, and the peak of the memory."""
    run = TASKS[task]
    cpu, wall = [], []
    for _ in range(repeats):
        began, clock = time.process_time(), time.perf_counter()
        result = run(paths)
        cpu.append(time.process_time() - began)
        wall.append(time.perf_counter() - clock)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"cold": cpu[0], "warm": min(cpu), "wall": min(wall), "peak_gib": peak, **result}


def child(task: str, folder: Path, rows: int, repeats: int) -> dict[str, object]:
    command = [sys.executable, "-W", "ignore", __file__, "--rows", str(rows)]
    command += ["--folder", str(folder), "--task", task, "--repeats", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--task", choices=tuple(TASKS))
    parser.add_argument("--remove", action="store_true", help="delete the files afterwards")
    given = parser.parse_args()
    rows = given.rows // GROUP * GROUP or given.rows // HORIZON * HORIZON
    folder = given.folder / str(rows)
    paths = write(folder, rows)
    if given.task:
        print(json.dumps(measure(given.task, paths, given.repeats)))
        return
    results = {task: child(task, given.folder, rows, given.repeats) for task in TASKS}
    size = sum(path.stat().st_size for path in paths)
    found = {
        "rows": rows,
        "files_gib": size / 2**30,
        "ratio": results["stream"]["warm"] / results["read"]["warm"],  # type: ignore[operator]
        "ratio_cold": results["stream"]["cold"] / results["read"]["warm"],  # type: ignore[operator]
        "ratio_lean": results["stream"]["warm"] / results["read_lean"]["warm"],  # type: ignore[operator]
        "ratio_target": TARGET_PER_FULL_READ,
        "peak_gib": results["stream"]["peak_gib"],
        "peak_target_gib": MEMORY_GIB,
        "ns_per_row": 1e9 * results["stream"]["warm"] / rows,  # type: ignore[operator]
        **results,
    }
    print(json.dumps(found, indent=2))
    if given.remove:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
