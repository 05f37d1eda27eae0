"""Where a peer lives: an environment of its own under build/peers, made when it is first needed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build" / "peers"
PATIENCE = 1200  # seconds for one installation


@dataclass(frozen=True)
class Peer:
    """How a peer is installed, and how it is run.

    `installs` are the arguments of one pip call each. `module` is loaded by the worker. With
    `one_process` the peer's packages are added to our interpreter, so that both sides share a
    process and a NumPy; otherwise each side has its own interpreter and they take turns. It is
    timed on logs of `rows` rows, all its estimators on the first of them; `tolerance` is how far,
    by its own design, its numbers may be off, relative to the value.
    """

    name: str
    package: str
    version: str
    module: str
    installs: tuple[tuple[str, ...], ...]
    environment: str
    rows: tuple[int, ...]
    tolerance: float = 1e-9
    one_process: bool = False
    sequential: bool = False
    note: str = ""


class NotInstalledError(Exception):
    """A peer that does not install; the message is why."""


def installed(peer: Peer) -> Path:
    """The interpreter of the peer's environment."""
    home = BUILD / peer.environment
    python = home / "bin" / "python"
    stamp = home / f".installed-{peer.package}"
    wanted = repr((sys.version_info[:2], peer.installs))
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    BUILD.mkdir(parents=True, exist_ok=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    for arguments in peer.installs:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            done = subprocess.run(
                [*command, *arguments], capture_output=True, text=True, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired as late:
            raise NotInstalledError(f"pip did not end within {PATIENCE} s") from late
        if done.returncode:
            raise NotInstalledError(reason(done.stderr))
    stamp.write_text(wanted, encoding="utf-8")
    return python


def packages(python: Path) -> Path:
    """The site-packages of an environment."""
    [found] = python.parents[1].glob("lib/python*/site-packages")
    return found


def reason(stderr: str) -> str:
    """The line of pip's complaint that says why: an exception of the build, or pip's own error."""
    lines = [line.strip() for line in stderr.splitlines()]
    exceptions = [line for line in lines if re.match(r"\w*(Error|Exception)\b.*:", line)]
    errors = [line for line in lines if re.match(r"(?i)error: .* ", line)]
    told = (exceptions or errors or ["pip failed without an error message"])[-1]
    return re.sub(r"\S*(://|/)\S*/\S*", "…", re.sub("(?i)^error: ", "", told))
