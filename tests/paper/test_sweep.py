"""The runner: the same numbers whatever the workers, the order and the interruptions."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import reweigh as rw
from reweigh.cli.app import run as command
from reweigh.paper import cells, sweep
from reweigh.paper import figures as paper
from reweigh.paper.cells import Cell, Setting
from reweigh.paper.sweep import Backend, BackendName
from reweigh.system.files import checksum_of, locked

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
    found = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # a run at work may just have removed it
            found[path.name] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("sequential")
    sweep.run(STUDY, folder, SETTING, backend=Backend("sequential"))
    return contents(folder)


def test_any_number_of_workers_and_any_order_give_the_same_bits(
    sequential: dict[str, bytes], tmp_path: Path
) -> None:
    backwards = dict(reversed(list(STUDY.items())))
    for study, backend in ((STUDY, Backend("loky", 2)), (backwards, Backend("loky"))):
        folder = tmp_path / str(backend.jobs)
        sweep.run(study, folder, SETTING, backend=backend)
        assert contents(folder) == sequential


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["dask", "ray"])
def test_clusters_give_the_same_bits(
    sequential: dict[str, bytes], tmp_path: Path, name: BackendName
) -> None:
    sweep.run(STUDY, tmp_path, SETTING, backend=Backend(name, 2))
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
        backend = Backend("dask", None, cluster.scheduler_address)
        sweep.run(STUDY, tmp_path, SETTING, backend=backend)
        assert contents(tmp_path) == sequential


def listening() -> set[str]:
    """Where something on this machine listens, in hex as Linux lists it."""
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows += Path(table).read_text().splitlines()[1:]
    return {row.split()[1] for row in rows if row.split()[3] == "0A"}


LOOPBACK = re.compile(r"(0{24}|0{16}FFFF0000)?0100007F:|0{24}01000000:")


@pytest.mark.cluster
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are listed by Linux only")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["dask", "ray"])
def test_own_clusters_listen_on_loopback_only(name: BackendName) -> None:
    before = listening()
    with sweep.connected(Backend(name, 1)):
        new = listening() - before
    assert new
    assert [address for address in new if not LOOPBACK.match(address)] == []


@pytest.mark.cluster
def test_a_ray_cluster_that_is_there_is_used_by_its_address_and_token(
    tmp_path: Path, whole: Path
) -> None:
    """On the command line, as its user has it: the token comes from the environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # sockets' paths are short
        environment = os.environ | {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its name for: on loopback only
            "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(SOURCE),
        }  # fmt: skip
        head = subprocess.Popen(
            [
                Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=2",
                "--include-dashboard=false", f"--port={port}", f"--temp-dir={short}",
            ],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for(port)
            run = [*REPRODUCE[:-2], "--backend", "ray", "--address", f"127.0.0.1:{port}"]
            code = "import sys; from reweigh.cli.app import run; sys.exit(run(sys.argv[1:]))"
            call = [sys.executable, "-c", code, *run, "-o"]
            done = subprocess.run(
                [*call, tmp_path / "out"], env=environment, capture_output=True, timeout=300
            )
            assert done.returncode == 0, done.stderr
            assert contents(tmp_path / "out" / "cells") == contents(whole / "cells")
            wrong = environment | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
            refused = subprocess.run(
                [*call, tmp_path / "no"], env=wrong, capture_output=True, text=True, timeout=300
            )
            assert refused.returncode == 2
            assert "RAY_AUTH_TOKEN" in refused.stderr
        finally:
            head.terminate()
            head.wait(60)


def wait_for(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the cluster did not start")


def test_a_cluster_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    for name, address in (("dask", "tcp://127.0.0.1:9"), ("ray", "127.0.0.1:9")):
        with pytest.raises(rw.UsageError, match=f"{name}: cannot reach {re.escape(address)}"):
            sweep.run(STUDY, tmp_path, SETTING, backend=Backend(name, None, address))


def test_values_do_not_depend_on_the_company_of_an_estimator(tmp_path: Path) -> None:
    """Estimators added by a second run have the bits of one run with all of them."""
    for cell, names in STUDY.items():
        together, apart = tmp_path / f"{cell.name}-1", tmp_path / f"{cell.name}-2"
        backend = Backend("sequential")
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
    sequences = [cells.seed_sequence(Cell("timevarying", 8, 5), 0, k).spawn(2)[0] for k in range(3)]
    seeds = [int(sequence.generate_state(1)[0]) for sequence in sequences]
    ways = [cells._world("timevarying", 8, seed).p for seed in seeds]  # type: ignore[attr-defined]
    assert len({way.tobytes() for way in ways}) == 3


def test_values_are_those_of_evaluate() -> None:
    for cell, names in STUDY.items():
        _, result = cells.run_replicates(cell, names, 3, range(1, 2))
        for_world, for_log = cells.seed_sequence(cell, 3, 1).spawn(2)
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
    """The time-varying world has continuous actions, of which there is no model."""
    cell = Cell("timevarying", 8, 30)
    names = ["mis", "dm"]
    results = sweep.run({cell: names}, tmp_path, SETTING, backend=Backend("sequential")).results
    assert results[cell].refused == {"dm": {"continuous-actions": 7}}
    assert results[cell].values["dm"] == [None] * 7
    assert sweep.run({cell: names}, tmp_path, SETTING, resume=True).results[cell].refused
    figure = paper.Figure("x", "x", (cell,), tuple(names), "n")
    assert [row["estimator"] for row in paper.rows(figure, results, SETTING)] == ["mis"]
    [line] = paper.refusals(figure, results)
    assert "dm refused 7 replicates (continuous-actions) in timevarying-H8-n30" in line


# Resuming


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    code = "from reweigh.cli.app import main; main()"
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
    for attempt in range(6):
        process = start(tmp_path / "out", "--resume")
        # the first time before any cell is there, then around the writing of one
        target = len(contents(tmp_path / "out" / "cells")) + (rng.randint(1, 3) if attempt else 0)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if len(contents(tmp_path / "out" / "cells")) >= target:
                time.sleep(rng.random() * (0.05 if attempt else 2.0))
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
    assert "every finished cell is kept" in err  # it is quiet, and this must not get lost
    assert not out
    kept = contents(tmp_path / "out" / "cells")
    assert kept
    assert kept.items() <= contents(whole / "cells").items()
    assert command([*REPRODUCE, "-o", str(tmp_path / "out"), "--resume"]) == 0
    same_results(tmp_path / "out", whole)


def test_an_interrupted_overwrite_goes_on_with_resume(whole: Path, tmp_path: Path) -> None:
    """What an earlier run left must not stand for this run's."""
    folder = tmp_path / "out"
    shutil.copytree(whole, folder)
    other = [*REPRODUCE]
    other[other.index("6")] = "5"
    assert command([*other, "-o", str(folder), "--overwrite"]) == 0
    process = start(folder, "--overwrite")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        cells_now = contents(folder / "cells")
        if cells_now and all(b'"replicates": 6' in text for text in cells_now.values()):
            break
        time.sleep(0.005)
    out, err = end(process, signal.SIGTERM)  # taken as Ctrl-C is
    assert process.returncode == 130, err
    assert "--resume instead of --overwrite" in err
    assert not out
    assert not (folder / "fig3b.csv").exists()
    assert command([*REPRODUCE, "-o", str(folder), "--resume"]) == 0
    same_results(folder, whole)
    run = json.loads((folder / "run.json").read_text())
    assert run["cells_found"] + run["cells_computed"] == len(contents(whole / "cells"))
    assert run["cells_found"] >= 1


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    held = locked(tmp_path / sweep.LOCK, "held")
    with held, pytest.raises(rw.ResourceError, match="another run"):
        sweep.run(STUDY, tmp_path, SETTING, backend=Backend("sequential"))
    assert contents(tmp_path) == {}


def deadly(cell: Cell, estimators: object, seed: int, part: range) -> object:
    """A cell that kills its worker, as a lack of memory would."""
    if cell.world == "modelfail":
        os.kill(os.getpid(), signal.SIGKILL)
    return cells.run_replicates(cell, STUDY[cell], seed, part)


def deadly_task(
    cell: Cell, estimators: list[str], part: range, seed: int, wanted: object
) -> tuple[Cell, object]:
    return cell, deadly(cell, estimators, seed, part)


def test_a_cell_that_kills_its_workers_fails_alone(
    sequential: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_task", deadly_task)
    done = sweep.run(STUDY, tmp_path, SETTING, backend=Backend("loky", 2))
    [(cell, why)] = done.failed.items()
    assert cell.world == "modelfail"
    assert "Terminated" in why
    kept = contents(tmp_path)
    assert set(sequential) - set(kept) == {f"{cell.name}.json"}
    assert kept.items() <= sequential.items()


def test_a_failed_cell_leaves_its_figures_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = sweep._carried_out

    def failing(tasks, setting, backend, failed):  # type: ignore[no-untyped-def]
        lost = tasks[0][0]
        failed[lost] = "no memory"
        yield from honest([task for task in tasks if task[0] != lost], setting, backend, failed)

    monkeypatch.setattr(sweep, "_carried_out", failing)
    options = ["--replicates", "2", "--backend", "sequential", "--quiet"]
    assert (
        command(["reproduce", "fig3b", "extra_ssd_modelwin_h", "-o", str(tmp_path), *options]) == 5
    )
    assert "timevarying-H4-n1024 (no memory)" in capsys.readouterr().err
    assert not (tmp_path / "fig3b.csv").exists()
    assert (tmp_path / "extra_ssd_modelwin_h.csv").exists()


def test_workers_of_other_versions_are_refused() -> None:
    with pytest.raises(rw.UsageError, match="other versions"):
        sweep._task(Cell("modelwin", 4, 20), ["is"], range(1), 0, {"reweigh": "0"})


def test_only_carriers_are_taken_for_losses() -> None:
    with pytest.raises(ZeroDivisionError), sweep._workers_lost():
        raise ZeroDivisionError
    from concurrent.futures.process import BrokenProcessPool

    with pytest.raises(sweep.LostError), sweep._workers_lost():
        raise BrokenProcessPool("gone")


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
    content = json.loads(good)
    first = next(iter(content["values"]))
    changed = {**content, "values": {**content["values"], first: [99.0]}}
    seed = good.replace('"seed": 0', '"seed": 8')
    broken = ('{"values": 5}', "[1]", "null", json.dumps({**content, "values": 5}))
    for bad in (good[: len(good) // 2], seed, json.dumps(changed), *broken):
        path.write_text(bad)
        with pytest.raises(rw.InputError, match="modelwin-H4-n1024"):
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
        (["--backend", "sequential", "--jobs", "2"], "jobs is a number of workers on this machine"),
        (["fig99"], "there is no figure 'fig99'"),
    ],
)
def test_bad_options(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["reproduce", "fig3b", "-o", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_a_figure_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["reproduce"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in paper.FIGURES)
    assert command(["reproduce", "all", "fig99"]) == 2
    assert command(["reproduce", "fig2a"]) == 2
    assert "-o FOLDER" in capsys.readouterr().err


def test_an_unknown_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["reproduce", "fig2e", "-o", str(tmp_path)]) == 2
    assert "there is no figure 'fig2e'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert command(["reproduce", "fig3b", "-o", str(tmp_path / "file" / "out")]) == 6
    assert "cannot make the folder" in capsys.readouterr().err


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
    backend = Backend("sequential")
    sweep.run(STUDY, tmp_path, SETTING, backend=backend, report=told.append)
    assert told[-1].finished == told[-1].cells == len(STUDY)
    assert told[-1].work_done == pytest.approx(told[-1].work)
    assert [p.work_done for p in told] == sorted(p.work_done for p in told)
    told.clear()
    sweep.run(STUDY, tmp_path, SETTING, backend=backend, report=told.append, resume=True)
    assert told == []


BROKEN = {
    "null": b"null",
    "deep": b'{"config": ' + b"[" * 100_000,
    "NaN": b'{"hash": NaN}',
    "a key twice": b'{"hash": "a", "hash": "b"}',
    "not UTF-8": b'{"hash": "\xff"}',
}


@pytest.mark.parametrize(
    "what", [*BROKEN, "a flipped bit", "a value less", "a value that is a text"]
)
def test_a_damaged_cell_exits_with_3(
    what: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(whole, folder)
    path = folder / "cells" / "timevarying-H4-n1024.json"
    content = path.read_bytes()
    if what == "a flipped bit":
        digit = content.index(b".", content.index(b'"values"')) + 1
        content = content[:digit] + bytes([content[digit] ^ 1]) + content[digit + 1 :]
    elif what in BROKEN:
        content = BROKEN[what]
    else:  # whoever changes the values and their hash
        found = json.loads(content)
        name, column = next(iter(found["values"].items()))
        found["values"][name] = column[1:] if what == "a value less" else ["x", *column[1:]]
        found["hash"] = checksum_of(found["config"], found["values"], found["refused"])
        content = json.dumps(found).encode()
    path.write_bytes(content)
    assert command([*REPRODUCE, "-o", str(folder), "--resume"]) == 3
    err = capsys.readouterr().err
    assert "timevarying-H4-n1024.json" in err
    assert len(err.splitlines()) == 1
    assert path.read_bytes() == content
