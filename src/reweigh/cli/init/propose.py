"""Which column plays which role: by its name, by what it holds, and together with the others.

A role is proposed when one column fits best. Where several fit equally, all are named and none is
taken; where only the content speaks for a column, the proposal says that it is a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from reweigh.cli.init.columns import Column, Look, Repair, count_from_zero, is_percent
from reweigh.cli.init.roles import (
    CHOSEN_BY_NAME,
    EARLY,
    EXPECTED,
    FLAGS,
    LEAST,
    PART,
    ROLES,
    Order,
    rating,
    words,
)

BY_NAME = "by name"
MANY_UNIQUE = 0.5  # of the rows: such a state is seen about once


def _is_named(c: Column) -> bool:
    """The name speaks for some role by itself."""
    return any(rating(role, c.name) > PART for role in ROLES)


def _best_named(role: str, columns: Iterable[Column]) -> list[Column]:
    """Those whose names speak for the role most strongly."""
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
    settings  further options
    repairs   what `--tidy` can put right
    """

    columns: dict[str, Column]
    roles: dict[str, Choice] = field(default_factory=dict)
    open: dict[str, Choice] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    settings: dict[str, bool] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)

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
        this one lacks."""
        answers = [(role, self.roles.get(role), self.open.get(role)) for role in ROLES]
        return [each for k, each in enumerate(answers) if k < EXPECTED or any(each[1:])]

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


def propose(look: Look) -> Proposal:
    """The roles of a log's columns."""
    proposal = Proposal({column.name: column for column in look.columns})
    order = _episode_and_step(proposal)
    for role in CHOSEN_BY_NAME:
        _by_name(proposal, role, order)
    _states(proposal)
    _by_content(proposal, order)
    _flag_by_content(proposal, order)
    _next_state(proposal, order)
    _missing(proposal)
    if order is not None:
        _short_episodes(proposal, order, look)
    return proposal


def _fit(role: str, c: Column, order: Order | None) -> tuple[str, Repair | None]:
    """Why the column cannot play the role, empty where it can; and what makes it fit, if it needs
    that."""
    unfit = ROLES[role].unfit
    assert unfit is not None
    why = unfit(c, order)
    repair = ROLES[role].repair(c) if why and not c.nulls else None
    if repair is None:
        return why, None
    left = unfit(repair.mended(c), order)
    return (left if left == EARLY else why, None) if left else ("", repair)


def _reason(role: str, c: Column, what: str) -> str:
    return f"named so; {what}" if rating(role, c.name) else what


def _speaks_for(role: str, name: str, others: Iterable[str]) -> bool:
    """The name speaks for the role, and none of the others' names fits better."""
    return 0 < rating(role, name) >= max(rating(other, name) for other in others)


def _by_name(proposal: Proposal, role: str, order: Order | None) -> None:
    named = [c for c in proposal.free() if _speaks_for(role, c.name, CHOSEN_BY_NAME)]
    fits = {c: _fit(role, c, order) for c in named}
    proposal.doubts += [
        f"{c.name!r} is named like {role}, but {why}"
        for c, (why, _) in fits.items()
        if why and (rating(role, c.name) > PART or why == EARLY)
    ]
    best = _best_named(role, [c for c, (why, _) in fits.items() if not why])
    if len(best) != 1:
        proposal.choose(role, best, BY_NAME)
        return
    [c] = best
    proposal.choose(role, best, BY_NAME, alone=_reason(role, c, c.content), repair=fits[c][1])
    if role == "action" and c.kind == "number":
        proposal.settings["continuous_actions"] = True
        proposal.doubts.append(
            f"the actions {c.name!r} are fractions: read as continuous, with densities as "
            "probabilities; if they are codes, write whole numbers"
        )
    if role == "terminated" and "done" in c.name.lower():
        proposal.doubts.append(
            f"{c.name!r} is read as terminated; in some logs it is true at a time limit too: such "
            "rows are truncated"
        )


def _states(proposal: Proposal) -> None:
    named = [
        c
        for c in proposal.free()
        if (c.is_label or c.is_numeric)
        and _speaks_for("state", c.name, (*CHOSEN_BY_NAME, "next_state"))
    ]
    best = _best_named("state", named)
    # the columns of one state share the first word: state_bp, state_hr
    stems = {next(iter(words(c.name)), c.name) for c in best}
    if len(best) > 1 and len(stems) == 1 and rating("state", best[0].name) == PART:
        why = f"{len(best)} columns named alike make one state"
        proposal.roles["state"] = Choice(tuple(c.name for c in best), why)
        return
    alone = _reason("state", best[0], best[0].content) if best else ""
    proposal.choose("state", best, BY_NAME, alone=alone)


def _is_unit(c: Column) -> bool:
    shares = c.has_fractions and c.within(LEAST, 1.0) and not c.is_flag
    return shares or _fit("behavior_prob", c, None)[1] is not None


def _is_choice(c: Column) -> bool:
    return c.is_label and c.distinct > 1 and not is_percent(c)


CONTENT: tuple[tuple[str, Callable[[Column], bool], str], ...] = (
    ("behavior_prob", _is_unit, "the only column of probabilities"),
    ("reward", lambda c: c.has_fractions, "the only other column of numbers"),
    ("reward", lambda c: c.is_numeric and c.distinct > 1, "the only other column of numbers"),
    ("state", _is_choice, "the only column of labels left"),
    ("action", _is_choice, "the only column of labels left"),
)


def _by_content(proposal: Proposal, order: Order | None) -> None:
    """Roles that no name told: the one column that is left for it, as a guess."""
    for role, fits, why in CONTENT:
        if role in proposal.roles or role in proposal.open:
            continue
        by_name = [choice.columns for choice in proposal.open.values() if choice.why == BY_NAME]
        named = {name for columns in by_name for name in columns}
        left = [
            c
            for c in proposal.free()
            if c.name not in named and not _is_named(c) and not c.nulls and fits(c)
        ]
        repair = _fit(role, left[0], order)[1] if left and ROLES[role].unfit else None
        proposal.choose(
            role, left, "by content", alone=f"{why}; a guess", guess=True, repair=repair
        )


def _flag_by_content(proposal: Proposal, order: Order | None) -> None:
    """Where episodes are short and no name tells why: the one flag that only last rows have."""
    if order is None or set(FLAGS) & set(proposal.roles):
        return
    flags = []
    for c in proposal.free():
        why, repair = _fit("terminated", c, order)
        flag = c if repair is None else repair.mended(c)
        if not why and np.any((flag.values == 1) & order.short):
            flags.append((c, repair))
    if len(flags) == 1:
        [(c, repair)] = flags
        why = "set in last rows alone; a guess"
        proposal.choose("terminated", [c], why, guess=True, repair=repair)
        proposal.rule_out(c.name)


def _next_state(proposal: Proposal, order: Order | None) -> None:
    """A column that holds the state of the next row, wherever there is one."""
    state = proposal.column("state")
    if state is None or order is None:
        return
    rows = np.flatnonzero(~order.last)
    following = state.cells.take(order.after[rows])
    columns = []
    for c in proposal.free():
        if c.cells.type != state.cells.type or c.kind == "empty":
            continue
        named = rating("next_state", c.name) > 0
        agree = c.cells.take(rows).equals(following)
        if agree and (named or state.distinct > 1):
            columns.append(c)
        elif named:
            proposal.doubts.append(
                f"{c.name!r} is named like next_state, but it is not the next row's "
                f"{state.name!r}: not taken"
            )
    alone = f"the next row's {state.name!r}"
    chosen = proposal.choose("next_state", columns, "the state of the next row", alone=alone)
    if chosen is not None:
        proposal.rule_out(chosen.name)


# --- episode and step: they only make sense together


def _episode_and_step(proposal: Proposal) -> Order | None:
    """The pair of columns in which each id has the steps 0, 1, 2, …, as the names have it."""
    ids = [c for c in proposal.free() if c.kind in ("whole", "text") and not c.nulls]
    counts = [c for c in ids if c.kind == "whole"]
    named_ids = [c for c in ids if _speaks_for("episode", c.name, ["step"])]
    named_counts = [c for c in counts if _speaks_for("step", c.name, ["episode"])]
    best = _best_pairs(
        named_ids or [c for c in ids if not _is_named(c)],
        named_counts or [c for c in counts if not _is_named(c)],
    )
    guess = not (named_ids or named_counts)
    if len(best) == 1:
        [(e, t)] = best
        if guess and e.kind == "whole" and _first_step(t, e) == 1:
            # n ids 0, 1, … with H steps from 1 look like H ids with n steps from 0
            return _in_order(proposal, t, e, 1, guess=guess)
        return _in_order(proposal, e, t, 0, guess=guess)
    if best:
        why = "in which the steps are 0, 1, 2, … per episode"
        proposal.choose("episode", list(dict.fromkeys(e for e, _ in best)), why)
        proposal.choose("step", list(dict.fromkeys(t for _, t in best)), why)
        return None
    by_name = proposal.choose("episode", _best_named("episode", named_ids), BY_NAME)
    counted = proposal.choose("step", _best_named("step", named_counts), BY_NAME)
    if by_name is not None and counted is not None:
        first = _first_step(by_name, counted)
        if first is not None:
            return _in_order(proposal, by_name, counted, first, guess=False)
        proposal.doubts.append(
            f"within a {by_name.name!r} the values of {counted.name!r} are not 0, 1, 2, … each "
            "once: `reweigh check` names the rows"
        )
        return None
    pairs = [(e, t) for e in named_ids or ids for t in named_counts or counts if e is not t]
    from_one = [(e, t) for e, t in pairs if _first_step(e, t) == 1]
    if len(from_one) == 1:
        [(e, t)] = from_one
        unnamed = not (rating("episode", e.name) or rating("step", t.name))
        return _in_order(proposal, e, t, 1, guess=unnamed)
    proposal.doubts += [
        f"{t.name!r} counts 1, 2, … within each {e.name!r}: these two may be step and episode"
        for e, t in from_one
    ]
    return None


def _best_pairs(ids: list[Column], counts: list[Column]) -> list[tuple[Column, Column]]:
    """The pairs in which each id has the steps 0, 1, 2, …, and whose names fit best."""
    pairs = [(e, t) for e in ids for t in counts if e is not t and _first_step(e, t) == 0]
    ratings = [rating("episode", e.name) + rating("step", t.name) for e, t in pairs]
    best = [pair for pair, r in zip(pairs, ratings, strict=True) if r == max(ratings)]
    if len(best) == 2 and best[0][0] is best[1][1]:
        # n ids with H steps each are H ids with n steps each: an episode's rows stand together
        best = [max(best, key=lambda pair: np.mean(np.diff(pair[0].codes) == 0))]
    return best


def _first_step(e: Column, t: Column) -> int | None:
    """The number that the steps of every episode begin with; None unless each episode has the
    steps from there on, each once, and some episode has more than one."""
    first = t.values.min()
    episode, step = e.codes, t.values - first
    length = np.bincount(episode)
    highest = np.zeros(len(length))
    np.maximum.at(highest, episode, step)
    if length.max() < 2 or np.any(highest != length - 1):
        return None
    cells = episode * int(length.max()) + step.astype(np.int64)
    return int(first) if len(np.unique(cells)) == len(step) else None


def _in_order(proposal: Proposal, e: Column, t: Column, first: int, *, guess: bool) -> Order:
    """The order of the rows by these columns, whose steps count from `first`."""
    counted = f"{first}, {first + 1}, {'2, ' if first == 0 else ''}… within each {e.name!r}"
    repair = count_from_zero(t.name, first) if first else None
    alone = _reason("episode", e, f"{e.distinct:,} of them")
    proposal.choose("episode", [e], BY_NAME, alone=alone, guess=guess)
    alone = _reason("step", t, f"its values are {counted}")
    proposal.choose("step", [t], BY_NAME, alone=alone, guess=guess, repair=repair)
    order = np.lexsort((t.values, e.codes))
    same = e.codes[order[1:]] == e.codes[order[:-1]]
    after = np.full(len(order), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    return Order(e.codes, np.bincount(e.codes), after)


# --- what is missing


def _missing(proposal: Proposal) -> None:
    decided = proposal.roles.keys() | proposal.open.keys()
    absent = {role: known.absent for role, known in ROLES.items() if role not in decided}
    proposal.missing += [text for text in absent.values() if text]
    behavior = proposal.column("behavior_prob")
    if "behavior_prob" in absent:
        proposal.settings["fit_behavior"] = True
        proposal.missing.append(
            "no column holds the behaviour's probabilities: they will be estimated by counts "
            "(fit_behavior), and the errors take them for the truth"
        )
    elif behavior is not None and behavior.within(1.0, 1.0):
        proposal.doubts.append(
            f"every value of {behavior.name!r} is 1: a log of a deterministic policy cannot tell "
            "about another one"
        )
    for name in proposal.roles["state"].columns if "state" in proposal.roles else ():
        c = proposal.columns[name]
        many = f"{c.distinct:,} values in {c.rows:,} rows"
        if c.kind == "number":
            proposal.missing.append(
                f"the state {name!r} is a fraction ({many}): make states of it with round or grid"
            )
        elif c.distinct > MANY_UNIQUE * c.rows:
            proposal.doubts.append(f"{name!r} has {many}: most states would be seen once")


def _short_episodes(proposal: Proposal, order: Order, look: Look) -> None:
    """Episodes shorter than the longest must say why."""
    unexplained = order.short
    for flag in map(proposal.column, FLAGS):
        if flag is not None:
            unexplained &= flag.values != 1
    if not look.whole:  # the last episode may go on in the next row
        unexplained &= order.episode != order.episode[-1]
    many = int(np.sum(unexplained))
    if many:
        proposal.missing.append(
            f"{many:,} episode{'s are' if many > 1 else ' is'} shorter than the longest "
            f"({order.length.max():,} steps) and nothing says why: set short_episodes to "
            "terminal (they ended) or truncated (they were cut off)"
        )
