"""Numbers at the ends of the range: one answer, or one refusal in the same words, on every engine.

`dr` and `wdr` need the rows themselves, which only memory has, and are left out.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh.log.rules import LARGEST_REWARD

ENGINES = ("arrays", "stream", "duckdb")
BY_ROWS = ("magic", "mrdr")  # as dr and wdr; their marginalized forms need sums alone
NAMES = [n for n in rw.ESTIMATORS if not n.startswith(("dr", "wdr")) and n not in BY_ROWS]
N, H = 24, 6
EPISODE, STEP = np.repeat(np.arange(N), H), np.tile(np.arange(H), N)
ROWS = {
    "one row": (EPISODE == 2) & (STEP == 1),
    "two rows": (EPISODE == 2) & np.isin(STEP, (1, 3)),
    "an episode": EPISODE == 2,
    "the last step": STEP == H - 1,
    "half": EPISODE % 2 == 0,
    "all": EPISODE >= 0,
}
MU = (1e-12, 1e-38, 1e-77, 1e-154, 1e-299)
REWARDS = (1e30, LARGEST_REWARD / 10)


def table(**columns: Any) -> pa.Table:
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, N * H)
    plain = {
        "episode": EPISODE,
        "step": STEP,
        "state": rng.integers(0, 2, N * H),
        "action": action,
        "reward": rng.uniform(-1, 1, N * H),
        "behavior_prob": np.full(N * H, 0.5),
        "target_prob": np.where(action == 0, 0.3, 0.7),
    }
    return pa.table(plain | columns)


def cases() -> Iterator[tuple[str, pa.Table]]:
    y = table()["reward"].to_numpy()
    for where, rows in ROWS.items():
        for mu in MU:
            yield f"mu {mu:g} in {where}", table(behavior_prob=np.where(rows, mu, 0.5))
        for size in REWARDS:
            yield f"rewards of {size:g} in {where}", table(reward=np.where(rows, size * y, y))
    both = {"behavior_prob": np.where(ROWS["half"], 1e-154, 0.5), "reward": LARGEST_REWARD * y}
    yield "both", table(**both)
    rare = np.where(ROWS["half"], 1e-299, 0.7)
    yield "tiny pi", table(target_prob=rare)
    yield (
        "tiny pi and mu",
        table(target_prob=rare, behavior_prob=np.where(ROWS["half"], 1e-299, 0.5)),
    )


CASES = dict(cases())


def answers(path: Path, engine: str) -> list[tuple[str, str] | float]:
    log = rw.read_log(path, engine=engine, target_prob="target_prob", discount=0.9)
    found = rw.evaluate_all(log, rw.ColumnPolicy("target_prob"), NAMES)
    return [
        result.value if isinstance(result, rw.Estimate) else (result.error.code, str(result.error))
        for result in found
    ]


@pytest.mark.parametrize("case", CASES)
def test_one_answer_on_every_engine(case: str, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(CASES[case], path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # what overflows is refused, not muttered
        memory, *others = (answers(path, engine) for engine in ENGINES)
    for engine, other in zip(ENGINES[1:], others, strict=True):
        for name, mine, theirs in zip(NAMES, memory, other, strict=True):
            if isinstance(mine, float) and isinstance(theirs, float):
                assert np.isfinite(mine)
                # a blend follows a covariance, of which few digits are left at such extremes
                digits = 1e-4 if name == "magic-mis" else 1e-10
                assert theirs == pytest.approx(mine, rel=digits), (engine, name)
            elif (
                name != "mdr-loo" or theirs[0] != "needs-log"
            ):  # it may ask for the rows themselves
                assert theirs == mine, (engine, name)


def test_self_normalized_products_answer_whatever_the_ratios(tmp_path: Path) -> None:
    """They divide, so that no product is too large; two in a row once overflowed in memory."""
    for mu in MU:
        path = tmp_path / f"{mu:g}.parquet"
        pq.write_table(CASES[f"mu {mu:g} in two rows"], path)
        for engine in ENGINES:
            assert isinstance(answers(path, engine)[NAMES.index("wis")], float), (mu, engine)


@pytest.mark.parametrize("size", [1e61, 1e154, 1e307, sys.float_info.max])
def test_rewards_beyond_all_measure_break_the_contract(size: float, tmp_path: Path) -> None:
    """As placeholders for missing rewards do. The reason names the reward, never the ratios."""
    y = table()["reward"].to_numpy().copy()
    y[[7, 30]] = -size, size
    path = tmp_path / "log.parquet"
    pq.write_table(table(reward=y), path)
    messages = set()
    for engine in ENGINES:
        with pytest.raises(rw.InputError) as caught:
            answers(path, engine)
        messages.add(str(caught.value))
    [message] = messages
    assert "reward-range: 'reward' must lie between -1e+60 and 1e+60 (2 of 144 rows)" in message
    assert f"column 'reward', row 8, episode 1, step 1: value {-size!r}" in message


@pytest.mark.parametrize("rows", [60, 300_000])
def test_arrays_with_such_rewards_are_refused_too(rows: int) -> None:
    """Also where compiled code reads them."""
    n = rows // 3
    reward = np.ones((n, 3))
    reward[5, 1] = 1e300
    given = (np.zeros((n, 4), int), np.zeros((n, 3), int), reward, np.full((n, 3), 0.5))
    for copy in (True, False):
        with pytest.raises(rw.InputError, match=r"reward-range[\s\S]*step 1: value 1e\+300"):
            rw.log_from_arrays(*given, copy=copy)
