"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .commands import Command, write_log, write_policy


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.csv")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return write_policy(tmp_path / "policy.csv")
