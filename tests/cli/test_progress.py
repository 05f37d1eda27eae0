"""Progress: how far a loop is, the time left, and nothing where nobody looks."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import ibis
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import reweigh as rw
from reweigh.cli import progress
from reweigh.cli import terminal as cli
from reweigh.system import process
from reweigh.system.process import each, stage, wait_for, watching

from .commands import log_table


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def heard(run: object) -> list[tuple[str, float]]:
    told: list[tuple[str, float]] = []
    with watching(lambda what, share: told.append((what, round(share, 6)))):
        run()  # type: ignore[operator]
    return told


def test_a_loop_tells_how_far_it_is_and_gives_the_same() -> None:
    assert each("rounds", [1, 2, 3], lambda k: k * k) == [1, 4, 9]
    told = heard(lambda: each("rounds", [1, 2], str))
    assert told == [("rounds", 0.0), ("rounds", 0.5), ("rounds", 0.5), ("rounds", 1.0)]


def test_loops_inside_move_the_share_of_the_outer_one() -> None:
    def inner(_: int) -> list[str]:
        return each("inner", "ab", str)

    shares = [share for what, share in heard(lambda: each("outer", [1, 2], inner))]
    assert shares == sorted(shares)
    assert {0.25, 0.5, 0.75, 1.0} <= set(shares)
    assert {what for what, _ in heard(lambda: each("outer", [1, 2], inner))} == {"outer"}


def test_stages_add_up_and_a_failure_leaves_no_listener() -> None:
    def run() -> None:
        for k in range(4):
            with stage(k, 4):
                each("loop", [0], str)

    assert heard(run)[-1] == ("", 1.0)

    def fail(_: int) -> None:
        raise ValueError("stop")

    told: list[float] = []
    with pytest.raises(ValueError, match="stop"), watching(lambda _, share: told.append(share)):
        each("loop", [0], fail)
    each("loop", [0], str)
    assert told == [0.0]


def test_items_that_cannot_be_counted_never_pass_the_end() -> None:
    shares = [share for _, share in heard(lambda: each("loop", iter("abc"), str, at_most=2))]
    assert max(shares) == 1.0


LOOPS = {
    "estimators": lambda log, target: rw.evaluate_all(log, target, ["mis", "wis"]),
    "targets": lambda log, target: rw.compare(log, {"a": target, "b": target}, seed=1),
    "other choices": lambda log, target: rw.evaluate(log, target, rw.mis()).sensitivity(),
    "resampled logs": lambda log, target: rw.evaluate(log, target, rw.mis()).interval(
        method="percentile", replicates=399, seed=1
    ),
}


@pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning")
@pytest.mark.parametrize("name", LOOPS)
def test_the_long_loops_tell(name: str) -> None:
    log, target = rw.read_log(log_table()), rw.TablePolicy([[0.4, 0.6], [0.3, 0.7]])
    told = heard(lambda: LOOPS[name](log, target))
    assert name in {what for what, _ in told} or name == "targets"
    assert len({share for _, share in told}) >= 3


def test_a_terminal_is_shown_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter done after 30 seconds: 90 are left, and fewer as time goes by."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = progress.progress_bar()
    line = progress.Line(bar, "at it")

    def shown() -> str:
        console = Console(width=100, file=StringIO())
        console.print(bar.make_tasks_table(bar.tasks))
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    line.share("estimators", 0.0)
    assert "at it: estimators" in shown()
    assert "so far" in shown()
    now[0] += 30
    line.share("estimators", 0.25)
    assert "25 %, 1:30 left" in shown()
    now[0] += 10
    assert "25 %, 1:20 left" in shown()
    line.share("checks", 0.0)  # another loop begins anew
    assert "at it: checks" in shown()
    assert "left" not in shown()


def test_a_command_shows_it_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    with cli.Terminal().working("evaluating"):
        each("estimators", range(4), str)
    assert "evaluating" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is wiped


def test_rows_that_are_read_once_more_begin_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.bar_of("evaluating", scanned(tmp_path, 10)) as log:
        log.scanner.report(100, 100)
        log.scanner.report(40, 100)
    assert "40 %" in terminal.getvalue()
    assert "40 %, 0:00 left" not in terminal.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(None, "0:00"), (7.4, "0:07"), (3723, "1:02:03")])
def test_clock(seconds: float | None, text: str) -> None:
    assert progress.clock(seconds) == text


def test_nothing_is_shown_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for stream, silent in ((StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        terminal = cli.Terminal(quiet=silent)
        with terminal.working("evaluating"):
            each("estimators", range(4), str)
        log = scanned(tmp_path, 10)
        with terminal.working("evaluating", log) as data:
            assert data is log
        assert stream.getvalue() == ""


def test_reading_into_memory_tells_how_far_it_is() -> None:
    told = heard(lambda: rw.read_log(log_table()))
    shares = [share for _, share in told]
    assert shares[0] == 0
    assert len(shares) >= 5
    assert shares == sorted(shares)


@pytest.mark.parametrize("engine", ["arrays", "duckdb"])
def test_sums_tell_how_far_they_are(engine: str) -> None:
    log = rw.read_log(log_table(), engine=engine)
    told = heard(lambda: rw.moments(log, rw.TablePolicy([[0.5, 0.5]] * 9), ["mis", "dm"]))
    shares = [share for _, share in told]
    assert shares[0] == 0
    assert shares[-1] == 1
    assert len(set(shares)) > 2


# ---- what runs elsewhere is asked ---------------------------------------------------------------


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "reweigh-query"]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ASK_EVERY", 0.001)


def test_only_what_is_further_is_told(often: None) -> None:
    answers = iter([-0.01, 0.2, 0.1, 0.2, 0.6, 1.7])
    asked = threading.Event()

    def share() -> float:
        found = next(answers, None)
        if found is None:
            asked.set()
        return 0.0 if found is None else found

    def run() -> None:
        with stage(1, 2, "queries"):
            assert wait_for(lambda: asked.wait(10), asked.set, share)

    told = [share for _, share in heard(run)]
    assert told == [0.5, 0.6, 0.8, 1.0, 1.0]


def test_an_error_of_the_work_comes_back(often: None) -> None:
    def fail() -> None:
        assert len(workers()) == 1
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), watching(lambda what, share: None):
        wait_for(fail, lambda: None, lambda: 0.5)
    assert workers() == []


def test_an_interrupt_stops_the_work(often: None) -> None:
    stopped = threading.Event()

    def interrupted() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watching(lambda what, share: None):
        wait_for(lambda: stopped.wait(10), stopped.set, interrupted)
    assert stopped.is_set()


def test_where_nobody_looks_nobody_asks(often: None) -> None:
    assert wait_for(lambda: time.sleep(0.05) or 3, lambda: None, lambda: 1 / 0) == 3


def scanned(folder: Path, n: int) -> rw.ScannedLog:
    pq.write_table(log_table(n), folder / "log.parquet")
    return rw.read_log(folder / "log.parquet", engine="duckdb")  # type: ignore[return-value]


def test_a_query_of_duckdb_tells_how_far_it_is(tmp_path: Path, often: None) -> None:
    """Rounds of queries, each of which reads every row; within a query too."""
    n, told = 100_000, []
    log = scanned(tmp_path, n)
    log = replace(log, scanner=replace(log.scanner, report=lambda *rows: told.append(rows)))  # type: ignore[type-var]
    rw.moments(log, rw.ColumnPolicy("pi"), ["mis", "is"])
    assert workers() == []
    rounds = [told[: told.index((0, told[-1][1]), 1)], told[told.index((0, told[-1][1]), 1) :]]
    for rows in rounds:
        done, [total] = [k for k, _ in rows], {total for _, total in rows}
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, total)
        assert total % (3 * n) == 0
        assert any(k % (3 * n) for k in done)  # amid a query


def test_a_terminal_is_shown_rows_per_second_of_duckdb(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, often: None
) -> None:
    terminal = Terminal()
    log = scanned(tmp_path, 100_000)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    with cli.Terminal().working("adding up", log) as data:
        rw.moments(data, rw.ColumnPolicy("pi"), ["mis"])
        time.sleep(0.2)  # rich draws ten times a second
    assert "rows/s" in terminal.getvalue()
    assert " left" in terminal.getvalue()


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
def test_other_databases_tell_their_queries(tmp_path: Path) -> None:
    pq.write_table(log_table(), tmp_path / "log.parquet")
    log = rw.read_log(ibis.duckdb.connect().read_parquet(tmp_path / "log.parquet"))
    with progress.bar_of("adding up", log) as data:
        assert data is log
    told = heard(lambda: rw.moments(log, rw.ColumnPolicy("pi"), ["mis"]))
    assert {what for what, _ in told} == {"checks", "queries"}


def test_a_query_that_fails_leaves_no_thread(tmp_path: Path, often: None) -> None:
    from reweigh.sums.engines.sql_connect import open_database

    log = scanned(tmp_path, 10)
    with open_database("duckdb", log.data, log.reading, {}) as home, watching(lambda *_: None):
        with pytest.raises(rw.InputError, match="DuckDB cannot read the log"):
            home.run(None, "SELECT c0 // 0, CAST('a' AS INTEGER) FROM reweigh_log")
        assert workers() == []
