"""How much was tried on a log: the best of many policies looks better than it is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from reweigh.errors import InputError
from reweigh.logs.log import EpisodeLog
from reweigh.output import write_atomically

Trial = tuple[str, str]  # the target's fingerprint, the estimator's name
FORMAT = 1


def tried(log: EpisodeLog, trials: Iterable[Trial]) -> int:
    """Count these trials, and those before on the same log in memory: each once."""
    seen: set[Trial] = log._cache.setdefault("tried", set())
    seen.update(trials)
    return len(seen)


def noted(path: Path, log: str, trials: Iterable[Trial]) -> int:
    """Note these trials of a log, by its digest, in a file that outlives the process; how many
    different ones it holds for that log now."""
    book: dict[str, list[list[str]]] = {}
    if path.exists():
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            if read["format"] != FORMAT:
                raise ValueError(f"format {read['format']!r}")
            book = {str(name): [[str(a), str(b)] for a, b in pairs] for name, pairs in
                    read["logs"].items()}  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{str(path)!r} is no ledger of reweigh ({error}); give another file"
            ) from error
    seen = {tuple(pair) for pair in book.get(log, [])} | set(trials)
    book[log] = sorted([list(pair) for pair in seen])
    text = json.dumps({"format": FORMAT, "logs": book}, indent=1, sort_keys=True) + "\n"

    def write(stream: BinaryIO) -> None:
        stream.write(text.encode())

    write_atomically(path, write, overwrite=True)
    return len(seen)
