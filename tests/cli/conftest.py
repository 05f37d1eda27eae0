"""Fixtures of the command line's tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from .commands import Command, write_log, write_policy


@pytest.fixture(autouse=True)
def _saved_tracebacks_go_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("saved"))
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("TMPDIR", folder)  # for the commands that run as processes


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.csv")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return write_policy(tmp_path / "policy.csv")
