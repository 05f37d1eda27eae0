"""What `reweigh evaluate` costs from one Parquet file, by engine: the command as a user runs it.

The log is that of stream.py (S = H = 100, A = 10). Each run is a process of its own, in turns:
pyarrow's read of the columns, the default engine, and each engine by name. Interpreter, imports,
value, interval, gain, verdict and printing are all in the time; only the compilation of kernels on
their first use is not, because one run on a small log precedes the measured ones.

    python benchmarks/commands.py                     20 million rows
    python benchmarks/commands.py --rows 2000000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from stream import ACTIONS, COLUMNS, FOLDER, GROUP, HORIZON, STATES, policy, rows_of

ROWS, WARM_UP_ROWS = 20_000_000, 200_000
ENGINES = ("default", "arrays", "stream", "duckdb")
READ = f"""
import sys, pyarrow.parquet as pq
for batch in pq.ParquetFile(sys.argv[1]).iter_batches(columns={COLUMNS!r}):
    pass
"""


def write_log(folder: Path, rows: int) -> Path:
    """One file with all of the rows; kept if it is there."""
    path = folder / f"{rows}.parquet"
    if not path.exists():
        partial = path.with_suffix(".partial")
        with pq.ParquetWriter(partial, rows_of(0, HORIZON).schema) as writer:
            for group in range(-(-rows // GROUP)):
                writer.write_table(rows_of(group, min(rows - group * GROUP, GROUP)))
        partial.rename(path)
    return path


def write_policy(folder: Path) -> Path:
    """The target as a table of (state, action, prob)."""
    path = folder / "target.parquet"
    cells = [(s, a) for s in range(STATES) for a in range(ACTIONS)]
    state, action = zip(*cells, strict=True)
    columns = {"state": state, "action": action, "prob": policy().ravel()}
    pq.write_table(pa.table(columns), path)
    return path


def run(command: list[str]) -> dict[str, Any]:
    """CPU seconds of all threads, seconds by the clock, and the peak of one process."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed)
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "wall": time.perf_counter() - began,
        "peak_gib": usage.ru_maxrss / 2**20,
        "printed": printed,
    }


def commands(log: Path, target: Path) -> dict[str, list[str]]:
    """By name: the read, and the whole command on each engine."""
    reweigh = Path(sys.executable).with_name("reweigh")  # of the same environment
    evaluate = [str(reweigh), "evaluate", str(log)]
    evaluate += ["--target", str(target), "--estimators", "mis", "--json"]
    by_engine = {
        engine: evaluate + ([] if engine == "default" else ["--engine", engine])
        for engine in ENGINES
    }
    return {"read": [sys.executable, "-c", READ, str(log)], **by_engine}


def measure(folder: Path, rows: int, repeats: int) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    target = write_policy(folder)
    for command in commands(write_log(folder, WARM_UP_ROWS), target).values():
        run(command)
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for name, command in commands(write_log(folder, rows), target).items():
            runs.setdefault(name, []).append(run(command))
    answers = {}
    for name in ENGINES:
        [estimate] = json.loads(runs[name][0]["printed"])["estimates"]
        answers[name] = {what: estimate[what] for what in ("value", "verdict")}
    return {
        "rows": rows,
        "answers": answers,
        **{
            name: {what: min(one[what] for one in told) for what in ("cpu", "wall", "peak_gib")}
            for name, told in runs.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found = measure(options.folder / "commands", options.rows, options.repeats)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
