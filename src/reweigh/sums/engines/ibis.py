"""The engine for everything that can group: the same sums as Ibis expressions.

Rows stay in DuckDB, Spark or a warehouse; only aggregated tables come back. A log is first looked
over (faults, horizon, labels), then one expression per kind of sums is run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from reweigh.errors import InputError, UsageError
from reweigh.log.states import HIDDEN, START, Labels, describe_abstraction
from reweigh.policy.base import Policy
from reweigh.policy.column import ColumnPolicy
from reweigh.policy.table import TablePolicy
from reweigh.sums.diagnostic_tables import too_long
from reweigh.sums.engines import ibis_extras as extras
from reweigh.sums.engines import ibis_sums as sums
from reweigh.sums.engines.base import SPARE_CELLS, Request
from reweigh.sums.engines.ibis_connect import Home, TextHome, open_home
from reweigh.sums.engines.ibis_faults import naming_rows
from reweigh.sums.engines.ibis_rows import Layout, followed, weighted
from reweigh.sums.engines.ibis_scan import CHECKS, Facts, layout_of, look
from reweigh.sums.engines.ibis_target import (
    check_column,
    policy_column,
    refuse_unknown_states,
    with_target,
)
from reweigh.sums.moments import About, Moments
from reweigh.sums.scanned_log import Reading
from reweigh.sums.sources import named
from reweigh.system.memory import require_steps
from reweigh.system.progress import Report, each, watching

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
        rows, layout, facts = self._scan(home, reading, policy_column(target))
        if "trajectories" in request.kinds:
            require_steps(facts.horizon, request.blocks)
        request, left_out = _affordable(request, facts)
        asked = _asked(home, rows, layout, reading, target, request, facts)
        rows = asked.pop("rows")
        if isinstance(target, ColumnPolicy):
            check_column(home, rows, layout, reading, target)
        queries = _queries(home, asked)
        with self._counted(facts.rows + facts.beyond, len(asked)):
            found = each("queries", list(asked), lambda name: home.run(asked[name], queries[name]))
        tables = dict(zip(asked, found, strict=True))
        if isinstance(target, TablePolicy) and not _all_known(tables):
            hidden = facts.hidden_rows > 0
            refuse_unknown_states(home, rows, layout, target, facts.states, hidden)
        try:
            made = _moments(tables, len(layout.parts("state")), reading, target, request, facts)
        except sums.UnlistedError as error:
            raise InputError(
                f"{home.describe()} gives the value {str(error)!r} in one query and not in another:"
                " it changed meanwhile, or its statistics contradict its rows; export it again"
            ) from error
        return replace(made, left_out=made.left_out | left_out, sql=_written(queries))

    def sql(self, data: Any, reading: Reading, target: Policy, request: Request) -> str:
        """The queries that make the sums of the request, as they are sent."""
        column = policy_column(target)
        with open_home(self.engine, data, reading, column) as home:
            rows, layout, facts = naming_rows(home, lambda: self._scan(home, reading, column))
            request, _ = _affordable(request, facts)
            asked = _asked(home, rows, layout, reading, target, request, facts)
            return _written(_queries(home, asked))

    def describe(self, data: Any, reading: Reading) -> dict[str, Any]:
        """What the log is, as plain values."""
        with open_home(self.engine, data, reading, None) as home:
            _, _, facts = naming_rows(home, lambda: self._scan(home, reading, None))
            source = home.describe()
        return _described(source, reading, facts)

    def _scan(self, home: Home, reading: Reading, column: str | None) -> tuple[Any, Layout, Facts]:
        """The rows of a log that keeps the contract, their columns, and what the log is."""
        rows, layout = layout_of(home, reading, column)
        return rows, layout, self._look(home, rows, layout, reading)

    def _look(self, home: Home, rows: Any, layout: Layout, reading: Reading) -> Facts:
        with self._counted(home.rows, CHECKS):
            facts = look(home, rows, layout, reading)
        require_steps(facts.horizon)
        return facts

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
    is a table, is uploaded as reweigh_states and reweigh_policy.
    """
    names, kinds = list(columns), list(columns.values())
    home = TextHome(f"table {table!r}", names, kinds, dialect, table, names)
    rows, layout = layout_of(home, reading, policy_column(target))
    asked = _asked(home, rows, layout, reading, target, request, facts)
    return _written(_queries(home, asked))


def _affordable(request: Request, facts: Facts) -> tuple[Request, dict[str, str]]:
    """Without kinds of which too many cells may come back, and what is said of these."""
    left_out = {kind: why for kind, why in too_long(facts.horizon).items() if kind in request.kinds}
    request = replace(request, kinds=request.kinds - left_out.keys())
    actions = 1 if facts.actions is None else len(facts.actions)
    cells = min(facts.rows, facts.horizon * actions * len(facts.states) ** 2)
    if cells <= SPARE_CELLS:
        return request, left_out
    return request.without_spare(), request.left_out() | left_out


def _queries(home: Home, asked: dict[str, Any]) -> dict[str, str]:
    """The SQL of every table of sums."""
    return {name: home.sql(e) for name, e in asked.items() if name != "rows"}


def _written(queries: dict[str, str]) -> str:
    """All of them as one text, in which each is named."""
    return "\n\n".join(f"-- {name}\n{query};" for name, query in queries.items())


def _asked(
    home: Home,
    rows: Any,
    layout: Layout,
    reading: Reading,
    target: Policy,
    request: Request,
    facts: Facts,
) -> dict[str, Any]:
    """One expression per table of sums; "rows" are the rows that they are sums of.

    Every expression reads the log, so what follows from another table is not asked for: cells
    without the action from those with it, where no state is hidden, and first states from cells.
    """
    if not layout.has("behavior_prob"):
        raise UsageError(
            "the log has no behaviour probabilities; name their column with behavior_prob=…, or "
            "estimate them: read the log with engine='arrays' and use fit_behavior(log)"
        )
    width, log = len(layout.parts("state")), rows
    rows = followed(rows, layout, facts.horizon, reading.short_episodes)
    rows = with_target(home, rows, layout, reading, target)
    asked = {"rows": rows}
    rows = weighted(rows, request.max_ratio, request.blocks, home.dialect)
    if "model" in request.kinds:
        asked["model"] = sums.cells(rows, width, not reading.continuous_actions)
    if "transitions" in request.kinds and facts.hidden_rows:
        asked["transitions"] = sums.stretches(rows, width, reading.discount)
    elif "transitions" in request.kinds and "model" not in request.kinds:
        asked["transitions"] = sums.cells(rows, width, False)
    if not asked.keys() & {"model", "transitions"}:
        asked["start"] = sums.starts(rows, width)
    if "trajectories" in request.kinds and not facts.truncated:
        # the products of cut-off episodes mean nothing
        asked["steps"] = sums.step_products(rows, facts.horizon)
        asked["episodes"] = sums.episode_products(rows, reading.discount)
    if "lagged" in request.kinds:
        asked["lagged"] = extras.lagged(rows, width, not reading.continuous_actions)
    if "ordered" in request.kinds and not facts.truncated:
        # where an episode was cut off, its return is not known
        asked["ordered"] = extras.ordered(log, layout, facts.ids, facts.horizon, reading.discount)
    if "paced" in request.kinds and not facts.truncated and facts.ids is not None:
        asked["paced"] = extras.paced(log, layout, facts.ids, facts.horizon)
    if "largest" in request.kinds:
        asked["largest"] = extras.largest(rows, facts.episodes)
    return asked


def _all_known(tables: dict[str, Any]) -> bool:
    """Whether a table policy knows every state of the log, by the first table that tells."""
    for table in tables.values():
        if "lost" in table.column_names:
            return int(sums.ints(table, "lost").sum()) == 0
    return False  # none tells: the rows must be asked


def _moments(
    tables: dict[str, Any],
    width: int,
    reading: Reading,
    target: Policy,
    request: Request,
    facts: Facts,
) -> Moments:
    hidden = facts.hidden_rows > 0
    known = facts.states
    # the hidden state is a state of its own in the model's cells
    states = Labels((*known.values, None)) if hidden else known
    as_state = len(known) if hidden else HIDDEN
    first = next(tables[name] for name in ("model", "transitions", "start") if name in tables)
    parts: dict[str, Any] = {"start": sums.read_starts(first, width, known, START)}
    if "model" in tables:
        parts["model"] = sums.read_cells(first, width, known, facts.actions, as_state)
        parts["start_model"] = sums.read_starts(first, width, known, as_state)
    if "transitions" in tables:
        parts["transitions"] = sums.read_cells(tables["transitions"], width, known, None, HIDDEN)
    elif "transitions" in request.kinds:
        parts["transitions"] = parts["model"].forget("a")
    if "steps" in tables:
        parts["trajectories"] = sums.read_products(
            tables["steps"], tables["episodes"], facts.horizon
        )
    if "lagged" in tables:
        found = extras.read_lagged(tables["lagged"], width, known, facts.actions)
        parts["lagged"], parts["left_out"] = found
    if "ordered" in tables:
        parts["ordered"] = extras.read_ordered(tables["ordered"], facts.ids)
    if "paced" in tables:
        assert facts.ids is not None
        parts["paced"] = extras.read_paced(tables["paced"], facts.ids)
    if "largest" in tables:
        parts["largest"] = extras.read_largest(tables["largest"], facts.episodes)
    made = Moments(
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
        states=states,
        actions=facts.actions,
        truncated=facts.truncated,
        rewards=facts.reward_range,
        hidden=hidden,
        **parts,
    )
    return named(made, facts.identity)


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
