"""How much an estimate should remember: `mis(memory="auto")`, and how far two memories are apart.

    1. Candidates are 0, 1, 2, 3, 5, 7, 11, …, H - 1 steps. The log bears one if the products of its
       windows, and of all shorter ones, leave at least LEAST_SIZE effective episodes at every step;
       0 is always borne.
    2. Of those that the log bears, the shortest is taken whose value differs from that of no longer
       one beyond chance: p ≤ ALIKE, by Student's t with the effective episodes of the longer one
       less 1, corrected for skewness.

A long memory needs less of the state and varies more; a short one that says the same is the better
estimate. Two long ones that differ, while a short one agrees with both, differ by chance: going
down from the longest and stopping there keeps a long memory for nothing. The rule sees values and
the errors of differences, never the size of an interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.memory import Memory
from reweigh.estimate.memory_rows import LEAST_SIZE, memories
from reweigh.estimate.presets import MemoryChoice, mis
from reweigh.estimate.standard_error import LEAST_BLOCKS, block_error, p_of_difference, same
from reweigh.estimate.window_sums import product_sizes
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.log.log import EpisodeLog
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog

ALIKE = 0.003  # set on half of the worlds of the study of memory (docs/trust/memory.md)


def candidates(recipe: Recipe, data: EpisodeLog | ScannedLog | Moments) -> list[Recipe]:
    """The estimators that the choice of this one is among: of moments those whose sums they hold,
    else one of every candidate memory."""
    of = partial(mis, max_ratio=recipe.max_ratio)
    if isinstance(data, Moments):
        every = [of(memory=k) for k in range(data.about.horizon)]
        held = [each for each in every if each.finds_all_in(data)]
        if not held:
            raise RefusedError(
                "missing-moments",
                "these moments hold no windows to choose a memory from; make them again with "
                "rw.moments(log, target, rw.mis(memory='auto'), blocks=50)",
            )
        return held
    horizon = data.horizon if isinstance(data, EpisodeLog) else int(data.describe()["horizon"])
    return [of(memory=k) for k in memories(horizon)]


def expanded(
    recipes: Iterable[Recipe], data: EpisodeLog | ScannedLog | Moments
) -> dict[int, list[Recipe]]:
    """By the place of each recipe that is a choice of a memory: its candidates."""
    return {
        place: candidates(recipe, data)
        for place, recipe in enumerate(recipes)
        if isinstance(recipe.weights, MemoryChoice)
    }


# ---- how far two estimates of one log are apart ------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Of two estimates on one log. `error` is that of the difference, None where the data does not
    tell it, and `skewness` that of its influence values; `apart` how many errors the values are
    apart."""

    value: float
    error: float | None
    skewness: float = 0.0

    @property
    def apart(self) -> float | None:
        if self.error is None or not math.isfinite(self.error):
            return None
        if self.error == 0:
            return 0.0 if self.value == 0 else math.inf
        return abs(self.value) / self.error

    def p(self, size: float) -> float | None:
        """How often chance makes such a difference, with so many effective episodes; None where
        there is no error."""
        if self.apart is None:
            return None
        return p_of_difference(math.copysign(self.apart, self.value), self.skewness, size - 1)


def paired_difference(first: Estimate, second: Estimate) -> Difference:
    """Of the influence values of the same episodes; from sums of the same blocks of episodes."""
    if same(first.value, second.value):
        return Difference(0.0, 0.0)
    value = first.value - second.value
    error = first.uncertainty.joint_error(second.uncertainty)
    if error is None:
        return Difference(value, _error_by_blocks(first, second))
    return Difference(value, error, first.uncertainty.spread(second.recipe).skewness)


def _error_by_blocks(first: Estimate, second: Estimate) -> float | None:
    sums = [e.uncertainty.data.moments(e.recipe, e.uncertainty.dropped) for e in (first, second)]
    (blocks, sizes), others = (s.block_sizes() for s in sums)
    if len(blocks) < LEAST_BLOCKS or not np.array_equal(blocks, others[0]):
        return None
    from reweigh.estimate.replicates import values_without_blocks

    without = [
        values_without_blocks(e.recipe, s) for e, s in zip((first, second), sums, strict=True)
    ]
    if not all(np.all(np.isfinite(values)) for values in without):
        return None
    return block_error(first.value - second.value, without[0] - without[1], sizes)


# ---- the choice --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A candidate.

    size      the least effective number of episodes that its products leave; None: it refused
    borne     whether the log bears it
    value     None where it is not borne
    compared  the longer candidate that it differs from the most
    apart, p  by how many errors of the difference, and how often chance makes such a difference
    why       why it is not taken; empty where it could have been
    """

    memory: int
    size: float | None
    borne: bool
    value: float | None = None
    compared: int | None = None
    apart: float | None = None
    p: float | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        plain = dict(vars(self))
        for name in ("size", "apart"):
            if plain[name] is not None and not math.isfinite(plain[name]):
                plain[name] = None
        return plain


@dataclass(frozen=True)
class Memories:
    """What was tried to choose a memory, the longest first, and why no shorter one was taken."""

    memory: int
    trials: tuple[Trial, ...]
    why: str

    def to_dict(self) -> dict[str, Any]:
        trials = [trial.to_dict() for trial in self.trials]
        return {"memory": self.memory, "why": self.why, "tried": trials}


def choose(recipes: Sequence[Recipe], results: Sequence[Estimate | Refusal]) -> Estimate | Refusal:
    """The estimate of the memory that the rule takes, with `memories`; or the refusal of memory 0,
    where the log bears none."""
    by_memory = {_memory(r): result for r, result in zip(recipes, results, strict=True)}
    trials, borne, lost = {}, dict[int, Estimate](), ""
    for memory in sorted(by_memory):
        result, trial = by_memory[memory], _size_of(memory, by_memory[memory])
        if trial.borne and lost:
            trial = replace(trial, borne=False, why=lost)
        trials[memory] = trial
        if trial.size is not None and trial.size < LEAST_SIZE and not lost:
            lost = f"a memory of {memory} leaves fewer than {LEAST_SIZE:g} effective episodes"
        if isinstance(result, Estimate) and (trial.borne or memory == min(by_memory)):
            borne[memory] = result
            trials[memory] = replace(trial, borne=True, value=result.value, why="")
    if not borne:
        return by_memory[min(by_memory)]
    longest_first = sorted(borne, reverse=True)
    for place, memory in enumerate(longest_first[1:], 1):
        trials[memory] = _compared(
            trials[memory], borne, [trials[k] for k in longest_first[:place]]
        )
    taken = min(memory for memory in longest_first if not trials[memory].why)
    shorter = [memory for memory in longest_first if memory < taken]
    found = Memories(
        taken,
        tuple(trials[memory] for memory in sorted(trials, reverse=True)),
        trials[shorter[0]].why if shorter else _shortest(longest_first, trials),
    )
    name = borne[taken].estimator
    return replace(borne[taken], chosen=f"{name}: {found.why}", memories=found)


def _memory(recipe: Recipe) -> int:
    assert isinstance(recipe.weights, Memory)
    return recipe.weights.memory


def size_of_products(estimate: Estimate) -> float:
    """The least effective number of episodes that the products of its windows leave at a step."""
    of, weights = estimate.uncertainty, estimate.recipe.weights
    assert isinstance(weights, Memory)
    sums = of.data.moments(estimate.recipe, of.dropped)
    sizes = product_sizes(weights.windows(weights.read(sums)))
    return float(np.nanmin(sizes)) if np.any(np.isfinite(sizes)) else 0.0


def _size_of(memory: int, result: Estimate | Refusal) -> Trial:
    if isinstance(result, Refusal):
        return Trial(memory, None, False, why=f"it refuses: {result.error.reason}")
    size = size_of_products(result)
    if size >= LEAST_SIZE:
        return Trial(memory, size, True)
    text = f"its products leave {size:,.0f} effective episodes, fewer than {LEAST_SIZE:g}"
    return Trial(memory, size, False, why=text)


def _compared(trial: Trial, borne: dict[int, Estimate], longer: Sequence[Trial]) -> Trial:
    """With the longer candidate that it differs from the most, by chance."""
    compared = []
    for other in longer:
        difference = paired_difference(borne[trial.memory], borne[other.memory])
        p = difference.p(other.size or math.inf)
        if p is None:
            text = f"how far it is from a memory of {other.memory} is not known: "
            text += "there is no error of the difference"
            return replace(trial, compared=other.memory, why=text)
        compared.append((p, -(difference.apart or 0.0), other.memory))
    p, apart, other_memory = min(compared)
    trial = replace(trial, compared=other_memory, apart=-apart, p=p)
    if p > ALIKE:
        return trial
    own, others = borne[trial.memory].value, borne[other_memory].value
    text = f"a memory of {trial.memory} gives {own:.4g}, {-apart:.1f} errors of the difference away"
    return replace(trial, why=f"{text} from the {others:.4g} of a memory of {other_memory}")


def _shortest(longest_first: Sequence[int], trials: dict[int, Trial]) -> str:
    """Why the shortest candidate was taken."""
    if len(longest_first) == 1:
        longer = [trial for memory, trial in trials.items() if memory > longest_first[0]]
        if not longer:
            return "no other memory is possible"
        shortest = min(longer, key=lambda trial: trial.memory)
        return f"the log supports no longer memory: with {shortest.memory}, {shortest.why}"
    return f"it gives what memories of up to {longest_first[0]} give, within chance (p > {ALIKE:g})"
