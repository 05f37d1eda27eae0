"""Which column of a log plays which role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reweigh.errors import UsageError, must_be

Names = str | Sequence[str]
ShortEpisodes = Literal["error", "terminal", "truncated"]


@dataclass(frozen=True)
class Columns:
    """The roles of a log's columns; `None` means that the log does not have that role."""

    episode: str = "episode"
    step: str = "step"
    state: tuple[str, ...] = ("state",)
    action: str = "action"
    reward: str = "reward"
    behavior_prob: str | None = "behavior_prob"
    next_state: tuple[str, ...] | None = None
    target_prob: str | None = None
    terminated: str | None = None
    truncated: str | None = None

    def by_role(self) -> list[tuple[str, str]]:
        """(role, column) pairs, in the order in which faults are reported."""
        pairs: list[tuple[str, str]] = [("episode", self.episode), ("step", self.step)]
        pairs += [("state", name) for name in self.state]
        pairs += [("action", self.action), ("reward", self.reward)]
        pairs += [("next_state", name) for name in self.next_state or ()]
        for role in ("behavior_prob", "target_prob", "terminated", "truncated"):
            name = getattr(self, role)
            if name is not None:
                pairs.append((role, name))
        return pairs


def columns_of(
    *,
    episode: str,
    step: str,
    state: Names,
    action: str,
    reward: str,
    behavior_prob: str | None,
    next_state: Names | None,
    target_prob: str | None,
    terminated: str | None,
    truncated: str | None,
) -> Columns:
    """Check the names that a user gave for the roles."""
    state_names = _names("state", state)
    next_names = None if next_state is None else _names("next_state", next_state)
    if next_names is not None and len(next_names) != len(state_names):
        raise UsageError(
            f"next_state names {len(next_names)} columns and state names {len(state_names)}; "
            "they must name the same number of columns, in the same order"
        )
    columns = Columns(
        episode=episode,
        step=step,
        state=state_names,
        action=action,
        reward=reward,
        behavior_prob=behavior_prob,
        next_state=next_names,
        target_prob=target_prob,
        terminated=terminated,
        truncated=truncated,
    )
    seen: dict[str, str] = {}
    for role, name in columns.by_role():
        if not isinstance(name, str) or not name:
            raise must_be(role, "the name of a column", name)
        # π = μ is a legitimate question: one column may be both probabilities.
        if name in seen and {role, seen[name]} != {"behavior_prob", "target_prob"}:
            raise UsageError(f"the column {name!r} is named for two roles: {seen[name]}, {role}")
        seen[name] = role
    return columns


def _names(role: str, names: Names) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    names = tuple(names)
    if not names:
        raise must_be(role, "a column name or a list of them", names)
    return names
