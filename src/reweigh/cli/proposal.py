"""What `reweigh init` proposes: the record, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from reweigh.cli.first_look import Seen
from reweigh.cli.names import PART, rating
from reweigh.cli.tidy import Repair

REQUIRED = ("episode", "step", "state", "action", "reward")
NAMED = (
    *REQUIRED,
    "behavior_prob",
    "target_prob",
    "next_state",
    "terminated",
    "truncated",
)
NAME = "by name"


@dataclass(frozen=True)
class Choice:
    """The columns of a role and why; a guess rests on the content alone."""

    columns: tuple[str, ...]
    why: str
    guess: bool = False


@dataclass
class Proposal:
    """roles: what is proposed. open: roles that several columns may play. doubts: what a reader
    should look at. missing: what the log lacks, and what to do. settings: further options.
    repairs: what `--tidy` can put right."""

    roles: dict[str, Choice] = field(default_factory=dict)
    open: dict[str, Choice] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    settings: dict[str, bool] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)
    unused: tuple[str, ...] = ()

    def taken(self) -> set[str]:
        return {name for choice in self.roles.values() for name in choice.columns}


def one_or_open(made: Proposal, role: str, found: list[str], why: str) -> None:
    if len(found) == 1:
        made.roles[role] = Choice((found[0],), why)
    elif found:
        made.open[role] = Choice(tuple(found), why)


def is_named(seen: Seen) -> bool:
    """The name speaks for some role by itself."""
    return any(rating(role, seen.name) > PART for role in NAMED)


def by(role: str, seen: Seen) -> str:
    return "" if rating(role, seen.name) == 0 else "named so; "


def what(seen: Seen) -> str:
    if seen.kind == "number":
        return f"numbers in [{seen.values.min():g}, {seen.values.max():g}]"
    return f"{seen.distinct:,} values"


def quoted(name: str) -> str:
    return repr(name)
