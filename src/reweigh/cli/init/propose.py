"""Which column plays which role: by its name, by what it holds, and together with the others.

A role is proposed when one column fits best. Where several fit equally, all are named and none is
taken; where only the content speaks for a column, the proposal says that it is a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from reweigh.cli.init.episodes import Order, episodes_and_steps
from reweigh.cli.init.look import Look, Seen
from reweigh.cli.init.names import PART, rating, stem, words
from reweigh.cli.init.proposal import (
    NAME,
    REQUIRED,
    Choice,
    Proposal,
    best_named,
    is_named,
    reason,
)
from reweigh.cli.init.tidy import Repair, is_percent, is_yes_or_no, shares

MANY_UNIQUE = 0.5  # of the rows: such a state is seen about once
FLAGS = ("terminated", "truncated")
FITS: dict[str, tuple[Callable[[Seen], bool], str]] = {
    "behavior_prob": (
        lambda c: c.within(np.nextafter(0.0, 1.0), 1.0),
        "its values are not all in (0, 1]",
    ),
    "target_prob": (lambda c: c.within(0.0, 1.0), "its values are not all in [0, 1]"),
    "reward": (lambda c: c.is_numeric, "it does not hold numbers"),
    "action": (lambda c: (c.is_label or c.is_numeric) and not c.nulls, "it has empty cells"),
    "terminated": (lambda c: c.is_flag and not c.nulls, "it does not hold true/false or 1/0"),
    "truncated": (lambda c: c.is_flag and not c.nulls, "it does not hold true/false or 1/0"),
}
ABSENT = {
    "step": "no column counts the steps of an episode 0, 1, 2, …: add one; if every row is an "
    "episode of its own, it holds zeros",
    "episode": "no column holds an episode's id: add one; if every row is one, number the rows",
}


def propose(look: Look) -> Proposal:
    """The roles of a log's columns."""
    proposal = Proposal()
    columns = {seen.name: seen for seen in look.columns}
    order = episodes_and_steps(proposal, columns)
    for role in ("behavior_prob", "target_prob", "reward", "action"):
        _by_name(proposal, role, columns)
    _flags(proposal, columns, order)
    _states(proposal, columns)
    _by_content(proposal, columns)
    _flags_by_content(proposal, columns, order)
    _next_state(proposal, columns, order)
    _missing(proposal, columns)
    if order is not None:
        _short_episodes(proposal, columns, order, look)
    used = proposal.taken() | {n for choice in proposal.open.values() for n in choice.columns}
    proposal.unused = tuple(name for name in columns if name not in used)
    return proposal


def _free(proposal: Proposal, columns: dict[str, Seen]) -> list[Seen]:
    taken = proposal.taken()
    return [c for c in columns.values() if c.name not in taken]


def _by_name(proposal: Proposal, role: str, columns: dict[str, Seen]) -> None:
    fits, unfit = FITS[role]
    named = [
        c
        for c in _free(proposal, columns)
        if rating(role, c.name) and _no_other(role, c.name, FITS)
    ]
    fitting = [c for c in named if fits(c) or _repair(role, c) is not None]
    proposal.doubts += [
        f"{c.name!r} is named like {role}, but {_unfit(role, c, unfit)}"
        for c in named
        if c not in fitting and rating(role, c.name) > PART
    ]
    best = best_named(role, fitting)
    alone = reason(role, best[0], best[0].content) if best else ""
    if proposal.choose(role, [c.name for c in best], NAME, alone):
        _mend(proposal, role, best[0])
        if role == "action" and best[0].kind == "number":
            proposal.settings["continuous_actions"] = True
            proposal.doubts.append(
                f"the actions {best[0].name!r} are fractions: read as continuous, with "
                "densities as probabilities; if they are codes, write whole numbers"
            )


def _no_other(role: str, name: str, others: Iterable[str]) -> bool:
    """None of the other roles' names fits better."""
    return all(rating(role, name) >= rating(other, name) for other in others)


def _repair(role: str, c: Seen) -> Repair | None:
    """What would make the column fit for the role, if something that is known would."""
    if c.nulls or FITS[role][0](c):
        return None
    if role.endswith("prob") and (is_percent(c.column) or (c.within(0.0, 100.0) and _percent(c))):
        held = shares(c.column)
        low = np.nextafter(0.0, 1.0) if role == "behavior_prob" else 0.0
        return Repair(c.name, "percent") if np.all((held >= low) & (held <= 1)) else None
    return Repair(c.name, "truth") if role in FLAGS and is_yes_or_no(c.column) else None


def _percent(c: Seen) -> bool:
    """Numbers of which some are too large for shares that were written carelessly, in a column
    whose name speaks of probabilities or of percentages."""
    named = bool(rating("behavior_prob", c.name) or rating("target_prob", c.name))
    percent = "%" in c.name or bool({"percent", "pct", "percentage"} & set(words(c.name)))
    return float(c.values.max()) > 2 and (named or percent)


def _mend(proposal: Proposal, role: str, c: Seen) -> None:
    repair = _repair(role, c)
    if repair is not None:
        proposal.repairs.append(repair)


def _unfit(role: str, c: Seen, why: str) -> str:
    if not (role.endswith("prob") and c.is_numeric and not c.nulls):
        return why
    low, high = float(c.values.min()), float(c.values.max())
    logs = ": log-probabilities? write exp() of them" if high <= 0 else ""
    return f"its values lie in [{low:g}, {high:g}]{logs}"


def _flags(proposal: Proposal, columns: dict[str, Seen], order: Order | None) -> None:
    for role in FLAGS:
        _by_name(proposal, role, columns)
        name = proposal.column(role)
        if name is None:
            continue
        if order is not None and np.any(_true(columns[name]) & ~order.last):
            del proposal.roles[role]
            proposal.repairs = [repair for repair in proposal.repairs if repair.column != name]
            proposal.doubts.append(
                f"{name!r} is named like {role}, but it is true before the last step of an "
                "episode: not taken"
            )
        elif role == "terminated" and "done" in name.lower():
            proposal.doubts.append(
                f"{name!r} is read as terminated; in some logs it is true at a time limit "
                "too: such rows are truncated"
            )


def _true(c: Seen) -> npt.NDArray[np.bool_]:
    """(N,) where a flag is set, however it is written."""
    if c.kind == "text":
        flag = Repair(c.name, "truth").of(c.column)
        return np.asarray(flag.fill_null(False).to_numpy(zero_copy_only=False), bool)
    return np.asarray(c.values == 1, bool)


def _flags_by_content(proposal: Proposal, columns: dict[str, Seen], order: Order | None) -> None:
    """Where episodes are short and no name tells why: the one flag that only last rows have."""
    if order is None or set(FLAGS) & set(proposal.roles):
        return
    flags = [
        c
        for c in _free(proposal, columns)
        if not c.nulls
        and (c.is_flag or is_yes_or_no(c.column))
        and np.any(_true(c) & order.short)
        and not np.any(_true(c) & ~order.last)
    ]
    if len(flags) == 1:
        why = "set in last rows alone; a guess"
        proposal.choose("terminated", [flags[0].name], why, guess=True)
        _mend(proposal, "terminated", flags[0])
        proposal.rule_out(flags[0].name)


def _states(proposal: Proposal, columns: dict[str, Seen]) -> None:
    named = [
        c
        for c in _free(proposal, columns)
        if (c.is_label or c.is_numeric)
        and rating("state", c.name)
        and _no_other("state", c.name, (*FITS, "next_state"))
    ]
    best = best_named("state", named)
    names = [c.name for c in best]
    if len(best) > 1 and len({*map(stem, names)}) == 1 and rating("state", names[0]) == PART:
        why = f"{len(names)} columns named alike make one state"
        proposal.roles["state"] = Choice(tuple(names), why)
        return
    alone = reason("state", best[0], best[0].content) if best else ""
    proposal.choose("state", names, NAME, alone)


def _by_content(proposal: Proposal, columns: dict[str, Seen]) -> None:
    """Roles that no name told: the one column that is left for it, as a guess."""

    def unit(c: Seen) -> bool:
        fits = c.has_fractions and FITS["behavior_prob"][0](c) and not c.is_flag
        return fits or _repair("behavior_prob", c) is not None

    def label(c: Seen) -> bool:
        return c.is_label and c.distinct > 1 and not is_percent(c.column)

    wanted: list[tuple[str, Callable[[Seen], bool], str]] = [
        ("behavior_prob", unit, "the only column of probabilities"),
        ("reward", lambda c: c.is_numeric and c.has_fractions, "the only other column of numbers"),
        ("reward", lambda c: c.is_numeric and c.distinct > 1, "the only other column of numbers"),
        ("state", label, "the only column of labels left"),
        ("action", label, "the only column of labels left"),
    ]
    for role, fits, why in wanted:
        if role in proposal.roles or role in proposal.open:
            continue
        by_name = [choice.columns for choice in proposal.open.values() if choice.why == NAME]
        left = [
            c.name
            for c in _free(proposal, columns)
            if not any(c.name in names for names in by_name)
            and not is_named(c)
            and not c.nulls
            and fits(c)
        ]
        chosen = proposal.choose(role, left, "by content", f"{why}; a guess", guess=True)
        if chosen and role in FITS:
            _mend(proposal, role, columns[left[0]])


def _next_state(proposal: Proposal, columns: dict[str, Seen], order: Order | None) -> None:
    """A column that holds the state of the next row, wherever there is one."""
    name = proposal.column("state")
    if name is None or order is None:
        return
    state = columns[name]
    rows = np.flatnonzero(order.after >= 0)
    following = state.column.take(order.after[rows])
    names = []
    for c in _free(proposal, columns):
        if c.column.type != state.column.type or c.kind == "empty":
            continue
        named = rating("next_state", c.name) > 0
        agree = c.column.take(rows).equals(following)
        if agree and (named or state.distinct > 1):
            names.append(c.name)
        elif named:
            proposal.doubts.append(
                f"{c.name!r} is named like next_state, but it is not the next row's "
                f"{state.name!r}: not taken"
            )
    alone = f"the next row's {state.name!r}"
    if proposal.choose("next_state", names, "the state of the next row", alone):
        proposal.rule_out(names[0])


# --- what is missing -------------------------------------------------------------------------


def _missing(proposal: Proposal, columns: dict[str, Seen]) -> None:
    decided = proposal.roles.keys() | proposal.open.keys()
    proposal.missing += [
        ABSENT.get(role, f"no column was found for the {role}")
        for role in REQUIRED
        if role not in decided
    ]
    behavior = proposal.column("behavior_prob")
    if "behavior_prob" not in decided:
        proposal.settings["fit_behavior"] = True
        proposal.missing.append(
            "no column holds the behaviour's probabilities: they will be estimated by counts "
            "(fit_behavior), and the errors take them for the truth"
        )
    elif behavior is not None and columns[behavior].within(1.0, 1.0):
        proposal.doubts.append(
            f"every value of {behavior!r} is 1: a log of a deterministic policy cannot "
            "tell about another one"
        )
    for name in proposal.roles["state"].columns if "state" in proposal.roles else ():
        seen = columns[name]
        if seen.kind == "number":
            proposal.missing.append(
                f"the state {name!r} is a fraction ({seen.distinct:,} values in "
                f"{seen.rows:,} rows): make states of it with round or grid"
            )
        elif seen.distinct > MANY_UNIQUE * seen.rows:
            proposal.doubts.append(
                f"{name!r} has {seen.distinct:,} values in {seen.rows:,} rows: most states "
                "would be seen once"
            )


def _short_episodes(proposal: Proposal, columns: dict[str, Seen], order: Order, look: Look) -> None:
    """Episodes shorter than the longest must say why."""
    unexplained = order.short
    for role in FLAGS:
        name = proposal.column(role)
        if name is not None:
            unexplained = unexplained & ~_true(columns[name])
    if not look.whole:  # the last episode may go on in the next row
        unexplained = unexplained & (order.episode != order.episode[-1])
    many = int(np.sum(unexplained))
    if many:
        proposal.missing.append(
            f"{many:,} episode{'s are' if many > 1 else ' is'} shorter than the longest "
            f"({order.length.max():,} steps) and nothing says why: set short_episodes to "
            "terminal (they ended) or truncated (they were cut off)"
        )
