"""The queries as text for warehouses: they compile; none of them is run here but PostgreSQL's.

What is checked: every query is written, its text parses in the dialect, names of the user's columns
do not occur in it, windows carry an explicit frame, and the hash of ids is the dialect's own.
"""

from __future__ import annotations

import re
from typing import Any

import fixture
import pytest

import reweigh as rw
from reweigh.errors import UsageError
from reweigh.log.csv_files import CsvFormat
from reweigh.log.log import Columns
from reweigh.log.states import Labels
from reweigh.sums.diagnostic_tables import VERSIONS
from reweigh.sums.engines import Request
from reweigh.sums.engines.sql import Query
from reweigh.sums.engines.sql_connect import Database
from reweigh.sums.engines.sql_log import Facts, open_log, policy_columns
from reweigh.sums.read import Reading

DIALECTS = ("bigquery", "snowflake", "databricks", "trino", "clickhouse", "postgres", "duckdb")
ALL = Request(frozenset({"transitions", "model", "trajectories", *VERSIONS}), blocks=10)
MD5 = {
    "bigquery": r"TO_HEX\(\s*MD5\(",
    "trino": r"TO_HEX\(\s*MD5\(\s*TO_UTF8\(",
    "clickhouse": r"LOWER\(\s*HEX\(\s*MD5\(",  # its names of functions have no case
}


def written(dialect: str, variant: str, policy: str, **changes: Any) -> str:
    table = fixture.table(variant)
    options = fixture.READING[variant] | changes
    state = options.get("state", "state")
    reading = Reading(
        columns=Columns(
            state=(state,) if isinstance(state, str) else tuple(state),
            behavior_prob="mu",
            target_prob="pi",
            next_state=("next_state",) if variant == "integers" else None,
            terminated="terminated",
            truncated="truncated",
        ),
        horizon=None,
        discount=0.9,
        short_episodes="error",
        hidden=options.get("hidden") == "allow",
        continuous_actions=False,
        abstraction=changes.get("abstraction"),
        csv=CsvFormat(),
    )
    hidden_rows = 1 if variant == "whole" else 0
    facts = Facts(
        6,
        9,
        40,
        0,
        0,
        hidden_rows,
        0,
        Labels(()),
        Labels(()),
        (0, 1),
        (0, 1),
        0.0,
        "",
        (-3, 10**6),
    )
    target, names = fixture.policies(variant)[policy], table.column_names
    home = Database("a table", names, names, table.schema.types, dialect, "steps_of_all_sites")
    log = open_log(home, reading, policy_columns(target))
    return Query(home, log, reading, target, ALL, facts).text


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("variant", "policy"), [("whole", "table"), ("integers", "column")])
def test_the_queries_compile_and_parse(dialect, variant, policy) -> None:
    import sqlglot

    sql = written(dialect, variant, policy)
    statements = [s for s in sqlglot.parse(sql, read=dialect) if s is not None]
    parts = [line for line in sql.splitlines() if line.startswith("-- ")]
    hidden = ["-- transitions"] if variant == "whole" else []  # else they follow from the model
    extras = ["-- lagged", "-- ordered", "-- paced", "-- largest"]
    assert parts == ["-- model", *hidden, "-- steps", "-- episodes", *extras]
    assert len(statements) == len(parts)
    flat = " ".join(sql.split())
    assert "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW" in flat
    assert re.search(MD5.get(dialect, r"MD5\("), flat)
    assert "steps_of_all_sites" in flat
    named = {match.group(2) for match in re.finditer(r'(["`])(.*?)\1', flat)}
    assert {"c0", "c1"} <= named
    # are called so in every query, whatever the user's columns are called
    ours = {"mu", "pi", "episode", "step", "state", "action", "reward"}
    assert not named & set(fixture.table(variant).column_names) - ours
    if policy == "table":
        assert {"reweigh_codes_of_s", "reweigh_codes_of_a", "reweigh_policy"} <= named


@pytest.mark.parametrize("dialect", DIALECTS)
def test_rounding_is_written_without_a_rounding_function(dialect) -> None:
    """ROUND is half away from zero on one engine and half to even on another."""
    sql = written(dialect, "integers", "column", abstraction=rw.Rounding(4.0))
    assert "ROUND(" not in sql.upper()
    assert "FLOOR(" in sql.upper()


def test_an_unknown_dialect_is_said_to_be_one() -> None:
    with pytest.raises(UsageError, match="no SQL for 'cobol'"):
        written("cobol", "integers", "column")
