"""Sums: they add, they save, they refuse what does not belong together, and they stay small."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import reweigh as rw
from reweigh.estimate.replicates import jackknife_error
from reweigh.sums.keyed import TransitionMoments
from reweigh.worlds import ModelFail, random_mdp

KEYS, SUMS = TransitionMoments.KEYS, TransitionMoments.SUMS

pytestmark = pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")

WORLD = random_mdp(np.random.default_rng(0), terminal=1, reward_sd=0.3, discount=0.9)
LOG = WORLD.simulate(200, 0)
HIDDEN = ModelFail(6)


def halves(log: rw.EpisodeLog) -> tuple[rw.EpisodeLog, rw.EpisodeLog]:
    first = np.asarray(log.steps.episode) % 3 == 0
    return log.select(first), log.select(~first)


def tables(sums: rw.Moments) -> dict[str, object]:
    assert sums.trajectories is not None
    return {
        "start": sums.start,
        "start_model": sums.start_model,
        "transitions": sums.transitions,
        "model": sums.model,
        "steps": sums.trajectories.steps,
        "episodes": sums.trajectories.episodes,
    }


def assert_equal(first: rw.Moments, second: rw.Moments, rel: float) -> None:
    for (kind, a), b in zip(tables(first).items(), tables(second).values(), strict=True):
        for field in fields(a):  # type: ignore[arg-type]
            mine, theirs = getattr(a, field.name), getattr(b, field.name)
            if mine.dtype.kind == "i":
                assert np.array_equal(mine, theirs), (kind, field.name)
            else:
                assert mine == pytest.approx(theirs, rel=rel, abs=1e-12), (kind, field.name)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize(
    ("log", "world"), [(LOG, WORLD), (HIDDEN.simulate(100, 0), HIDDEN)], ids=["ended", "hidden"]
)
def test_a_log_split_in_two_and_merged_gives_the_same_sums(blocks, log, world) -> None:
    whole = rw.moments(log, world.target, blocks=blocks)
    first, second = (rw.moments(part, world.target, blocks=blocks) for part in halves(log))
    assert_equal(whole, first + second, 1e-12)
    assert_equal(whole, second + first, 1e-12)
    assert (first + second).n_episodes == log.n_episodes


def test_merging_recodes_states_that_only_one_part_knows() -> None:
    table = LOG.to_table().to_pandas()
    text = {s: f"s{s}" for s in table["state"].unique()}
    for name in ("state", "next_state"):
        if name in table:
            table[name] = table[name].map(text)
    log = rw.read_log(table, target_prob="target_prob", terminated="terminated", discount=0.9)
    target = rw.ColumnPolicy("target_prob")
    ends = [log.select(log.steps.episode == e) for e in log.steps.episode[:6]]
    sums = [rw.moments(part, target) for part in ends]
    assert len({part.states.values for part in sums}) >= 1
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    together = rw.moments(log.select(np.isin(log.steps.episode, log.steps.episode[:6])), target)
    for name in ("mis", "dm", "is"):
        merged = rw.evaluate(total, estimator=name)
        assert merged.value == pytest.approx(rw.evaluate(together, estimator=name).value, rel=1e-12)


def test_saved_sums_are_the_same_sums(tmp_path) -> None:
    sums = rw.moments(LOG, WORLD.target, blocks=4)
    path = tmp_path / "m.parquet"
    sums.save(path)
    loaded = rw.load_moments(path)
    assert loaded.about == sums.about
    assert loaded.states.values == sums.states.values
    assert_equal(sums, loaded, 0)
    for name in ("mis", "mis-state", "mis-pooled", "dm", "is", "trajectory-wis", "mdr"):
        before, after = rw.evaluate(sums, estimator=name), rw.evaluate(loaded, estimator=name)
        assert (before.value, before.standard_error) == (after.value, after.standard_error)


def test_files_that_hold_no_moments_are_refused(tmp_path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(LOG.to_table(), tmp_path / "log.parquet")
    (tmp_path / "text.parquet").write_text("nothing")
    for name, error in (
        ("log.parquet", rw.InputError),
        ("text.parquet", rw.InputError),
        ("absent.parquet", rw.ResourceError),
    ):
        with pytest.raises(error):
            rw.load_moments(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"horizon": 6}, "horizon"),
        ({"discount": 1.0}, "discount"),
        ({"target": "table:other"}, "target"),
        ({"abstraction": "Rounding(scale=2)"}, "abstraction"),
        ({"max_ratio": 3.0}, "max_ratio"),
        ({"blocks": 2}, "blocks"),
        ({"behavior": "estimated"}, "behavior"),
        ({"control": "own Q"}, "control"),
        ({"continuous_actions": True}, "continuous_actions"),
        ({"state_columns": ("x",)}, "state_columns"),
    ],
)
def test_sums_that_differ_in_what_they_are_of_do_not_add(change, said) -> None:
    first, second = (rw.moments(part, WORLD.target) for part in halves(LOG))
    other = replace(second, about=replace(second.about, **change))
    with pytest.raises(rw.InputError, match=f"cannot be merged.*{said}"):
        first + other


def test_the_same_log_does_not_add_twice() -> None:
    first, second = (rw.moments(part, WORLD.target) for part in halves(LOG))
    with pytest.raises(rw.InputError, match="count twice"):
        first + first
    with pytest.raises(rw.InputError, match="count twice"):
        (first + second) + second
    shuffled = rw.read_log(
        LOG.to_table().take(np.random.default_rng(0).permutation(LOG.steps.n_rows)),
        target_prob="target_prob",
        terminated="terminated",
        discount=0.9,
    )
    again = rw.log_from_arrays([[0, 1]], [[0]], [[1.0]], [[0.5]])
    assert shuffled.digest() != again.digest()


def test_different_kinds_do_not_add() -> None:
    first, second = halves(LOG)
    with pytest.raises(rw.InputError, match="different kinds"):
        rw.moments(first, WORLD.target, ["mis"]) + rw.moments(second, WORLD.target, ["is"])


def test_estimators_say_which_sums_are_missing() -> None:
    only_mis = rw.moments(LOG, WORLD.target, ["mis"], gates=False)
    assert only_mis.kinds == ("transitions",)
    for name in ("is", "dm", "ssd-is", "mdr"):
        with pytest.raises(rw.RefusedError) as caught:
            rw.evaluate(only_mis, estimator=name)
        assert caught.value.code == "missing-moments"
    with pytest.raises(rw.RefusedError) as caught:
        rw.evaluate(rw.moments(LOG, WORLD.target), estimator="dr")
    assert caught.value.code == "needs-log"
    with pytest.raises(rw.RefusedError) as caught:
        rw.evaluate(rw.moments(LOG, WORLD.target), estimator="mdr")
    assert caught.value.code == "blocks"
    with pytest.raises(rw.RefusedError) as caught:
        rw.evaluate(only_mis, estimator=rw.mis(max_ratio=2.0))
    assert caught.value.code == "max-ratio"
    with pytest.raises(rw.UsageError, match="another target"):
        rw.evaluate(only_mis, WORLD.behavior, rw.mis())


def test_blocks_follow_the_md5_of_the_id() -> None:
    import hashlib

    table = LOG.to_table().to_pandas()
    table["episode"] = [f"é{e}" for e in table["episode"]]
    log = rw.read_log(table, target_prob="target_prob", terminated="terminated")
    blocks = log.steps.blocks(7)
    for episode, block in zip(log.steps.episode, blocks, strict=True):
        digest = hashlib.md5(str(episode).encode()).hexdigest()
        assert block == int(digest[:8], 16) % 7
    ints = LOG.steps
    assert (
        ints.blocks(5)[0] == int(hashlib.md5(str(ints.episode[0]).encode()).hexdigest()[:8], 16) % 5
    )


def test_jackknife_of_a_mean_with_one_episode_per_block_is_the_standard_error() -> None:
    """With blocks of one episode the jackknife of the mean return is s/√n."""
    log = WORLD.simulate(12, 3)
    sums = rw.moments(log, WORLD.behavior, ["is"], blocks=1)
    parts = [rw.moments(log.select(log.steps.episode == e), WORLD.behavior, ["is"])
             for e in log.steps.episode]  # fmt: skip
    own = [
        replace(
            part,
            start=replace(part.start, block=part.start.block + k),
            trajectories=replace(
                part.trajectories,
                steps=replace(part.trajectories.steps, block=part.trajectories.steps.block + k),
                episodes=replace(
                    part.trajectories.episodes, block=part.trajectories.episodes.block + k
                ),
            ),
        )
        for k, part in enumerate(parts)
    ]
    total = own[0]
    for part in own[1:]:
        total = total + part
    value = rw.evaluate(sums, estimator="is").value
    error, method = jackknife_error(rw.is_(), total, value)
    returns = np.zeros(12)
    np.add.at(returns, log.steps.episode_index, log.steps.reward * 0.9**log.steps.step)
    assert error == pytest.approx(np.std(returns, ddof=1) / np.sqrt(12), rel=1e-9)
    assert method == "jackknife (12 blocks)"


def test_wis_from_sums_gets_its_error_from_the_jackknife() -> None:
    log = WORLD.simulate(3000, 5)
    rows = rw.evaluate(log, WORLD.target, "wis")
    sums = rw.evaluate(rw.moments(log, WORLD.target, blocks=100), estimator="wis")
    assert sums.value == pytest.approx(rows.value, rel=1e-12)
    assert sums.error_method.startswith("jackknife")
    # 100 blocks: the jackknife's own relative error is about 1/sqrt(2·99) = 7 %
    assert sums.standard_error == pytest.approx(rows.standard_error, rel=0.25)
    few = rw.evaluate(rw.moments(log, WORLD.target), estimator="wis")
    assert few.standard_error is None
    assert "blocks" in few.error_method


SPARSE = """
import numpy as np
import reweigh as rw

S, H, n = 20_000, 50, 20_000
rng = np.random.default_rng(0)
states = rng.integers(0, S, (n, H + 1))
actions = rng.integers(0, 5, (n, H))
rewards = rng.random((n, H))
mu = np.full((n, H), 0.2)
pi = 0.1 + 0.2 * rng.random((n, H))
log = rw.log_from_arrays(states, actions, rewards, mu, pi)
results = rw.evaluate_all(log, rw.ColumnPolicy("target_prob"), ["mis", "dm", "is", "wis"])
for result in results:
    assert isinstance(result, rw.Estimate), result
assert len(log.states) == S
# ru_maxrss would begin with the size of the process that forked this one; VmHWM does not.
[line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(line.split()[1]) // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells a peak")
def test_twenty_thousand_states_over_fifty_steps_stay_under_a_gibibyte() -> None:
    """20,000² states would be 3 GiB a step, and rows × actions is never made either."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SPARSE], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1024


def test_cells_are_never_more_than_rows() -> None:
    sums = rw.moments(LOG, WORLD.target, blocks=8)
    for kind in ("transitions", "model"):
        cells = getattr(sums, kind)
        assert len(cells) <= LOG.steps.n_rows
        assert cells.n.sum() == LOG.steps.n_rows
        assert set(vars(cells)) == {*KEYS, *SUMS}


@pytest.mark.parametrize("ids", [[7, 0, -12, 10**15], ["a", "7", "Zoë", ""]])
def test_blocks_come_from_the_md5_of_the_ids(ids: list[Any]) -> None:
    """As every engine and every site has it."""
    rows = {"episode": ids, "step": 0, "state": 0, "action": 0, "reward": 1.0, "behavior_prob": 0.5}
    steps = rw.read_log(pd.DataFrame(rows)).steps
    expected = [hashlib.md5(str(e).encode()).hexdigest()[:8] for e in steps.episode.tolist()]
    assert steps.episode_hash.tolist() == [int(digits, 16) for digits in expected]
    assert steps.blocks(5).tolist() == [int(digits, 16) % 5 for digits in expected]
