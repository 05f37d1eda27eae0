"""Sums of the parts of one log, added up: labels as they come, in their order at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from reweigh.errors import KEPT_PLACES, Fault
from reweigh.log.states import Label, Labels
from reweigh.sums.diagnostic_tables import bounded
from reweigh.sums.engines.base import SPARE_CELLS, Request
from reweigh.sums.moments import Moments, together

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
FEW_CELLS = 1 << 18  # adding up costs a sort, so it waits until the parts hold more than this
MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)


@dataclass
class Parts:
    """Moments that come one after the other; the largest weights among them are kept apart."""

    request: Request
    held: list[Moments] = field(default_factory=list)

    @property
    def left_out(self) -> dict[str, str]:
        """Kinds of which there are too many already."""
        return self.held[0].left_out if self.held else {}

    def add(self, part: Moments) -> None:
        self.held.append(part)
        first, *rest = [cells_of(m) for m in self.held]
        if sum(rest) > max(first, FEW_CELLS):
            self.held = [self.total()]

    def total(self) -> Moments:
        """The sum; spare kinds that have become too large are left out from there on."""
        total, request = add_up(self.held), self.request
        if "model" not in request.spare or total.model is None or len(total.model) <= SPARE_CELLS:
            return total
        left_out = total.left_out | request.left_out()
        return replace(total, model=None, start_model=None, left_out=left_out)


def cells_of(part: Moments) -> int:
    tables = (part.transitions, part.model, part.lagged, part.paced)
    return sum(len(table) for table in tables if table is not None) + len(part.start.n)


def add_up(parts: list[Moments]) -> Moments:
    """The sum of parts of one log (the parts share what they are of)."""
    if len({frozenset(part.actions.values) for part in parts if part.actions is not None}) > 1:
        # no part knows what the policy does with another's actions
        parts = [replace(part, policy=None) for part in parts]
    total = together(parts)
    if total.lagged is None:
        return total
    lagged, too_many = bounded(total.lagged)
    return replace(total, lagged=lagged, left_out=total.left_out | too_many)


def in_order(total: Moments, own: Iterable[Label]) -> Moments:
    """The sums as the whole log, read at once, would give them.

    States come in increasing order: first those of the state column (`own`), then those that only
    stand in next_state, the hidden state last.
    """
    first = set(own)
    shown = [value for value in total.states.values if value is not None]
    order = sorted(v for v in shown if v in first) + sorted(v for v in shown if v not in first)
    states = Labels((*order, None) if total.hidden else tuple(order))
    actions = total.actions
    if actions is not None:
        actions = Labels(tuple(sorted(actions.values)))  # type: ignore[type-var]
    ordered = total
    if (states, actions) != (total.states, total.actions):
        ordered = add_up([total._with_labels(states, actions)])
    if ordered.hidden and ordered.transitions is not None:
        # a stretch has no single π and μ; parts without hidden states have counted theirs
        zeros = np.zeros(len(ordered.transitions))
        ordered = replace(
            ordered, transitions=replace(ordered.transitions, pi=zeros, pi2=zeros, mu=zeros)
        )
    if ordered.truncated:  # the products of cut-off episodes mean nothing
        ordered = replace(ordered, trajectories=None)
    return ordered


def gather(found: list[Fault], more: Iterable[Fault]) -> None:
    """Add faults of a part of the log; the same rule broken at the same column is one fault."""
    for fault in more:
        for i, known in enumerate(found):
            if _subject(known) == _subject(fault):
                found[i] = _joined(known, fault)
                break
        else:
            found.append(fault)


def _joined(known: Fault, more: Fault) -> Fault:
    if known.unit == "rows":
        places = (known.places + more.places)[:KEPT_PLACES]
        return replace(known, places=places, count=known.count + more.count)
    # states that the target does not know: each of them once
    told = {place.value for place in known.places}
    fresh = tuple(place for place in more.places if place.value not in told)
    places = (known.places + fresh)[:KEPT_PLACES]
    return replace(
        known, places=places, count=known.count + len(fresh), total=max(known.total, more.total)
    )


def _subject(fault: Fault) -> tuple[str, str]:
    column = fault.places[0].column if fault.places else None
    return fault.code, column or fault.rule


def settle(found: list[Fault], rows: int) -> list[Fault]:
    """The faults of the whole log: with its number of rows, and without what only a part shows."""
    bad = [f.places[0].column for f in found if f.code in ("not-a-step", "not-a-number")]
    flags = [f.rule for f in found if f.code == "type" and "true/false" in f.rule]

    def only_there(fault: Fault) -> bool:
        # in a part without the bad cell, a column of texts looks as if it held nothing but texts
        if fault.code == "type":
            return any(f"column {name!r}" in fault.rule for name in bad)
        # and a flag looks as if it could be believed
        if fault.code == "rows-after-end":
            return any(f"column {fault.places[0].column!r}" in rule for rule in flags)
        return fault.code == "short-episode" and bool(flags)

    kept = [fault for fault in found if not only_there(fault)]
    return [replace(f, total=rows) if f.total and f.unit == "rows" else f for f in kept]
