"""The engine for everything that can group: the same sums as Ibis expressions.

Rows stay in DuckDB, Spark or a warehouse; only aggregated tables come back. A log is first looked
over (`sql_log.py`, `sql_checks.py`), its rows are coded and put into order, and then one expression
per declared table is run (`sql_tables.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import ibis
import numpy as np
import pyarrow as pa

from reweigh.errors import InputError, UsageError
from reweigh.kernels import group_by
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import HIDDEN, START, UNKNOWN, Labels
from reweigh.policy import Policy
from reweigh.policy.rule import RulePolicy
from reweigh.policy.table import TablePolicy
from reweigh.sums import diagnostic_tables as diagnostic
from reweigh.sums.diagnostic_tables import (
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
)
from reweigh.sums.engines import SPARE_CELLS, Request, named, sql_tables
from reweigh.sums.engines.sql_checks import CHECKS
from reweigh.sums.engines.sql_connect import Database, open_database
from reweigh.sums.engines.sql_log import (
    UNLISTED,
    Facts,
    Log,
    check_column,
    first_pass,
    open_log,
    policy_columns,
    refuse_broken,
    refuse_unknown_states,
    state_values,
)
from reweigh.sums.engines.sql_rules import check_branches, policy_sums, with_branches, with_rule
from reweigh.sums.engines.sql_tables import floats, ints, read_products, starts_of
from reweigh.sums.keyed import (
    ACTION_KEYS,
    NO_ACTION,
    STATE_KEYS,
    DeclaredSums,
    StartMoments,
    TransitionMoments,
    keys_with_block,
)
from reweigh.sums.moments import Moments
from reweigh.sums.read import Reading, StateValues
from reweigh.sums.tables import BUILT_IN, CHOICES, Table
from reweigh.system.process import Report, each, require_steps, watching

ROWS = "reweigh_rows"  # the coded rows, where a database holds tables
HELD_STATES = "reweigh_held"  # the (t, s) whose cells by history are stored
CELLS = ("model", "transitions", "choices")
Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class IbisEngine:
    """Sums of a log in DuckDB, Spark, or wherever an Ibis table is. It implements `Scanner`.

    `engine` is "duckdb", a Spark master ("local[2]", "spark://host:port"), a Spark Connect server
    ("sc://host:port"), or None for an Ibis table, which has its own backend.
    """

    engine: str | None
    report: Report | None = None  # gets the rows that a round of queries has read, and their total

    @property
    def name(self) -> str:
        return "ibis" if self.engine is None else self.engine

    @property
    def reports_rows(self) -> bool:
        """Whether a query reports its progress; others only report that they are done."""
        return self.engine == "duckdb"

    def moments(self, data: Any, reading: Reading, target: Policy, request: Request) -> Moments:
        with open_database(self.engine, data, reading, policy_columns(target)) as db:

            def sums() -> Moments:
                query = self._query(db, reading, target, request)
                with self._counted(query.facts.rows + query.facts.beyond, len(query.expressions)):
                    return query.sums()

            return self._naming_rows(db, data, reading, sums, target)

    def state_values(self, data: Any, reading: Reading) -> StateValues:
        with open_database(self.engine, data, reading, {}) as db:
            return state_values(db, reading)

    def sql(self, data: Any, reading: Reading, target: Policy, request: Request) -> str:
        """The queries that make the sums of the request, as they are sent."""
        with open_database(self.engine, data, reading, policy_columns(target)) as db:

            def text() -> str:
                query = self._query(db, reading, target, request)
                query.check(query.rows)
                return query.text

            return self._naming_rows(db, data, reading, text)

    def describe(self, data: Any, reading: Reading) -> dict[str, Any]:
        """What the log is, as plain values."""
        with open_database(self.engine, data, reading, {}) as db:

            def facts() -> Facts:
                log, facts = self._scan(db, reading, {})
                rows = sql_tables.coded(db, log, facts, False)
                rows = sql_tables.in_order(rows, reading, facts.horizon, 1, db.dialect, ())
                refuse_broken(db, log, reading, rows)
                return facts

            return self._naming_rows(db, data, reading, facts).describe(db.source, reading)

    def _scan(self, db: Database, reading: Reading, policy: Mapping[str, str]) -> tuple[Log, Facts]:
        """The rows of a log that keeps the contract, and what the log is."""
        log = open_log(db, reading, policy)
        with self._counted(db.rows, CHECKS):
            facts = first_pass(db, log, reading)
        require_steps(facts.horizon)
        return log, facts

    def _query(self, db: Database, reading: Reading, target: Policy, request: Request) -> Query:
        """The queries of the request on a log and a target that keep the contract."""
        if isinstance(target, RulePolicy):
            target.refuse_columns(db.names, reading.columns)
        log, facts = self._scan(db, reading, policy_columns(target))
        if isinstance(target, RulePolicy):
            target.refuse_unknown_actions(facts.actions)
            log = with_branches(log, target)
        if "trajectories" in request.kinds:
            require_steps(facts.horizon, request.blocks)
        return Query(db, log, reading, target, request, facts)

    def _counted(self, rows: int | None, queries: int) -> AbstractContextManager[None]:
        """Report the queries inside to `report`; each reads all rows."""
        if self.report is None or rows is None:
            return nullcontext()
        report, total = self.report, rows * queries
        return watching(lambda _, share: report(round(share * total), total))

    def _naming_rows(
        self,
        db: Database,
        data: Any,
        reading: Reading,
        work: Callable[[], Answer],
        target: Policy | None = None,
    ) -> Answer:
        """The result of `work`. If it refuses the log: rows have no numbers in SQL, so a log in
        this process is read once more as a stream, which names them."""
        try:
            return work()
        except InputError as error:
            if not any(fault.places for fault in error.faults):
                raise
            if self.engine == "duckdb" and isinstance(data, TableSource | FileSource):
                from reweigh.sums.engines.sql_rows import with_rows

                raise with_rows(error, data, reading, target) from error
            note = f"the rows of the {db.source} have no numbers: find them by episode and step"
            raise InputError(f"{error}\n  {note}", error.faults) from error


# ---- the queries -----------------------------------------------------------------------------


@dataclass(eq=False)
class Query:
    """One expression per table of sums, over coded rows. Where a database holds
    tables, the rows are sorted once and the other queries read the result.

    Tables that follow from another one are not queried: cells without the action from those with
    it, where no state is hidden, and first states from cells. For kinds that are too large,
    `left_out` has the reason.
    """

    db: Database
    log: Log
    reading: Reading
    target: Policy
    request: Request
    facts: Facts
    left_out: dict[str, str] = field(default_factory=dict)
    expressions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        facts, request, reading, db = self.facts, self.request, self.reading, self.db
        if "behavior_prob" not in self.log.layout:
            raise UsageError(
                "the log has no behavior probabilities; name their column with behavior_prob=…, "
                "or estimate them: read the log with engine='arrays' and use fit_behavior(log)"
            )
        long = diagnostic.too_long(facts.horizon)
        self.left_out = {kind: why for kind, why in long.items() if kind in request.kinds}
        self.kinds = set(request.kinds - self.left_out.keys() - {"choices"})
        actions = 1 if facts.actions is None else len(facts.actions)
        if min(facts.rows, facts.horizon * actions * len(facts.states) ** 2) > SPARE_CELLS:
            self.left_out |= request.left_out()
            self.kinds -= request.spare
            self.kinds |= {"choices"} if "model" in request.spare else set()
        self.tables = self._tables()
        products = "trajectories" in self.kinds and not facts.truncated
        names = {name for table in self.tables for name in (*table.keys, *table.names_used)}
        if products or any(map(sql_tables.multiplies, self.tables)):
            names |= {"cum", "zeros", "final"}
        if "observed_before" in names:
            names.add("s_before")
        self.by_branch = (
            request.policy and "model" in self.kinds and isinstance(self.target, RulePolicy)
        )
        names |= {"branch"} if self.by_branch else set()
        with_id = "bucket" in names and facts.ids is not None
        names |= {"id"} if with_id else set()
        rows = sql_tables.coded(db, self.log, facts, with_id)
        if isinstance(self.target, RulePolicy):
            rows = with_rule(db, rows, self.target, facts)
        else:
            rows = sql_tables.with_target(db, rows, self.target, facts)
        if "cum" in names:
            rows = sql_tables.with_ratio(rows, request.max_ratio)
        rows = sql_tables.in_order(rows, reading, facts.horizon, request.blocks, db.dialect, names)
        self.rows = rows
        if db.holds:
            self.expressions["rows"] = rows
            rows = ibis.table(rows.schema(), name=ROWS)
        self.source = sql_tables.completed(rows, request.max_ratio, with_id)
        self._add_expressions(products)

    def _tables(self) -> list[Table]:
        """The declarations that are summed by their keys."""
        kinds, facts = self.kinds, self.facts
        cells = [BUILT_IN["model"]] if "model" in kinds else []
        if kinds & {"transitions", "lagged"} and ("model" not in kinds or facts.hidden_rows):
            one_step = BUILT_IN["transitions"]
            cells.append(one_step if facts.hidden_rows else replace(one_step, rows="row"))
        if not cells:
            cells.append(BUILT_IN["start"])
        further = [CHOICES, BUILT_IN["lagged"]]
        if not facts.truncated:  # where an episode was cut off, its return is not known
            further.append(BUILT_IN["ordered"])
            further += [] if facts.ids is None else [BUILT_IN["paced"]]
        further = [table for table in further if table.name in kinds]
        return [*cells, *further, *self.request.tables]

    def _add_expressions(self, products: bool) -> None:
        source, gamma = self.source, self.reading.discount
        cells = [table for table in self.tables if table.name in (*CELLS, "start")]
        self.expressions |= {table.name: self._sums_of(table) for table in cells}
        if products:  # those of cut-off episodes mean nothing
            self.expressions["steps"] = sql_tables.step_products(source, self.facts.horizon)
            self.expressions["episodes"] = sql_tables.episode_products(source, gamma)
        if self.by_branch:
            keys = [source[key] for key in ("block", "t", "s", "branch")]
            self.expressions["policy"] = source.group_by(keys).aggregate(n=source.count())
        further = [table for table in self.tables if table not in cells]
        self.expressions |= {table.name: self._sums_of(table) for table in further}
        if "largest" in self.kinds:
            self.expressions["largest"] = sql_tables.largest(source, self.facts.episodes, gamma)

    def _sums_of(self, table: Table, t: Any = (), s: Any = ()) -> Any:
        """`t`, `s`: the (t, s) whose cells by history are summed."""
        source, of = self.source, (self.reading.discount, self.facts.horizon)
        keys = keys_with_block(table) if table in self.request.tables else table.keys
        if table is not BUILT_IN["lagged"]:
            shift = 0 if self.facts.ids is None else self._shift(table.name)
            return sql_tables.aggregate(source, table, keys, *of, shift)
        # and of -1, which is none: Spark takes no empty table
        columns = {"ht": np.append(t, -1).astype(np.int32), "hs": np.append(s, -1).astype(np.int32)}
        held = self.db.put(HELD_STATES, pa.table(columns))
        chosen = source.semi_join(held, [source["t"] == held["ht"], source["s"] == held["hs"]])
        return sql_tables.aggregate(chosen, table, keys, *of).limit(diagnostic.MOST_LAGGED + 1)

    def _shift(self, kind: str) -> int:
        """That of the buckets of ids."""
        record = PacedMoments if kind == "paced" else OrderedMoments
        return diagnostic.UNORDERED if self.facts.ids is None else record.shift_of(*self.facts.ids)

    @cached_property
    def queries(self) -> dict[str, str]:
        """The SQL of every table of sums, and of the coded rows where a database holds them."""
        queries = {name: self.db.sql(e) for name, e in self.expressions.items()}
        if "rows" in queries:
            queries["rows"] = f"CREATE OR REPLACE TEMP TABLE {ROWS} AS\n{queries['rows']}"
        return queries

    @property
    def text(self) -> str:
        """All queries as one text, in which each is named."""
        return "\n\n".join(f"-- {name}\n{query};" for name, query in self.queries.items())

    def check(self, rows: Any) -> None:
        """Refuse a log whose coded and ordered rows break a rule that spans rows, and a target that
        the log cannot evaluate."""
        db, log, reading, facts = self.db, self.log, self.reading, self.facts
        refuse_broken(db, log, reading, rows)
        if "policy" in log.layout:
            check_column(db, log, reading, facts.horizon)
        if isinstance(self.target, RulePolicy):
            check_branches(db, log, self.target, facts.horizon)
        elif isinstance(self.target, TablePolicy):
            refuse_unknown_states(db, rows, reading, self.target, facts)

    # ---- the results -----------------------------------------------------------------------

    def sums(self) -> Moments:
        """Run the queries, and make moments of their results."""
        answers: dict[str, Any] = {}

        def run(name: str) -> None:
            if name == "lagged":
                answers[name] = self._lagged(answers)
            else:
                answers[name] = self.db.run(self.expressions[name], self.queries[name])
            if name == "rows":
                self.check(self.source)

        if "rows" not in self.queries:
            self.check(self.source)
        each("queries", sorted(self.queries, key=lambda name: name != "rows"), run)
        facts, request, known = self.facts, self.request, self.facts.states
        sums = Moments(
            about=self.reading.about(self.target, request, facts.horizon),
            # the hidden state is a separate state in the model's cells
            states=Labels((*known.values, None)) if facts.hidden_rows else known,
            actions=facts.actions,
            truncated=facts.truncated,
            rewards=facts.reward_range,
            hidden=facts.hidden_rows > 0,
            left_out=self.left_out,
            sql=self.text,
            tables={
                table.name: DeclaredSums(table, self._arrays(answers, table)).summed()
                for table in request.tables
            },
            **self._parts(answers),
        )
        return named(sums, facts.identity)

    def _parts(self, answers: dict[str, Any]) -> dict[str, Any]:
        """The package's own tables by their names in `Moments`."""
        kinds, facts = self.kinds, self.facts
        parts: dict[str, Any] = {}
        cells: dict[str, TransitionMoments] = {}
        for table in [table for table in self.tables if table.name in CELLS]:
            arrays = self._arrays(answers, table)
            arrays.setdefault("a", np.full(len(arrays["n"]), NO_ACTION))
            arrays.setdefault("t_next", arrays["t"] + 1)
            arrays.setdefault("s_next", np.full(len(arrays["n"]), UNKNOWN))
            cells[table.name] = TransitionMoments(**arrays).summed()
        if "model" in cells:
            parts["start_model"] = parts["start"] = starts_of(cells["model"])
            if facts.hidden_rows:
                s = parts["start"].s
                s = np.where(s == len(facts.states), START, s)
                parts["start"] = replace(parts["start"], s=s).summed()
            if "transitions" not in cells:
                cells["transitions"] = cells["model"].forget("a")
        elif "transitions" in cells:
            parts["start"] = starts_of(cells["transitions"])
        else:
            parts["start"] = StartMoments(**self._arrays(answers, BUILT_IN["start"])).summed()
        parts |= {name: table for name, table in cells.items() if name in kinds}
        if "policy" in answers:
            assert isinstance(self.target, RulePolicy)
            parts["policy"] = policy_sums(answers["policy"], self.target, facts)
        if "steps" in answers:
            parts["trajectories"] = read_products(
                answers["steps"], answers["episodes"], facts.horizon
            )
        if "lagged" in answers:
            parts["lagged"] = answers["lagged"]
        for record in (OrderedMoments, PacedMoments):
            name = record.TABLE.name
            if name in answers:
                arrays = self._arrays(answers, record.TABLE)
                parts[name] = record(shift=self._shift(name), **arrays).summed()
        if "largest" in answers:
            log_w = LargestWeights.even(floats(answers["largest"], "log_w"))
            falling = np.sort(log_w)[::-1].copy()
            parts["largest"] = LargestWeights(falling, -math.inf, facts.episodes).trimmed()
        return parts

    def _lagged(self, answers: dict[str, Any]) -> LaggedMoments:
        """The cells by history of as many (t, s) as `thinned` would keep: a few of them first, then
        twice as many while their cells fit. The start follows from the rows of (t, s) and the
        largest number of cells of one."""
        facts, table = self.facts, BUILT_IN["lagged"]
        cells = answers["model"] if "model" in answers else answers["transitions"]
        t, s = ints(cells, "t"), ints(cells, "s")
        some = (t > 0) & (s >= 0)
        groups = group_by([t[some], s[some]])
        t, s = groups.keys
        place = diagnostic.places_of(facts.states, s, t)
        states, actions = len(facts.states), 1 if facts.actions is None else len(facts.actions)
        most = np.minimum(groups.sum(ints(cells, "n")[some]), states * actions * (states + 2))
        level, cells_by_history = 0, None
        while most[place < 2 ** (diagnostic.BITS - level)].sum() > diagnostic.MOST_LAGGED:
            level += 1
        while level >= 0:
            held = place < 2 ** (diagnostic.BITS - level)
            answer = self.db.run(self._sums_of(table, t[held], s[held]), self.queries["lagged"])
            if cells_by_history is not None and answer.num_rows > diagnostic.MOST_LAGGED:
                break
            arrays = self._arrays({"lagged": answer}, table)
            cells_by_history = LaggedMoments(**arrays, level=level).summed()
            level -= 1
        assert cells_by_history is not None
        return cells_by_history

    def _arrays(self, answers: dict[str, Any], table: Table) -> dict[str, Any]:
        """Keys, n and sums of a table. A hidden state has the code of a separate state, or a
        special one."""
        answer, arrays = answers[table.name], {}
        as_state = len(self.facts.states) if self.facts.hidden_rows else HIDDEN
        special = {"s": START, "s_next": UNKNOWN, "s_before": HIDDEN}
        codes = special if table.hidden == "special" else dict.fromkeys(special, as_state)
        for key in keys_with_block(table) if table in self.request.tables else table.keys:
            arrays[key] = ints(answer, key)
            if np.any(arrays[key] == UNLISTED) and key in (*STATE_KEYS, *ACTION_KEYS):
                raise InputError(
                    f"{self.db.source}: the log contains a state or action in one query "
                    "and not in another: it changed in between, or its statistics contradict "
                    "its rows; export it again"
                )
            if key in STATE_KEYS:
                arrays[key] = np.where(arrays[key] == HIDDEN, codes[key], arrays[key])
        if "bucket" in arrays and self.facts.ids is not None:
            arrays["bucket"] = arrays["bucket"] >> self._shift(table.name)
        sums = {name: floats(answer, name) for name in table.columns}
        return arrays | {"n": ints(answer, "n")} | sums
