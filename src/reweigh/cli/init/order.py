"""Which rows belong together, and in which order: episode and step, or time, or one row each."""

from __future__ import annotations

import numpy as np

from reweigh.cli.init.columns import Column, Repair, count_from_zero, date_to_iso
from reweigh.cli.init.roles import (
    BY_NAME,
    PART,
    Order,
    Proposal,
    best_named,
    is_clock,
    is_named,
    rating,
    reason,
    suggests,
    words,
)

ID_WORDS = {"id", "uuid", "guid", "key"}


def find_order(proposal: Proposal, *, bandit: bool = False) -> Order | None:
    """Episodes and the order of their rows, with the columns that tell them."""
    dates = _dates_as_iso(proposal)
    order = _order_of(proposal, bandit)
    if "time" in proposal.roles:
        proposal.repairs += [r for r in dates if r.column in proposal.roles["time"].columns]
    return order


def _dates_as_iso(proposal: Proposal) -> list[Repair]:
    """The repairs of dates that are not in ISO, done for the look at them; those that tell no days
    from months are doubts."""
    repairs = []
    for c in proposal.free():
        repair = date_to_iso(c)
        if repair is not None:
            proposal.columns[c.name] = repair.mended(c)
            repairs.append(repair)
        elif c.kind == "text" and rating("time", c.name) and not rating("step", c.name) > PART:
            proposal.doubts.append(
                f"{c.name!r} is named like time, but reweigh cannot read it: write it like "
                "2024-01-31 08:05:00 or as seconds since 1970"
            )
    return repairs


def _order_of(proposal: Proposal, bandit: bool) -> Order | None:
    clocks = [c for c in proposal.free() if is_clock(c)]
    order = None if bandit else _episode_and_step(proposal, clocks)
    if order is None and not {"episode", "step"} & (proposal.roles.keys() | proposal.open.keys()):
        order = _one_row_each(proposal, clocks, bandit=bandit)
    if order is not None and "time" not in proposal.roles:
        _time_beside(proposal, clocks)
    return order


def _ids(proposal: Proposal) -> list[Column]:
    """The columns that may hold the ids of episodes."""
    kinds = ("whole", "text")
    return [c for c in proposal.free() if c.kind in kinds and not c.nulls and not is_clock(c)]


def _episode_and_step(proposal: Proposal, clocks: list[Column]) -> Order | None:
    """The pair of columns in which each id has the steps 0, 1, 2, …, as the names have it; or an id
    whose rows have times."""
    ids = _ids(proposal)
    counts = [c for c in ids if c.kind == "whole"]
    named_ids = [c for c in ids if suggests("episode", c.name, ["step"])]
    named_counts = [c for c in counts if suggests("step", c.name, ["episode"])]
    best = _best_pairs(
        named_ids or [c for c in ids if not is_named(c)],
        named_counts or [c for c in counts if not is_named(c)],
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
    if clocks and (by_time := _by_time(proposal, named_ids or ids, clocks)) is not None:
        return by_time
    if not [e for e in named_ids if e.distinct < e.rows] and _unique(proposal):
        return None
    by_name = proposal.choose("episode", best_named("episode", named_ids), BY_NAME)
    counted = proposal.choose("step", best_named("step", named_counts), BY_NAME)
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
    alone = reason("episode", e, f"{e.distinct:,} of them")
    proposal.choose("episode", [e], BY_NAME, alone=alone, guess=guess)
    alone = reason("step", t, f"its values are {counted}")
    proposal.choose("step", [t], BY_NAME, alone=alone, guess=guess, repair=repair)
    return _following(e, t.values)


def _following(e: Column, values: np.ndarray) -> Order:
    """The rows of each id in the order of these values."""
    order = np.lexsort((values, e.codes))
    same = e.codes[order[1:]] == e.codes[order[:-1]]
    after = np.full(len(order), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    return Order(e.codes, np.bincount(e.codes), after)


# --- time


def _by_time(proposal: Proposal, ids: list[Column], clocks: list[Column]) -> Order | None:
    """The rows of an id in the order of a column of times."""
    # often enough to be those of episodes: two rows each, on the whole
    several = [e for e in ids if e.distinct > 1 and e.rows >= 2 * e.distinct]
    if len(several) > 1:
        several = best_named("episode", several)
    pairs = [(e, t, _ties(e, t)) for e in several for t in clocks if _varies(e, t)]
    pairs = [pair for pair in pairs if not pair[2]] or pairs
    if len(several) != 1 or not pairs:
        return None
    named = best_named("time", [t for _, t, _ in pairs])
    if len(named) > 1:
        proposal.choose("time", named, "times within each episode")
        return None
    [e], [time] = several, named
    ties = next(ties for _, t, ties in pairs if t is time)
    alone = reason("episode", e, f"{e.distinct:,} of them")
    proposal.choose("episode", [e], BY_NAME, alone=alone, guess=not rating("episode", e.name))
    alone = reason("time", time, f"it orders the rows within each {e.name!r}")
    proposal.choose("time", [time], BY_NAME, alone=alone)
    proposal.needless.add("step")
    if ties:
        proposal.doubts.append(
            f"{ties:,} row{'s have' if ties > 1 else ' has'} the same {time.name!r} as another of "
            f"the same {e.name!r}: `reweigh check` names the rows"
        )
    unique = [c.name for c in _unique(proposal)]
    if unique:
        proposal.doubts.append(
            f"every {unique[0]!r} is different: if each row is a decision of its own, run init "
            "with --bandit"
        )
    return _following(e, time.values)


def _varies(e: Column, time: Column) -> bool:
    """Whether the time passes within an episode."""
    low, high = np.full(e.distinct, np.inf), np.full(e.distinct, -np.inf)
    np.minimum.at(low, e.codes, time.values)
    np.maximum.at(high, e.codes, time.values)
    return bool(np.mean(high > low) > 0.5)


def _ties(e: Column, time: Column) -> int:
    """The rows that have the time of another row of their episode, but for the first of each."""
    order = np.lexsort((time.values, e.codes))
    same = np.diff(e.codes[order]) == 0
    return int(np.sum(same & (np.diff(time.values[order]) == 0)))


def _time_beside(proposal: Proposal, clocks: list[Column]) -> None:
    """A column of times where the order is known without it: it tells the order of the episodes."""
    free = [c for c in clocks if c in proposal.free() and not c.nulls]
    best = best_named("time", free) if free else []
    if len(best) == 1:
        why = "it orders the episodes, for the check of drift"
        proposal.choose("time", best, BY_NAME, alone=why)


# --- one row each


def _unique(proposal: Proposal) -> list[Column]:
    """The columns that are different in every row and named like an id, the best of them first."""
    named = [c for c in _ids(proposal) if c.distinct == c.rows > 1 and rating("episode", c.name)]
    return sorted(named, key=lambda c: -rating("episode", c.name))


def _one_row_each(proposal: Proposal, clocks: list[Column], *, bandit: bool) -> Order | None:
    """A one-step log: an id of its own in every row. `bandit`: the user says that it is one."""
    unique = _unique(proposal)
    if not unique:
        every = [c for c in _ids(proposal) if c.distinct == c.rows]
        unique = [c for c in every if bandit or ID_WORDS & {*words(c.name)}]
    if not unique:
        if bandit:
            proposal.doubts.append(
                "--bandit: no column is different in every row, which would be the id: number the "
                "rows"
            )
        return None
    e = unique[0]
    alone = reason("episode", e, "it is different in every row: each is an episode of one step")
    proposal.choose("episode", [e], BY_NAME, alone=alone, guess=not rating("episode", e.name))
    proposal.needless.add("step")
    proposal.settings["bandit"] = True
    return Order(e.codes, np.ones(e.distinct, np.int64), np.full(e.rows, -1))
