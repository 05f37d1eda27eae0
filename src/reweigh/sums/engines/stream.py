"""The streaming engine: files larger than memory, batch after batch, into sums that add up.

Three ways through the rows, tried in this order; all give the same sums:

fast      sums of transitions of simple logs, by a compiled kernel (stream_fast.py)
chunks    anything, as long as episodes stand together with their steps in order: chunks of whole
          episodes go through the code that reads logs into memory (stream_chunks.py)
loose     rows in any order, if they name their next_state (stream_loose.py)

Every break of the log's contract is collected to the end of the log and then refused at once, in
the words of the log in memory. Two things are told of a part of the log only: how many values of a
float state are distinct (of the first chunk), and what bad probabilities look like (likewise).
Without a given horizon the longest episode is it: from Parquet's statistics of the step column, or
else from a first pass over that column.

The same rows in another order, format or division into files, or read by another engine, are
noticed when moments are added (`log/identity.py`); a part of a log among the whole is not.
An episode id that comes back is noticed as long as there are fewer than 2^24 runs of ids; beyond
that, the sums say that it was not looked for (`Moments.unchecked`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from reweigh.errors import Fault, UsageError, input_error
from reweigh.log.checks import Faults
from reweigh.log.log import EpisodeLog
from reweigh.log.read import read_roles
from reweigh.log.states import describe_abstraction
from reweigh.policy.base import Policy
from reweigh.policy.cached import RememberedPolicy
from reweigh.policy.column import ColumnPolicy
from reweigh.sums.engines.arrays import ArraysEngine, ratios
from reweigh.sums.engines.base import Request
from reweigh.sums.engines.stream_chunks import Findings, RowOrderError, Visit, order_fault, scan
from reweigh.sums.engines.stream_describe import Tally
from reweigh.sums.engines.stream_ends import Tail
from reweigh.sums.engines.stream_rows import Data, Opened, RowSource
from reweigh.sums.engines.stream_sums import Parts, in_order, settle
from reweigh.sums.engines.stream_unordered import loose_sums, may_be_loose, scan_loosely
from reweigh.sums.moments import About, Moments
from reweigh.sums.numpy_scan import log_weights
from reweigh.sums.scanned_log import Reading
from reweigh.sums.sources import named
from reweigh.system.memory import require_compiled, require_steps
from reweigh.system.progress import Report

BATCH = 1 << 18  # rows


@dataclass(frozen=True, eq=False)
class StreamEngine:
    """Sums of a log that stays in its files. `report` is told the rows done and their number."""

    report: Report | None = None
    batch: int = BATCH
    fast: bool = True
    name: str = "stream"
    tells_rows: ClassVar[bool] = True

    def moments(self, data: Data, reading: Reading, target: Policy, request: Request) -> Moments:
        if request.control is not None:
            raise UsageError("shaped rewards need the log in memory: read it with engine='arrays'")
        opened, rows = self._open(data, reading, target)
        if "trajectories" in request.kinds:
            require_steps(_horizon(rows, reading), request.blocks)
        quick = self._quickly(rows, reading, target, request)
        if quick is not None:
            return quick
        parts, tail = Parts(request), Tail(rows.rows)
        about, once = what(reading, target, request, 0), RememberedPolicy(target)

        def visit(log: EpisodeLog) -> None:
            kinds = request.kinds - {"largest"} - parts.left_out.keys()
            parts.add(ArraysEngine().moments(log, once, replace(request, kinds=kinds, named=False)))
            if "largest" in request.kinds:
                tail.add(log_weights(log, ratios(log, once, request.max_ratio)[1]))

        def visit_loose(log: EpisodeLog) -> None:
            parts.add(loose_sums(log, target, request, about))

        def begin(loose: bool) -> Visit:
            parts.held.clear()
            tail.clear()
            return visit_loose if loose else visit

        horizon, found = _scanned(opened, rows, reading, request.all_kinds, begin)
        if found.target_faults:
            raise input_error(found.target_error, settle(found.target_faults, found.rows))
        sums = in_order(parts.total(), found.own)
        if tail.n:
            sums = replace(sums, largest=tail.total())
        about = what(reading, target, request, horizon)
        sums = replace(sums, about=about, unchecked=found.seen.unchecked)
        return named(sums, found.identity)

    def _quickly(
        self, rows: RowSource, reading: Reading, target: Policy, request: Request
    ) -> Moments | None:
        """The fast path, where there is one for this log."""
        if not self.fast or request.tables or importlib.util.find_spec("numba") is None:
            return None
        require_compiled()
        from reweigh.sums.engines.stream_fast import fast_sums

        horizon = _horizon(rows, reading)
        found = fast_sums(rows, reading, target, request, horizon)
        if found is None or (reading.horizon is None and found.longest != horizon):
            return None
        about = what(reading, target, request, horizon)
        return named(in_order(Moments(about=about, **found.moments), found.own), found.identity)

    def describe(self, data: Data, reading: Reading) -> dict[str, Any]:
        opened, rows = self._open(data, reading, None)
        tally = Tally(reading)

        def begin(loose: bool) -> Visit:
            tally.clear()
            return tally.add_loose if loose else tally.add

        horizon, found = _scanned(opened, rows, reading, frozenset(), begin)
        return tally.described(opened.describe(), horizon, found)

    def _open(
        self, data: Data, reading: Reading, target: Policy | None
    ) -> tuple[Opened, RowSource]:
        if not isinstance(data, Data):
            raise UsageError(
                "engine='stream' reads files and tables in memory; a table of a database is read "
                "with engine='duckdb' or 'spark://…'"
            )
        columns = reading.columns
        wanted = (target.column,) if isinstance(target, ColumnPolicy) else ()
        states = (*columns.state, *(columns.next_state or ()))
        opened = Opened(data, self.batch, wanted, states, self.report)
        read_roles(opened, columns, reading.abstraction is not None, reading.continuous_actions)  # type: ignore[arg-type]
        return opened, opened.made[0]


def _scanned(
    opened: Opened,
    rows: RowSource,
    reading: Reading,
    kinds: frozenset[str],
    begin: Callable[[bool], Visit],
) -> tuple[int, Findings]:
    """Scan in order, or loosely; refuse what breaks a rule. Returns the horizon and the findings.

    The largest step may be the fault of one row: then the longest episode without a fault is the
    horizon, as it is in memory, and the log is looked at again, so that the faults are the same.
    """
    horizon = _horizon(rows, reading)
    try:
        found = scan(opened, rows, reading, horizon, begin(False))
        if reading.horizon is None and found.longest != horizon:
            horizon = found.longest
            found = scan(opened, rows, reading, horizon, begin(False))
    except RowOrderError as error:
        why = may_be_loose(reading, kinds)
        if why:
            fault = order_fault(opened, rows, reading, error.row, why)
            raise input_error(opened.describe(), [fault]) from None
        horizon = _horizon(rows, reading)
        found = scan_loosely(opened, rows, reading, horizon, begin(True))
    _refuse(opened, settle(found.faults, found.rows))
    return horizon, found


def _horizon(rows: RowSource, reading: Reading) -> int:
    """The horizon that was given, or that the steps show (from Parquet's statistics, if any).

    No episode has more steps than the log has rows: a larger one is the fault of a row.
    """
    if reading.horizon is not None:
        require_steps(reading.horizon)
        return reading.horizon
    span = rows.range_of(reading.columns.step)
    return 1 if span is None else max(min(span[1] + 1, rows.rows), 1)


def _refuse(opened: Opened, faults: list[Fault]) -> None:
    collected = Faults(opened.place, 0)
    collected.found.extend(faults)
    collected.raise_if_any(opened.describe())


def what(reading: Reading, target: Policy, request: Request, horizon: int) -> About:
    """What the sums are of, but for the name of the log."""
    return About(
        horizon=horizon,
        discount=reading.discount,
        target=target.fingerprint(),
        target_has_steps=target.has_steps,
        abstraction=describe_abstraction(reading.abstraction),
        state_columns=reading.columns.state,
        continuous_actions=reading.continuous_actions,
        behavior="logged",
        max_ratio=request.max_ratio,
        control=request.control,
        blocks=request.blocks,
        sources=(),
    )
