"""The engine for everything that can group: the same sums as Ibis expressions.

Rows stay in DuckDB, Spark or a warehouse; only aggregated tables come back. A log is first looked
over (faults, horizon, labels), then one expression per kind of sums is run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from reweigh.errors import InputError, UsageError
from reweigh.log.states import HIDDEN, START, Labels, describe_abstraction
from reweigh.policy.base import ColumnPolicy, Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.diagnostic_tables import (
    MOST_FETCHED,
    UNORDERED,
    LaggedMoments,
    OrderedMoments,
    PacedMoments,
    bounded,
    too_long,
    too_many,
)
from reweigh.sums.engines.base import SPARE_CELLS, Request, named
from reweigh.sums.engines.ibis_coded_rows import coded, completed, in_sequence, with_ratio
from reweigh.sums.engines.ibis_connect import Home, TextHome, open_home
from reweigh.sums.engines.ibis_faults import naming_rows
from reweigh.sums.engines.ibis_rows import Layout
from reweigh.sums.engines.ibis_scan import CHECKS, Facts, Log, look, open_log
from reweigh.sums.engines.ibis_tables import (
    Ids,
    UnlistedLabelError,
    aggregate,
    columns_of,
    episode_products,
    largest,
    read_largest,
    read_products,
    step_products,
)
from reweigh.sums.engines.ibis_target import (
    check_column,
    policy_column,
    refuse_unknown_states,
    with_target,
)
from reweigh.sums.keyed import NO_ACTION, DeclaredSums, own_keys
from reweigh.sums.moments import About, Moments
from reweigh.sums.read import Reading
from reweigh.sums.tables import BUILT_IN, Table
from reweigh.sums.transitions import StartMoments, TransitionMoments
from reweigh.system.process import Report, each, require_steps, watching

CELLS_FIRST = ("rows", "model", "transitions", "start", "steps", "episodes")
HELD = "reweigh_rows"  # the coded rows, where a home holds tables
SHOWN_LABELS = 5


@dataclass(frozen=True, eq=False)
class IbisEngine:
    """Sums of a log in DuckDB, Spark, or wherever an Ibis table is. It implements `Scanner`.

    `engine` is "duckdb", a Spark master ("local[2]", "spark://host:port"), a Spark Connect server
    ("sc://host:port"), or None for an Ibis table, which knows its own backend.
    """

    engine: str | None
    report: Report | None = None  # is told the rows that a round of queries has read, of how many

    @property
    def name(self) -> str:
        return "ibis" if self.engine is None else self.engine

    @property
    def tells_rows(self) -> bool:
        """Whether a query says how far it is; of others is only known that they are done."""
        return self.engine == "duckdb"

    def moments(self, data: Any, reading: Reading, target: Policy, request: Request) -> Moments:
        with open_home(self.engine, data, reading, policy_column(target)) as home:
            return naming_rows(home, lambda: self._moments(home, reading, target, request))

    def _moments(self, home: Home, reading: Reading, target: Policy, request: Request) -> Moments:
        log, facts = self._scan(home, reading, policy_column(target))
        if "trajectories" in request.kinds:
            require_steps(facts.horizon, request.blocks)
        request, left_out = _affordable(request, facts)
        _refuse_without_behavior(log.layout)
        if isinstance(target, ColumnPolicy):
            checked = log.checked.filter(log.checked["t"] < facts.horizon)
            check_column(home, checked, log.layout, reading, target)
        rows, expressions = _expressions(home, log, reading, target, request, facts)
        if isinstance(target, TablePolicy):
            refuse_unknown_states(home, rows, log.layout, target, facts)
        queries = _queries(home, expressions)

        def answer(name: str) -> pa.Table | None:
            if name == "lagged" and home.holds and _too_many_lagged(home, facts):
                return None
            return home.run(expressions[name], queries[name])

        with self._counted(facts.rows + facts.beyond, len(expressions)):
            answers = each("queries", list(queries), answer)
        tables = {n: part for n, part in zip(queries, answers, strict=True) if part is not None}
        if "lagged" in queries.keys() - tables.keys():
            left_out |= {"lagged": too_many()}
        try:
            sums = _sums(tables, reading, target, request, facts)
        except UnlistedLabelError as error:
            raise InputError(f"{home.describe()}: {error}") from error
        return replace(sums, left_out=sums.left_out | left_out, sql=_written(queries))

    def sql(self, data: Any, reading: Reading, target: Policy, request: Request) -> str:
        """The queries that make the sums of the request, as they are sent."""
        column = policy_column(target)
        with open_home(self.engine, data, reading, column) as home:
            log, facts = naming_rows(home, lambda: self._scan(home, reading, column))
            request, _ = _affordable(request, facts)
            _, expressions = _expressions(home, log, reading, target, request, facts)
            return _written(_queries(home, expressions))

    def describe(self, data: Any, reading: Reading) -> dict[str, Any]:
        """What the log is, as plain values."""
        with open_home(self.engine, data, reading, None) as home:
            _, facts = naming_rows(home, lambda: self._scan(home, reading, None))
            source = home.describe()
        return _described(source, reading, facts)

    def _scan(self, home: Home, reading: Reading, column: str | None) -> tuple[Log, Facts]:
        """The rows of a log that keeps the contract, and what the log is."""
        log = open_log(home, reading, column)
        with self._counted(home.rows, CHECKS):
            facts = look(home, log.checked, log.layout, reading)
        require_steps(facts.horizon)
        return log, facts

    def _counted(self, rows: int | None, queries: int) -> AbstractContextManager[None]:
        """Tell `report` of the queries inside, each of which reads all rows."""
        if self.report is None or rows is None:
            return nullcontext()
        report, total = self.report, rows * queries
        return watching(lambda _, share: report(round(share * total), total))


def warehouse_sql(
    dialect: str,
    columns: dict[str, Any],
    reading: Reading,
    target: Policy,
    request: Request,
    facts: Facts,
    table: str = "log",
) -> str:
    """The queries for a warehouse, as text: `columns` are its names and Arrow types.

    `table` is a view of the log whose columns are called c0, c1, … by position; the policy, if it
    is a table, is uploaded as reweigh_policy; the codes of labels as reweigh_codes_of_s and _a.
    """
    names, kinds = list(columns), list(columns.values())
    home = TextHome(f"table {table!r}", names, kinds, dialect, table, names)
    log = open_log(home, reading, policy_column(target))
    _, expressions = _expressions(home, log, reading, target, request, facts)
    return _written(_queries(home, expressions))


def _affordable(request: Request, facts: Facts) -> tuple[Request, dict[str, str]]:
    """Without kinds of which too many cells may come back, and what is said of these."""
    left_out = {kind: why for kind, why in too_long(facts.horizon).items() if kind in request.kinds}
    request = replace(request, kinds=request.kinds - left_out.keys())
    actions = 1 if facts.actions is None else len(facts.actions)
    cells = min(facts.rows, facts.horizon * actions * len(facts.states) ** 2)
    if cells <= SPARE_CELLS:
        return request, left_out
    return request.without_spare(), request.left_out() | left_out


def _queries(home: Home, expressions: dict[str, Any]) -> dict[str, str]:
    """The SQL of every table of sums, and of the coded rows where a home holds them."""
    queries = {name: home.sql(expression) for name, expression in expressions.items()}
    if "rows" in queries:
        queries["rows"] = f"CREATE OR REPLACE TEMP TABLE {HELD} AS\n{queries['rows']}"
    return queries


def _refuse_without_behavior(layout: Layout) -> None:
    if not layout.has("behavior_prob"):
        raise UsageError(
            "the log has no behaviour probabilities; name their column with behavior_prob=…, or "
            "estimate them: read the log with engine='arrays' and use fit_behavior(log)"
        )


def _written(queries: dict[str, str]) -> str:
    """All of them as one text, in which each is named."""
    return "\n\n".join(f"-- {name}\n{query};" for name, query in queries.items())


def _expressions(
    home: Home, log: Log, reading: Reading, target: Policy, request: Request, facts: Facts
) -> tuple[Any, dict[str, Any]]:
    """The coded rows, and one expression per table of sums. Where a home holds tables, the rows are
    put into order once and the others read what came of it.

    What follows from another table is not asked for: cells without the action from those with it,
    where no state is hidden, and first states from cells.
    """
    import ibis

    layout = log.layout
    _refuse_without_behavior(layout)
    declared = _declared(request, facts)
    gamma, products = reading.discount, "trajectories" in request.kinds and not facts.truncated
    names = {name for table in declared for name in (*table.keys, *table.names_used)}
    if products or names & {"weighted_return", "running_product"}:
        names |= {"cum", "zeros", "final"}
    if "observed_before" in names:
        names.add("s_before")
    with_id = "bucket" in names and facts.ids is not None
    names |= {"id"} if with_id else set()
    rows = coded(home, log.rows, layout, facts.states, facts.actions, with_id)
    rows = with_target(home, rows, target, facts.states, facts.actions)
    if "cum" in names:
        rows = with_ratio(rows, request.max_ratio)
    rows = in_sequence(rows, reading, facts.horizon, request.blocks, home.dialect, names)
    expressions: dict[str, Any] = {}
    source = rows
    if home.holds:
        expressions["rows"] = rows
        source = ibis.table(rows.schema(), name=HELD)
    source = completed(source, request.max_ratio, with_id)
    for table in declared:
        keys = own_keys(table) if table in request.tables else table.keys
        shift = 0 if facts.ids is None else _shift(table, facts.ids)
        expressions[table.name] = aggregate(source, table, keys, gamma, shift)
    if products:  # those of cut-off episodes mean nothing
        expressions["steps"] = step_products(source, facts.horizon)
        expressions["episodes"] = episode_products(source, gamma)
    if "largest" in request.kinds:
        expressions["largest"] = largest(source, facts.episodes, gamma)
    cells = [name for name in CELLS_FIRST if name in expressions]
    return rows, {name: expressions[name] for name in dict.fromkeys((*cells, *expressions))}


def _too_many_lagged(home: Home, facts: Facts) -> bool:
    """Whether the first steps alone have more cells by what came before than are kept; a large log
    is then not put into cells of which none are used."""
    import ibis

    steps = 3 * MOST_FETCHED // facts.episodes + 1
    if 2 * steps > facts.horizon:
        return False
    keys = dict.fromkeys(LaggedMoments.KEYS, "int64")
    rows = ibis.table(keys, name=HELD)
    first = rows.filter((rows["t"] > 0) & (rows["t"] <= steps)).distinct()
    first = first.filter((first["s"] >= 0) & (first["s_before"] >= 0))
    return int(home.run(first.aggregate(n=first.count())).column("n")[0].as_py()) > MOST_FETCHED


def _declared(request: Request, facts: Facts) -> list[Table]:
    """The tables that are summed by their keys."""
    kinds, one_step = request.kinds, BUILT_IN["transitions"]
    if not facts.hidden_rows:
        one_step = replace(one_step, rows="row")
    tables = [BUILT_IN["model"]] if "model" in kinds else []
    if "transitions" in kinds and (facts.hidden_rows or "model" not in kinds):
        tables.append(one_step)
    if not tables:
        tables.append(BUILT_IN["start"])
    tables += [BUILT_IN["lagged"]] if "lagged" in kinds else []
    if not facts.truncated:  # where an episode was cut off, its return is not known
        tables += [BUILT_IN["ordered"]] if "ordered" in kinds else []
        tables += [BUILT_IN["paced"]] if "paced" in kinds and facts.ids is not None else []
    return [*tables, *request.tables]


def _shift(table: Table, ids: Ids) -> int:
    return ids.shift(PacedMoments if table.name == "paced" else OrderedMoments)


def _sums(
    tables: dict[str, Any], reading: Reading, target: Policy, request: Request, facts: Facts
) -> Moments:
    hidden, known = facts.hidden_rows > 0, facts.states
    as_state = len(known) if hidden else HIDDEN  # a state of its own in the model's cells

    def arrays(table: Table, keys: tuple[str, ...] = (), shift: int = 0) -> dict[str, Any]:
        return columns_of(tables[table.name], table, keys or table.keys, as_state, shift)

    parts: dict[str, Any] = {}
    if "model" in tables:
        parts["model"] = TransitionMoments(**arrays(BUILT_IN["model"])).summed()
        parts["start_model"] = _starts(parts["model"])
        parts["start"] = parts["start_model"]
        if hidden:
            s = np.where(parts["start"].s == as_state, START, parts["start"].s)
            parts["start"] = replace(parts["start"], s=s).summed()
    if "transitions" in tables:
        cells = arrays(BUILT_IN["transitions"])
        cells = cells | {"a": np.full(len(cells["n"]), NO_ACTION)}
        parts["transitions"] = TransitionMoments(**cells).summed()
        parts["start"] = _starts(parts["transitions"])
    elif "transitions" in request.kinds:
        parts["transitions"] = parts["model"].forget("a")
    if "start" in tables:
        parts["start"] = StartMoments(**arrays(BUILT_IN["start"])).summed()
    if "steps" in tables:
        parts["trajectories"] = read_products(tables["steps"], tables["episodes"], facts.horizon)
    if "lagged" in tables:
        lagged = LaggedMoments(**arrays(BUILT_IN["lagged"])).summed()
        parts["lagged"], parts["left_out"] = bounded(lagged, known)
    for record in (OrderedMoments, PacedMoments):
        if record.TABLE.name in tables:
            shift = UNORDERED if facts.ids is None else facts.ids.shift(record)
            held = record(shift=shift, **arrays(record.TABLE, shift=shift))
            parts[record.TABLE.name] = held.summed()
    if "largest" in tables:
        parts["largest"] = read_largest(tables["largest"], facts.episodes)
    sums = Moments(
        about=About(
            horizon=facts.horizon,
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
        ),
        # the hidden state is a state of its own in the model's cells
        states=Labels((*known.values, None)) if hidden else known,
        actions=facts.actions,
        truncated=facts.truncated,
        rewards=facts.reward_range,
        hidden=hidden,
        tables={
            table.name: DeclaredSums(table, arrays(table, own_keys(table))).summed()
            for table in request.tables
        },
        **parts,
    )
    return named(sums, facts.identity)


def _starts(cells: TransitionMoments) -> StartMoments:
    """First states from cells, of which every episode fills one at step 0."""
    first = cells.where(cells.t == 0)
    nothing = np.zeros(len(first))
    return StartMoments(first.block, first.s, first.n, nothing, nothing).summed()


def _described(source: str, reading: Reading, facts: Facts) -> dict[str, Any]:
    notes = []
    if facts.beyond:
        notes.append(
            f"cut at the horizon {facts.horizon}: {facts.beyond:,} later rows are not used"
        )
    if 2 * len(facts.states) > facts.rows:
        notes.append(
            f"{len(facts.states):,} states for {facts.rows:,} rows: most are seen once; "
            "bin them (abstraction=Rounding or Grid)"
        )
    if facts.truncated:
        notes.append(
            f"mean_return counts only what was logged of the {facts.truncated:,} cut-off "
            f"episode{'s' if facts.truncated != 1 else ''}"
        )
    actions = facts.actions
    return {
        "source": source,
        "episodes": facts.episodes,
        "rows": facts.rows,
        "horizon": facts.horizon,
        "discount": reading.discount,
        "states": len(facts.states),
        "state_examples": _examples(facts.states),
        "state_columns": list(reading.columns.state),
        "abstraction": describe_abstraction(reading.abstraction),
        "actions": None if actions is None else len(actions),
        "action_examples": None if actions is None else _examples(actions),
        "continuous_actions": reading.continuous_actions,
        "hidden_rows": facts.hidden_rows,
        "terminated_early": facts.terminated_early,
        "truncated": facts.truncated,
        "reward_range": list(facts.reward_range),
        "behavior_prob_range": None if facts.behavior_range is None else list(facts.behavior_range),
        "behavior_prob_from": "logged" if facts.behavior_range is not None else None,
        "mean_return": facts.total_return / facts.episodes,
        "notes": notes,
    }


def _examples(labels: Labels) -> list[str]:
    return [labels.name(code) for code in range(min(SHOWN_LABELS, len(labels)))]
