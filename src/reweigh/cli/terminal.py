"""What a command prints: tables and sentences, the answer alone, or JSON.

Without an option a reader gets everything on the standard output, and progress on a terminal. With
--quiet only the answer is left, in a line or two; warnings go to the standard error, and there is
no progress. With --json (quiet or not) there is one JSON object, which holds the warnings too.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh.errors import ReweighWarning

SCHEMA_VERSION = 1  # of what --json prints (`outputs.py`)
# Messages are written for Python. On the command line the same things are called:
PHRASES = (
    (
        "pass behavior_prob=None and estimate it with fit_behavior(log)",
        "estimate it with --fit-behavior",
    ),
    ("estimate them with fit_behavior(log)", "estimate them with --fit-behavior"),
    ("truncated='drop'", "--cut-episodes drop"),
    ("continuous_actions=True", "--continuous-actions"),
    ("bandit=True", "--bandit"),
    (
        "abstraction=Quantiles(5), Rounding(scale), Grid(edges) or any callable to read_log",
        "--bins, --round or --grid",
    ),
    ("short_episodes='terminal' or 'truncated'", "--short-episodes terminal or truncated"),
    ("ask to overwrite it", "pass --overwrite"),
    ("clip them (max_ratio)", "clip them (--max-ratio)"),
    ("half_width or difference", "--half-width or --difference"),
    ("or ask for a half_width", "or ask for a --half-width"),
    ("between 1 - level, which", "between 1 less the --level, which"),
    (" (log.drop_truncated())", ", in the log itself"),
    (": log.drop_truncated()", ", in the log itself"),
    ("certify() for a bound that holds", "evaluate --reward-range for a bound that holds"),
    ("set episodes aside (holdout)", "set episodes aside (--holdout)"),
    ("report on another (holdout)", "report on another (--holdout)"),
)
RENAMED = {
    "method": "--interval",
    "side": "--one-sided",
    "estimator": "--estimators",
    "scale": "--round",
    "edges": "--grid",
}
PATTERNS = (  # Python's way to write an argument, and what stands for it ({} is the option)
    (re.compile(r"\bmis\((memory)=(['\"]?)(?P<value>\w+)\2\)"), "{} {}"),
    (re.compile(r"\b([a-z_]+)=(['\"])(?P<value>[^'\"]*)\2"), "{} {}"),
    (re.compile(r"\b(blocks|smoothing|horizon)=(?P<value>[0-9.]+)"), "{} {}"),
    (re.compile(r"\b([a-z_]+)=(?P<value>…)"), "{} COLUMN"),
    (re.compile(r"the parameter '([a-z_]+)(?P<value>)'"), "the option {}"),
)
CALL = re.compile(r"\b(mis|dm|wis|mdr|is_)\(\)")
COLOR = re.compile(r"\x1b\[[0-9;]*m")
LINE_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")
LEAST_WIDTH = 40  # columns: below, nothing fits
_phases: list[str] = []  # what the command does, the innermost last
_kept: list[str] = []  # what an interruption leaves


def for_terminal(text: str) -> str:
    """A message in the command line's words."""
    for python, option in PHRASES:
        text = text.replace(python, option)
    for pattern, words in PATTERNS:
        text = pattern.sub(lambda m, words=words: words.format(_flag(m[1]), m["value"]), text)  # type: ignore[misc]
    return printable(CALL.sub(r"\1", text))


def _flag(name: str) -> str:
    return RENAMED.get(name, "--" + name.replace("_", "-"))


def printable(text: str) -> str:
    """Names from the data may hold control characters; a terminal must not obey them."""
    return "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in text)


def cell(text: str) -> str:
    """A text from the data in a table: no markup, and nothing that a terminal obeys."""
    from rich.markup import escape

    return escape(printable(text))


def typed_command() -> str | None:
    """The command line as it was typed; None where another program called."""
    name, *arguments = sys.argv
    return shlex.join(["reweigh", *arguments]) if Path(name).stem == "reweigh" else None


# --- what is under way, for messages about its end


@contextmanager
def phase(text: str) -> Iterator[None]:
    """A failure leaves the phase in place, for the message that names it."""
    _phases.append(text)
    yield
    _phases.remove(text)


def under_way() -> str:
    """Such as " while reading"; empty where it is not known."""
    return f" while {_phases[-1]}" if _phases else ""


@contextmanager
def keeping(what: str) -> Iterator[None]:
    """Say this of an interruption inside."""
    _kept.append(what)
    yield
    _kept.clear()


def what_is_kept() -> str:
    return _kept[-1] if _kept else "no file was left half-written"


def forget_phases() -> None:
    """Another command begins."""
    _phases.clear()
    _kept.clear()


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collects the warnings of reweigh as texts."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ReweighWarning)
        try:
            yield texts
        finally:
            for entry in caught:
                if issubclass(entry.category, ReweighWarning):
                    texts.append(str(entry.message))
                else:
                    print(f"warning: {printable(str(entry.message))}", file=sys.stderr)


def finite(value: Any) -> Any:
    """The same with null for what is no finite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def draw(table: Any) -> None:
    """Print a table of rich in the width of the terminal; where there is none, of 100 columns."""
    from rich.console import Console

    console = Console(width=screen_width() or 100, highlight=False, soft_wrap=False)
    with console.capture() as drawn:
        console.print(table)
    for line in drawn.get().splitlines():  # without the blanks that fill the last column
        print(LINE_END.sub(lambda m: "".join(COLOR.findall(m[0])), line))


def screen_width(stream: Any = None) -> int | None:
    """The columns of the terminal; None where the output (or this stream) goes to a file or another
    program."""
    if not (stream or sys.stdout).isatty() and not os.environ.get("COLUMNS"):
        return None
    return max(shutil.get_terminal_size((100, 24)).columns, LEAST_WIDTH)


def fitted(line: str, stream: Any = None) -> list[str]:
    """A line in the command line's words, wrapped between words where a terminal shows it."""
    return fitting(for_terminal(line), screen_width(stream))


def fitting(message: str, width: int | None, hanging: int = 0) -> list[str]:
    """The lines of a message, wrapped between words to this width; what follows a line's first
    part stands so much further to the right. A line stays whole if the next one points into it."""
    lines = message.split("\n")
    if width is None:
        return lines
    from reweigh.show.text import wrapped

    fitted: list[str] = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        indent = " " * (len(line) - len(line.lstrip(" ")) + hanging)
        whole = "^" in (line.strip(), after.strip())
        fitted += [line] if whole else wrapped(line, width, indent if hanging else None)
    return fitted


def wrapped_command(line: str, width: int | None) -> list[str]:
    """A command in parts that fit, an option with its values in one; two or six spaces and a
    backslash come to each."""
    if width is None or len(line) + 2 <= width:
        return [line]
    first, *words = re.split(r" (?=--)", line)
    parts, room = [first], width - 4
    for word in words:
        if len(parts[-1]) + 1 + len(word) <= room:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
            room = width - 8
    return parts


@dataclass(frozen=True)
class Terminal:
    """Prints as the options of the command ask."""

    quiet: bool = False
    as_json: bool = False

    @property
    def silent(self) -> bool:
        """Whether nobody reads along."""
        return self.quiet or self.as_json

    def say(self, *lines: str) -> None:
        """Lines for the reader, wrapped to the terminal."""
        for line in () if self.silent else lines:
            print(*fitted(line), sep="\n")

    def command(self, *lines: str) -> None:
        """Commands to copy: where they are too long for the terminal they go on behind a \\."""
        for line in () if self.silent else lines:
            print("  " + " \\\n      ".join(wrapped_command(line, screen_width())))

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        left: Sequence[str],
        wrapped: str = "",
    ) -> None:
        """A table, whose columns stand to the right unless they are named in `left`. Where the
        terminal is narrow the column `wrapped`, or without one every column, takes several lines,
        and nothing is cut."""
        if self.silent:
            return
        from rich import box
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        if wrapped:
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
        for name in columns:
            table.add_column(
                name,
                justify="left" if name in left else "right",
                no_wrap=bool(wrapped) and name != wrapped,
                overflow="ellipsis" if wrapped else "fold",
            )
        for row in rows:
            table.add_row(*row)
        draw(table)

    def answer(self, *lines: str) -> None:
        """What --quiet leaves of all that is said."""
        for line in lines if self.quiet and not self.as_json else ():
            print(for_terminal(line))

    def warn(self, lines: Iterable[str]) -> None:
        """Lines that must not get lost; JSON holds them in a place of its own."""
        stream = sys.stderr if self.quiet else sys.stdout
        for line in () if self.as_json else lines:
            print(*fitted(line, stream), sep="\n", file=stream)

    def json(self, value: Any) -> None:
        """One JSON object in ASCII, with the version of its schema; what is no finite number leaves
        as null."""
        marked = {"schema_version": SCHEMA_VERSION, **finite(value)}
        print(json.dumps(marked, indent=2, allow_nan=False))

    @contextmanager
    def working(self, text: str, data: Any = None) -> Iterator[Any]:
        """A bar on a terminal while something takes its time; yields the log to work on, whose
        scans move the bar."""
        with phase(text):
            if self.silent or not sys.stderr.isatty():
                yield data
                return
            from reweigh.cli.progress import bar_of

            with bar_of(text, data) as watched:
                yield watched
