"""The runner: the same numbers whatever the workers, the order and the interruptions."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import reweigh as rw
from reweigh.cli.app import run as command
from reweigh.experiments import cells, paper, sweep
from reweigh.experiments.cells import Cell, Setting

SOURCE = Path(__file__).parents[2] / "src"
STUDY = {
    Cell("modelwin", 4, 20): ["is", "mis", "dm", "ssd-is"],
    Cell("modelfail", 6, 25): ["wis", "mis", "mdr"],
    Cell("timevarying", 8, 30): ["mis", "mis-pooled", "trajectory-is"],
    Cell("mountaincar", 100, 10): ["mis", "is"],
}
SETTING = Setting(replicates=7, seed=3)
REPRODUCE = ["reproduce", "fig3b", "fig5b", "--replicates", "6", "--quiet", "--jobs", "2"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.json"))}


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("sequential")
    sweep.run(STUDY, folder, SETTING, backend=sweep.Backend("sequential", 1))
    return contents(folder)


def test_any_number_of_workers_and_any_order_give_the_same_bits(
    sequential: dict[str, bytes], tmp_path: Path
) -> None:
    backwards = dict(reversed(list(STUDY.items())))
    for study, backend in ((STUDY, sweep.Backend("loky", 2)), (backwards, sweep.Backend("loky"))):
        folder = tmp_path / str(backend.jobs)
        sweep.run(study, folder, SETTING, backend=backend)
        assert contents(folder) == sequential


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["dask", "ray"])
def test_clusters_give_the_same_bits(
    sequential: dict[str, bytes], tmp_path: Path, name: sweep.BackendName
) -> None:
    sweep.run(STUDY, tmp_path, SETTING, backend=sweep.Backend(name, 2))
    assert contents(tmp_path) == sequential


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_that_is_there_is_used_by_its_address(
    sequential: dict[str, bytes], tmp_path: Path
) -> None:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        backend = sweep.Backend("dask", 2, cluster.scheduler_address)
        sweep.run(STUDY, tmp_path, SETTING, backend=backend)
        assert contents(tmp_path) == sequential


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(rw.UsageError, match=r"cannot reach tcp://127\.0\.0\.1:9"):
        sweep.run(STUDY, tmp_path, SETTING, backend=sweep.Backend("dask", 1, "tcp://127.0.0.1:9"))


def test_values_do_not_depend_on_the_company_of_an_estimator(tmp_path: Path) -> None:
    """Estimators added by a second run have the bits of one run with all of them."""
    for cell, names in STUDY.items():
        together, apart = tmp_path / f"{cell.name}-1", tmp_path / f"{cell.name}-2"
        backend = sweep.Backend("sequential", 1)
        sweep.run({cell: names}, together, SETTING, backend=backend)
        for name in reversed(names):
            sweep.run({cell: [name]}, apart, SETTING, backend=backend, resume=True)
        assert contents(together) == contents(apart)


def test_every_replicate_and_cell_has_a_stream_of_its_own() -> None:
    seen = set()
    for cell in (Cell("modelwin", 4, 20), Cell("modelwin", 8, 20), Cell("modelwin", 4, 40)):
        for seed in (0, 1):
            _, result = cells.run_replicates(cell, ["is"], seed, range(4))
            seen |= set(result.values["is"])
    assert len(seen) == 3 * 2 * 4


def test_the_time_varying_world_is_drawn_anew_in_every_replicate() -> None:
    sequences = [cells._sequence(Cell("timevarying", 8, 5), 0, k).spawn(2)[0] for k in range(3)]
    seeds = [int(sequence.generate_state(1)[0]) for sequence in sequences]
    ways = [cells._world("timevarying", 8, seed).p for seed in seeds]  # type: ignore[attr-defined]
    assert len({way.tobytes() for way in ways}) == 3


def test_values_are_those_of_evaluate() -> None:
    for cell, names in STUDY.items():
        _, result = cells.run_replicates(cell, names, 3, range(1, 2))
        for_world, for_log = cells._sequence(cell, 3, 1).spawn(2)
        world = cells._world(cell.world, cell.horizon, int(for_world.generate_state(1)[0]))
        log = world.simulate(cell.n, np.random.default_rng(for_log))
        for name, found in zip(names, rw.evaluate_all(log, world.target, names), strict=True):
            assert isinstance(found, rw.Estimate)
            assert result.values[name] == [pytest.approx(found.value, rel=1e-12)]


def test_workers_use_one_thread_for_linear_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
    from threadpoolctl import threadpool_info

    seen: list[int] = []

    def watched(log: object, target: object, names: list[str]) -> list[float]:
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return [1.0 for _ in names]

    monkeypatch.setattr(cells, "point_values", watched)
    cells.run_replicates(Cell("modelwin", 4, 20), ["mis"], 0, range(1))
    assert seen
    assert set(seen) == {1}


def test_a_refusal_is_counted_and_is_no_number(tmp_path: Path) -> None:
    """All stationary mass of the time-varying world is on state 0, where no episode starts."""
    cell = Cell("timevarying", 8, 30)
    names = ["mis", "ssd-is-selfnorm"]
    results = sweep.run({cell: names}, tmp_path, SETTING, backend=sweep.Backend("sequential", 1))
    assert results[cell].refused == {"ssd-is-selfnorm": {"stationary": 7}}
    assert results[cell].values["ssd-is-selfnorm"] == [None] * 7
    assert sweep.run({cell: names}, tmp_path, SETTING, resume=True)[cell].refused
    figure = paper.Figure("x", "x", (cell,), tuple(names), "n")
    assert [row["estimator"] for row in paper.rows(figure, results, SETTING)] == ["mis"]
    [line] = paper.refusals(figure, results)
    assert "ssd-is-selfnorm refused 7 replicates (stationary) in timevarying-H8-n30" in line


# Resuming


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    code = "import sys; from reweigh.cli.app import run; sys.exit(run(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *REPRODUCE, "-o", str(folder), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,  # to end its workers with it
    )  # fmt: skip


def end(process: subprocess.Popen[str], how: signal.Signals) -> tuple[str, str]:
    """A group of its own: nothing but the process and its workers is ended."""
    if process.poll() is None:
        os.killpg(process.pid, how)
    out, err = process.communicate(timeout=60)
    return out, err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert command([*REPRODUCE, "-o", str(folder)]) == 0
    return folder


def same_results(one: Path, other: Path) -> None:
    assert contents(one / "cells") == contents(other / "cells")
    for name in ("fig3b.csv", "fig5b.csv", "fig3b.svg", "fig5b.svg", "fig3b.png"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_killed_at_random_points_and_resumed_it_gives_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    rng = random.Random(5)
    seen = []
    for _ in range(6):
        process = start(tmp_path / "out", "--resume")
        target = len(contents(tmp_path / "out" / "cells")) + rng.randint(1, 3)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if len(contents(tmp_path / "out" / "cells")) >= target:
                time.sleep(rng.random() * 0.05)
                break
            time.sleep(0.01)
        end(process, signal.SIGKILL)
        seen.append(len(contents(tmp_path / "out" / "cells")))
        for path in (tmp_path / "out" / "cells").glob("*.json"):
            json.loads(path.read_text())  # whole, whenever the kill came
    assert seen[0] < len(contents(whole / "cells"))  # something was left to resume
    assert command([*REPRODUCE, "-o", str(tmp_path / "out"), "--resume"]) == 0
    same_results(tmp_path / "out", whole)


def test_ctrl_c_keeps_what_is_finished(whole: Path, tmp_path: Path) -> None:
    process = start(tmp_path / "out")
    deadline = time.monotonic() + 60
    while not contents(tmp_path / "out" / "cells") and time.monotonic() < deadline:
        time.sleep(0.01)
    out, err = end(process, signal.SIGINT)
    assert process.returncode == 130, err
    assert "every finished cell is kept" in out
    kept = contents(tmp_path / "out" / "cells")
    assert kept
    assert kept.items() <= contents(whole / "cells").items()
    assert command([*REPRODUCE, "-o", str(tmp_path / "out"), "--resume"]) == 0
    same_results(tmp_path / "out", whole)


def test_a_changed_configuration_is_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(whole, folder)
    base = ["reproduce", "fig3b", "-o", str(folder), "--quiet"]
    assert command([*base, "--replicates", "9", "--resume"]) == 2
    assert "replicates was 6 and is 9" in capsys.readouterr().err
    assert command([*base, "--replicates", "6", "--seed", "1", "--resume"]) == 2
    assert "seed was 0 and is 1" in capsys.readouterr().err
    assert command([*base, "--replicates", "6"]) == 2
    assert "--resume" in capsys.readouterr().err
    same_results(folder, whole)  # nothing was touched


def test_a_damaged_cell_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    shutil.copytree(whole / "cells", folder)
    cell, setting = Cell("modelwin", 4, 1024), Setting(6)
    path = cells.path_of(folder, cell)
    good = path.read_text()
    for bad in (good[: len(good) // 2], good.replace('"seed": 0', '"seed": 8'), "[1]", "null"):
        path.write_text(bad)
        with pytest.raises(rw.UsageError, match="modelwin-H4-n1024"):
            cells.load(folder, cell, setting)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replicates", "1"], "replicates must be a whole number from 2"),
        (["--seed", "-1"], "seed must be a whole number from 0"),
        (["--jobs", "0"], "jobs"),
        (["--backend", "slurm"], "loky, sequential, dask, ray"),
        (["--address", "tcp://127.0.0.1:1"], "an address belongs to dask or ray"),
        (["--resume", "--overwrite"], "not both"),
    ],
)
def test_bad_options(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["reproduce", "fig3b", "-o", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unknown_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["reproduce", "fig2e", "-o", str(tmp_path)]) == 2
    assert "there is no figure 'fig2e'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert command(["reproduce", "fig3b", "-o", str(tmp_path / "file" / "out")]) == 6
    assert "cannot write" in capsys.readouterr().err


def test_nothing_under_docs_is_read(whole: Path, tmp_path: Path) -> None:
    """A copy of the sources without docs/ gives the same results."""
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    assert not (tmp_path / "docs").exists()
    code = "import sys; from reweigh.cli.app import run; sys.exit(run(sys.argv[1:]))"
    subprocess.run(
        [sys.executable, "-c", code, *REPRODUCE, "-o", "out"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "src")}, check=True,
    )  # fmt: skip
    same_results(tmp_path / "out", whole)


def test_progress_tells_all_of_the_work(tmp_path: Path) -> None:
    told: list[sweep.Progress] = []
    backend = sweep.Backend("sequential", 1)
    sweep.run(STUDY, tmp_path, SETTING, backend=backend, report=told.append)
    assert told[-1].finished == told[-1].cells == len(STUDY)
    assert told[-1].work_done == pytest.approx(told[-1].work)
    assert [p.work_done for p in told] == sorted(p.work_done for p in told)
    told.clear()
    sweep.run(STUDY, tmp_path, SETTING, backend=backend, report=told.append, resume=True)
    assert told == []
