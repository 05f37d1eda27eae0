"""The tests' own modules (reference, build) are importable from every folder."""

import sys
from pathlib import Path

import pytest

from reweigh import kernels as compute

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As through a pipe, whatever the width of the terminal that the tests run in."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(params=["kernels", "twins"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both codes, whatever the size."""
    if request.param == "kernels":
        pytest.importorskip("numba")
    monkeypatch.setattr(compute, "COMPILED_FROM", 0 if request.param == "kernels" else 10**18)
    return str(request.param)
