"""What `reweigh init` proposes: the record, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from reweigh.cli.init.look import Seen
from reweigh.cli.init.names import PART, rating
from reweigh.cli.init.tidy import Repair

REQUIRED = ("episode", "step", "state", "action", "reward")
ROLES = (
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

    def column(self, role: str) -> str | None:
        """The one column of a role."""
        columns = self.roles[role].columns if role in self.roles else ()
        return columns[0] if len(columns) == 1 else None

    def choose(
        self,
        role: str,
        names: list[str],
        why: str,
        alone: str | None = None,
        *,
        guess: bool = False,
    ) -> bool:
        """Take the only name for the role (because of `alone`, else `why`); several stay open."""
        if len(names) == 1:
            self.roles[role] = Choice((names[0],), alone or why, guess)
        elif names:
            self.open[role] = Choice(tuple(names), why)
        return len(names) == 1

    def rule_out(self, name: str) -> None:
        """The column plays a role by now: it is none of the open ones."""
        for role, choice in self.open.items():
            rest = tuple(other for other in choice.columns if other != name)
            self.open[role] = Choice(rest, choice.why)


def is_named(seen: Seen) -> bool:
    """The name speaks for some role by itself."""
    return any(rating(role, seen.name) > PART for role in ROLES)


def best_named(role: str, columns: list[Seen]) -> list[Seen]:
    """Those whose names speak for the role most strongly."""
    strongest = max((rating(role, c.name) for c in columns), default=0)
    return [c for c in columns if rating(role, c.name) == strongest]


def reason(role: str, seen: Seen, what: str) -> str:
    return what if rating(role, seen.name) == 0 else f"named so; {what}"
