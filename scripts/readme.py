"""Run the examples of Markdown pages, and check or rewrite the outputs that they show.

A ```console block holds commands after `$ ` and their output. A ```python block is run, and the
```text block that follows it is what it printed. All blocks of a page share one folder and the
Python blocks one namespace, as a reader would have them.

    python scripts/readme.py README.md docs/planning.md          check
    python scripts/readme.py README.md docs/planning.md --write  put the real outputs in
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NOT_RUN = ("pip install", "make ", "git ")


def executed(page: str, folder: Path) -> str:
    """The page with the outputs that its examples really give."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    printed: str | None = None

    def run(match: re.Match[str]) -> str:
        nonlocal printed
        language, body = match.group(1), match.group(2)
        if language == "console":
            body = "".join(_console(body, folder))
        elif language == "python":
            printed = _python(body, namespace, folder)
        elif language == "text" and printed is not None:
            body, printed = printed, None
        return f"```{language}\n{body}```"

    return BLOCK.sub(run, page)


def _console(body: str, folder: Path) -> Iterator[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    for line in body.splitlines():
        if not line.startswith("$ "):
            continue  # an old output
        yield line + "\n"
        command = line[2:]
        if command.startswith(NOT_RUN):
            # What installs the project or tests it cannot run inside its own tests.
            if "&&" not in command:
                continue
            command = command.split("&&", 1)[1].strip()
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{command} exits with {done.returncode}:\n{done.stderr}")
        yield _trimmed(done.stdout)


def _python(body: str, namespace: dict[str, object], folder: Path) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(folder):
        exec(compile(body, "<page>", "exec"), namespace)
    return _trimmed(out.getvalue())


def _trimmed(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return "".join(line + "\n" for line in lines)


def main() -> None:
    write = "--write" in sys.argv
    false = []
    for path in [Path(argument) for argument in sys.argv[1:] if argument != "--write"]:
        page = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            real = executed(page, Path(folder))
        if write:
            path.write_text(real, encoding="utf-8")
        elif real != page:
            false.append(str(path))
    if false:
        sys.exit(f"{', '.join(false)}: the outputs are not the real ones; run with --write")


if __name__ == "__main__":
    main()
