"""The map names files that exist, and stays one page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "reweigh"


def test_every_file_that_the_map_names_exists() -> None:
    names = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    named = re.findall(r"`([\w/]+\.py)`", MAP)
    missing = [
        path
        for path in named
        if not (ROOT / path).exists() and not any(f"/{name}".endswith(f"/{path}") for name in names)
    ]
    assert len(named) > 30
    assert not missing


def test_the_map_is_one_page() -> None:
    assert len(MAP.splitlines()) <= 90
