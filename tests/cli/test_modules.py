"""How much of the package one small command passes through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

MOST_MODULES = 78  # 17 for what auto chooses from, and what stands beside its choice
HEAVY = ("numba", "ibis", "duckdb", "altair", "jinja2", "joblib", "pandas", "scipy.stats")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_small_evaluation_passes_few_modules(log: Path, policy: Path, kind: str) -> None:
    if kind == "parquet":
        for path in (log, policy):
            pq.write_table(pacsv.read_csv(path), path.with_suffix(".parquet"))
        log, policy = log.with_suffix(".parquet"), policy.with_suffix(".parquet")
    code = (
        "import sys\n"
        "from reweigh.cli.app import run\n"
        "assert run(sys.argv[1:]) == 0\n"
        f"print('heavy', *[m for m in {HEAVY} if m in sys.modules])\n"
        "print('ours', sum(m.split('.')[0] == 'reweigh' for m in sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "evaluate", str(log), "--target", str(policy)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *_, heavy, ours = ran.stdout.splitlines()
    assert heavy == "heavy"
    assert int(ours.split()[1]) <= MOST_MODULES + (kind == "parquet")


def test_reading_by_the_stream_does_not_load_pandas(tmp_path: Path) -> None:
    pq.write_table(pa.table({"episode": [0, 0, 1, 1], "step": [0, 1, 0, 1], "state": [1, 2, 1, 1],
                             "action": [0, 1, 1, 0], "reward": [0.5, 1.0, 2.0, 0.0],
                             "behavior_prob": [0.5] * 4}), tmp_path / "log.parquet")  # fmt: skip
    code = (
        "import sys\n"
        "import reweigh as rw\n"
        "log = rw.read_log(sys.argv[1], engine='stream')\n"
        "assert log.describe()['rows'] == 4\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "log.parquet")], check=True)
