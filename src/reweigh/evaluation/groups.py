"""An estimate by groups of episodes, such as wards: each group is evaluated as a log of its own.

An episode belongs to the group that its first row names, so that the sums of the groups add up to
those of the whole log. The intervals of G groups hold together: each has the level
1 - (1 - level)/G (Bonferroni), and so have those of the gains, as a family of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import RefusedError, UsageError, check_fraction, nearest
from reweigh.evaluation.data import RowsData
from reweigh.evaluation.result import Estimate, Interval, Refusal
from reweigh.log.log import EpisodeLog
from reweigh.log.states import label_array, plain_numbers
from reweigh.policy import Policy
from reweigh.show import text
from reweigh.show.record import Evaluation, GroupTable
from reweigh.sums.read import ScannedLog, Slice
from reweigh.system import optional_module
from reweigh.system.frames import FrameKind, rows_frame
from reweigh.system.process import each

if TYPE_CHECKING:
    from reweigh.evaluation.uncertainty import EstimateUncertainty

LEAST = 30  # episodes of a group that is evaluated
MOST = 50  # groups
MISSING = "(missing)"
COLUMNS = ("group", "episodes", "value", "interval", "gain", "interval", "verdict")
Value = str | int | float | bool | None
Member = tuple[Value, int, Callable[[], EpisodeLog | ScannedLog]]
EvaluateAll = Callable[..., Sequence[Estimate | Refusal]]


@dataclass(frozen=True, eq=False)
class Group:
    """The episodes whose first row holds `value` (None: it is missing), and what came of them.

    share   of all episodes
    result  the estimate, or why there is none
    record  what is shown of it, with the interval that holds together with those of the others
    """

    name: str
    value: Value
    n_episodes: int
    share: float
    result: Estimate | Refusal
    record: Evaluation

    def row(self) -> dict[str, Any]:
        """One row of a frame."""
        size = {"n_episodes": self.n_episodes, "share": self.share}
        return {"group": self.name} | self.record.row() | size

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "group": self.value,
            "name": self.name,
            "n_episodes": self.n_episodes,
            "share": self.share,
            "result": self.record.to_dict(),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Groups(Sequence[Group]):
    """An estimate by groups, in the order of their values; `groups["ICU"]` is one of them.

    level       that of all intervals together; `each_level` that of every one
    whole       the estimate of all episodes
    together    the mean of the groups' values by their shares of the episodes, None where a group
                has none. For IS it is the value of the whole log. Others share what they know of
                a state between the groups, and so differ from it by chance; by more where the
                groups differ in a way that the state does not tell
    """

    column: str
    level: float
    groups: tuple[Group, ...]
    whole: Estimate

    @property
    def each_level(self) -> float:
        return each_level(self.level, len(self.groups))

    @property
    def together(self) -> float | None:
        values = [group.record.value for group in self.groups]
        if any(value is None for value in values):
            return None
        return math.fsum(g.share * (g.record.value or 0.0) for g in self.groups)

    def __getitem__(self, which: Any) -> Any:
        if not isinstance(which, str):
            return self.groups[which]
        named = {group.name: group for group in self.groups}
        if which not in named:
            raise UsageError(
                f"there is no group {which!r} of {self.column}{nearest(which, named)} "
                f"(groups: {', '.join(named)})"
            )
        return named[which]

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def to_frame(self, kind: FrameKind | None = None) -> Any:
        """A row per group. `kind` is "pandas", "polars" or "arrow"; without it pandas, or Arrow
        where pandas is not installed."""
        return rows_frame([group.row() for group in self.groups], kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `reweigh evaluate --slice --json` prints them."""
        return {
            "column": self.column,
            "estimator": self.whole.estimator,
            "level": self.level,
            "each_level": self.each_level,
            "together": self.together,
            "groups": [group.to_dict() for group in self.groups],
        }

    def lines(self) -> list[str]:
        """What is said below the table."""
        from reweigh.show.first_screen import reason_text

        at = f"The {len(self.groups)} intervals hold together at {text.percent(self.level)}"
        how = f"{at} (each at {text.percent(round(self.each_level, 6))}, Bonferroni)"
        lines = [f"{how}; an episode belongs to the group of its first row."]
        for group in self.groups:
            record = group.record
            if group.value is None:
                lines.append(f"{MISSING}: {group.n_episodes:,} episodes have no {self.column}.")
            if record.refused is not None:
                lines.append(f"{group.name}: {text.sentence(record.refused.reason)}")
            elif record.verdict is not None and record.verdict.reasons:
                first = record.verdict.reasons[0]
                parts = filter(None, (reason_text(record, first), first.advice))
                why = " ".join(map(text.sentence, parts))
                lines.append(f"{group.name} ({first.level}): {why}")
        return lines

    def cells(self) -> list[tuple[str, ...]]:
        """(group, episodes, value, interval, gain, its interval, verdict) as printed. Where the
        verdict is red no interval and no gain are."""
        return [_cells(group) for group in self.groups]

    def table(self) -> GroupTable:
        """What a report shows."""
        return GroupTable(self.column, COLUMNS, tuple(self.cells()), tuple(self.lines()))

    def __str__(self) -> str:
        head = f"{self.whole.estimator} by {self.column}"
        return "\n".join([head, *text.columns_of([COLUMNS, *self.cells()]), *self.lines()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return text.html_rows(f"{self.whole.estimator} by {self.column}", COLUMNS, self.cells())

    def _mime_(self) -> tuple[str, str]:
        return "text/html", self._repr_html_()


def _cells(group: Group) -> tuple[str, ...]:
    e, n = group.record, f"{group.n_episodes:,}"
    if e.value is None:
        return group.name, n, "none", "", "", "", "refused"
    if e.level == "red":
        return group.name, n, e.text, "", "", "", "red"
    around = "none" if e.around is None else text.span(e.around)
    gain = "none" if e.gain is None else text.signed(e.gain, e.gain_error)
    between = "none" if e.gain_interval is None else text.span(e.gain_interval)
    return group.name, n, e.text, around, gain, between, e.level or ""


def by_groups(estimate: Estimate, column: str, level: float, evaluate_all: EvaluateAll) -> Groups:
    """The estimate by the values of a column in the first rows of the episodes."""
    level = check_fraction("level", level)
    of: EstimateUncertainty = estimate.uncertainty
    members, target = _members(of, column)
    if len(members) > MOST:
        raise RefusedError(
            "too-many-groups",
            f"the column {column!r} has {len(members):,} different values in the first rows of the "
            f"episodes, and at most {MOST} groups are compared: bin it first",
        )
    at, total = each_level(level, len(members)), sum(n for _, n, _ in members)
    truncated, declared = "drop" if of.dropped else "refuse", of.data.reward_range

    def group_of(member: Member) -> Group:
        value, n, log = member
        name = name_of(value)
        result = _result(estimate, n, lambda: evaluate_all(
            log(), target, [estimate.recipe], truncated=truncated, reward_range=declared
        )[0])  # fmt: skip
        interval: Interval | None = None
        if isinstance(result, Estimate):
            interval = result.interval(at)
        record = replace(result.record_with(interval), label=name)
        return Group(name, value, n, n / total, result, record)

    return Groups(column, level, tuple(each("groups", members, group_of)), estimate)


def _result(
    estimate: Estimate, n: int, evaluate: Callable[[], Estimate | Refusal]
) -> Estimate | Refusal:
    """What the group's own episodes answer; too few of them are refused."""
    if n >= LEAST:
        return evaluate()
    few = f"{n} episode{'s' if n != 1 else ''} in this group, and {LEAST} are needed"
    return Refusal(estimate.recipe, RefusedError("small-group", few), n, estimate.horizon)


def each_level(level: float, groups: int) -> float:
    """1 - (1 - level)/G: then all G intervals hold at once with probability `level` or more."""
    return 1 - (1 - level) / groups


def name_of(value: Value) -> str:
    return MISSING if value is None else str(value)


def _members(of: EstimateUncertainty, column: str) -> tuple[list[Member], Policy | None]:
    """The groups: value, number of episodes, and their log; and the target."""
    data = of.data
    if isinstance(data, RowsData):
        assert data.log is not None
        return _of_rows(data.log, column), data.target
    if data.scanned is None:
        raise RefusedError(
            "needs-log",
            "moments are sums over all episodes and hold no groups: evaluate the log itself, or "
            "make moments of each group",
        )
    return _of_scanned(data.scanned, column), data.target


def _of_rows(log: EpisodeLog, column: str) -> list[Member]:
    values, codes = _first_values(log, column)
    counts = np.bincount(codes, minlength=len(values)).tolist()

    def member(code: int) -> Member:
        return values[code], counts[code], lambda: log.select(codes == code)

    return _in_order([member(code) for code in range(len(values)) if counts[code]])


def _first_values(log: EpisodeLog, column: str) -> tuple[list[Value], npt.NDArray[np.int64]]:
    """The different values in the episodes' first rows, and (n,) which of them each has."""
    if column in log.source.names:
        rows = pa.array(log.steps.source_row[: log.n_episodes])
        first = pa.concat_arrays(log.source.column(column).take(rows).chunks)
        if pa.types.is_dictionary(first.type):
            first = first.cast(first.type.value_type)
    elif column in log.columns.state and log.abstraction is None:
        part = log.columns.state.index(column)
        labels = [v[part] if isinstance(v, tuple) else v for v in log.states.values]
        codes = log.steps.first_states()
        if len({type(label) for label in labels if label is not None}) > 1:
            labels = [None if label is None else str(label) for label in labels]
        first = pa.array(label_array(labels)).take(pa.array(codes, mask=codes < 0))
    else:
        names = list(dict.fromkeys([*log.source.names, *log.columns.state]))
        raise UsageError(
            f"the log has no column {column!r}{nearest(column, names)} "
            f"(columns: {', '.join(map(repr, names))})"
        )
    if pa.types.is_nested(first.type) or pa.types.is_binary(first.type):
        raise UsageError(
            f"the column {column!r} holds {first.type}: groups are by texts or numbers"
        )
    encoded = first.dictionary_encode()
    values = [_plain(value) for value in encoded.dictionary.to_pylist()]
    missing = len(values)
    codes = plain_numbers(encoded.indices.fill_null(missing)).astype(np.int64)
    nan = [k for k, value in enumerate(values) if value is None]  # NaN of a float column
    return [*values, None], np.where(np.isin(codes, nan), missing, codes)


def _plain(value: Any) -> Value:
    """A value as it stands in JSON; None for NaN."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)


def _of_scanned(log: ScannedLog, column: str) -> list[Member]:
    """The groups of a log that stays where it is: DuckDB finds them, also in files that are
    otherwise read as a stream."""
    from reweigh.sums.engines.second_scan import can_scan_again

    if not can_scan_again(log):
        raise RefusedError(
            "groups-elsewhere",
            f"the engine {log.scanner.name} does not evaluate groups: read the log of one group at "
            "a time, or use engine='duckdb' or 'arrays'",
        )
    optional_module("ibis", "sql", "evaluating groups of a log that is not in memory")
    from reweigh.sums.engines.sql import IbisEngine
    from reweigh.sums.engines.sql_connect import open_database
    from reweigh.sums.engines.sql_log import first_values

    engine: Any = log.scanner if isinstance(log.scanner, IbisEngine) else IbisEngine("duckdb")
    [horizon] = {sums.about.horizon for sums in log._by_request.values()}
    reading = replace(log.reading, horizon=horizon)
    counts: dict[Value, int] = {}
    with open_database(engine.engine, log.data, reading, {"group": column}) as home:
        for found, n in first_values(home, reading, column):
            value = None if found is None else _plain(found)
            counts[value] = n + counts.get(value, 0)

    def member(value: Value, n: int) -> Member:
        own = replace(reading, only=Slice(column, value))
        return value, n, lambda: ScannedLog(log.data, own, engine)

    return _in_order([member(value, n) for value, n in counts.items()])


def _in_order(members: list[Member]) -> list[Member]:
    """By value: numbers by size, texts by the alphabet, what is missing last."""

    def key(member: Member) -> tuple[int, float, str]:
        value = member[0]
        if value is None:
            return 2, 0.0, ""
        return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")

    return sorted(members, key=key)
