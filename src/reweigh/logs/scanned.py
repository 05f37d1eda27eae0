"""ScannedLog: a log that stays where it is, and is read whenever sums are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from reweigh.errors import UsageError
from reweigh.logs.columns import Columns

if TYPE_CHECKING:
    from reweigh.logs.csvfile import CsvFormat
    from reweigh.logs.states import AnyAbstraction
    from reweigh.moments.bundle import Moments
    from reweigh.moments.engines.base import Request
    from reweigh.policies.base import Policy


@dataclass(frozen=True, eq=False)
class Reading:
    """How the rows of a log are to be understood: the options of `read_log`."""

    columns: Columns
    horizon: int | None
    discount: float
    short_episodes: str
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
            self._made[key] = self.scanner.moments(self.data, self.reading, target, request)
        return self._made[key]

    def describe(self) -> dict[str, Any]:
        """What the log is, as plain values."""
        return self.scanner.describe(self.data, self.reading)

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
        return f"ScannedLog({self.data!r}, engine={self.scanner.name!r})"
