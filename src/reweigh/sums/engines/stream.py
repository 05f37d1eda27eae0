"""The streaming engine: files larger than memory, batch after batch, into sums that add up.

Chunks of whole episodes become small logs (`stream_chunks.py`; of simple logs by compiled loops,
`stream_simple.py`), whose sums add up. Episodes must stand together, with their steps in order.
Rows in another order are sorted by DuckDB first (`RowSource.sorted_by`), and the user is warned
that this took its time.

Every break of the log's contract is collected to the end of the log and then refused at once, in
the words of the log in memory. Two things are known of a part of the log only: how many values of a
float state are distinct (of the first chunk), and what bad probabilities look like (likewise).
Without a given horizon the longest episode is it: from Parquet's statistics of the step column, or
else from a first pass over that column.

Batches are read in a thread of their own. Each table of sums is added up by one thread, in the
order of the rows: the number of threads does not change a bit of it.

The same rows in another order, format or division into files, or read by another engine, are
noticed when moments are added (`log/steps.py`); a part of a log among the whole is not.
An episode id that comes back is noticed as long as there are fewer than 2^24 runs of ids; beyond
that, the sums say that it was not looked for (`Moments.unchecked`).
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from reweigh import kernels
from reweigh.errors import Fault, InputWarning, UsageError, input_error
from reweigh.log.abstractions import describe_abstraction
from reweigh.log.log import SHOWN_LABELS, EpisodeLog
from reweigh.log.read import read_roles
from reweigh.log.rules import Faults
from reweigh.log.states import HIDDEN
from reweigh.policy import ColumnPolicy, Policy, RememberedPolicy
from reweigh.sums.engines import Request, named
from reweigh.sums.engines.stream_chunks import (
    Findings,
    RowOrderError,
    Visit,
    scan,
    settle,
)
from reweigh.sums.engines.stream_rows import Data, Opened, RowSource
from reweigh.sums.engines.stream_sums import ChunkSums, in_order
from reweigh.sums.moments import About, Moments
from reweigh.sums.read import Reading
from reweigh.system.process import Report, require_compiled, require_steps

Result = TypeVar("Result")
Sink = TypeVar("Sink", "ChunkSums", "Tally")
BATCH = 1 << 19  # rows
SORTED = (
    "the rows of an episode do not stand together in the order of their steps: DuckDB sorted the "
    "log for this scan, which takes several times as long as reading it. Sort it once by episode "
    "and step if it is read again"
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
    tells_rows: ClassVar[bool] = True

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
        parts, horizon, found = self._scanned(
            opened, rows, reading, lambda shared: ChunkSums(request, once, rows.rows, shared)
        )
        if found.target_faults:
            raise input_error(found.target_error, settle(found.target_faults, found.rows))
        sums = in_order(parts.total(), found)
        about = what(reading, target, request, horizon)
        return named(replace(sums, about=about, unchecked=found.seen.unchecked), parts.identity)

    def _scanned(
        self, opened: Opened, rows: RowSource, reading: Reading, begin: Callable[[bool], Sink]
    ) -> tuple[Sink, int, Findings]:
        """Scan the log into what `begin` makes; refuse what breaks a rule. Also the horizon, and
        what was found.

        The largest step may be the fault of one row: then the longest episode without a fault is
        the horizon, as it is in memory, and the log is looked at again, so that the faults are the
        same.
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
        if fast and importlib.util.find_spec("numba") is not None:
            require_compiled()
            return True
        return False

    def describe(self, data: Data, reading: Reading) -> dict[str, Any]:
        opened, rows = self._open(data, reading, None)

        def described(rows: RowSource) -> dict[str, Any]:
            tally, horizon, found = self._scanned(opened, rows, reading, lambda _: Tally(reading))
            return tally.described(opened.describe(), horizon, found)

        return _in_order(rows, reading, described)

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
        threads = self.threads or os.cpu_count() or 1
        opened = Opened(data, self.batch, wanted, states, self.report, threads)
        read_roles(opened, columns, reading.abstraction is not None, reading.continuous_actions)  # type: ignore[arg-type]
        return opened, opened.made[0]


def _in_order(rows: RowSource, reading: Reading, run: Callable[[RowSource], Result]) -> Result:
    """What `run` makes of the rows, which are sorted where their episodes do not stand together."""
    try:
        return run(rows)
    except RowOrderError:
        warnings.warn(InputWarning(SORTED), stacklevel=4)
        return run(rows.sorted_by(reading.columns.episode, reading.columns.step))


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
        states = found.ordered_labels()
        actions = sorted(found.actions)  # type: ignore[type-var]
        discrete = not reading.continuous_actions
        notes = []
        if found.rows > self.rows:
            later = found.rows - self.rows
            notes.append(f"cut at the horizon {horizon}: {later:,} later rows are not used")
        if 2 * len(found.own) > self.rows:
            notes.append(
                f"{len(found.own):,} states for {self.rows:,} rows: most are seen once; "
                "bin them (abstraction=Rounding or Grid)"
            )
        if self.truncated:
            ending = "s" if self.truncated != 1 else ""
            notes.append(
                f"mean_return counts only what was logged of the {self.truncated:,} cut-off "
                f"episode{ending}"
            )
        notes += found.seen.unchecked
        logged = reading.columns.behavior_prob is not None
        return {
            "source": source,
            "episodes": self.episodes,
            "rows": self.rows,
            "horizon": horizon,
            "discount": reading.discount,
            "states": len(states),
            "state_examples": [str(label) for label in states[:SHOWN_LABELS]],
            "state_columns": list(reading.columns.state),
            "abstraction": describe_abstraction(reading.abstraction),
            "actions": len(actions) if discrete else None,
            "action_examples": [str(a) for a in actions[:SHOWN_LABELS]] if discrete else None,
            "continuous_actions": reading.continuous_actions,
            "hidden_rows": self.hidden,
            "terminated_early": self.ended_early,
            "truncated": self.truncated,
            "reward_range": self.reward,
            "behavior_prob_range": self.behavior if logged else None,
            "behavior_prob_from": "logged" if logged else None,
            "mean_return": self.discounted / self.episodes,
            "notes": notes,
        }
