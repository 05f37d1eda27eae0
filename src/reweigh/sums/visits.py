"""How often a log shows each state at each step, from its sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from reweigh.log.states import HIDDEN, START

if TYPE_CHECKING:
    from reweigh.sums.moments import Moments

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Visits:
    """`n` rows of a log at step `step` in state `state` (HIDDEN where it could not be observed)."""

    step: Ints
    state: Ints
    n: Ints


def visits_of(moments: Moments) -> Visits | None:
    """The rows behind these sums; None where the sums cannot tell (running products alone)."""
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
