"""Writing files whole or not at all, whatever fails on the way."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from reweigh.errors import ResourceError, UsageError
from reweigh.system.files import write_atomically

OLD, NEW = b"old content", b"new content"


def write_new(stream: BinaryIO) -> None:
    stream.write(NEW)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def full_disk(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_written(stream: BinaryIO) -> None:
    stream.write(NEW[:4])
    full_disk()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_new_file_is_written(overwrite: bool, tmp_path: Path) -> None:
    write_atomically(tmp_path / "out", write_new, overwrite=overwrite)
    assert content(tmp_path) == {"out": NEW}


def test_an_old_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(OLD)
    with pytest.raises(UsageError, match="exists"):
        write_atomically(tmp_path / "out", write_new)
    assert content(tmp_path) == {"out": OLD}
    write_atomically(tmp_path / "out", write_new, overwrite=True)
    assert content(tmp_path) == {"out": NEW}


FAULTS: dict[str, tuple[Callable[[BinaryIO], None], list[str]]] = {
    "writing": (half_written, []),
    "flushing to the disk": (write_new, ["fsync"]),
    "renaming": (write_new, ["replace", "rename", "link"]),
}


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("old", [True, False], ids=["replacing", "new"])
def test_a_fault_leaves_the_old_file_and_no_other(
    what: str, old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, broken = FAULTS[what]
    if old:
        (tmp_path / "out").write_bytes(OLD)
    with monkeypatch.context() as patch:
        for name in broken:
            patch.setattr(os, name, full_disk)
        with pytest.raises(ResourceError, match="No space left") as error:
            write_atomically(tmp_path / "out", write, overwrite=old)
    assert error.value.exit_code == 6
    assert str(tmp_path / "out") in str(error.value)
    assert content(tmp_path) == ({"out": OLD} if old else {})


CALLS = ("fsync", "chmod", "fchmod", "replace", "rename", "link", "unlink")


@pytest.mark.parametrize("old", [True, False], ids=["replacing", "new"])
def test_a_fault_at_any_call_leaves_a_whole_file_or_none(
    old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th call to the system fails, for every n."""
    real = {name: getattr(os, name) for name in CALLS}
    made: list[str] = []
    fail_at = -1

    def watched(name: str) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            made.append(name)
            return full_disk() if len(made) - 1 == fail_at else real[name](*given, **more)

        return call

    def attempt(folder: Path) -> bool:
        folder.mkdir()
        if old:
            (folder / "out").write_bytes(OLD)
        made.clear()
        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, watched(name))
            try:
                write_atomically(folder / "out", write_new, overwrite=old)
            except ResourceError:
                return False
        return True

    assert attempt(tmp_path / "no fault")
    total = len(made)
    assert total >= 3
    for n in range(total):
        fail_at = n
        folder = tmp_path / str(n)
        went_well = attempt(folder)
        found = content(folder)
        whole = [{"out": NEW}, {"out": OLD} if old else {}]
        assert found in ([whole[0]] if went_well else whole), (n, made)


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, MemoryError])
def test_what_the_writer_raises_passes_through_and_leaves_nothing(
    fault: type[BaseException], tmp_path: Path
) -> None:
    (tmp_path / "out").write_bytes(OLD)

    def write(stream: BinaryIO) -> None:
        stream.write(NEW)
        raise fault("stop")

    with pytest.raises(fault, match="stop"):
        write_atomically(tmp_path / "out", write, overwrite=True)
    assert content(tmp_path) == {"out": OLD}


def test_a_file_that_another_process_made_meanwhile_is_kept(tmp_path: Path) -> None:
    def write(stream: BinaryIO) -> None:
        stream.write(NEW)
        (tmp_path / "out").write_bytes(OLD)

    with pytest.raises(UsageError):
        write_atomically(tmp_path / "out", write)
    assert content(tmp_path) == {"out": OLD}


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(OLD)
    seen = []

    def write(stream: BinaryIO) -> None:
        for byte in NEW:
            stream.write(bytes([byte]))
            stream.flush()
            seen.append((tmp_path / "out").read_bytes())

    write_atomically(tmp_path / "out", write, overwrite=True)
    assert set(seen) == {OLD}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_never_followed(overwrite: bool, dangling: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if not dangling:
        target.write_bytes(OLD)
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(UsageError, match="link"):
        write_atomically(tmp_path / "out", write_new, overwrite=overwrite)
    assert (tmp_path / "out").is_symlink()
    assert target.exists() != dangling
    if not dangling:
        assert target.read_bytes() == OLD


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_no_file(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="directory"):
        write_atomically(tmp_path / "out", write_new, overwrite=overwrite)


def test_a_folder_that_is_not_there_is_a_resource_error(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="out"):
        write_atomically(tmp_path / "no" / "out", write_new)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_file_has_the_permissions_that_the_user_s_mask_gives(
    mask: int, mode: int, tmp_path: Path
) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "out", write_new)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode
