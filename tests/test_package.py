"""The package as a whole: what it exports, what it imports, what it must never do."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import reweigh as rw

SOURCE = Path(__file__).parents[1] / "src" / "reweigh"


def test_every_public_name_is_there() -> None:
    for name in rw.__all__:
        assert getattr(rw, name) is not None


def test_no_name_is_both_a_module_and_something_else() -> None:
    """Otherwise importing the module hides the function, or the function hides the module."""
    for init in SOURCE.rglob("__init__.py"):
        inside = {path.stem for path in init.parent.glob("*.py")}
        inside |= {path.parent.name for path in init.parent.glob("*/__init__.py")}
        package = ".".join(("reweigh", *init.parent.relative_to(SOURCE).parts))
        public = getattr(importlib.import_module(package), "__all__", [])
        clashes = [
            name
            for name in inside & set(public)
            if getattr(importlib.import_module(package), name)
            is not importlib.import_module(f"{package}.{name}")
        ]
        assert not clashes, package


def test_inner_modules_can_be_imported_by_name() -> None:
    import reweigh.evaluation.evaluate as evaluation
    import reweigh.sums.store as store

    assert store.load_moments is rw.load_moments
    assert evaluation.moments is rw.moments
    assert callable(rw.moments)
    assert callable(rw.evaluate)


def test_importing_stays_light() -> None:
    """Heavy libraries are imported when they are used."""
    heavy = ("pyarrow", "scipy", "rich", "typer", "pandas", "altair", "joblib")
    code = f"import sys, reweigh; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_no_module_loads_code_from_data() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from)\s+(pickle|dill|marshal)\b", text, re.M), path
        assert "joblib.load" not in text, path
        assert "allow_pickle=True" not in text, path


def test_imports_go_downwards() -> None:
    """Sums and estimators know nothing of files, frames, reports or commands; but for the
    engines that read rows where they are, and so use the reading of logs."""
    above = ("cli", "worlds", "logs.read", "logs.sources", "evaluation", "results")
    for room in ("sums", "estimators", "inference"):
        for path in (SOURCE / room).rglob("*.py"):
            if path.parent.name == "engines" and path.name.startswith(("stream", "ibis")):
                continue
            text = path.read_text(encoding="utf-8")
            found = [name for name in above if f"reweigh.{name}" in text]
            assert not found, path


def test_modules_fit_on_a_few_screens() -> None:
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 450, path
