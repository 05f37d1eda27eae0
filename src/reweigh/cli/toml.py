"""Writing a small TOML file, comments included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from reweigh.cli.terminal import printable

Value = str | bool | int | float | Sequence[str] | None


@dataclass(frozen=True)
class Line:
    """`key = value  # comment`; without a value, or with `off`, the key is commented out too."""

    key: str = ""
    value: Value = None
    comment: str = ""
    off: bool = False


def toml_text(lines: Sequence[Line]) -> str:
    return "".join(_written(line) + "\n" for line in lines)


def toml_value(value: Value) -> str:
    if isinstance(value, str):
        # A JSON text is a TOML text but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    assert value is not None
    return f"[{', '.join(toml_value(item) for item in value)}]"


def _written(line: Line) -> str:
    comment = " ".join(printable(line.comment).split())
    if not line.key:
        return f"# {comment}" if comment else ""
    setting = f"{'# ' if line.off else ''}{line.key} = {toml_value(line.value)}"
    return f"{setting}  # {comment}" if comment else setting
