"""Which columns are episode and step: they only make sense together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.cli.init.look import Seen
from reweigh.cli.init.names import rating
from reweigh.cli.init.proposal import NAME, Choice, Proposal, best_named, is_named, reason
from reweigh.cli.init.tidy import Repair

Ints = npt.NDArray[np.int64]
Pair = tuple[Seen, Seen]  # episode and step


@dataclass(frozen=True, eq=False)
class Order:
    """Episode and step of every row: after[i] is the row that follows row i, -1 for none."""

    episode: Ints
    length: Ints  # (episodes,)
    last: npt.NDArray[np.bool_]  # (N,)
    after: Ints

    @property
    def short(self) -> npt.NDArray[np.bool_]:
        """(N,) last rows of episodes that are shorter than the longest."""
        short: npt.NDArray[np.bool_] = self.last & (self.length < self.length.max())[self.episode]
        return short


def episodes_and_steps(proposal: Proposal, columns: dict[str, Seen]) -> Order | None:
    """The pair of columns in which each id has the steps 0, 1, 2, …, as the names have it."""
    ids = [c for c in columns.values() if c.kind in ("whole", "text") and not c.nulls]
    counts = [c for c in columns.values() if c.kind == "whole" and not c.nulls]
    named_ids = [c for c in ids if _claims("episode", c, "step")]
    named_counts = [c for c in counts if _claims("step", c, "episode")]
    best = _best_pairs(
        named_ids or [c for c in ids if not is_named(c)],
        named_counts or [c for c in counts if not is_named(c)],
    )
    if len(best) == 1:
        [(e, t)] = best
        guess = not (named_ids or named_counts)
        if guess and e.kind == "whole" and _first_step(t, e) == 1:
            # n ids 0, 1, … with H steps from 1 look like H ids with n steps from 0
            return _taken(proposal, t, e, 1)
        return _taken(proposal, e, t, 0, guess=guess)
    if best:
        for role, k in (("episode", 0), ("step", 1)):
            names = list(dict.fromkeys(pair[k].name for pair in best))
            proposal.choose(role, names, "in which the steps are 0, 1, 2, … per episode")
        return None
    for role, named in (("episode", named_ids), ("step", named_counts)):
        proposal.choose(role, [c.name for c in best_named(role, named)], NAME)
    if "episode" in proposal.roles and "step" in proposal.roles:
        e, t = (columns[proposal.roles[role].columns[0]] for role in ("episode", "step"))
        first = _first_step(e, t)
        if first:
            return _taken(proposal, e, t, first)
        proposal.doubts.append(
            f"within a {e.name!r} the values of {t.name!r} are not 0, 1, 2, … each once: "
            "`reweigh check` names the rows"
        )
        return None
    candidates = [(e, t) for e in named_ids or ids for t in named_counts or counts]
    from_one = [(e, t) for e, t in candidates if e is not t and _first_step(e, t) == 1]
    if len(from_one) == 1:
        return _taken(proposal, *from_one[0], 1)
    proposal.doubts += [
        f"{t.name!r} counts 1, 2, … within each {e.name!r}: these two may be step and episode"
        for e, t in from_one
    ]
    return None


def _best_pairs(ids: list[Seen], counts: list[Seen]) -> list[Pair]:
    """The pairs in which each id has the steps 0, 1, 2, …, and whose names fit best."""
    pairs = [(e, t) for e in ids for t in counts if e is not t and _counts_up(e.codes, t.values)]
    ratings = [rating("episode", e.name) + rating("step", t.name) for e, t in pairs]
    best = [pair for pair, r in zip(pairs, ratings, strict=True) if r == max(ratings)]
    if len(best) == 2 and best[0][0] is best[1][1]:
        # n ids with H steps each are H ids with n steps each: an episode's rows stand together
        best = [max(best, key=lambda pair: np.mean(np.diff(pair[0].codes) == 0))]
    return best


def _first_step(e: Seen, t: Seen) -> int | None:
    """The number that the steps of every episode begin with; None where they do not count up, or
    from 0."""
    first = float(t.values.min())
    return int(first) if first and _counts_up(e.codes, t.values - first) else None


def _taken(proposal: Proposal, e: Seen, t: Seen, first: int, guess: bool | None = None) -> Order:
    """The order of the rows by these columns, whose steps count from `first`."""
    if guess is None:
        guess = not (rating("episode", e.name) or rating("step", t.name))
    counted = f"{first}, {first + 1}, {'2, ' if first == 0 else ''}… within each {e.name!r}"
    choices = {"episode": (e, f"{e.distinct:,} of them"), "step": (t, f"its values are {counted}")}
    for role, (seen, what) in choices.items():
        proposal.roles[role] = Choice((seen.name,), reason(role, seen, what), guess)
        proposal.open.pop(role, None)
    if first:
        proposal.repairs.append(Repair(t.name, "steps", first))
    episode, step = e.codes, t.values.astype(np.int64)
    order = np.lexsort((step, episode))
    same = episode[order[1:]] == episode[order[:-1]]
    after = np.full(len(order), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    return Order(episode, np.bincount(episode), after < 0, after)


def _claims(role: str, seen: Seen, other: str) -> bool:
    """The name speaks for this role, and no louder for the other."""
    return rating(role, seen.name) >= max(rating(other, seen.name), 1)


def _counts_up(episode: Ints, step: npt.NDArray[np.float64]) -> bool:
    """Each episode has the steps 0, 1, …, each once, and some episode has more than one."""
    n = int(episode.max()) + 1
    length = np.bincount(episode, minlength=n)
    highest = np.zeros(n)
    np.maximum.at(highest, episode, step)
    if length.max() < 2 or step.min() < 0 or np.any(highest != length - 1):
        return False
    return len(np.unique(episode * int(length.max()) + step.astype(np.int64))) == len(step)
