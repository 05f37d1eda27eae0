"""A cell of a study: one world at one size, many replicates, and their measurements.

Every replicate has its own seed, made from the cell's configuration and the replicate's number. So
its values are the same bits in any process and any order.
"""

from __future__ import annotations

import errno
import gzip
import json
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from reweigh import worlds
from reweigh.errors import (
    MOST_REPLICATES,
    InputError,
    ResourceError,
    UsageError,
    check_whole,
)
from reweigh.evaluation.evaluate import point_values
from reweigh.evaluation.result import Refusal
from reweigh.system.files import checksum_of, digest_of, parse_object, write_atomically
from reweigh.worlds.world import TrueValue, World

FORMAT = 1
PART = "/"  # a column is named by its estimator, alone or with a part: "mis/value"
STEP_COST = 1000  # episodes: what a step costs however few episodes there are
WORLDS: dict[str, Callable[[int, int], World]] = {  # of a horizon and a seed
    "modelwin": lambda horizon, seed: worlds.ModelWin(horizon),
    "modelfail": lambda horizon, seed: worlds.ModelFail(horizon),
    "timevarying": lambda horizon, seed: worlds.TimeVarying(horizon, seed),
    "mountaincar": lambda horizon, seed: worlds.MountainCar(),
}
AGAIN = "remove it, or --overwrite"  # and the cell is run again
Row = Mapping[str, float | Refusal | None]


class AnyCell(Protocol):
    """What a sweep runs: replicates by number, each a row of named columns."""

    @property
    def name(self) -> str:
        """Of its file and its seeds: unlike all others of the study."""

    @property
    def suffix(self) -> str:
        """Of its file: ".json", or ".json.gz" where it holds many columns."""

    @property
    def cost(self) -> float:
        """The work of a replicate, about, in a unit that the cells of a study share."""

    def describe(self) -> dict[str, Any]:
        """All that its numbers follow from, as plain values."""

    def replicate(self, estimators: Sequence[str], sequence: np.random.SeedSequence) -> Row:
        """One replicate: a number, a refusal, or None, by column."""


@dataclass(frozen=True, order=True)
class Cell:
    """The paper's: values of estimators on n episodes of a world of WORLDS at a horizon."""

    world: str
    horizon: int
    n: int

    @property
    def name(self) -> str:
        return f"{self.world}-H{self.horizon}-n{self.n}"

    @property
    def truth(self) -> TrueValue:
        """v^π, the same for every replicate (the seed of a time-varying world does not move it)."""
        return _world(self.world, self.horizon, 0).value()

    @property
    def suffix(self) -> str:
        return ".json"

    @property
    def cost(self) -> float:
        """Rows, and the steps of the recursions whatever the rows."""
        return self.horizon * (STEP_COST + self.n) * (5.0 if self.world == "mountaincar" else 1.0)

    def describe(self) -> dict[str, Any]:
        return asdict(self)

    def replicate(self, estimators: Sequence[str], sequence: np.random.SeedSequence) -> Row:
        for_world, for_log = sequence.spawn(2)
        # only the time-varying world has a seed: its p_t are drawn once per replicate
        seed = int(for_world.generate_state(1)[0]) if self.world == "timevarying" else 0
        world = _world(self.world, self.horizon, seed)
        log = world.simulate(self.n, np.random.default_rng(for_log))
        return dict(zip(estimators, point_values(log, world.target, list(estimators)), strict=True))


@dataclass(frozen=True)
class Setting:
    """The configuration shared by all cells of a study, which must not change between its parts."""

    replicates: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("replicates", self.replicates, 2, MOST_REPLICATES)
        check_whole("seed", self.seed, 0)


@dataclass(frozen=True, eq=False)
class CellResult:
    """values[column] (replicates,), None where there is none; refused[column][code] counts why."""

    values: dict[str, list[float | None]]
    refused: dict[str, dict[str, int]]

    @property
    def replicates(self) -> int:
        return len(next(iter(self.values.values()), []))

    @property
    def estimators(self) -> set[str]:
        """The estimators that these columns are of."""
        return {name.split(PART)[0] for name in self.values}

    def answered(self, estimator: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The values that there are."""
        return np.array([v for v in self.values[estimator] if v is not None], np.float64)

    def joined(self, other: CellResult) -> CellResult:
        """Other estimators of the same cell beside these."""
        return CellResult(self.values | other.values, self.refused | other.refused)


@lru_cache(maxsize=16)
def _world(name: str, horizon: int, seed: int) -> World:
    return WORLDS[name](horizon, seed)


def run_replicates(
    cell: AnyCell, estimators: Sequence[str], seed: int, replicates: range
) -> tuple[range, CellResult]:
    """Simulate and evaluate these replicates of a cell, on one thread."""
    import warnings

    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a study reports its errors itself
        rows = [cell.replicate(estimators, seed_sequence(cell, seed, k)) for k in replicates]
    values: dict[str, list[float | None]] = {}
    refused: dict[str, dict[str, int]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        column = [row.get(name) for row in rows]
        values[name] = [None if isinstance(v, Refusal) else v for v in column]
        codes = Counter(v.error.code for v in column if isinstance(v, Refusal))
        if codes:
            refused[name] = dict(codes)
    return replicates, CellResult(values, refused)


def seed_sequence(cell: AnyCell, seed: int, replicate: int) -> np.random.SeedSequence:
    """A separate random stream for every cell and replicate."""
    return np.random.SeedSequence(
        [seed, int(digest_of(cell.name)[:16], 16)], spawn_key=(replicate,)
    )


def in_order(parts: Sequence[tuple[range, CellResult]]) -> CellResult:
    """The parts of one cell, put together by the number of their first replicate."""
    ordered = sorted(parts, key=lambda part: part[0].start)
    names = dict.fromkeys(name for _, result in ordered for name in result.values)
    values: dict[str, list[float | None]] = {name: [] for name in names}
    refused: dict[str, Counter[str]] = defaultdict(Counter)
    for replicates, result in ordered:
        for name in names:  # a column that no replicate of a part has
            values[name] += result.values.get(name) or [None] * len(replicates)
        for name, codes in result.refused.items():
            refused[name].update(codes)
    return CellResult(
        values, {name: dict(sorted(codes.items())) for name, codes in refused.items()}
    )


# Cells on disk


class ChangedError(UsageError):
    """A cell on disk belongs to another study."""


def versions() -> dict[str, str]:
    """What computes: other versions may round otherwise."""
    from reweigh import __version__

    return {"reweigh": __version__, "numpy": np.__version__, "scipy": version("scipy")}


def configuration(cell: AnyCell, setting: Setting) -> dict[str, Any]:
    """Everything that determines a cell's numbers, except the requested estimators."""
    return {"format": FORMAT, **cell.describe(), **asdict(setting), **versions()}


def path_of(folder: Path, cell: AnyCell) -> Path:
    return folder / f"{cell.name}{cell.suffix}"


def store(folder: Path, cell: AnyCell, setting: Setting, result: CellResult) -> None:
    """Write a finished cell, whole or not at all."""
    config = configuration(cell, setting)
    values = {name: result.values[name] for name in sorted(result.values)}
    refused = {name: result.refused[name] for name in sorted(result.refused)}
    content = {
        "hash": checksum_of(config, values, refused),
        "config": config,
        "values": values,
        "refused": refused,
    }
    # A float's shortest text reads back as the same float.
    text = json.dumps(content, allow_nan=False).encode()
    if cell.suffix.endswith(".gz"):  # without a time in it: the same cell is the same file
        text = gzip.compress(text, 6, mtime=0)
    write_atomically(path_of(folder, cell), lambda stream: stream.write(text), overwrite=True)


def load(
    folder: Path, cell: AnyCell, setting: Setting, *, fewer: bool = False
) -> CellResult | None:
    """A cell that was finished before, or None; refuses one of another configuration. With `fewer`
    it may have fewer replicates: the first of those that are wanted."""
    path = path_of(folder, cell)
    if not path.exists():
        return None
    config, result = _read(path)
    wanted = configuration(cell, setting)
    if fewer and config.get("replicates", math.inf) < setting.replicates:
        wanted["replicates"] = config["replicates"]
    changed = [
        f"{key} was {config.get(key)!r} and is {wanted.get(key)!r}"
        for key in sorted({*config, *wanted})
        if config.get(key) != wanted.get(key)
    ]
    if changed:
        raise ChangedError(
            f"{str(path)!r} was made with another configuration ({'; '.join(changed)}): "
            "continue with the old one, give another folder, or start again with --overwrite"
        )
    return result


def _read(path: Path) -> tuple[dict[str, Any], CellResult]:
    """A cell's configuration and its numbers; InputError unless both are whole."""
    what = f"the cell {str(path)!r}"
    try:
        raw = path.read_bytes()
        content = parse_object(gzip.decompress(raw) if path.suffix == ".gz" else raw, what)
        parts: list[Any] = [content.get(key) for key in ("config", "values", "refused")]
        config, values, refused = parts
        if content.get("hash") != checksum_of(config, values, refused):
            raise InputError(f"{what} is damaged: its content does not match its hash")
        if not _fits(config, values, refused):
            raise InputError(f"{what} is damaged: its values are not numbers by replicate")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{what} is damaged: {error}; {AGAIN}") from error
    except OSError as error:
        raise ResourceError(
            error.errno or errno.EIO, f"cannot read {what}: {error.strerror or error}"
        ) from error
    except InputError as error:
        raise InputError(f"{error}; {AGAIN}") from error
    return config, CellResult(values, refused)


def _fits(config: Any, values: Any, refused: Any) -> bool:
    """Whether every column has a number or null for each replicate, and refusals are counted."""
    if not all(isinstance(part, dict) for part in (config, values, refused)):
        return False
    return all(
        isinstance(column, list)
        and len(column) == config.get("replicates")
        and all(number is None or type(number) in (int, float) for number in column)
        for column in values.values()
    ) and all(
        isinstance(codes, dict) and all(type(n) is int and n >= 1 for n in codes.values())
        for codes in refused.values()
    )
