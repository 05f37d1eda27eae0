"""The rule that chooses a memory, for many logs at once, and how its limits were set.

The rule is that of `reweigh/evaluation/memories.py`, from the columns of a cell; a test holds both
to the same choices.

How the limit p is set, on the setting half alone, given the least effective size of the gate
*history*: in every cell with at least ENOUGH logs a pair of limits has a score, the largest of

    RMSE of the choice / RMSE of the best fixed memory / 1.3
    RMSE of the choice / RMSE of `mis` / 1.1              where the state is Markov

its goals. Kept are the limits whose worst score is at most TIED above the smallest worst score; of
these, those whose geometric mean of the first ratio is at most CLOSE above the smallest. Taken is
the most cautious of them: the largest p, which keeps a longer memory. Intervals play no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh_studies.coverage.measures import VALUE, column
from reweigh_studies.memory.cells import MIS, SIZE, MemoryCell, P, name_of
from reweigh_studies.memory.worlds import MARKOV

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, Floats]
OF_BEST, OF_MIS = 1.3, 1.1  # goals
ENOUGH, TIED, CLOSE = 20, 0.05, 0.01
P_VALUES = (0.02, 0.01, 0.003, 0.001, 0.0003, 0.0001)
LEAST_SIZES = (15.0, 20.0, 30.0, 50.0, 100.0, 200.0)


def of_memory(cell: MemoryCell, columns: Columns, *parts: str) -> dict[int, Floats]:
    """By memory, (R,) such a column; nan where there is none."""
    none = np.full(len(next(iter(columns.values()))), math.nan)
    return {k: columns.get(column(name_of(k), *parts), none) for k in cell.memories}


def chosen(cell: MemoryCell, columns: Columns, least: float, alike: float) -> npt.NDArray[np.int64]:
    """(R,) the memory that the rule takes with these limits; -1 where nothing can be taken."""
    values, sizes = of_memory(cell, columns, VALUE), of_memory(cell, columns, SIZE)
    borne, lost = {}, np.zeros(len(values[min(values)]), bool)
    for k in sorted(values):
        borne[k] = np.isfinite(values[k]) & ((sizes[k] >= least) & ~lost | (k == min(values)))
        lost |= sizes[k] < least
    taken, memories = np.full(len(lost), -1), sorted(values, reverse=True)
    for place, k in enumerate(memories):
        agrees = borne[k]
        for longer in memories[:place]:
            p = of_memory(cell, columns, P, str(longer))[k]
            agrees = agrees & (~borne[longer] | (p > alike))  # unknown counts as far
        taken = np.where(agrees, k, taken)
    return taken


def picked(taken: npt.NDArray[np.int64], by_memory: Mapping[int, Floats]) -> Floats:
    """(R,) the numbers of the memory that was taken."""
    found = np.full(len(taken), math.nan)
    for k, values in by_memory.items():
        found = np.where(taken == k, values, found)
    return found


def rmse(error: Floats) -> float:
    """sqrt(mean e²) over the logs that have a value; nan without any."""
    known = error[np.isfinite(error)]
    return math.sqrt(float(np.mean(known**2))) if len(known) else math.nan


def ratio_of_rmse(first: Floats, second: Floats) -> tuple[float, float]:
    """RMSE of the first over that of the second on the same logs, and its Monte-Carlo error."""
    both = np.isfinite(first) & np.isfinite(second)
    if both.sum() < 2 or not np.any(second[both]):
        return math.nan, math.nan
    x, y = first[both] ** 2, second[both] ** 2
    ratio = math.sqrt(x.mean() / y.mean())
    # the influence of a log on log(ratio): (x/mean(x) - y/mean(y))/2
    influence = (x / x.mean() - y / y.mean()) / 2 if x.any() else np.zeros(len(x))
    return ratio, ratio * float(np.std(influence, ddof=1)) / math.sqrt(len(x))


def best_fixed(errors: Mapping[int, Floats]) -> int:
    """The memory with the smallest RMSE, among those that have a value in every log."""
    whole = {k: rmse(e) for k, e in errors.items() if np.all(np.isfinite(e))}
    return min(whole, key=lambda k: whole[k])


@dataclass(frozen=True)
class Tried:
    """A pair of limits on the setting half: its worst score, where, and the geometric mean of the
    RMSE relative to the best fixed memory."""

    alike: float
    least: float
    score: float
    worst: str
    relative: float


def tried(cells: Mapping[MemoryCell, Columns], alike: float, least: float) -> Tried:
    scores: dict[str, float] = {}
    logs = []
    for cell, columns in cells.items():
        truth, _ = cell.of.truth()
        values = of_memory(cell, columns, VALUE)
        errors = {k: v - truth for k, v in values.items()}
        own = picked(chosen(cell, columns, least, alike), errors)
        relative, _ = ratio_of_rmse(own, errors[best_fixed(errors)])
        of_mis, _ = ratio_of_rmse(own, columns[column(MIS, VALUE)] - truth)
        goals = [relative / OF_BEST, *([of_mis / OF_MIS] if cell.of.group == MARKOV else [])]
        scores[cell.name] = max(goals)
        logs.append(math.log(relative))
    worst = max(scores, key=lambda name: scores[name])
    return Tried(alike, least, scores[worst], worst, math.exp(sum(logs) / len(logs)))


def all_tried(cells: Mapping[MemoryCell, Columns]) -> list[Tried]:
    return [tried(cells, alike, least) for least in LEAST_SIZES for alike in P_VALUES]


def taken_of(pairs: Iterable[Tried], least: float) -> Tried:
    """Among those with this least effective size."""
    pairs = [pair for pair in pairs if pair.least == least]
    score = min(pair.score for pair in pairs)
    kept = [pair for pair in pairs if pair.score <= score + TIED]
    mean = min(pair.relative for pair in kept)
    return max(
        (pair for pair in kept if pair.relative <= mean + CLOSE), key=lambda pair: pair.alike
    )
