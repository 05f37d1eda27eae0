"""Locks, ledgers and temporary files between real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import reweigh as rw
from reweigh.decide.ledger import noted
from reweigh.system.files import locked, write_atomically

NOTE = """
import sys
from pathlib import Path
from reweigh.decide.ledger import noted
for k in range(15):
    noted(Path(sys.argv[1]), "log", [(f"policy {sys.argv[2]}-{k}", "mis")])
"""
WRITE = """
import sys, time
from reweigh.system.files import write_atomically
def write(stream):
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    sys.stdin.readline()
    stream.write(b" and half")
write_atomically(sys.argv[1], write, overwrite=True)
"""
HOLD = """
import sys
from pathlib import Path
from reweigh.system.files import locked
with locked(Path(sys.argv[1]), "held"):
    print("holding", flush=True)
    sys.stdin.readline()
"""


def started(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that has said its first word and waits for a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def ended(process: subprocess.Popen[str], number: int | None = None) -> int:
    if number is not None:
        process.send_signal(number)
    process.communicate("\n" if number is None else None, timeout=60)
    return process.returncode


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_ledger_keeps_what_every_process_noted(tmp_path: Path) -> None:
    book = tmp_path / "tried.json"
    processes = [
        subprocess.Popen([sys.executable, "-c", NOTE, str(book), str(k)]) for k in range(6)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0] * 6
    assert noted(book, "log", []).tried == 90
    assert names(tmp_path) == {"tried.json"}


def test_a_lock_holds_between_processes_and_ends_with_its_own(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    for number in (None, signal.SIGKILL):
        process = started(HOLD, lock)
        with pytest.raises(rw.ResourceError, match="busy"), locked(lock, "busy", wait=0.05):
            pass
        ended(process, number)
        assert lock.exists() == (number is signal.SIGKILL)  # a killed one leaves its file behind
        with locked(lock, "busy"):  # which blocks nobody
            assert lock.exists()
        assert not lock.exists()


def test_a_process_waits_for_a_ledger_that_is_held_for_a_moment(tmp_path: Path) -> None:
    book = tmp_path / "tried.json"
    process = started(HOLD, tmp_path / ".tried.json.lock")
    noting = subprocess.Popen([sys.executable, "-c", NOTE, str(book), "0"])
    time.sleep(1.0)
    assert noting.poll() is None or not book.exists()
    ended(process)
    assert noting.wait(timeout=60) == 0
    assert noted(book, "log", []).tried == 15


def test_what_a_killed_writer_left_behind_goes_with_the_next_write(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_bytes(b"old")
    assert ended(started(WRITE, out), signal.SIGKILL) == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    assert out.read_bytes() == b"old"
    # of other places, or not as we name them: left alone
    others = {".other.json.abcdefgh~", ".out.json.short~", ".out.json.abcdefgh", "out.json~"}
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    write_atomically(out, lambda stream: stream.write(b"new") and None, overwrite=True)
    assert names(tmp_path) == {"out.json", *others}
    assert out.read_bytes() == b"new"


def test_the_temporary_file_of_a_live_writer_stays(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    process = started(WRITE, out)
    [temporary] = names(tmp_path)
    write_atomically(out, lambda stream: stream.write(b"new") and None, overwrite=True)
    assert names(tmp_path) == {"out.json", temporary}
    assert ended(process) == 0
    assert out.read_bytes() == b"half and half"
    assert names(tmp_path) == {"out.json"}


def test_a_temporary_file_taken_for_a_stray_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may look between the making of the file and its lock."""
    from reweigh.system import files

    real, removed = files.try_lock, []

    def late(handle: int) -> bool | None:
        for path in tmp_path.glob(".out.*~") if not removed else ():
            os.unlink(path)
            removed.append(path)
        return real(handle)

    monkeypatch.setattr(files, "try_lock", late)
    write_atomically(tmp_path / "out", lambda stream: stream.write(b"new") and None)
    assert removed
    assert names(tmp_path) == {"out"}


LEDGERS = {
    "no JSON": "nothing",
    "null": "null",
    "a list": "[1, 2]",
    "deep": '{"format": ' + "[" * 200_000,
    "NaN": '{"format": NaN}',
    "a huge number": '{"format": ' + "9" * 5000 + "}",
    "an infinite number": '{"format": 1e999}',
    "a key twice": '{"format": 3, "format": 3, "logs": {}}',
    "another format": '{"format": 7, "logs": {}}',
    "a format of another type": '{"format": true, "logs": {}}',
    "without logs": '{"format": 2}',
    "logs of another shape": '{"format": 2, "logs": [1]}',
    "trials of another shape": '{"format": 2, "logs": {"a": [["x"]]}}',
    "a trial that is a text": '{"format": 2, "logs": {"a": ["xy"]}}',
    "shares of another shape": '{"format": 2, "logs": {}, "reported": {"a": ["x"]}}',
    "a share beyond 1": '{"format": 2, "logs": {}, "reported": {"a": [1.5]}}',
    "without its checksum": '{"format": 3, "logs": {}, "reported": {}}',
    "with another checksum": '{"format": 3, "logs": {}, "reported": {}, "checksum": "0"}',
    "not UTF-8": b'{"format": "\xff"}',
}


@pytest.mark.parametrize("what", LEDGERS)
@pytest.mark.filterwarnings("ignore::reweigh.errors.InputWarning")
def test_a_damaged_ledger_is_refused_by_name_and_kept(what: str, tmp_path: Path) -> None:
    book = tmp_path / "tried.json"
    content = LEDGERS[what]
    book.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = book.read_bytes()
    with pytest.raises(rw.InputError, match=r"tried\.json") as error:
        noted(book, "log", [("a", "mis")])
    assert "\n" not in str(error.value)
    assert book.read_bytes() == before
    assert names(tmp_path) == {"tried.json"}


def test_every_bit_of_a_ledger_counts(tmp_path: Path) -> None:
    """A flipped bit is refused, or changes nothing that is read (a space, a digit's spelling)."""
    book = tmp_path / "tried.json"
    noted(book, "log", [("a", "mis"), ("b", "wis")], 0.25)
    good = book.read_bytes()
    said, unchanged = set(), 0
    for at in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[at // 8] ^= 1 << at % 8
        book.write_bytes(flipped)
        try:
            found = noted(book, "log", [])
        except rw.InputError as error:
            said.add("tried.json" in str(error))
            continue
        unchanged += 1
        assert (found.tried, found.before) == (2, (0.25,))
    assert said == {True}
    assert unchanged < len(good)


def test_a_ledger_of_an_older_version_is_read_with_a_remark(tmp_path: Path) -> None:
    book = tmp_path / "tried.json"
    book.write_text(json.dumps({"format": 2, "logs": {"log": [["a", "mis"]]}, "reported": {}}))
    with pytest.warns(rw.InputWarning, match="checksum"):
        assert noted(book, "log", [("b", "mis")]).tried == 2
    assert noted(book, "log", []).tried == 2  # it has one now
