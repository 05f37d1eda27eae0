"""The parts of a report, as plain records: numbers and words, no drawing.

Arrays of a horizon are (H,). What could not be computed is a `Missing` with the reason in the place
of the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from reweigh.trust.intervals import Interval
from reweigh.trust.limits import Level

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Row:
    """One estimator, or in a comparison one target: its number, or why there is none (`refused`).

    gain, gain_interval  target - behaviour; None with `gain_why`
    better               p of "the target is not better", in words
    gain_at_most         its error is at most what its interval was made with
    best                 how likely the target is the best, in a comparison
    text                 the value as it is printed
    """

    estimator: str
    value: float | None
    error: float | None
    interval: Interval | None
    verdict: Level | None
    reasons: tuple[str, ...]
    ess: float | None
    gain: float | None
    gain_interval: Interval | None
    gain_why: str = ""
    no_interval: str = ""
    refused: str = ""
    best: float | None = None
    better: str = ""
    gain_at_most: bool = False
    text: str = ""


@dataclass(frozen=True, eq=False)
class Reason:
    """Why the verdict is what it is, and what to do about it."""

    level: Level
    name: str
    text: str
    advice: str


@dataclass(frozen=True, eq=False)
class Answer:
    """The top of the report, in words.

    verdict    "refused" where no estimator answered
    unchecked  what the verdict cannot speak of, each with the reason
    better     what would make the answer better
    """

    question: str
    headline: str
    interval: str
    gain: str
    verdict: Literal["green", "amber", "red", "refused"]
    meaning: str
    reasons: tuple[Reason, ...]
    unchecked: tuple[str, ...]
    better: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Curve:
    """One kind of weights, step by step; nan where a step has none.

    ess      effective number of episodes
    largest  the largest weight as a multiple of the mean weight, None with `why`
    """

    name: str
    ess: Floats
    largest: Floats | None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Weights:
    """Running products against marginalized weights; a kind that is not there has its reason."""

    n_episodes: int
    curves: tuple[Curve, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Heat:
    """Where the target goes and where the log went: R states by C fields of steps.

    names            R names, those with the most mass first; the last may stand for all others
    first, last      (C,) the steps of a field, both included
    target, behavior (R, C) mean share of the episodes over the steps of a field
    others           how many states the last row stands for, 0 where it is a state of its own
    """

    estimator: str
    names: tuple[str, ...]
    first: Ints
    last: Ints
    target: Floats
    behavior: Floats
    others: int

    @property
    def n_states(self) -> int:
        return len(self.names) - 1 + self.others if self.others else len(self.names)

    @property
    def wide(self) -> int:
        """Steps of a field."""
        return int(self.last[0] - self.first[0]) + 1


@dataclass(frozen=True, eq=False)
class Place:
    """A state's part: of the value, or of the variance.

    visits  target: expected visits of an episode to the state; log: the same of the logged ones
    """

    state: str
    amount: float
    target: float
    log: float


@dataclass(frozen=True, eq=False)
class ValueParts:
    """Where the value comes from.

    per_step  γ^t times the mean reward of step t, under the target; `log` that of the log, None
              where it cannot be told
    states    the largest parts, and `others` (how many, how much)
    """

    estimator: str
    value: float
    per_step: Floats | None
    log: Floats | None
    states: tuple[Place, ...]
    others: tuple[int, float]
    states_by: str


@dataclass(frozen=True, eq=False)
class VarianceParts:
    """Where the variance comes from: shares that with `start` add up to 1.

    wanted  of the states listed: visits that would serve best over visits as they are
    """

    estimator: str
    start: float
    by_step: Floats
    states: tuple[Place, ...]
    others: tuple[int, float]
    pairs: tuple[tuple[int, str, float, float, float | None], ...]  # step, state, share, visits


@dataclass(frozen=True, eq=False)
class Hole:
    """Something that the target wants and the log lacks.

    action  None where only the mass is known, or where the log has no row of the state at all
    mass    how often per episode the target does it where the log does not show it
    visits  logged visits to the state at those steps; logged: how often the log shows the pair at
            any step
    """

    state: str
    action: str | None
    steps: str
    mass: float
    visits: int
    logged: int


@dataclass(frozen=True, eq=False)
class Holes:
    """What the target wants and the log lacks, the largest first.

    by       whose visits weigh the holes: the target's own, or the log's
    mass     all of it, per episode; `never` the part that the log shows at no step at all
    """

    rows: tuple[Hole, ...]
    others: tuple[int, float]
    mass: float
    never: float
    by: Literal["target", "log"]
    note: str


@dataclass(frozen=True, eq=False)
class Check:
    """One gate of one estimate."""

    name: str
    level: Level
    text: str
    advice: str
    limit: str


@dataclass(frozen=True, eq=False)
class Moved:
    """A changed choice and the value then, or why there is none."""

    change: str
    value: float | None
    moved: float | None
    why: str


Facts = tuple[tuple[str, str], ...]
