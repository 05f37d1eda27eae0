"""Moments: all sums of one log under one target, and their description."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reweigh.errors import InputError
from reweigh.kernels import Ints
from reweigh.log.states import HIDDEN, START, Labels, unite
from reweigh.sums.diagnostic_tables import (
    VERSIONS,
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
    choices_of,
    thinned,
)
from reweigh.sums.keyed import (
    DeclaredSums,
    KeyedTable,
    StartMoments,
    StepMoments,
    TransitionMoments,
)

if TYPE_CHECKING:
    from reweigh.sums.policy import PolicyMoments, Rule, Shares

NO_EXTRAS: dict[str, Any] = dict.fromkeys(VERSIONS)
BY_BLOCK = ("start", "transitions", "start_model", "model", "policy", "trajectories")


@dataclass(frozen=True)
class About:
    """What sums are of. Only sums that agree in all of this, and share no source, may be added."""

    horizon: int
    discount: float
    target: str
    target_has_steps: bool
    abstraction: str | None
    state_columns: tuple[str, ...]
    continuous_actions: bool
    behavior: str
    max_ratio: float | None
    control: str | None
    blocks: int
    sources: tuple[str, ...]
    ordered_by: str = "id"  # or "time": in whose order the episodes are
    cluster: str | None = None  # the column by whose values blocks are made, and not by episode

    def refuse_if_foreign(self, other: About) -> None:
        differing = [
            f"{f.name}: {getattr(self, f.name)!r} and {getattr(other, f.name)!r}"
            for f in fields(self)
            if f.name != "sources" and getattr(self, f.name) != getattr(other, f.name)
        ]
        if differing:
            raise InputError(
                "these moments cannot be merged; they differ in " + "; ".join(differing)
            )
        shared = sorted(set(self.sources) & set(other.sources))
        if shared:
            raise InputError(
                f"the same episodes would count twice: both contain the log {shared[0]}; "
                "merge every part once"
            )


@dataclass(frozen=True, eq=False)
class Moments:
    """The sums of one log (or of several, added), by kind; a kind that was not requested is None.

    transitions   cells without the action, a hidden stretch being one long step (MIS)
    model         cells with the action, the hidden state being a state (DM, Q, SSD-IS)
    policy        what a target that sees more than the state would do, beside `model`; None where
                  its cells hold all that is known
    trajectories  running products (IS, WIS)
    start         first states as `transitions` sees them; `start_model`: as `model` does
    lagged, ordered, paced, largest   what only diagnostics read (`diagnostic_tables.py`); not by
                  blocks
    choices       cells by (t, s, a), for gates: of a log in memory, or where `model` was too large
    tables        the sums of tables that were declared outside of the package, by name
    unchecked     rules of the log's contract that the engine could not check to the end
    sql           the queries that made them, where an engine with SQL did; `save` leaves it out
    files         the files that they were made from, which `save` does not replace
    """

    about: About
    states: Labels  # includes None where the log has hidden states
    actions: Labels | None
    start: StartMoments
    transitions: TransitionMoments | None = None
    start_model: StartMoments | None = None
    model: TransitionMoments | None = None
    policy: PolicyMoments | None = None
    trajectories: StepMoments | None = None
    lagged: LaggedMoments | None = None
    ordered: OrderedMoments | None = None
    paced: PacedMoments | None = None
    largest: LargestWeights | None = None
    choices: TransitionMoments | None = None
    tables: dict[str, DeclaredSums] = field(default_factory=dict)
    truncated: int = 0
    hidden: bool = False
    left_out: dict[str, str] = field(default_factory=dict)  # kinds that could not be made, and why
    unchecked: tuple[str, ...] = ()
    rewards: tuple[float, float] | None = None  # the smallest and the largest; None: not known
    share_rule: Rule | None = None  # that of the whole log, where these are the sums of a part
    sql: str | None = field(default=None, repr=False)
    files: tuple[Path, ...] = field(default=(), repr=False)

    @cached_property
    def n_episodes(self) -> int:
        return round(float(self.start.n.sum()))  # weights add up to it but for rounding

    @property
    def kinds(self) -> tuple[str, ...]:
        names = ("transitions", "model", "trajectories")
        return tuple(name for name in names if getattr(self, name) is not None)

    def __add__(self, other: Moments) -> Moments:
        if not isinstance(other, Moments):
            return NotImplemented
        self.about.refuse_if_foreign(other.about)
        if "model" in self.left_out.keys() ^ other.left_out.keys():  # one was too large for them
            left_out = other.left_out | self.left_out
            return self._without_model(left_out) + other._without_model(left_out)
        if self.kinds != other.kinds or (self.policy is None) != (other.policy is None):
            raise InputError(
                f"these moments contain different kinds of sums: {', '.join(self.kinds)} and "
                f"{', '.join(other.kinds)}; make both with the same estimators"
            )
        if self.tables.keys() != other.tables.keys():
            raise InputError(
                f"these moments contain different tables: {', '.join(self.tables) or 'none'} "
                f"and {', '.join(other.tables) or 'none'}"
            )
        return replace(
            together([self, other]),
            about=replace(
                self.about, sources=tuple(sorted((*self.about.sources, *other.about.sources)))
            ),
            unchecked=tuple(dict.fromkeys((*self.unchecked, *other.unchecked))),
            sql=self.sql if self.sql == other.sql else None,  # else it would be of one part only
            files=tuple(dict.fromkeys((*self.files, *other.files))),
        )

    def _without_model(self, left_out: dict[str, str]) -> Moments:
        """With the choices of actions in its place."""
        choices = self.choices if self.model is None else choices_of(self.model)
        return replace(
            self, model=None, start_model=None, policy=None, choices=choices, left_out=left_out
        )

    @property
    def by_action(self) -> TransitionMoments | None:
        """Cells with the action, for what needs no state after them; the same ones whether an
        estimator reads the model or none does."""
        return self.model if self.choices is None else self.choices

    def _with_labels(self, states: Labels, actions: Labels | None) -> Moments:
        state_codes, action_codes = states.translate(self.states), None
        if actions is not None and self.actions is not None:
            action_codes = actions.translate(self.actions)

        def recoded(part: Any) -> Any:
            coded = isinstance(part, KeyedTable)
            return part.recode(state_codes, action_codes) if coded else part

        return replace(
            self,
            states=states,
            actions=actions,
            tables={name: recoded(part) for name, part in self.tables.items()},
            **{name: recoded(getattr(self, name)) for name in (*BY_BLOCK, *VERSIONS)},
        )

    @cached_property
    def shares(self) -> Shares:
        """How the model's shares π̄(a|t,s) are found."""
        from reweigh.sums.policy import Shares, shares_of

        assert self.model is not None
        if self.policy is None and self.share_rule is not None:
            return Shares(self.share_rule)
        return shares_of(self.model, self.policy)

    def only(self, kinds: Collection[str]) -> Moments:
        """The sums of these kinds alone."""

        def kept(kind: str, table: Any) -> Any:
            return table if kind in kinds else None

        return replace(
            self,
            transitions=kept("transitions", self.transitions),
            start_model=kept("model", self.start_model),
            model=kept("model", self.model),
            policy=kept("model", self.policy),
            trajectories=kept("trajectories", self.trajectories),
            tables={name: table for name, table in self.tables.items() if name in kinds},
            **NO_EXTRAS,
        )

    def keep_blocks(self, keep: Callable[[Any], Any]) -> Moments:
        """The sums of some of the blocks; tables without blocks are left out."""

        def part(table: Any) -> Any:
            return None if table is None else table.keep_blocks(keep)

        return replace(
            self,
            share_rule=self.shares.rule if self.model is not None else None,
            tables={name: table.keep_blocks(keep) for name, table in self.tables.items()},
            **{name: part(getattr(self, name)) for name in BY_BLOCK},
            **NO_EXTRAS,
        )

    def without(self, block: int) -> Moments:
        """The sums without one block of episodes (the delete-a-block jackknife)."""
        return self.keep_blocks(lambda blocks: blocks != block)

    def block_sizes(self) -> tuple[Ints, Ints]:
        """Blocks that hold episodes, and how many."""
        blocks = np.unique(self.start.block)
        sizes = np.array([self.start.n[self.start.block == b].sum() for b in blocks])
        return blocks, sizes

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write all sums to one Parquet file (see `load_moments`)."""
        from reweigh.sums.store import save

        save(self, path, overwrite=overwrite)

    def describe(self) -> dict[str, Any]:
        """The description of the log from its sums, as plain values: some of
        `EpisodeLog.describe`."""
        cells = self.model if self.model is not None else self.transitions
        return {
            "episodes": self.n_episodes,
            "rows": None if cells is None or self.hidden else int(cells.n.sum()),
            "horizon": self.about.horizon,
            "discount": self.about.discount,
            "states": sum(label is not None for label in self.states.values),
            "state_columns": list(self.about.state_columns),
            "abstraction": self.about.abstraction,
            "actions": None if self.actions is None else len(self.actions),
            "continuous_actions": self.about.continuous_actions,
            "truncated": self.truncated,
            "behavior_prob_from": self.about.behavior,
        }

    def __repr__(self) -> str:
        cells = {name: len(getattr(self, name)) for name in ("transitions", "model")
                 if getattr(self, name) is not None}  # fmt: skip
        listed = ", ".join(f"{count:,} cells of {name}" for name, count in cells.items())
        return (
            f"Moments({self.n_episodes:,} episodes, horizon {self.about.horizon}, "
            f"{len(self.states):,} states{', ' if listed else ''}{listed}, "
            f"blocks {self.about.blocks})"
        )


def together(parts: Sequence[Moments]) -> Moments:
    """The sum of parts with the same description; a kind that one of them lacks is left out."""
    states, actions = parts[0].states, parts[0].actions
    for part in parts[1:]:
        states, actions = unite(states, part.states), unite_actions(actions, part.actions)
    coded = [part._with_labels(states, actions) for part in parts]

    def total(tables: list[Any]) -> Any:
        return None if any(table is None for table in tables) else tables[0].together(tables)

    sums = {name: total([getattr(part, name) for part in coded]) for name in (*BY_BLOCK, *VERSIONS)}
    if sums["lagged"] is not None:
        level = max(part.lagged.level for part in coded if part.lagged is not None)
        sums["lagged"] = thinned(sums["lagged"], states, level)
    return replace(
        coded[0],
        truncated=sum(part.truncated for part in parts),
        hidden=any(part.hidden for part in parts),
        rewards=unite_ranges([part.rewards for part in parts]),
        left_out={kind: why for part in reversed(parts) for kind, why in part.left_out.items()},
        tables={name: total([part.tables[name] for part in coded]) for name in parts[0].tables},
        **sums,
    )


def unite_ranges(ranges: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """The range of all; None where one is not known."""
    known = [part for part in ranges if part is not None]
    if len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def unite_actions(first: Labels | None, second: Labels | None) -> Labels | None:
    if first is None or second is None:
        return first
    return unite(first, second)


@dataclass(frozen=True, eq=False)
class Visits:
    """`n` rows of a log at step `step` in state `state` (HIDDEN where it could not be observed)."""

    step: Ints
    state: Ints
    n: Ints


def visits_of(moments: Moments) -> Visits | None:
    """The rows behind these sums; None if the sums do not include them (running products alone)."""
    cells = moments.model
    if cells is not None:
        hidden = len(moments.states) - 1 if moments.hidden else HIDDEN
        return Visits(cells.t, np.where(cells.s == hidden, HIDDEN, cells.s), cells.n)
    cells = moments.transitions
    if cells is None:
        return None
    first = np.where(cells.s == START, HIDDEN, cells.s)
    # a long step from t to t' passes rows in hidden states at t + 1, …, t' - 1
    begins = np.bincount(cells.t + 1, cells.n, moments.about.horizon + 1)
    ends = np.bincount(cells.t_next, cells.n, moments.about.horizon + 1)
    passed = np.cumsum(begins - ends)[: moments.about.horizon].astype(np.int64)
    step = np.arange(moments.about.horizon)
    return Visits(
        np.concatenate([cells.t, step]),
        np.concatenate([first, np.full(len(step), HIDDEN)]),
        np.concatenate([cells.n, passed]),
    )
