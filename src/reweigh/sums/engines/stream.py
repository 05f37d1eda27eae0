"""The streaming engine: files larger than memory, batch after batch, into sums that add up.

Chunks of whole episodes become small logs (`stream_chunks.py`; of simple logs by compiled loops,
`stream_simple.py`), whose sums add up. Rows of an episode must be adjacent, with their steps in
order. Rows in another order are sorted by DuckDB first (`RowSource.sorted_by`), and the user is
warned about the time.

Every break of the log's contract is collected to the end of the log and then refused at once, in
the words of the log in memory. Two things are known of a part of the log only: how many values of a
float state are distinct (of the first chunk), and what bad probabilities look like (likewise).
Without a given horizon the longest episode is it: from Parquet's statistics of the step column, or
else from a first pass over that column.

Batches are read in a thread of their own. Each table of sums is added up by one thread, in the
order of the rows: the number of threads does not change a bit of it.

The same rows in another order, format or division into files, or read by another engine, are
noticed when moments are added (`log/steps.py`); a part of a log among the whole is not. A repeated
episode id is detected with fewer than 2^24 runs of ids; with more, the sums note that this was not
checked (`Moments.unchecked`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reweigh import kernels
from reweigh.errors import Fault, InputWarning, UsageError, input_error
from reweigh.log.abstractions import bin_notes, describe_abstraction, in_sample, sample_level
from reweigh.log.log import EpisodeLog
from reweigh.log.read import log_description, read_roles
from reweigh.log.rules import Faults
from reweigh.log.states import (
    HIDDEN,
    Label,
    Labels,
    float_rows,
    is_label,
    is_number,
    plain_label,
    texts,
)
from reweigh.policy import Policy, RememberedPolicy, columns_read, scope_of
from reweigh.sums.engines import Request, named
from reweigh.sums.engines.stream_chunks import (
    Findings,
    RowOrderError,
    Visit,
    cell_codes,
    id_texts,
    run_starts,
    scan,
    settle,
)
from reweigh.sums.engines.stream_rows import Data, Opened, RowSource
from reweigh.sums.engines.stream_sums import ChunkSums, in_order
from reweigh.sums.moments import Moments
from reweigh.sums.read import Reading, StateValues
from reweigh.system.process import Report, require_compiled, require_steps

Result = TypeVar("Result")
Sink = TypeVar("Sink", "ChunkSums", "Tally")
BATCH = 1 << 19  # rows
SORTED = (
    "the rows of an episode are not consecutive and ordered by step: DuckDB sorted the log "
    "for this scan, which takes several times as long as reading it. Sort the log once by "
    "episode and step before reading it again"
)


@dataclass(frozen=True, eq=False)
class StreamEngine:
    """Sums of a log that stays in its files.

    report   is called with the rows that are done, and their number
    fast     whether compiled loops read the rows of simple logs; without: of large ones
    threads  as many as there are processors if not given; they do not change the sums
    """

    report: Report | None = None
    batch: int = BATCH
    fast: bool | None = None
    threads: int | None = None
    name: str = "stream"
    reports_rows: ClassVar[bool] = True

    def moments(self, data: Data, reading: Reading, target: Policy, request: Request) -> Moments:
        if request.control is not None:
            raise UsageError("shaped rewards need the log in memory: read it with engine='arrays'")
        opened, rows = self._open(data, reading, target)
        if "trajectories" in request.kinds:
            require_steps(_horizon(rows, reading), request.blocks)

        def sums(rows: RowSource) -> Moments:
            return self._sums(opened, rows, reading, target, request)

        return _in_order(rows, reading, sums)

    def _sums(
        self, opened: Opened, rows: RowSource, reading: Reading, target: Policy, request: Request
    ) -> Moments:
        """The sums of chunks of whole episodes, added up."""
        once = RememberedPolicy(target)
        actions = None
        if request.policy and scope_of(target) == "row" and not reading.continuous_actions:
            actions = _actions(rows, reading.columns.action)
        parts, horizon, found = self._scanned(
            opened, rows, reading,
            lambda shared: ChunkSums(request, once, rows.rows, shared, rows.threads, actions),
        )  # fmt: skip
        if found.target_faults:
            raise input_error(found.target_error, settle(found.target_faults, found.rows))
        sums = in_order(parts.total(), found)
        about = reading.about(target, request, horizon)
        return named(replace(sums, about=about, unchecked=found.seen.unchecked), parts.identity)

    def _scanned(
        self, opened: Opened, rows: RowSource, reading: Reading, begin: Callable[[bool], Sink]
    ) -> tuple[Sink, int, Findings]:
        """Scan the log into what `begin` makes; refuse what breaks a rule. Also the horizon, and
        the result of the checks.

        The largest step may be the fault of one row: then the longest episode without a fault is
        the horizon, as it is in memory, and the log is checked again, so the faults are the same.
        """
        horizon, sinks = _horizon(rows, reading), [begin(False)]

        def visit(same_codes: bool) -> Visit:
            sinks[:] = [begin(same_codes)]
            return sinks[0].add

        found = scan(opened, rows, reading, horizon, visit, self.reads_fast(rows))
        if reading.horizon is None and found.longest != horizon:
            horizon = found.longest
            found = scan(opened, rows, reading, horizon, visit, self.reads_fast(rows))
        _refuse(opened, settle(found.faults, found.rows))
        return sinks[0], horizon, found

    def reads_fast(self, rows: RowSource) -> bool:
        """Whether compiled loops read the rows, of a log that is simple."""
        fast = rows.rows >= kernels.COMPILED_FROM if self.fast is None else self.fast
        if fast and kernels.HAS_NUMBA:
            require_compiled()
            return True
        kernels.advise_numba(rows.rows)
        return False

    def describe(self, data: Data, reading: Reading) -> dict[str, Any]:
        opened, rows = self._open(data, reading, None)

        def described(rows: RowSource) -> dict[str, Any]:
            tally, horizon, found = self._scanned(opened, rows, reading, lambda _: Tally(reading))
            return tally.described(opened.describe(), horizon, found)

        return _in_order(rows, reading, described)

    def state_values(self, data: Data, reading: Reading) -> StateValues:
        """The numbers of the state columns from which quantiles are taken."""
        _, rows = self._open(data, reading, None)
        level, names = sample_level(rows.rows), reading.columns.state
        kinds = [rows.schema.field(name).type for name in names]
        parts: list[list[np.ndarray[Any, Any]]] = [[] for _ in names]
        for table in rows.batches([reading.columns.episode, *names]):
            if level:
                ids = table.column(reading.columns.episode)
                _, first, place = np.unique(cell_codes(ids), return_index=True, return_inverse=True)
                held = in_sample(id_texts(ids, first), level)[place]
                table = table.filter(pa.array(held))
            for part, name, kind in zip(parts, names, kinds, strict=True):
                if is_number(kind):
                    part.append(float_rows(table.column(name).chunks, table.num_rows)[0])
        values = [np.concatenate(part) if part else None for part in parts]
        return kinds, values, level

    def _open(
        self, data: Data, reading: Reading, target: Policy | None
    ) -> tuple[Opened, RowSource]:
        if not isinstance(data, Data):
            raise UsageError(
                "engine='stream' reads files and tables in memory; read a table of a "
                "database with engine='duckdb' or 'spark://…'"
            )
        columns = reading.columns
        wanted = () if target is None else columns_read(target)
        states = (*columns.state, *(columns.next_state or ()))
        threads = self.threads or os.cpu_count() or 1
        opened = Opened(data, self.batch, wanted, states, self.report, threads, time=columns.time)
        read_roles(opened, columns, reading.abstraction, reading.continuous_actions)  # type: ignore[arg-type]
        return opened, opened.row_sources[0]


def _in_order(rows: RowSource, reading: Reading, run: Callable[[RowSource], Result]) -> Result:
    """The result of `run` on the rows, which are sorted if the rows of an episode are not
    adjacent."""
    try:
        return run(rows)
    except RowOrderError:
        warnings.warn(InputWarning(SORTED), stacklevel=4)
        return run(rows.sorted_by(*reading.columns.order))


def _actions(rows: RowSource, name: str) -> Labels | None:
    """All actions of the log, which a policy that sees more than the state must give in every
    row; None where the column holds no labels, which is refused later."""
    if not is_label(rows.schema.field(name).type):
        return None
    found: set[Label] = set()
    for table in rows.batches([name]):
        cells = pc.unique(texts(table.column(name))).to_pylist()
        found.update(plain_label(cell) for cell in cells if cell is not None)
    return Labels(tuple(sorted(found)))  # type: ignore[type-var]


def _horizon(rows: RowSource, reading: Reading) -> int:
    """The horizon that was given, or that the steps show (from Parquet's statistics, if any).

    No episode has more steps than the log has rows: a larger one is the fault of a row.
    """
    if reading.horizon is not None:
        require_steps(reading.horizon)
        return reading.horizon
    name = reading.columns.step
    if name is None:
        return 1 if reading.columns.bandit else _longest_run(rows, reading.columns.episode)
    span = rows.range_of(name)
    return 1 if span is None else max(min(span[1] + 1, rows.rows), 1)


def _longest_run(rows: RowSource, name: str) -> int:
    """Rows with the same id that follow each other: the longest episode, where episodes stand
    together. The scan finds it where they do not."""
    longest, held, last = 1, 0, None
    for table in rows.batches([name]):
        ids = table.column(name)
        keys = cell_codes(ids)
        lengths = np.diff(np.append(run_starts(keys), len(keys)))
        lengths[0] += held if ids[0].as_py() == last else 0
        longest = max(longest, int(lengths.max()))
        held, last = int(lengths[-1]), ids[-1].as_py()
    return longest


def _refuse(opened: Opened, faults: list[Fault]) -> None:
    collected = Faults(opened.place, 0)
    collected.faults.extend(faults)
    collected.raise_if_any(opened.describe())


class Tally:
    """Counts of the chunks of a log, under the names of `EpisodeLog.describe`."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.episodes = self.rows = self.hidden = self.ended_early = self.truncated = 0
        self.discounted = 0.0
        self.reward, self.behavior = [np.inf, -np.inf], [np.inf, -np.inf]

    def add(self, log: EpisodeLog) -> None:
        steps = log.steps
        short = steps.lengths < log.horizon
        self.episodes += log.n_episodes
        self.truncated += log.n_truncated
        self.ended_early += int(np.sum(short & ~steps.truncated))
        self.rows += steps.n_rows
        self.hidden += int(np.sum(steps.state == HIDDEN))
        self.discounted += float(np.dot(steps.reward, log.discount ** steps.step.astype(float)))
        for ends, values in ((self.reward, steps.reward), (self.behavior, steps.behavior_prob)):
            if values is not None and len(values):
                ends[:] = min(ends[0], float(values.min())), max(ends[1], float(values.max()))

    def described(self, source: str, horizon: int, found: Findings) -> dict[str, Any]:
        reading = self.reading
        actions = Labels(tuple(sorted(found.actions)))  # type: ignore[type-var]
        about = log_description(
            source,
            reading.columns,
            describe_abstraction(reading.abstraction),
            Labels(tuple(found.ordered_labels())),
            None if reading.continuous_actions else actions,
            visited=len(found.own),
            horizon=horizon,
            discount=reading.discount,
            episodes=self.episodes,
            rows=self.rows,
            hidden_rows=self.hidden,
            terminated_early=self.ended_early,
            truncated=self.truncated,
            reward_range=self.reward,
            behavior_range=None if reading.columns.behavior_prob is None else self.behavior,
            total_return=self.discounted,
            beyond=found.rows - self.rows,
        )
        bins = bin_notes(reading.abstraction, reading.columns.state)
        return about | {"notes": [*bins, *about["notes"], *found.seen.unchecked]}
