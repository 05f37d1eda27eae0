"""Which column plays which role: by its name, by what it holds, and together with the others.

A role is proposed when one column fits best. Where several fit equally, all are named and none is
taken; where only the content speaks for a column, the proposal says that it is a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reweigh.cli.look import Look, Seen
from reweigh.cli.names import PART, rating, stem

REQUIRED = ("episode", "step", "state", "action", "reward")
NAME = "by name"
MANY_UNIQUE = 0.5  # of the rows: such a state is seen about once
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Choice:
    """The columns of a role and why; a guess rests on the content alone."""

    columns: tuple[str, ...]
    why: str
    guess: bool = False


@dataclass
class Proposal:
    """roles: what is proposed. open: roles that several columns may play. doubts: what a reader
    should look at. missing: what the log lacks, and what to do. settings: further options."""

    roles: dict[str, Choice] = field(default_factory=dict)
    open: dict[str, Choice] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    settings: dict[str, bool] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    def taken(self) -> set[str]:
        return {name for choice in self.roles.values() for name in choice.columns}


@dataclass(frozen=True, eq=False)
class Order:
    """Episode and step of every row: after[i] is the row that follows row i, -1 for none."""

    episode: Ints
    length: Ints  # (episodes,)
    last: npt.NDArray[np.bool_]  # (N,)
    after: Ints


def propose(look: Look) -> Proposal:
    """The roles of a log's columns."""
    made = Proposal()
    columns = {seen.name: seen for seen in look.columns}
    order = _episodes_and_steps(made, columns)
    for role in ("behavior_prob", "target_prob", "reward", "action"):
        _by_name(made, role, columns)
    _flags(made, columns, order)
    _states(made, columns)
    _by_content(made, columns)
    _next_state(made, columns, order)
    _say_what_is_missing(made, columns, order, look)
    used = made.taken() | {name for choice in made.open.values() for name in choice.columns}
    made.unused = tuple(name for name in columns if name not in used)
    return made


# --- episodes and steps, which only make sense together -------------------------------------


def _episodes_and_steps(made: Proposal, columns: dict[str, Seen]) -> Order | None:
    """The pair of columns in which each id has the steps 0, 1, 2, …, as the names have it."""
    ids = [c for c in columns.values() if c.kind in ("whole", "text") and not c.nulls]
    counts = [c for c in columns.values() if c.kind == "whole" and not c.nulls]
    named_ids = [c for c in ids if _claims("episode", c, ("step",))]
    named_counts = [c for c in counts if _claims("step", c, ("episode",))]
    pairs = [
        (rating("episode", e.name) + rating("step", t.name), e, t)
        for e in named_ids or [c for c in ids if not _named(c)]
        for t in named_counts or [c for c in counts if not _named(c)]
        if e is not t and _counts_up(e.codes, t.values)
    ]
    best = [pair for pair in pairs if pair[0] == max(p[0] for p in pairs)]
    if len(best) == 2 and best[0][1] is best[1][2]:
        # n ids with H steps each are H ids with n steps each: an episode's rows stand together
        best = [max(best, key=lambda pair: np.mean(np.diff(pair[1].codes) == 0))]
    if len(best) == 1 and not (named_ids or named_counts):
        # n ids 0, 1, … with H steps from 1 look like H ids with n steps from 0
        [(_, e, t)] = best
        other = _counted_from_one([t], [e])
        if other:
            made.doubts += other
            return None
    if len(best) == 1:
        _, e, t = best[0]
        n = e.distinct
        told = f"its values are 0, 1, 2, … within each {_quoted(e.name)}"
        sure = bool(named_ids or named_counts)  # else a guess
        made.roles["episode"] = Choice((e.name,), f"{_by('episode', e)}{n:,} of them", not sure)
        made.roles["step"] = Choice((t.name,), f"{_by('step', t)}{told}", not sure)
        return _order(e, t)
    if best:
        candidates = {"episode": [e for _, e, _ in best], "step": [t for _, _, t in best]}
        for role, found in candidates.items():
            names = list(dict.fromkeys(seen.name for seen in found))
            _one_or_open(made, role, names, "in which the steps are 0, 1, 2, … per episode")
        return None
    for role, named in (("episode", named_ids), ("step", named_counts)):
        strongest = max((rating(role, c.name) for c in named), default=0)
        names = [c.name for c in named if rating(role, c.name) == strongest]
        _one_or_open(made, role, names, NAME)
    if "episode" in made.roles and "step" in made.roles:
        e, t = (columns[made.roles[role].columns[0]] for role in ("episode", "step"))
        made.doubts.append(_why_not_counted(e, t))
    else:
        made.doubts += _counted_from_one(named_ids or ids, named_counts or counts)
    return None


def _counted_from_one(ids: list[Seen], counts: list[Seen]) -> list[str]:
    """Pairs of columns that would do if the second counted from 0."""
    return [
        f"{_quoted(t.name)} counts 1, 2, … within each {_quoted(e.name)}; reweigh counts from 0: "
        "subtract 1, and these two are step and episode"
        for e in ids
        for t in counts
        if e is not t and t.values.min() == 1 and _counts_up(e.codes, t.values - 1)
    ]


def _claims(role: str, seen: Seen, others: Iterable[str]) -> bool:
    """The name speaks for this role, and no louder for one of the others."""
    own = rating(role, seen.name)
    return own > 0 and own >= max(rating(other, seen.name) for other in others)


def _counts_up(episode: Ints, step: npt.NDArray[np.float64]) -> bool:
    """Each episode has the steps 0, 1, …, each once, and some episode has more than one."""
    n = int(episode.max()) + 1
    length = np.bincount(episode, minlength=n)
    highest = np.zeros(n)
    np.maximum.at(highest, episode, step)
    if length.max() < 2 or step.min() < 0 or np.any(highest != length - 1):
        return False
    return len(np.unique(episode * int(length.max()) + step.astype(np.int64))) == len(step)


def _order(e: Seen, t: Seen) -> Order:
    episode, step = e.codes, t.values.astype(np.int64)
    order = np.lexsort((step, episode))
    same = episode[order[1:]] == episode[order[:-1]]
    after = np.full(len(order), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    return Order(episode, np.bincount(episode), after < 0, after)


def _why_not_counted(e: Seen, t: Seen) -> str:
    where = f"within a {_quoted(e.name)} the values of {_quoted(t.name)}"
    first = np.full(e.distinct, np.inf)
    np.minimum.at(first, e.codes, t.values)
    if np.all(first == first[0]) and first[0] != 0 and _counts_up(e.codes, t.values - first[0]):
        return f"{where} start at {first[0]:g}; reweigh counts from 0: subtract {first[0]:g}"
    return f"{where} are not 0, 1, 2, … each once: `reweigh check` names the rows"


# --- the other roles -------------------------------------------------------------------------

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
    fitting = [c for c in named if fits(c)]
    for c in named:
        if c not in fitting and rating(role, c.name) > PART:
            made.doubts.append(
                f"{_quoted(c.name)} is named like {role}, but {_unfit(role, c, reason)}"
            )
    strongest = max((rating(role, c.name) for c in fitting), default=0)
    best = [c for c in fitting if rating(role, c.name) == strongest]
    _one_or_open(made, role, [c.name for c in best], NAME)
    if len(best) == 1:
        made.roles[role] = Choice((best[0].name,), f"{_by(role, best[0])}{_what(best[0])}")
        if role == "action" and best[0].kind == "number":
            made.settings["continuous_actions"] = True
            made.doubts.append(
                f"the actions {_quoted(best[0].name)} are fractions: read as continuous, with "
                "densities as probabilities; if they are codes, write whole numbers"
            )


def _loudest(role: str, name: str) -> bool:
    """No other role's name fits better."""
    return rating(role, name) >= max(rating(other, name) for other in FITS)


def _unfit(role: str, c: Seen, reason: str) -> str:
    if role.endswith("prob") and c.is_numeric and not c.nulls:
        low, high = float(c.values.min()), float(c.values.max())
        if high <= 0:
            return f"its values lie in [{low:g}, {high:g}]: log-probabilities? write exp() of them"
        if low >= 0 and 2 < high <= 100:
            return f"its values lie in [{low:g}, {high:g}]: percentages? divide them by 100"
        return f"its values lie in [{low:g}, {high:g}]"
    return reason


def _flags(made: Proposal, columns: dict[str, Seen], order: Order | None) -> None:
    for role in ("terminated", "truncated"):
        _by_name(made, role, columns)
        if role not in made.roles:
            continue
        name = made.roles[role].columns[0]
        if order is not None and np.any((columns[name].values == 1) & ~order.last):
            del made.roles[role]
            made.doubts.append(
                f"{_quoted(name)} is named like {role}, but it is true before the last step of an "
                "episode: not taken"
            )
        elif role == "terminated" and "done" in name.lower():
            made.doubts.append(
                f"{_quoted(name)} is read as terminated; in some logs it is true at a time limit "
                "too: such rows are truncated"
            )


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
    _one_or_open(made, "state", [c.name for c in best], NAME)
    if len(best) == 1:
        made.roles["state"] = Choice((best[0].name,), f"{_by('state', best[0])}{_what(best[0])}")


def _loudest_state(name: str) -> bool:
    return rating("state", name) >= max(rating(r, name) for r in (*FITS, "next_state"))


def _by_content(made: Proposal, columns: dict[str, Seen]) -> None:
    """Roles that no name told: the one column that is left for it, as a guess."""

    def left(fits: Callable[[Seen], bool]) -> list[str]:
        named = {n for choice in made.open.values() if choice.why == NAME for n in choice.columns}
        return [
            c.name
            for c in columns.values()
            if c.name not in made.taken() | named and not _named(c) and not c.nulls and fits(c)
        ]

    def unit(c: Seen) -> bool:
        return c.has_fractions and FITS["behavior_prob"][0](c) and not c.is_flag

    wanted: list[tuple[str, Callable[[Seen], bool], str]] = [
        ("behavior_prob", unit, "the only column of numbers in (0, 1]"),
        ("reward", lambda c: c.is_numeric and c.has_fractions, "the only other column of numbers"),
        ("reward", lambda c: c.is_numeric and c.distinct > 1, "the only other column of numbers"),
        ("state", lambda c: c.is_label and c.distinct > 1, "the only column of labels left"),
        ("action", lambda c: c.is_label and c.distinct > 1, "the only column of labels left"),
    ]
    for role, fits, why in wanted:
        if role in made.roles or role in made.open:
            continue
        found = left(fits)
        if len(found) == 1:
            made.roles[role] = Choice((found[0],), f"{why}; a guess", guess=True)
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
                f"{_quoted(c.name)} is named like next_state, but it is not the next row's "
                f"{_quoted(state.name)}: not taken"
            )
    _one_or_open(made, "next_state", found, "the state of the next row")
    if len(found) == 1:
        made.roles["next_state"] = Choice((found[0],), f"the next row's {_quoted(state.name)}")
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
                f"every value of {_quoted(mu.name)} is 1: a log of a deterministic policy cannot "
                "tell about another one"
            )
    for name in made.roles["state"].columns if "state" in made.roles else ():
        seen = columns[name]
        if seen.kind == "number":
            made.missing.append(
                f"the state {_quoted(name)} is a fraction ({seen.distinct:,} values in "
                f"{seen.rows:,} rows): make states of it with round or grid"
            )
        elif seen.distinct > MANY_UNIQUE * seen.rows:
            made.doubts.append(
                f"{_quoted(name)} has {seen.distinct:,} values in {seen.rows:,} rows: most states "
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
            flagged |= columns[made.roles[role].columns[0]].values == 1
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


# --- words -----------------------------------------------------------------------------------


def _one_or_open(made: Proposal, role: str, found: list[str], why: str) -> None:
    if len(found) == 1:
        made.roles[role] = Choice((found[0],), why)
    elif found:
        made.open[role] = Choice(tuple(found), why)


def _named(seen: Seen) -> bool:
    """The name speaks for some role by itself."""
    return any(rating(role, seen.name) > PART for role in (*FITS, *REQUIRED, "next_state"))


def _by(role: str, seen: Seen) -> str:
    return "" if rating(role, seen.name) == 0 else "named so; "


def _what(seen: Seen) -> str:
    if seen.kind == "number":
        return f"numbers in [{seen.values.min():g}, {seen.values.max():g}]"
    return f"{seen.distinct:,} values"


def _quoted(name: str) -> str:
    return repr(name)
