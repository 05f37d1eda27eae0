"""Which column plays which role: by its name, by what it holds, and together with the others.

A role is proposed when one column fits best. Where several fit equally, all are named and none is
taken; where only the content speaks for a column, the proposal says that it is a guess.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reweigh.cli.episodes import Order, episodes_and_steps
from reweigh.cli.first_look import Look, Seen
from reweigh.cli.names import PART, rating, stem, words
from reweigh.cli.proposal import (
    NAME,
    REQUIRED,
    Choice,
    Proposal,
    by,
    is_named,
    one_or_open,
    quoted,
    what,
)
from reweigh.cli.tidy import Repair, is_percent, is_yes_or_no, shares

MANY_UNIQUE = 0.5  # of the rows: such a state is seen about once


def propose(look: Look) -> Proposal:
    """The roles of a log's columns."""
    made = Proposal()
    columns = {seen.name: seen for seen in look.columns}
    order = episodes_and_steps(made, columns)
    for role in ("behavior_prob", "target_prob", "reward", "action"):
        _by_name(made, role, columns)
    _flags(made, columns, order)
    _states(made, columns)
    _by_content(made, columns)
    _flags_by_content(made, columns, order)
    _next_state(made, columns, order)
    _say_what_is_missing(made, columns, order, look)
    used = made.taken() | {name for choice in made.open.values() for name in choice.columns}
    made.unused = tuple(name for name in columns if name not in used)
    return made


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


def _by_name(made: Proposal, role: str, columns: dict[str, Seen]) -> None:
    fits, reason = FITS[role]
    free = [c for c in columns.values() if c.name not in made.taken()]
    named = [c for c in free if rating(role, c.name) and _loudest(role, c.name)]
    fitting = [c for c in named if fits(c) or _repair(role, c) is not None]
    for c in named:
        if c not in fitting and rating(role, c.name) > PART:
            made.doubts.append(
                f"{quoted(c.name)} is named like {role}, but {_unfit(role, c, reason)}"
            )
    strongest = max((rating(role, c.name) for c in fitting), default=0)
    best = [c for c in fitting if rating(role, c.name) == strongest]
    one_or_open(made, role, [c.name for c in best], NAME)
    if len(best) == 1:
        made.roles[role] = Choice((best[0].name,), f"{by(role, best[0])}{what(best[0])}")
        _mend(made, role, best[0])
        if role == "action" and best[0].kind == "number":
            made.settings["continuous_actions"] = True
            made.doubts.append(
                f"the actions {quoted(best[0].name)} are fractions: read as continuous, with "
                "densities as probabilities; if they are codes, write whole numbers"
            )


def _repair(role: str, c: Seen) -> Repair | None:
    """What would make the column fit for the role, if something that is known would."""
    if c.nulls or FITS[role][0](c):
        return None
    if role.endswith("prob") and (is_percent(c.column) or (c.within(0.0, 100.0) and _percent(c))):
        held = shares(c.column)
        low = np.nextafter(0.0, 1.0) if role == "behavior_prob" else 0.0
        return Repair(c.name, "percent") if np.all((held >= low) & (held <= 1)) else None
    if role in ("terminated", "truncated") and is_yes_or_no(c.column):
        return Repair(c.name, "truth")
    return None


def _percent(c: Seen) -> bool:
    """Numbers of which some are too large for shares that were written carelessly, in a column
    whose name speaks of probabilities or of percentages."""
    named = bool(rating("behavior_prob", c.name) or rating("target_prob", c.name))
    told = "%" in c.name or bool({"percent", "pct", "percentage"} & set(words(c.name)))
    return float(c.values.max()) > 2 and (named or told)


def _mend(made: Proposal, role: str, c: Seen) -> None:
    repair = _repair(role, c)
    if repair is not None:
        made.repairs.append(repair)


def _loudest(role: str, name: str) -> bool:
    """No other role's name fits better."""
    return rating(role, name) >= max(rating(other, name) for other in FITS)


def _unfit(role: str, c: Seen, reason: str) -> str:
    if role.endswith("prob") and c.is_numeric and not c.nulls:
        low, high = float(c.values.min()), float(c.values.max())
        if high <= 0:
            return f"its values lie in [{low:g}, {high:g}]: log-probabilities? write exp() of them"
        return f"its values lie in [{low:g}, {high:g}]"
    return reason


def _flags(made: Proposal, columns: dict[str, Seen], order: Order | None) -> None:
    for role in ("terminated", "truncated"):
        _by_name(made, role, columns)
        if role not in made.roles:
            continue
        name = made.roles[role].columns[0]
        if order is not None and np.any(_true(columns[name]) & ~order.last):
            del made.roles[role]
            made.repairs = [repair for repair in made.repairs if repair.column != name]
            made.doubts.append(
                f"{quoted(name)} is named like {role}, but it is true before the last step of an "
                "episode: not taken"
            )
        elif role == "terminated" and "done" in name.lower():
            made.doubts.append(
                f"{quoted(name)} is read as terminated; in some logs it is true at a time limit "
                "too: such rows are truncated"
            )


def _true(c: Seen) -> npt.NDArray[np.bool_]:
    """(N,) where a flag is set, however it is written."""
    if c.kind == "text":
        flag = Repair(c.name, "truth").of(c.column)
        return np.asarray(flag.fill_null(False).to_numpy(zero_copy_only=False), bool)
    return np.asarray(c.values == 1, bool)


def _flags_by_content(made: Proposal, columns: dict[str, Seen], order: Order | None) -> None:
    """Where episodes are short and no name tells why: the one flag that only last rows have."""
    if order is None or {"terminated", "truncated"} & set(made.roles):
        return
    short = order.last & (order.length < order.length.max())[order.episode]
    found = [
        c
        for c in columns.values()
        if c.name not in made.taken()
        and not c.nulls
        and (c.is_flag or is_yes_or_no(c.column))
        and np.any(_true(c) & short)
        and not np.any(_true(c) & ~order.last)
    ]
    if len(found) == 1:
        [flag] = found
        why = "set in last rows alone; a guess"
        made.roles["terminated"] = Choice((flag.name,), why, guess=True)
        _mend(made, "terminated", flag)
        for role, choice in list(made.open.items()):  # it is none of those
            rest = tuple(name for name in choice.columns if name != flag.name)
            made.open[role] = Choice(rest, choice.why)


def _states(made: Proposal, columns: dict[str, Seen]) -> None:
    free = [
        c
        for c in columns.values()
        if c.name not in made.taken() and (c.is_label or c.is_numeric) and _loudest_state(c.name)
    ]
    named = [c for c in free if rating("state", c.name)]
    strongest = max((rating("state", c.name) for c in named), default=0)
    best = [c for c in named if rating("state", c.name) == strongest]
    if len(best) > 1 and len({stem(c.name) for c in best}) == 1 and strongest == PART:
        names = tuple(c.name for c in best)
        made.roles["state"] = Choice(names, f"{len(names)} columns named alike make one state")
        return
    one_or_open(made, "state", [c.name for c in best], NAME)
    if len(best) == 1:
        made.roles["state"] = Choice((best[0].name,), f"{by('state', best[0])}{what(best[0])}")


def _loudest_state(name: str) -> bool:
    return rating("state", name) >= max(rating(r, name) for r in (*FITS, "next_state"))


def _by_content(made: Proposal, columns: dict[str, Seen]) -> None:
    """Roles that no name told: the one column that is left for it, as a guess."""

    def left(fits: Callable[[Seen], bool]) -> list[str]:
        named = {n for choice in made.open.values() if choice.why == NAME for n in choice.columns}
        return [
            c.name
            for c in columns.values()
            if c.name not in made.taken() | named and not is_named(c) and not c.nulls and fits(c)
        ]

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
        if role in made.roles or role in made.open:
            continue
        found = left(fits)
        if len(found) == 1:
            made.roles[role] = Choice((found[0],), f"{why}; a guess", guess=True)
            if role in FITS:
                _mend(made, role, columns[found[0]])
        elif found:
            made.open[role] = Choice(tuple(found), "by content")


def _next_state(made: Proposal, columns: dict[str, Seen], order: Order | None) -> None:
    """A column that holds the state of the next row, wherever there is one."""
    if "state" not in made.roles or len(made.roles["state"].columns) > 1 or order is None:
        return
    state = columns[made.roles["state"].columns[0]]
    rows = np.flatnonzero(order.after >= 0)
    following = state.column.take(order.after[rows])
    found = []
    for c in columns.values():
        named = rating("next_state", c.name) > 0
        if c.name in made.taken() or c.column.type != state.column.type or c.kind == "empty":
            continue
        here = c.column.take(rows)
        agree = here.equals(following)
        if agree and (named or state.distinct > 1):
            found.append(c.name)
        elif named:
            made.doubts.append(
                f"{quoted(c.name)} is named like next_state, but it is not the next row's "
                f"{quoted(state.name)}: not taken"
            )
    one_or_open(made, "next_state", found, "the state of the next row")
    if len(found) == 1:
        made.roles["next_state"] = Choice((found[0],), f"the next row's {quoted(state.name)}")
        for role, choice in list(made.open.items()):  # it was none of those
            rest = tuple(name for name in choice.columns if name != found[0])
            made.open[role] = Choice(rest, choice.why)


# --- what is missing -------------------------------------------------------------------------


def _say_what_is_missing(
    made: Proposal, columns: dict[str, Seen], order: Order | None, look: Look
) -> None:
    for role in REQUIRED:
        if role not in made.roles and role not in made.open:
            made.missing.append(_absent(role))
    if "behavior_prob" not in made.roles and "behavior_prob" not in made.open:
        made.settings["fit_behavior"] = True
        made.missing.append(
            "no column holds the behaviour's probabilities: they will be estimated by counts "
            "(fit_behavior), and the errors take them for the truth"
        )
    elif "behavior_prob" in made.roles:
        mu = columns[made.roles["behavior_prob"].columns[0]]
        if mu.within(1.0, 1.0):
            made.doubts.append(
                f"every value of {quoted(mu.name)} is 1: a log of a deterministic policy cannot "
                "tell about another one"
            )
    for name in made.roles["state"].columns if "state" in made.roles else ():
        seen = columns[name]
        if seen.kind == "number":
            made.missing.append(
                f"the state {quoted(name)} is a fraction ({seen.distinct:,} values in "
                f"{seen.rows:,} rows): make states of it with round or grid"
            )
        elif seen.distinct > MANY_UNIQUE * seen.rows:
            made.doubts.append(
                f"{quoted(name)} has {seen.distinct:,} values in {seen.rows:,} rows: most states "
                "would be seen once"
            )
    if order is not None:
        _ragged(made, columns, order, look)


def _absent(role: str) -> str:
    if role == "step":
        return (
            "no column counts the steps of an episode 0, 1, 2, …: add one; if every row is an "
            "episode of its own, it holds zeros"
        )
    if role == "episode":
        return "no column holds an episode's id: add one; if every row is one, number the rows"
    return f"no column was found for the {role}"


def _ragged(made: Proposal, columns: dict[str, Seen], order: Order, look: Look) -> None:
    """Episodes shorter than the longest must say why."""
    flagged = np.zeros(len(order.episode), bool)
    for role in ("terminated", "truncated"):
        if role in made.roles:
            flagged |= _true(columns[made.roles[role].columns[0]])
    short = order.last & (order.length < order.length.max())[order.episode]
    if not look.whole:  # the last episode may go on in the next row
        short &= order.episode != order.episode[-1]
    silent = int(np.sum(short & ~flagged))
    if silent:
        made.missing.append(
            f"{silent:,} episode{'s are' if silent > 1 else ' is'} shorter than the longest "
            f"({order.length.max():,} steps) and nothing says why: set short_episodes to "
            "terminal (they ended) or truncated (they were cut off)"
        )
