"""docs/assets/report.png: the first screen of the demo's report, as headless Chromium draws it.

python scripts/report_picture.py
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "report.png"
WIDTH, HEIGHT = 1200, 760
COLORS = 64  # a palette keeps the file small
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-prefers-reduced-motion",
)  # fmt: skip


def drawn(report: Path, folder: Path) -> Image.Image:
    """The first screen of a report."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    shot = folder / "shot.png"
    subprocess.run(
        [
            chromium, *QUIET, f"--user-data-dir={folder / 'profile'}",
            f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}", report.as_uri(),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [Path(sys.executable).with_name("reweigh"), "demo", "-o", folder / "demo", "-q"]
        subprocess.run(command, check=True, capture_output=True)
        picture = drawn(folder / "demo" / "report.html", folder)
    picture.quantize(COLORS).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
