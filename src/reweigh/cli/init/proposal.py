"""A proposal of roles, as it is made: what is taken, what stays open, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from reweigh.cli.init.columns import Column, Repair
from reweigh.cli.init.roles import EXPECTED, PART, ROLES, rating

BY_NAME = "by name"


def is_named(c: Column) -> bool:
    """The name alone suggests a role."""
    return any(rating(role, c.name) > PART for role in ROLES)


def best_named(role: str, columns: Iterable[Column]) -> list[Column]:
    """Those whose names suggest the role most strongly."""
    ratings = {c: rating(role, c.name) for c in columns}
    return [c for c, r in ratings.items() if r == max(ratings.values())]


# --- the proposal


@dataclass(frozen=True)
class Choice:
    """The columns of a role and why; a guess rests on the content alone."""

    columns: tuple[str, ...]
    why: str
    guess: bool = False


@dataclass
class Proposal:
    """What is proposed for these columns, which are put right as soon as they have a role.

    roles     what is proposed
    open      roles that several columns may play
    doubts    what a reader should look at
    missing   what the log lacks, and what to do
    needless  roles that this log does without
    settings  further options
    with_all  options for all of the columns that may be the state, where it is open
    repairs   what `--tidy` can put right
    bins      the edges of the columns that are put into bins, in the rows that were looked at
    """

    columns: dict[str, Column]
    roles: dict[str, Choice] = field(default_factory=dict)
    open: dict[str, Choice] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    with_all: dict[str, Any] = field(default_factory=dict)
    needless: set[str] = field(default_factory=set)
    repairs: list[Repair] = field(default_factory=list)
    bins: dict[str, str] = field(default_factory=dict)

    def free(self) -> list[Column]:
        """The columns without a role."""
        used = {name for choice in self.roles.values() for name in choice.columns}
        return [c for c in self.columns.values() if c.name not in used]

    @property
    def unused(self) -> list[str]:
        considered = {name for choice in self.open.values() for name in choice.columns}
        return [c.name for c in self.free() if c.name not in considered]

    def by_role(self) -> list[tuple[str, Choice | None, Choice | None]]:
        """(role, what is proposed, what it may be), without the roles that only some logs have and
        this one lacks, or that it does without."""
        answers = [
            (role, self.roles.get(role), self.open.get(role))
            for role in ROLES
            if role not in self.needless
        ]
        return [each for each in answers if each[0] in EXPECTED or any(each[1:])]

    def column(self, role: str) -> Column | None:
        """The one column of a role."""
        names = self.roles[role].columns if role in self.roles else ()
        return self.columns[names[0]] if len(names) == 1 else None

    def choose(
        self,
        role: str,
        columns: list[Column],
        why: str,
        *,
        alone: str = "",
        guess: bool = False,
        repair: Repair | None = None,
    ) -> Column | None:
        """Take the only column for the role (because of `alone`, else `why`), put right by the
        repair; several stay open."""
        if len(columns) != 1:
            if columns:
                self.open[role] = Choice(tuple(c.name for c in columns), why)
            return None
        [column] = columns
        self.roles[role] = Choice((column.name,), alone or why, guess)
        self.open.pop(role, None)
        if repair is not None:
            self.repairs.append(repair)
            self.columns[column.name] = repair.mended(column)
        return column

    def rule_out(self, name: str) -> None:
        """The column plays a role by now: it is none of the open ones."""
        for role, choice in self.open.items():
            rest = tuple(other for other in choice.columns if other != name)
            self.open[role] = Choice(rest, choice.why)


def reason(role: str, c: Column, what: str) -> str:
    return f"named so; {what}" if rating(role, c.name) else what


def suggests_role(role: str, name: str, others: Iterable[str]) -> bool:
    """The name suggests the role, and none of the others' names fits better."""
    return 0 < rating(role, name) >= max(rating(other, name) for other in others)
