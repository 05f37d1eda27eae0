"""Which column plays which role: by its name, by what it holds, and together with the others.

A role is proposed when one column fits best. Where several fit equally, all are named and none is
taken; where only the content suggests a column, the proposal says that it is a guess. The state is
what is named so, or what is measured and known before the action; numbers of many values are put
into bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from reweigh.cli.init.columns import Column, Look, Repair, is_percent
from reweigh.cli.init.order import find_order
from reweigh.cli.init.proposal import (
    BY_NAME,
    Choice,
    Proposal,
    best_named,
    is_named,
    reason,
    suggests_role,
)
from reweigh.cli.init.roles import (
    AFTERWARD,
    CHOSEN_BY_NAME,
    EARLY,
    ENDINGS,
    ENDS_WITH_ITS_ROWS,
    FLAGS,
    LEAST,
    PART,
    ROLES,
    Order,
    is_clock,
    rating,
    words,
)
from reweigh.log.abstractions import edges_of

Fits = Callable[[Column], bool]
MANY_UNIQUE = 0.5  # of the rows: such a state is seen about once
MOST_BINS, ROWS_OF_A_STATE = 5, 20  # as many bins as leave each state so many rows, on the whole
FEW = 20  # values of a column that is taken as it is


def propose(look: Look, *, bandit: bool = False) -> Proposal:
    """The roles of a log's columns; `bandit`: every row is known to be an episode."""
    proposal = Proposal({column.name: column for column in look.columns})
    order = find_order(proposal, bandit=bandit)
    for role in CHOSEN_BY_NAME:
        _by_name(proposal, role, order)
    if order is not None:
        _endings_in_words(proposal, order)
    named_states(proposal)
    _by_content(proposal, order, CONTENT[:NUMBERS])
    measured_state(proposal)
    _by_content(proposal, order, CONTENT[NUMBERS:])
    bins_of_state(proposal)
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


def _by_name(proposal: Proposal, role: str, order: Order | None) -> None:
    named = [c for c in proposal.free() if suggests_role(role, c.name, CHOSEN_BY_NAME)]
    fits = {c: _fit(role, c, order) for c in named}
    proposal.doubts += [
        f"{c.name!r} is named like {role}, but {why}"
        for c, (why, _) in fits.items()
        if why and (rating(role, c.name) > PART or why == EARLY)
    ]
    best = best_named(role, [c for c, (why, _) in fits.items() if not why])
    if role == "terminated" and len(best) > 1 and _end_together(proposal, best, order):
        return
    if len(best) != 1:
        proposal.choose(role, best, BY_NAME)
        return
    [c] = best
    proposal.choose(role, best, BY_NAME, alone=reason(role, c, c.content), repair=fits[c][1])
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


def _end_together(proposal: Proposal, flags: list[Column], order: Order | None) -> bool:
    """Several flags that end episodes (died, discharged): where they explain all short ones, a
    short episode is one that ended."""
    if order is None:
        return False
    ended = np.any([c.values == 1 for c in flags], axis=0)
    if np.any(order.short & ~ended):
        return False
    names = " or ".join(repr(c.name) for c in flags)
    _short_ones_ended(proposal, f"every short episode ends with {names}")
    return True


def _endings_in_words(proposal: Proposal, order: Order) -> None:
    """A column of texts such as died and discharged: where it has one at the end of every short
    episode, and none before, a short episode is one that ended."""
    for c in filter(_tells_endings, proposal.free()):
        before = np.isin(c.codes, c.codes[~order.last])
        final = order.last & ~before & (c.codes >= 0)
        if {*FLAGS} & proposal.roles.keys() or not np.any(order.short & final):
            proposal.doubts.append(
                f"{c.name!r} says how episodes ended, which is not known before: not in the state"
            )
        elif np.all(final[order.short]):
            _short_ones_ended(proposal, f"every short episode ends with a value in {c.name!r}")
        else:
            many = int(np.sum(order.short & ~final))
            proposal.doubts.append(
                f"{c.name!r} says how episodes ended, but not for {many:,} of the short ones"
            )


def _short_ones_ended(proposal: Proposal, because: str) -> None:
    proposal.settings["short_episodes"] = "terminal"
    proposal.doubts.append(f"{because}: short_episodes = terminal says that all of them ended")


def _tells_endings(c: Column) -> bool:
    """Texts of few values, one of which says that an episode ended."""
    if c.kind != "text" or c.distinct > FEW:
        return False
    return any(ENDINGS & {*words(text)} for text in c.cells.unique().to_pylist() if text)


def _is_unit(c: Column) -> bool:
    shares = c.has_fractions and c.within(LEAST, 1.0) and not c.is_flag
    return shares or _fit("behavior_prob", c, None)[1] is not None


def _is_choice(c: Column) -> bool:
    return c.is_label and c.distinct > 1 and not (is_percent(c) or _is_id(c))


def _is_id(c: Column) -> bool:
    """Texts that are different in every row."""
    return c.kind == "text" and c.distinct == c.rows


NUMBERS = 3  # of the roles by content, the first: the others are labels
CONTENT: tuple[tuple[str, Fits, str], ...] = (
    ("behavior_prob", _is_unit, "the only column of probabilities"),
    ("reward", lambda c: c.has_fractions, "the only other column of numbers"),
    ("reward", lambda c: c.is_numeric and c.distinct > 1, "the only other column of numbers"),
    ("state", _is_choice, "the only column of labels left"),
    ("action", _is_choice, "the only column of labels left"),
)


def _by_content(
    proposal: Proposal, order: Order | None, roles: Sequence[tuple[str, Fits, str]]
) -> None:
    """Roles that no name gives: the one column that is left for it, as a guess."""
    for role, fits, why in roles:
        if role in proposal.roles or role in proposal.open:
            continue
        by_name = [choice.columns for choice in proposal.open.values() if choice.why == BY_NAME]
        named = {name for columns in by_name for name in columns}
        left = [
            c
            for c in proposal.free()
            if c.name not in named
            and not (is_named(c) or is_clock(c) or c.nulls)
            and fits(c)
            and not _tells_endings(c)
        ]
        repair = _fit(role, left[0], order)[1] if left and ROLES[role].unfit else None
        proposal.choose(
            role, left, "by content", alone=f"{why}; a guess", guess=True, repair=repair
        )


def _flag_by_content(proposal: Proposal, order: Order | None) -> None:
    """Where episodes are short and no name says why: the one flag that only last rows have."""
    if order is None or {*FLAGS, "short_episodes"} & {*proposal.roles, *proposal.settings}:
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
    if len(rows) == 0:
        return
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


# --- what is missing


def _missing(proposal: Proposal) -> None:
    decided = proposal.roles.keys() | proposal.open.keys()
    decided |= proposal.needless
    absent = {role: known.absent for role, known in ROLES.items() if role not in decided}
    proposal.missing += [text for text in absent.values() if text]
    behavior = proposal.column("behavior_prob")
    if "behavior_prob" in absent:
        proposal.settings["fit_behavior"] = True
        proposal.missing.append(
            "no column holds the behavior's probabilities: they will be estimated by counts "
            "(fit_behavior), which is right if the decisions depended on the state alone"
        )
    elif behavior is not None and behavior.within(1.0, 1.0):
        proposal.doubts.append(
            f"every value of {behavior.name!r} is 1: a log of a deterministic policy cannot tell "
            "about another one"
        )
    for name in proposal.roles["state"].columns if "state" in proposal.roles else ():
        c = proposal.columns[name]
        many = f"{c.distinct:,} values in {c.rows:,} rows"
        if c.name not in proposal.bins and c.distinct > MANY_UNIQUE * c.rows:
            proposal.doubts.append(f"{name!r} has {many}: most states would be seen once")


def _short_episodes(proposal: Proposal, order: Order, look: Look) -> None:
    """Episodes shorter than the longest must say why."""
    if "short_episodes" in proposal.settings:
        return
    unexplained = order.short
    for flag in map(proposal.column, FLAGS):
        if flag is not None:
            unexplained &= flag.values != 1
    if not look.whole:  # the last episode may go on in the next row
        unexplained &= order.episode != order.episode[-1]
    many = int(np.sum(unexplained))
    id_words = {word for name in proposal.roles["episode"].columns for word in words(name)}
    if many == np.sum(order.short) and id_words & ENDS_WITH_ITS_ROWS:
        proposal.settings["short_episodes"] = "terminal"
        proposal.doubts.append(
            "episodes differ in length, and each is read as ended with its last row "
            "(short_episodes = terminal); if some were cut off, mark these in a column 'truncated'"
        )
    elif many:
        proposal.missing.append(
            f"{many:,} episode{'s are' if many > 1 else ' is'} shorter than the longest "
            f"({order.length.max():,} steps) and nothing says why: set short_episodes to "
            "terminal (they ended) or truncated (they were cut off)"
        )


def named_states(proposal: Proposal) -> None:
    named = [
        c
        for c in proposal.free()
        if (c.is_label or c.is_numeric)
        and not (is_clock(c) or _is_id(c))
        and suggests_role("state", c.name, (*CHOSEN_BY_NAME, "next_state", "time"))
    ]
    best = best_named("state", named)
    # the columns of one state share the first word: state_bp, state_hr
    stems = {next(iter(words(c.name)), c.name) for c in best}
    if len(best) > 1 and len(stems) == 1 and rating("state", best[0].name) == PART:
        why = f"{len(best)} columns named alike make one state"
        proposal.roles["state"] = Choice(tuple(c.name for c in best), why)
        return
    alone = reason("state", best[0], best[0].content) if best else ""
    proposal.choose("state", best, BY_NAME, alone=alone)


def measured_state(proposal: Proposal) -> None:
    """What no name says: all measurements that are left, with the labels beside them where the
    action is known; or those labels alone, where there are several. A guess."""
    if "state" in proposal.roles or "state" in proposal.open:
        return
    free = [c for c in proposal.free() if not (is_named(c) or AFTERWARD & {*words(c.name)})]
    left = [c for c in free if not (c.nulls or is_clock(c) or _tells_endings(c))]
    measured = [c for c in left if _is_measured(c)]
    labels = [c for c in left if c.is_label and 1 < c.distinct <= FEW and c not in measured]
    if "action" not in proposal.roles:
        labels = []
    if not measured and (len(labels) < 2 or _states_of(labels) * ROWS_OF_A_STATE > labels[0].rows):
        return
    chosen = [c for c in left if c in measured or c in labels]
    if "reward" in proposal.open:  # one of the numbers is it
        proposal.open["state"] = Choice(tuple(c.name for c in chosen), "by content")
        return
    what = "no other role fits it; a guess"
    if len(chosen) > 1:
        what = f"the {len(chosen)} columns that no other role fits, as one state; a guess"
    proposal.roles["state"] = Choice(tuple(c.name for c in chosen), what, guess=True)
    empty = [c.name for c in free if c.nulls and (_is_measured(c) or _is_choice(c))]
    proposal.doubts += [
        f"{name!r} has empty cells and is left out of the state: if it mattered for the decisions, "
        'the answer is wrong without it (fill the cells in, or add it and set hidden = "allow")'
        for name in empty
    ]


def _is_measured(c: Column) -> bool:
    """Fractions, or whole numbers of many values that are no ids."""
    if c.kind == "number":
        return c.distinct > 2
    return c.kind == "whole" and FEW < c.distinct <= c.rows / 2


def _states_of(labels: list[Column]) -> int:
    return math.prod(c.distinct for c in labels)


def bins_of_state(proposal: Proposal) -> None:
    """Bins for the state's columns of numbers."""
    state = proposal.roles.get("state") or proposal.open.get("state")
    if state is None:
        return
    columns = [proposal.columns[name] for name in state.columns]
    guess = state.guess or "state" in proposal.open
    binned = [c for c in columns if c.kind == "number" or (guess and _is_measured(c))]
    if not binned:
        return
    others = _states_of([c for c in columns if c not in binned])
    room = columns[0].rows / ROWS_OF_A_STATE / others
    bins = max(2, min(MOST_BINS, math.floor(room ** (1 / len(binned)) + 1e-9)))
    one = len(binned) == len(columns)
    settings = proposal.with_all if "state" in proposal.open else proposal.settings
    settings["bins"] = bins if one else [bins if c in binned else 0 for c in columns]
    if "state" in proposal.open:
        return
    for c in binned:
        edges = ", ".join(f"{edge:.6g}" for edge in edges_of(c.values, bins))
        proposal.bins[c.name] = edges
