"""Which columns are episode and step: they only make sense together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.cli.first_look import Seen
from reweigh.cli.names import rating
from reweigh.cli.proposal import NAME, Choice, Proposal, by, is_named, one_or_open, quoted
from reweigh.cli.tidy import Repair

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Order:
    """Episode and step of every row: after[i] is the row that follows row i, -1 for none."""

    episode: Ints
    length: Ints  # (episodes,)
    last: npt.NDArray[np.bool_]  # (N,)
    after: Ints


def episodes_and_steps(made: Proposal, columns: dict[str, Seen]) -> Order | None:
    """The pair of columns in which each id has the steps 0, 1, 2, …, as the names have it."""
    ids = [c for c in columns.values() if c.kind in ("whole", "text") and not c.nulls]
    counts = [c for c in columns.values() if c.kind == "whole" and not c.nulls]
    named_ids = [c for c in ids if _claims("episode", c, ("step",))]
    named_counts = [c for c in counts if _claims("step", c, ("episode",))]
    pairs = [
        (rating("episode", e.name) + rating("step", t.name), e, t)
        for e in named_ids or [c for c in ids if not is_named(c)]
        for t in named_counts or [c for c in counts if not is_named(c)]
        if e is not t and _counts_up(e.codes, t.values)
    ]
    best = [pair for pair in pairs if pair[0] == max(p[0] for p in pairs)]
    if len(best) == 2 and best[0][1] is best[1][2]:
        # n ids with H steps each are H ids with n steps each: an episode's rows stand together
        best = [max(best, key=lambda pair: np.mean(np.diff(pair[1].codes) == 0))]
    if len(best) == 1 and not (named_ids or named_counts):
        # n ids 0, 1, … with H steps from 1 look like H ids with n steps from 0
        [(_, e, t)] = best
        turned = _counted_from_one([t], [e])
        if turned:
            return _shifted(made, *turned[0])
    if len(best) == 1:
        _, e, t = best[0]
        n = e.distinct
        told = f"its values are 0, 1, 2, … within each {quoted(e.name)}"
        sure = bool(named_ids or named_counts)  # else a guess
        made.roles["episode"] = Choice((e.name,), f"{by('episode', e)}{n:,} of them", not sure)
        made.roles["step"] = Choice((t.name,), f"{by('step', t)}{told}", not sure)
        return _order(e, t)
    if best:
        candidates = {"episode": [e for _, e, _ in best], "step": [t for _, _, t in best]}
        for role, found in candidates.items():
            names = list(dict.fromkeys(seen.name for seen in found))
            one_or_open(made, role, names, "in which the steps are 0, 1, 2, … per episode")
        return None
    for role, named in (("episode", named_ids), ("step", named_counts)):
        strongest = max((rating(role, c.name) for c in named), default=0)
        names = [c.name for c in named if rating(role, c.name) == strongest]
        one_or_open(made, role, names, NAME)
    if "episode" in made.roles and "step" in made.roles:
        e, t = (columns[made.roles[role].columns[0]] for role in ("episode", "step"))
        if _first_step(e, t):
            return _shifted(made, e, t)
        made.doubts.append(
            f"within a {quoted(e.name)} the values of {quoted(t.name)} are not 0, 1, 2, … each "
            "once: `reweigh check` names the rows"
        )
        return None
    pairs_from_one = _counted_from_one(named_ids or ids, named_counts or counts)
    if len(pairs_from_one) == 1:
        return _shifted(made, *pairs_from_one[0])
    made.doubts += [
        f"{quoted(t.name)} counts 1, 2, … within each {quoted(e.name)}: these two may be step "
        "and episode"
        for e, t in pairs_from_one
    ]
    return None


def _counted_from_one(ids: list[Seen], counts: list[Seen]) -> list[tuple[Seen, Seen]]:
    """Pairs of columns that would do if the second counted from 0."""
    return [(e, t) for e in ids for t in counts if e is not t and _first_step(e, t) == 1]


def _first_step(e: Seen, t: Seen) -> int | None:
    """The number that the steps of every episode begin with; None where they do not count up."""
    first = float(t.values.min())
    return int(first) if first and _counts_up(e.codes, t.values - first) else None


def _shifted(made: Proposal, e: Seen, t: Seen) -> Order:
    """Steps and episodes, but for the number of the first step."""
    first = _first_step(e, t)
    assert first is not None
    guess = not (rating("episode", e.name) or rating("step", t.name))
    counted = f"{first}, {first + 1}, … within each {quoted(e.name)}"
    made.roles["episode"] = Choice((e.name,), f"{by('episode', e)}{e.distinct:,} of them", guess)
    made.roles["step"] = Choice((t.name,), f"{by('step', t)}its values are {counted}", guess)
    for role in ("episode", "step"):
        made.open.pop(role, None)
    made.repairs.append(Repair(t.name, "steps", first))
    return _order(e, t)


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
