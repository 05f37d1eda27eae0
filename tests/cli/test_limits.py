"""What is no bug of reweigh: numbers beyond measure, no memory, damaged files, closed streams and
signals. Each on the installed command, with the real limits and signals."""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reweigh as rw
from reweigh.system import process

from .commands import Command, log_table

REWEIGH = Path(sys.executable).parent / "reweigh"
ENGINES = ["arrays", "stream", "duckdb"]
TARGET = ["--target-prob", "pi"]
HUGE = 99999999999999999999


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    pq.write_table(log_table(), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def reweigh(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # without env= a child inherits the COLUMNS that readline sets behind Python's back
    options: dict[str, Any] = pipes | {"env": dict(os.environ)} | more
    return subprocess.run(
        [REWEIGH, *map(str, arguments)], text=True, timeout=120, check=False, **options
    )


def addresses(size: float) -> Callable[[], None]:
    """For a child process: `ulimit -v`."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (int(size), int(size)))


def one_sentence(text: str, *words: str) -> None:
    assert text.startswith(("error: ", "Interrupted")), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    for word in words:
        assert word in text


# numbers


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "command_line",
    [
        ["check"],
        ["evaluate", *TARGET],
        ["moments", *TARGET, "-o", "m"],
        ["plan", *TARGET, "--half-width", "1"],
    ],
    ids=lambda words: words[0],
)
def test_a_horizon_that_is_too_large_is_a_usage_error(
    command_line: list[str], engine: str, command: Command, parquet: Path
) -> None:
    name, *more = command_line
    for horizon in (HUGE, 2**31):
        ran = command(name, parquet, *more, "--engine", engine, "--horizon", horizon)
        assert ran.code == 2, ran.err
        one_sentence(ran.err, "--horizon", "from 1 to 2,147,483,647", str(horizon))


def test_a_horizon_that_is_too_large_in_a_file_or_in_python(
    command: Command, parquet: Path, tmp_path: Path
) -> None:
    (tmp_path / "reweigh.toml").write_text(f'log = ["log.parquet"]\nhorizon = {HUGE}\n')
    ran = command("check", "--config", tmp_path / "reweigh.toml")
    assert ran.code == 2
    assert "from 1 to 2,147,483,647" in ran.err
    with pytest.raises(rw.UsageError, match="'horizon' must be a whole number from 1 to"):
        rw.read_log(log_table(), horizon=HUGE)
    with pytest.raises(rw.UsageError, match="'horizon'"):
        rw.read_log(log_table(), horizon=np.uint64(2**63))


@pytest.mark.parametrize(
    "words",
    [
        ["moments", "LOG", *TARGET, "-o", "m", "--blocks", HUGE],
        ["moments", "LOG", *TARGET, "-o", "m", "--blocks", 2**63 - 1],
        ["evaluate", "LOG", *TARGET, "--interval", "percentile", "--replicates", HUGE],
        ["evaluate", "LOG", *TARGET, "--interval", "bootstrap-t", "--replicates", 10**9],
        ["evaluate", "LOG", *TARGET, "--interval", "percentile", "--seed", HUGE],
        ["evaluate", "LOG", *TARGET, "--discount", 1e20],
        ["reproduce", "fig2a", "-o", "FOLDER", "--replicates", HUGE],
        ["reproduce", "fig2a", "-o", "FOLDER", "--seed", HUGE],
        ["reproduce", "fig2a", "-o", "FOLDER", "--jobs", HUGE],
    ],
    ids=lambda words: " ".join(map(str, words[-2:])),
)
def test_other_numbers_that_are_too_large_are_usage_errors(
    words: list[Any], command: Command, parquet: Path, tmp_path: Path
) -> None:
    places = {"LOG": parquet, "FOLDER": tmp_path / "out"}
    ran = command(*(places.get(word, word) for word in words))
    assert ran.code == 2, ran.err
    one_sentence(ran.err, str(words[-2]), str(words[-1]))
    assert not (tmp_path / "out").exists()


# memory


@pytest.mark.parametrize("engine", ENGINES)
def test_a_horizon_that_memory_cannot_hold_is_refused_before_it_is_taken(
    engine: str, parquet: Path
) -> None:
    began = time.monotonic()
    ran = reweigh("evaluate", parquet, *TARGET, "--engine", engine, "--horizon", 10**9,
                  "--short-episodes", "terminal", preexec_fn=addresses(8e9))  # fmt: skip
    assert ran.returncode == 6, ran.stderr
    one_sentence(ran.stderr, "1,000,000,000 steps", "320 GB", "shorter horizon")
    assert time.monotonic() - began < 60


def test_products_by_blocks_are_counted_too(parquet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "limit", lambda: 10**9)
    log = rw.read_log(parquet, engine="stream", horizon=100_000, short_episodes="terminal")
    with pytest.raises(rw.ResourceError, match=r"steps in 100 blocks would take about 3\.2 GB"):
        rw.moments(log, rw.ColumnPolicy("pi"), ["is"], blocks=100)


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty million rows in about a megabyte."""
    path, n = tmp_path_factory.mktemp("bomb") / "bomb.parquet", 10**6
    whole = ("episode", "step", "state", "action")
    columns = {name: np.zeros(n, np.int64) for name in whole} | {
        name: np.full(n, 0.5) for name in ("reward", "behavior_prob", "pi")
    }
    piece = pa.table(columns)
    with pq.ParquetWriter(path, piece.schema, compression="zstd") as writer:
        for _ in range(40):
            writer.write_table(piece, row_group_size=n)
    assert path.stat().st_size < 2_000_000
    return path


def test_a_small_file_of_many_rows_is_refused_by_what_it_declares(bomb: Path) -> None:
    ran = reweigh("evaluate", bomb, *TARGET, "--engine", "arrays", preexec_fn=addresses(4e9))
    assert ran.returncode == 6, ran.stderr
    one_sentence(ran.stderr, "40,000,000 rows of 7 columns", "3.84 GB", "--engine stream")


@pytest.mark.parametrize("engine", ENGINES)
def test_no_memory_is_never_a_bug(engine: str, bomb: Path) -> None:
    ran = reweigh("evaluate", bomb, *TARGET, "--engine", engine, preexec_fn=addresses(1.9e9))
    assert ran.returncode == 6, ran.stderr
    assert "memory" in ran.stderr
    assert "bug" not in ran.stderr


class OutOfMemoryException(Exception):
    """As DuckDB's is called."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 1600000000 failed"),
        np._core._exceptions._ArrayMemoryError((10**9,), np.dtype(float)),  # type: ignore[attr-defined]
        OutOfMemoryException("could not allocate block"),
        OSError("libllvmlite.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_that_ran_out_is_told_with_what_was_under_way(
    error: Exception, command: Command, parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(rw, "evaluate_all", short)
    ran = command("evaluate", parquet, *TARGET)
    assert ran.code == 6
    one_sentence(ran.err, "out of memory while evaluating", str(error).split("\n")[0], "limit")
    monkeypatch.undo()
    assert command("evaluate", parquet, *TARGET).code == 0


def test_what_is_no_shortage_stays_a_bug(
    command: Command, parquet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the flux is broken")

    monkeypatch.setattr(rw, "evaluate_all", broken)
    assert command("evaluate", parquet, *TARGET).code == 1


def test_the_limit_is_the_least_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert process.limit() is not None
    monkeypatch.setattr(process, "physical", lambda: 8 * 10**9)
    monkeypatch.setattr(process, "_address_limit", lambda: None)
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("4000000000\n")
    files = [folder / "memory.max" for folder in (group, tmp_path / "a", tmp_path)]
    monkeypatch.setattr(process, "_group_files", lambda: iter(files))
    assert process.limit() == process.allowed() == 3 * 10**9  # three quarters
    with process.memory_budget("3.5GB"):
        assert process.limit() == 3.5e9
    monkeypatch.setattr(process, "_address_limit", lambda: 3 * 10**9)
    monkeypatch.setattr(process, "_addresses_in_use", lambda: 10**9)
    with process.memory_budget("3.5GB"):
        assert (process.limit(), process.allowed()) == (3 * 10**9, 2 * 10**9)
    assert (process.limit(), process.allowed()) == (3 * 10**9, 2 * 10**9)
    with pytest.raises(rw.ResourceError, match=r"5 GB of memory, but this .* at most 2 GB; wait"):
        process.require(5 * 10**9, "this", "wait")
    process.require(10**9, "this", "wait")


@pytest.mark.parametrize(
    ("size", "number"), [("4GB", 4e9), ("512 MiB", 2**29), ("1.5tb", 1.5e12), ("100B", 100)]
)
def test_sizes_of_memory(size: str, number: float) -> None:
    assert process.in_bytes(size) == number


@pytest.mark.parametrize("size", ["", "4", "GB", "-1GB", "0MB", "nan GB", "4 apples", "60%"])
def test_what_is_no_size_of_memory(size: str) -> None:
    with pytest.raises(rw.UsageError, match="a size such as 4GB or 512MiB; got"):
        process.in_bytes(size)


def test_a_file_that_declares_more_rows_than_the_budget_holds(tmp_path: Path) -> None:
    """A few kilobytes of Parquet can declare any number of equal rows."""
    n = 2_000_000
    numbers = {name: np.zeros(n, int) for name in ("episode", "step", "state", "action")}
    columns = numbers | {"reward": np.zeros(n), "pi": np.full(n, 0.5)}
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table(columns | {"behavior_prob": np.full(n, 0.5)}), path)
    ran = reweigh("evaluate", path, *TARGET, "--engine", "arrays", "--max-memory", "100MB")
    assert ran.returncode == 6
    words = " ".join(ran.stderr.split())
    assert "2,000,000 rows" in words
    assert "at most 100 MB (--max-memory); read it with --engine stream" in words
    assert reweigh("evaluate", path, *TARGET, "--max-memory", "lots").returncode == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_one_long_episode_is_refused_on_every_engine_in_little_memory(
    engine: str, tmp_path: Path
) -> None:
    """Products by blocks and steps took 5 GB before the answer was no."""
    n, rng = 300_000, np.random.default_rng(0)
    columns = {"episode": np.zeros(n, int), "step": np.arange(n), "pi": np.full(n, 0.5)}
    columns |= {name: rng.integers(0, 2, n) for name in ("state", "action", "reward")}
    pq.write_table(pa.table(columns | {"behavior_prob": np.full(n, 0.4)}), tmp_path / "one.parquet")
    ran = reweigh("evaluate", tmp_path / "one.parquet", *TARGET, "--engine", engine,
                  "--estimators", "wis,mis", preexec_fn=addresses(3.5e9))  # fmt: skip
    assert ran.returncode == 4, ran.stderr
    assert "1 episode of 300,000 rows" in ran.stderr


# damaged files


def damages(content: bytes, rng: random.Random) -> dict[str, bytes]:
    """One damage of each kind; where in the file, the generator says."""
    size, footer = len(content), int.from_bytes(content[-8:-4], "little")
    start = size - 8 - footer

    def flipped(places: list[int]) -> bytes:
        found = bytearray(content)
        for place in places:
            found[place] ^= 1 << rng.randrange(8)
        return bytes(found)

    hole = rng.randrange(4, start - 50)
    return {
        "page": flipped([rng.randrange(4, start)]),
        "pages": flipped([rng.randrange(4, start) for _ in range(20)]),
        "footer": flipped([rng.randrange(start, size - 8)]),
        "length of the footer": flipped([rng.randrange(size - 8, size - 4)]),
        "truncated": content[: rng.randrange(5, size)],
        "hole": content[:hole] + bytes(50) + content[hole + 50 :],
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "texts"])
def test_a_damaged_parquet_file_is_never_a_bug(
    text: bool, engine: str, command: Command, tmp_path: Path
) -> None:
    """Where the damage is in values, as in a reward, nothing but a checksum of the writer's tells;
    then there is an answer, or a rule of the contract that is broken."""
    table, rng, codes = log_table(), random.Random(5), set()
    if text:
        table = table.set_column(
            2, "state", pa.array([f"é{s}" for s in table["state"].to_pylist()])
        )
    for options in ({"compression": "none", "use_dictionary": False}, {"compression": "zstd"}):
        out = io.BytesIO()
        pq.write_table(table, out, **options)
        for _ in range(2):
            for what, content in damages(out.getvalue(), rng).items():
                (tmp_path / "bad.parquet").write_bytes(content)
                ran = command("evaluate", tmp_path / "bad.parquet", *TARGET, "--engine", engine)
                assert ran.code in (0, 3, 4), (what, ran.err)
                assert ran.code == 0 or "bad.parquet" in ran.err or ran.code == 4
                codes.add(ran.code)
    assert 3 in codes


@pytest.mark.parametrize("engine", ["arrays", "stream"])
def test_a_page_with_a_checksum_is_verified(engine: str, command: Command, tmp_path: Path) -> None:
    out = io.BytesIO()
    pq.write_table(log_table(), out, compression="none", use_dictionary=False,
                   write_page_checksum=True)  # fmt: skip
    content = bytearray(out.getvalue())
    place = content.find(np.float64(log_table()["reward"][7].as_py()).tobytes())
    content[place] ^= 1  # the last digit of a reward
    (tmp_path / "bad.parquet").write_bytes(bytes(content))
    ran = command("evaluate", tmp_path / "bad.parquet", *TARGET, "--engine", engine)
    assert ran.code == 3, ran.out
    one_sentence(ran.err, "bad.parquet", "is damaged")


@pytest.mark.parametrize("inverted", [False, True], ids=["too small", "inverted"])
@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_that_lie_are_not_believed(
    engine: str, inverted: bool, command: Command, tmp_path: Path
) -> None:
    """A state beyond the range that the file declares must not be written beyond a table's end."""
    out = io.BytesIO()
    state = log_table()["state"].to_numpy().copy()
    state[8] = 4_242
    pq.write_table(log_table(state=state), out, compression="none", use_dictionary=False)
    content, lie = out.getvalue(), np.int64(4_242).tobytes()
    place = content.find(lie)  # the page is before the footer, which says 4,242 too
    page = np.int64(3_999_999_999).tobytes()
    (tmp_path / "bad.parquet").write_bytes(content[:place] + page + content[place + 8 :])
    (tmp_path / "good.parquet").write_bytes(content.replace(lie, page))
    if inverted:  # the footer says that the largest state is below the smallest
        below = np.int64(-7).tobytes()
        content = content[: place + 8] + content[place + 8 :].replace(lie, below)
        (tmp_path / "bad.parquet").write_bytes(content)
        (tmp_path / "good.parquet").write_bytes(out.getvalue())
    name = ["--estimators", "mis,wis", "--engine", engine, "-q"]
    bad = command("evaluate", tmp_path / "bad.parquet", *TARGET, *name)
    good = command("evaluate", tmp_path / "good.parquet", *TARGET, *name)
    assert good.code == 0, good.err
    if bad.code == 3:  # DuckDB believes them, and its answers then differ from each other
        assert engine == "duckdb"
        assert "bad.parquet" in bad.err
    else:
        assert (bad.code, bad.out) == (0, good.out), bad.err


# streams


@pytest.mark.parametrize(
    "words",
    [["evaluate", "LOG", *TARGET], ["evaluate", "LOG", *TARGET, "--json"], ["--help"]],
    ids=["table", "json", "help"],
)
def test_an_output_that_cannot_be_written_is_a_resource_error(
    words: list[str], parquet: Path
) -> None:
    with open("/dev/full", "w") as full:
        ran = reweigh(*(parquet if word == "LOG" else word for word in words), stdout=full)
        assert ran.returncode == 6
        one_sentence(ran.stderr, "standard output", "No space left on device")
        assert reweigh("check", parquet.parent / "no", stderr=full).returncode == 6


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_error(closed: str, parquet: Path, tmp_path: Path) -> None:
    """Nobody wants to read it. No other file gets its number, so nothing is printed into it."""
    out = tmp_path / "m.parquet"
    line = f'"{REWEIGH}" moments "{parquet}" --target-prob pi -o "{out}" {closed}'
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (ran.stdout == "") == (">&-" in closed.replace("2>&-", ""))
    assert rw.load_moments(out).n_episodes == 60
    line = f'"{REWEIGH}" check "{tmp_path}/no.csv" {closed}'
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 6
    assert "Traceback" not in ran.stderr


# signals

# What a signal may come into: Python's own code, a compiled loop, a library, a query, threads.
STUCK = {
    "python": "while True: pass",
    "sleep": "time.sleep(60)",
    "call": "import ctypes; ctypes.CDLL(None).sleep.restype = int\n"
    "while ctypes.CDLL(None).sleep(60): pass",
    "kernel": "import numba\n@numba.njit(nogil=True)\ndef spin(n):\n"
    "    x = 1.0\n    for i in range(n): x = (x * 1.1) % 7.0\n    return x\nspin(10**12)",
    "query": "import duckdb; from reweigh.system.process import wait_for\n"
    "c = duckdb.connect()\n"
    "q = 'select sum(a.range * b.range % 7) from range(1000000) a, range(1000000) b'\n"
    "wait_for(lambda: c.sql(q).to_arrow_table(), c.interrupt)",
    "threads": "from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(2) as pool: list(pool.map(time.sleep, [60] * 8))",
    "workers": "import joblib\n"
    "joblib.Parallel(2)(joblib.delayed(time.sleep)(60) for _ in range(4))",
}
PROGRAM = """
import os, sys, threading, time
import reweigh
from reweigh.cli.app import main
def work():
{stuck}
def wait(*_, **__):
    threading.Timer({after}, lambda: (print("ready", flush=True))).start()
    work()
reweigh.read_log = wait
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("what", STUCK)
def test_a_signal_ends_a_command_soon_whatever_it_does(
    what: str, number: signal.Signals, parquet: Path
) -> None:
    indented = "\n".join("    " + line for line in STUCK[what].splitlines())
    after = 2.0 if what in ("kernel", "workers") else 0.5  # compiled, and started, by then
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(stuck=indented, after=after), "check", parquet],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    one_sentence(err, "Interrupted while reading the log", "no file was left half-written")
    assert time.monotonic() - began < 6  # 2 seconds of grace, on a machine that has much to do


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_leaves_no_file(engine: str, number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    pq.write_table(log_table(300_000), tmp_path / "log.parquet")
    process = subprocess.Popen(
        [REWEIGH, "evaluate", tmp_path / "log.parquet", *TARGET, "--engine", engine, "--estimators",
         "mis,wis", "--report", tmp_path / "report.html"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    time.sleep(1.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    one_sentence(err, "Interrupted")
    assert out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.parquet", "temporary"]
    assert list(folder.iterdir()) == []


def test_an_ignored_interrupt_stays_ignored(parquet: Path) -> None:
    """As under nohup, or behind `&` in a script."""
    program = PROGRAM.format(stuck="    time.sleep(1.0); raise SystemExit(7)", after=0.1)
    process = subprocess.Popen(
        [sys.executable, "-c", program, "check", parquet],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 7
