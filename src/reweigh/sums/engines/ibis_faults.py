"""Rules of the log's contract, as queries.

A rule is a condition on rows. All rules of one table are counted in one query; only where a count
is not 0 are a few of its rows fetched, to be shown. They have numbers where the rows that come
here have (`naming_rows`); the rows of a table in a database have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from reweigh.errors import KEPT_PLACES, Fault, InputError, Place
from reweigh.log import rules
from reweigh.sums.engines.ibis_connect import ROW, Home
from reweigh.sums.engines.ibis_rows import count_if, one_if

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class Rule:
    """One condition that no row may meet; `value` and `more` are fetched for its examples."""

    code: str
    column: str | None
    bad: Any
    value: Any
    rule: str
    fix: str
    more: dict[str, Any] = field(default_factory=dict)
    note: Callable[[dict[str, Any], Home], str] = lambda row, home: ""
    otherwise: Fault | None = None  # what is wrong if no row meets the condition

    @classmethod
    def of(
        cls,
        declared: rules.Rule,
        column: str | None,
        bad: Any,
        value: Any = None,
        fix: str | None = None,
        more: dict[str, Any] | None = None,
        note: Callable[[dict[str, Any], Home], str] = lambda row, home: "",
        otherwise: Fault | None = None,
        **words: object,
    ) -> Rule:
        """A rule of the contract, with its condition on the columns of a table."""
        import ibis

        value = ibis.null("string") if value is None else value
        sentence, fix = declared.says(column, **words), fix or declared.fix
        return cls(declared.code, column, bad, value, sentence, fix, more or {}, note, otherwise)


def find(
    home: Home, rows: Any, asked: list[Rule], **sums: Any
) -> tuple[list[Fault], dict[str, Any]]:
    """The faults that the rules find, and other sums of the same query."""
    counted = {f"k{i}": count_if(rule.bad) for i, rule in enumerate(asked)}
    [counts] = home.run(rows.aggregate(total=rows.count(), **counted, **sums)).to_pylist()
    faults = []
    for i, rule in enumerate(asked):
        count = int(counts[f"k{i}"] or 0)
        if count:
            places = _places(home, rows, rule)
            total = int(counts["total"])
            fix = rule.fix
            if rule.code == rules.NOT_A_NUMBER.code and any("," in str(p.value) for p in places):
                fix = rules.DECIMAL_COMMA
            faults.append(Fault(rule.code, rule.rule, fix, places, count, total))
        elif rule.otherwise is not None:
            faults.append(rule.otherwise)
    return faults, counts


def _places(home: Home, rows: Any, rule: Rule) -> tuple[Place, ...]:
    shown = {"e": rows["e"], "t": rows["t"], "value": rule.value, "bad": one_if(rule.bad)}
    order = ["e", "t"]
    if ROW in rows.columns:
        shown[ROW], order = rows[ROW], [ROW]
    found = rows.select(**shown, **rule.more)
    found = found.filter(found["bad"] == 1)
    found = found.order_by([found[name] for name in order]).limit(KEPT_PLACES)
    return tuple(
        replace(
            home.place(row.get(ROW)),
            value=plain(row["value"]),
            column=rule.column,
            episode=row["e"],
            step=None if row["t"] is None else int(row["t"]),
            note=rule.note(row, home),
        )
        for row in home.run(found).to_pylist()
    )


def naming_rows(home: Home, work: Callable[[], Answer]) -> Answer:
    """What `work` answers. If it refuses the log it is done once more on numbered rows, so that
    the faults name them: a log without faults needs no numbers."""
    try:
        return work()
    except InputError as error:
        if not any(fault.places for fault in error.faults):
            raise
        if not home.number_rows():
            note = (
                f"the rows of the {home.describe()} have no numbers: find them by episode and step"
            )
            raise InputError(f"{error}\n  {note}", error.faults) from error
        return work()


def plain(value: Any) -> Any:
    return float(value) if type(value).__name__ == "Decimal" else value
