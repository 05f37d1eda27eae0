"""How much was tried on a log: the best of many policies looks better than it is."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from reweigh.decide.contenders import label_of
from reweigh.errors import InputError, ResourceError
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.presets import ESTIMATORS
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.system.files import digest_of, locked, parse_object, sealed, unsealed, write_atomically
from reweigh.system.fingerprint import digest_of_callable

if TYPE_CHECKING:
    from reweigh.estimate.control import ModelControl

Trial = tuple[str, str]  # the target's fingerprint, the estimator's key
FORMAT = 3
READ = (1, 2, FORMAT)  # 1 held no "reported"
SEALED = 3  # the first format with a checksum
PATIENCE = 60.0  # seconds that a process waits for the ledger, which is held for milliseconds
WHOLE = 1.0  # the share of the episodes that a comparison without a holdout reports on


@dataclass(frozen=True)
class Tally:
    """What a ledger holds of a log.

    tried   different trials, those just noted included
    before  the shares of its episodes that were reported on earlier, 1 for all of them
    """

    tried: int
    before: tuple[float, ...] = ()

    def separate_warnings(self, many: int) -> list[str]:
        """Warnings after `many` trials were reported on all episodes, each with its own
        interval."""
        if self.tried <= many:
            return []
        return [
            f"{self.tried} pairs of a policy and an estimator have been tried on this log, "
            "but this interval is for a single one fixed beforehand: to report the best of "
            "several, compare them all at once"
        ]

    def simultaneous_warnings(self, many: int, share: float) -> list[str]:
        """Warnings after `many` trials were reported on this share, with simultaneous intervals."""
        parted = share < WHOLE
        lines = []
        if self.tried > many:
            fresh = "rely only on the value from the episodes set aside"
            if self.before:
                fresh = "collect new episodes"
            advice = fresh if parted else "set episodes aside (holdout)"
            lines.append(
                f"{self.tried} pairs of a policy and an estimator have been tried on this "
                f"log, but these intervals are simultaneous only over {many}: {advice}"
            )
        if parted and self.before:
            # parts are by hashes below a share: the smaller one lies within the larger
            which = "the" if max(self.before) >= share else "some of the"
            lines.append(
                f"{which} episodes set aside were reported on before: they are no longer "
                "unused, and this choice may depend on them"
            )
        return lines


def trial(target: Policy, recipe: Recipe) -> Trial:
    return target.fingerprint(), key_of(recipe)


def key_of(recipe: Recipe) -> str:
    """All of an estimator that changes its number, as text: of one that is named on the command
    line its name and how its ratios are clipped, of others their parts too."""
    known = ESTIMATORS.get(recipe.name)
    users_q = recipe.control is not None and recipe.control.is_array_or_function
    if known is not None and not users_q and _parts(known()) == _parts(recipe):
        return label_of(recipe)
    return f"{label_of(recipe)}; {'; '.join(_parts(recipe))}"


def _parts(recipe: Recipe) -> tuple[str, ...]:
    return repr(recipe.weights), recipe.normalize, recipe.reward, _control(recipe.control)


def _control(control: ModelControl | None) -> str:
    if control is None:
        return "none"
    q, more = control.q, "" if control.fit == "model" else f"; for the {control.fit}"
    more += f"; blended {control.lengths}" if control.blends else ""
    if isinstance(q, str):
        return q + more
    if callable(q):
        return f"function:{digest_of_callable(q)}{more}"
    return f"array:{digest_of(repr(q.shape), q.tobytes())}{more}"


def tried(log: EpisodeLog, trials: Iterable[Trial], share: float = WHOLE) -> Tally:
    """Count these trials, and those before on the same log in memory: each once."""
    seen: set[Trial] = log._cache.setdefault("tried", set())
    reported: set[float] = log._cache.setdefault("reported", set())
    before = tuple(sorted(reported))
    seen.update(trials)
    reported.add(share)
    return Tally(len(seen), before)


def noted(path: Path, log: str, trials: Iterable[Trial], share: float = WHOLE) -> Tally:
    """Record these trials of a log, by its digest, in a file; returns all trials of that log.
    Concurrent processes wait for each other."""
    busy = f"another process has kept {str(path)!r} locked for {PATIENCE} s; end it, or try again"
    with locked(path.with_name(f".{path.name}.lock"), busy, wait=PATIENCE):
        book, shares = _read(path) if path.exists() else ({}, {})
        seen = {tuple(pair) for pair in book.get(log, [])} | set(trials)
        before = tuple(sorted(shares.get(log, [])))
        book[log] = sorted([list(pair) for pair in seen])
        shares[log] = sorted({*before, share})
        kept = sealed({"format": FORMAT, "logs": book, "reported": shares})
        text = json.dumps(kept, indent=1, sort_keys=True) + "\n"

        def write(stream: BinaryIO) -> None:
            stream.write(text.encode())

        write_atomically(path, write, overwrite=True)
    return Tally(len(seen), before)


def _read(path: Path) -> tuple[dict[str, list[list[str]]], dict[str, list[float]]]:
    """The trials by log, and the shares of its episodes that were reported on."""
    what = f"the ledger {str(path)!r}"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ResourceError(
            error.errno or errno.EIO, f"cannot read {what}: {error.strerror or error}"
        ) from error
    content = parse_object(raw, what)
    version = content.get("format")
    if type(version) is not int or version not in READ:
        raise InputError(f"{what} has format {version!r}, and this version reads {FORMAT}")
    content = unsealed(content, what, required=version >= SEALED)
    book: Any = content.get("logs")
    shares: Any = content.get("reported", {})
    if not _lists(
        book, lambda pair: isinstance(pair, list) and list(map(type, pair)) == [str, str]
    ):
        raise InputError(f"{what} is damaged: 'logs' must hold pairs of texts by log")
    if not _lists(shares, lambda share: type(share) in (int, float) and 0 < share <= WHOLE):
        raise InputError(f"{what} is damaged: 'reported' must hold shares in (0, 1] by log")
    return book, shares


def _lists(book: Any, fits: Callable[[Any], bool]) -> bool:
    """Whether this is an object of lists whose items all fit."""
    return isinstance(book, dict) and all(
        isinstance(items, list) and all(map(fits, items)) for items in book.values()
    )
