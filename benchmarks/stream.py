"""What streaming a large log costs, against reading the same columns with pyarrow.

Writes a log of S = H = 100, A = 10 as Parquet into a temporary folder, then measures, each in a
process of its own, in turns: reading its columns batch by batch with pyarrow, as its defaults have
it (`read`) and with the cheapest options that were found (`read_lean`: no threads, no read-ahead,
batches of whole pages); and estimates from the files with their errors: MIS (`stream`), the step
weights of WIS (`products`), the model of DM (`model`) and all three in one scan (`all`), with the
sums that the gates of their verdicts read; and MIS without these (`bare`). CPU time
counts all threads, and `wall_per_cpu` says how well they share the work. The first run in a process
loads the compiled kernels, so `cold` includes that and `warm`, the best run, does not; peak memory
is that of a process that has done it once, and `peak_gib_again` of one that has done it as often as
was measured.

The same sums by the general path, which any log can take, are measured on a smaller log, once
(`general`); and MIS from the rows of that log in no order (`unordered`), which DuckDB sorts.

    python benchmarks/stream.py                      10 million rows
    python benchmarks/stream.py --rows 250000000     5 GB of files
    python benchmarks/stream.py --rows 1000000000    the headline: MIS alone
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
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STATES, ACTIONS, HORIZON = 100, 10, 100
GROUP, FILE = 1_000_000, 25_000_000  # rows
PAGE = 20_000  # rows, as writers have it
GENERAL = 2_000_000  # rows for the general path
MOST_FOR_ALL = 250_000_000  # rows, up to which all sums are measured
TARGET_PER_FULL_READ, MEMORY_GIB = 2.5, 0.5
NS_PER_ROW, WALL_PER_CPU, UNORDERED_NS = 20, 0.6, 150
FOLDER = Path(tempfile.gettempdir()) / "reweigh-stream"
COLUMNS = ["episode", "step", "state", "action", "reward", "behavior_prob"]


def policy() -> np.ndarray:
    """(S, A) a target that prefers some actions; the behavior changes from row to row."""
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


def shuffle(paths: list[Path]) -> Path:
    """A file with the rows of these in no order, beside them."""
    path = paths[0].parent / "unordered.parquet"
    if not path.exists():
        rows = pa.concat_tables([pq.read_table(one) for one in paths])
        order = np.random.default_rng(0).permutation(rows.num_rows)
        pq.write_table(rows.take(order), path)
    return path


def read(paths: list[Path]) -> dict[str, object]:
    """pyarrow alone: every batch of the columns is decoded and dropped."""
    rows = 0
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(columns=COLUMNS):
            rows += batch.num_rows
    return {"rows": rows}


def read_lean(paths: list[Path]) -> dict[str, object]:
    """The same with the options that the engine uses, but for its batches: larger ones are not
    cheaper to read, only to go through."""
    rows = 0
    for path in paths:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 18)
        for batch in file.iter_batches(2 * PAGE, columns=COLUMNS, use_threads=False):
            rows += batch.num_rows
    return {"rows": rows}


def stream(names: list[str], paths: list[Path]) -> dict[str, object]:
    """Values and intervals from the files."""
    import reweigh as rw

    log = rw.read_log([str(path) for path in paths], engine="stream")
    estimates = rw.evaluate_all(log, rw.TablePolicy(policy()), names)
    return {
        "estimates": {
            e.estimator: {"value": e.value, "standard_error": e.standard_error} for e in estimates
        },
        "episodes": estimates[0].n_episodes,
    }


def bare(names: list[str], paths: list[Path]) -> dict[str, object]:
    """Values and intervals from the files, without what only gates read."""
    import reweigh as rw

    log = rw.read_log([str(path) for path in paths], engine="stream")
    target = rw.TablePolicy(policy())
    rw.evaluate_all(rw.moments(log, target, names, gates=False), target, names)
    return {}


def general(names: list[str], paths: list[Path]) -> dict[str, object]:
    """The sums alone, by the general path."""
    import reweigh as rw

    log = rw.read_log([str(path) for path in paths], engine="stream")
    log = replace(log, scanner=replace(log.scanner, fast=False))
    rw.moments(log, rw.TablePolicy(policy()), names)
    return {}


def unordered(paths: list[Path]) -> dict[str, object]:
    """MIS with the sums of its gates, from rows in no order."""
    return stream(["mis"], [shuffle(paths)])


SUMS = {"stream": ["mis"], "products": ["wis"], "model": ["dm"], "all": ["mis", "wis", "dm"]}
WITHOUT_GATES = {"bare": ["mis"]}
FAST: dict[str, Any] = {"read": read, "read_lean": read_lean}
FAST |= {task: partial(stream, names) for task, names in SUMS.items()}
FAST |= {task: partial(bare, names) for task, names in WITHOUT_GATES.items()}
TASKS = FAST | {f"general_{task}": partial(general, names) for task, names in SUMS.items()}
TASKS |= {"unordered": unordered}
NEEDED = ("read", "read_lean", "stream")


def worker(task: str, paths: list[Path]) -> None:
    """Runs the task once for every line that comes in, and tells what it took."""
    for _ in sys.stdin:
        began, clock = time.process_time(), time.perf_counter()
        result = TASKS[task](paths)
        told = {"cpu": time.process_time() - began, "wall": time.perf_counter() - clock}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({**told, "peak_gib": peak, **result}), flush=True)


def measured(tasks: list[str], folder: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Every task in a process of its own, in turns: CPU time of each run, and the peak."""
    command = [sys.executable, "-W", "ignore", __file__, "--rows", str(rows)]
    command += ["--folder", str(folder), "--worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    runs: dict[str, list[Any]] = {task: [] for task in tasks}
    with ExitStack() as stack:
        workers = {
            task: stack.enter_context(subprocess.Popen([*command, task], text=True, **pipes))
            for task in tasks
        }
        for _ in range(repeats):
            for task, process in workers.items():
                process.stdin.write("\n")
                process.stdin.flush()
                runs[task].append(json.loads(process.stdout.readline()))
        for process in workers.values():
            process.stdin.close()
    return {
        task: {
            **told[-1],
            "peak_gib": told[0]["peak_gib"],
            "peak_gib_again": told[-1]["peak_gib"],
            "cold": told[0]["cpu"],
            "warm": min(run["cpu"] for run in told),
            "wall": min(run["wall"] for run in told),
        }
        for task, told in runs.items()
    }


def costs(rows: int, fast: dict[str, Any], slow: dict[str, Any]) -> dict[str, Any]:
    """CPU time per row and peak memory of each kind of sums, by the fast path and the general."""
    return {
        task: {
            "estimators": names,
            "ns_per_row": 1e9 * fast[task]["warm"] / rows,
            "per_read": fast[task]["warm"] / fast["read_lean"]["warm"],
            "peak_gib": fast[task]["peak_gib"],
            "general_ns_per_row": 1e9 * slow[f"general_{task}"]["warm"] / GENERAL,
            "general_peak_gib": slow[f"general_{task}"]["peak_gib"],
        }
        for task, names in SUMS.items()
        if task in fast
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=list(FAST), help="without: by the rows")
    parser.add_argument("--worker", choices=tuple(TASKS), help="run this whenever a line comes in")
    parser.add_argument("--remove", action="store_true", help="delete the files afterwards")
    given = parser.parse_args()
    rows = given.rows // GROUP * GROUP or given.rows // HORIZON * HORIZON
    folder = given.folder / str(rows)
    paths = write(folder, rows)
    if given.worker:
        worker(given.worker, paths)
        return
    tasks = given.tasks or (list(FAST) if rows <= MOST_FOR_ALL else [])
    found = measured(list(dict.fromkeys([*NEEDED, *tasks])), given.folder, rows, given.repeats)
    shuffle(write(given.folder / str(GENERAL), GENERAL))
    asked = [f"general_{task}" for task in SUMS if task in found]
    slow = measured([*asked, "unordered"], given.folder, GENERAL, 2)
    took = {task: told["warm"] for task, told in found.items()}
    told = {
        "rows": rows,
        "files_gib": sum(path.stat().st_size for path in paths) / 2**30,
        "ratio": took["stream"] / took["read"],
        "ratio_cold": found["stream"]["cold"] / took["read"],
        "ratio_lean": took["stream"] / took["read_lean"],
        "ratio_target": TARGET_PER_FULL_READ,
        "peak_gib": found["stream"]["peak_gib"],
        "peak_target_gib": MEMORY_GIB,
        "ns_per_row": 1e9 * took["stream"] / rows,
        "ns_per_row_target": NS_PER_ROW,
        "wall_per_cpu": found["stream"]["wall"] / took["stream"],
        "wall_per_cpu_target": WALL_PER_CPU,
        "unordered_ns_per_row": 1e9 * slow["unordered"]["warm"] / GENERAL,
        "unordered_wall_ns_per_row": 1e9 * slow["unordered"]["wall"] / GENERAL,
        "unordered_target": UNORDERED_NS,
        "gates": took["stream"] / took["bare"] if "bare" in took else None,
        "costs": costs(rows, found, slow),
        **found,
    }
    print(json.dumps(told, indent=2))
    if given.remove:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
