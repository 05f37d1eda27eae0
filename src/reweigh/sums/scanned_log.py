"""ScannedLog: a log that stays where it is, and is read whenever sums are asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from reweigh.errors import UsageError
from reweigh.log.columns import Columns, ShortEpisodes
from reweigh.sums.engines.choose import is_ibis_table
from reweigh.system.files import files_behind

if TYPE_CHECKING:
    from reweigh.log.csv_files import CsvFormat
    from reweigh.log.states import AnyAbstraction
    from reweigh.policy.base import Policy
    from reweigh.sums.engines.base import Request
    from reweigh.sums.moments import Moments


@dataclass(frozen=True, eq=False)
class Reading:
    """How the rows of a log are to be understood: the options of `read_log`."""

    columns: Columns
    horizon: int | None
    discount: float
    short_episodes: ShortEpisodes
    hidden: bool
    continuous_actions: bool
    abstraction: AnyAbstraction | None
    csv: CsvFormat
    table: str | None = None


class Scanner(Protocol):
    """An engine that reads rows where they are. Nothing above it knows which one it was."""

    name: str

    def moments(self, data: Any, reading: Reading, target: Policy, request: Request) -> Moments:
        """All sums of the request, in one scan; every break of the log's contract is refused."""
        ...

    def describe(self, data: Any, reading: Reading) -> dict[str, Any]:
        """What the log is, as plain values (those of `EpisodeLog.describe` that one scan tells)."""
        ...


@dataclass(frozen=True, eq=False)
class ScannedLog:
    """A log too large for memory, or on another machine. Made by `read_log(…, engine=…)`.

    Estimators that need sums only work as on an EpisodeLog; those that weigh every row with a
    fitted Q refuse (their sums would need a second kind of scan).
    """

    data: Any
    reading: Reading
    scanner: Scanner
    _made: dict[tuple[str, Request], Moments] = field(default_factory=dict, repr=False)

    def moments(self, target: Policy, request: Request) -> Moments:
        """The sums of the request; asked for again, they are not read again."""
        key = (target.fingerprint(), request)
        if key not in self._made:
            with np.errstate(over="ignore", invalid="ignore"):  # estimators refuse what overflows
                made = self.scanner.moments(self.data, self.reading, target, request)
            self._made[key] = replace(made, files=files_behind(self, target))
        return self._made[key]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from: those of the rows, or a database."""
        if isinstance(self.data, str | os.PathLike):
            return (Path(self.data),)
        return tuple(getattr(self.data, "paths", ()))

    def describe(self) -> dict[str, Any]:
        """What the log is, as plain values; the log is read for it."""
        return self.scanner.describe(self.data, self.reading)

    def known(self) -> dict[str, Any]:
        """What is known of the log without reading it again, as plain values: how it is read, and
        what the sums tell that have been asked for."""
        from reweigh.log.states import describe_abstraction

        reading, sums = self.reading, list(self._made.values())
        found = {
            "source": self.source,
            "engine": self.scanner.name,
            "columns": {
                role: list(name) if isinstance(name, tuple) else name
                for role, name in vars(reading.columns).items()
                if name is not None
            },
            "horizon": reading.horizon,
            "discount": reading.discount,
            "state_columns": list(reading.columns.state),
            "abstraction": describe_abstraction(reading.abstraction),
            "continuous_actions": reading.continuous_actions,
            "behavior_prob_from": self.behavior_source,
        }
        # products alone do not count rows
        fullest = max(sums, key=lambda one: one.kinds != ("trajectories",), default=None)
        return found if fullest is None else found | fullest.describe()

    @property
    def source(self) -> str:
        """Where the rows are, in words."""
        if self.reading.table is not None:
            home = "Spark" if self.data is None else Path(self.data).name
            return f"table {self.reading.table!r} of {home}"
        if is_ibis_table(self.data):
            return f"Ibis table of {self.data.get_backend().name}"
        return str(self.data.describe())

    def sql(self, target: Policy, request: Request) -> str:
        """The queries that make the sums of the request, where the engine speaks SQL."""
        write = getattr(self.scanner, "sql", None)
        if write is None:
            raise UsageError(f"the engine {self.scanner.name} has no SQL; duckdb and Spark have")
        return str(write(self.data, self.reading, target, request))

    @property
    def behavior_source(self) -> str:
        return "logged"

    def __repr__(self) -> str:
        return f"ScannedLog({self.source}, engine={self.scanner.name!r})"
