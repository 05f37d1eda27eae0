"""Running estimators again on other mixtures of the same episodes: the bootstrap, and deleting
blocks of episodes.

Episodes are what is independent, so episodes are drawn, never rows. In a replicate of the Poisson
bootstrap episode i occurs c_i ~ Poisson(1) times, for large n the same as drawing n episodes with
replacement. The draws are a function of (seed, episode, replicate): a replicate is the same
whatever the number of replicates or threads, and for every estimator and target, so that
differences between them are paired. The whole estimator is run again: a control variate's Q is
fitted to the drawn episodes, and copies of an episode stay in one fold.

Cost: MIS on observed states takes one pass over the rows per 64 replicates, and another one back
for their errors (`kernels/resample.py`; threads share the blocks of replicates). Products,
models, pooled MIS and control variates are sums by cell of 64 replicates at once, or of as many as
fit into half a gigabyte (`mixtures.py`), their errors included. What is left (cut-off episodes,
hidden states under MIS, pooled MIS and MDR, cross-fitted MDR, tables that are too large, replicates
without overlap or without spread) is evaluated on the repeated episodes, each replicate costing
about what the estimate costs: some 10 ms for 1,000 episodes of 30 steps.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reweigh.errors import MOST_REPLICATES, RefusedError, check_threads, check_whole
from reweigh.estimate.control import shape_log
from reweigh.estimate.direct import MODES, Rows, observed
from reweigh.estimate.recipe import JACKKNIFE_BLOCKS, Marginal, Recipe, Stationary
from reweigh.evaluation.inputs import Evidence, check_target, merged
from reweigh.evaluation.solve import finite, solve
from reweigh.kernels.choose import pick
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.policy.base import Policy
from reweigh.policy.cached import RowsPolicy
from reweigh.system.progress import each
from reweigh.trust.draws import Draws
from reweigh.trust.mixtures import BLOCK, Found, LogCells, Ready, Sums

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Pair = tuple[Policy, Recipe]
REPLICATES = 1999
PER_ROW = 20  # a replicate's row costs the twin as much more as so many rows of one estimate
MOST_KEPT = 1 << 28  # bytes of the forward recursions that errors are computed from


@dataclass(frozen=True, eq=False)
class Replicates:
    """What k estimators say of the same B resampled logs.

    values   (B, k), nan where an estimator refused
    errors   (B, k) their standard errors, nan where there is none; None if not asked for
    reasons  k times: how many replicates were refused, by the refusal's code
    """

    values: Floats
    errors: Floats | None
    seed: int
    reasons: tuple[dict[str, int], ...]

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Replicates({len(self)} of {self.values.shape[1]} estimates, seed {self.seed})"


def resample(
    log: EpisodeLog,
    pairs: Sequence[Pair],
    replicates: int = REPLICATES,
    *,
    seed: int | None = None,
    errors: bool = False,
    threads: int = 1,
) -> Replicates:
    """The values (and errors) of (target, estimator) pairs on common resampled episodes.

    The seed is drawn where none is given, and kept. An estimator that refuses the log itself must
    not be asked: what it refuses of the replicates is counted.
    """
    replicates = check_whole("replicates", replicates, 1, MOST_REPLICATES)
    threads = check_threads(threads)
    seed = new_seed() if seed is None else check_whole("seed", seed, 0)
    again = Again.of(log, pairs, errors=errors, runs=replicates)
    _ = again.at_once, again.ready  # before threads ask for them
    draw = pick("resample.draw", log.n_episodes * replicates)

    def block(number: int) -> Run:
        counts = np.empty((log.n_episodes, BLOCK), np.uint8)
        draw(seed, number, THRESHOLDS, counts)
        return again.run(Draws(counts), min(BLOCK, replicates - number * BLOCK))

    blocks = range(-(-replicates // BLOCK))
    if threads == 1:
        made = each("resampled logs", blocks, block)
    else:
        with ThreadPoolExecutor(threads) as pool:
            made = list(pool.map(block, blocks))
    return Replicates(
        np.concatenate([run.values for run in made]),
        np.concatenate([run.errors for run in made]) if errors else None,
        seed,
        _all_reasons(made, len(pairs)),
    )


def _all_reasons(made: Sequence[Run], pairs: int) -> tuple[dict[str, int], ...]:
    total = [sum((run.reasons[j] for run in made), Counter[str]()) for j in range(pairs)]
    return tuple({code: count for code, count in each.items() if count} for each in total)


@dataclass(frozen=True, eq=False)
class Deleted:
    """Values (g, k) without one block of episodes each, nan where refused; sizes (g,) of the
    blocks, and as in Replicates the reasons of what was refused."""

    values: Floats
    sizes: Ints
    reasons: tuple[dict[str, int], ...]


def delete_blocks(
    log: EpisodeLog, pairs: Sequence[Pair], blocks: int = JACKKNIFE_BLOCKS
) -> Deleted:
    """The values without each block of episodes in turn: the blocks are those of the moments."""
    of = log.steps.blocks(blocks)
    names, sizes = np.unique(of, return_counts=True)
    again = Again.of(log, pairs, errors=False, runs=len(names))
    made = []
    for start in range(0, len(names), BLOCK):
        some = names[start : start + BLOCK]
        counts = np.asarray(of[:, None] != some, np.uint8)
        left_out = np.searchsorted(some, of)
        left_out[counts.all(axis=1)] = len(some)
        made.append(again.run(Draws(counts, left_out), len(some)))
    values = np.concatenate([run.values for run in made])
    return Deleted(values, sizes, _all_reasons(made, len(pairs)))


@dataclass(frozen=True, eq=False)
class Run:
    """Values and errors (m, k) on m mixtures of the episodes, and why those missing are missing."""

    values: Floats
    errors: Floats
    reasons: tuple[Counter[str], ...]


@dataclass(frozen=True, eq=False)
class Again:
    """Pairs of target and estimator, made ready to be run on mixtures of the episodes of a log.

    What does not depend on the mixture is computed once: the target's probabilities, and the
    rewards that a Q of the user's own shapes. `logs` are the logs of the pairs, `runs` the number
    of mixtures to come.
    """

    pairs: tuple[Pair, ...]
    logs: tuple[EpisodeLog, ...]
    errors: bool
    runs: int

    @classmethod
    def of(cls, log: EpisodeLog, pairs: Sequence[Pair], *, errors: bool, runs: int) -> Again:
        known: dict[int, RowsPolicy] = {}
        plain = _own_rows(log)
        if any(recipe.needs.blocks > 1 for _, recipe in pairs):
            _ = plain.steps.episode_hash  # once, not in every mixture
        made: list[Pair] = []
        logs: list[EpisodeLog] = []
        for target, recipe in pairs:
            if errors and isinstance(recipe.weights, Stationary):
                raise RefusedError(
                    "no-error",
                    f"{recipe.name} has no standard error of its own to divide by (its jackknife "
                    "would be run in every replicate); use method='percentile' or 'jackknife'",
                )
            if id(target) not in known:
                known[id(target)] = RowsPolicy(check_target(target), log)
            if recipe.control is not None and recipe.control.own:
                logs.append(_own_rows(shape_log(log, target, recipe, None).log))
                made.append((known[id(target)], replace(recipe, control=None)))
            else:
                logs.append(plain)
                made.append((known[id(target)], recipe))
        return cls(tuple(made), tuple(logs), errors, runs)

    @cached_property
    def at_once(self) -> dict[int, Rows]:
        """The pairs that are run for a block of mixtures at once, with the kernel's rows."""
        return {
            j: Rows.of(log, target, recipe.max_ratio)
            for j, ((target, recipe), log) in enumerate(zip(self.pairs, self.logs, strict=True))
            if self._at_once(log, recipe)
        }

    def _at_once(self, log: EpisodeLog, recipe: Recipe) -> bool:
        plain = recipe.weights == Marginal() and recipe.reward == "logged"
        if not (plain and recipe.control is None and observed(log)):
            return False
        if not self.errors:
            return True
        cut = np.any((log.steps.ending < END) & (log.steps.lengths < log.horizon))
        return not cut and log.horizon * (len(log.states) + 1) * BLOCK * 12 <= MOST_KEPT

    @cached_property
    def _cells(self) -> dict[int, LogCells]:
        return {id(log): LogCells(log) for log in self.logs}

    @cached_property
    def ready(self) -> list[dict[int, Callable[[Draws, Sums], Found]]]:
        """The pairs that are run at once over sums by cell; those of one log and target, which
        share the sums, together."""
        cells = self._cells
        made: dict[tuple[int, int, float | None], Ready] = {}
        roads: dict[Ready, dict[int, Callable[[Draws, Sums], Found]]] = {}
        for j, ((target, recipe), log) in enumerate(zip(self.pairs, self.logs, strict=True)):
            if j in self.at_once:
                continue
            key = id(log), id(target), recipe.max_ratio
            ready = made.setdefault(key, Ready(cells[id(log)], target, recipe.max_ratio))
            road = ready.road(recipe, self.errors)
            if road is not None:
                roads.setdefault(ready, {})[j] = road
        return list(roads.values())

    def run(self, draws: Draws, many: int) -> Run:
        """The pairs on the first `many` of up to BLOCK mixtures."""
        shape = many, len(self.pairs)
        values, errors = np.full(shape, np.nan), np.full(shape, np.nan)
        reasons = tuple(Counter[str]() for _ in self.pairs)
        for j, rows in self.at_once.items():
            values[:, j], errors[:, j] = (found[:many] for found in self._kernel(j, rows, draws))
            reasons[j]["no-overlap"] += int(np.isnan(values[:, j]).sum())
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for roads in self.ready:
                together = min(cells.together for cells in self._cells.values())
                for which, some in draws.parts(together):
                    sums: Sums = {}
                    asked = len(values[which])  # the last ones may not be
                    if not asked:
                        break
                    for j, road in roads.items():
                        found, spread = road(some, sums)
                        found = np.where(np.isfinite(found), found, np.nan)
                        values[which, j] = found[:asked]
                        if spread is not None:
                            errors[which, j] = spread[:asked]
        missing = np.isnan(values)
        if self.errors:
            missing |= np.isnan(errors)
        missing[:, list(self.at_once)] = False
        for b in np.flatnonzero(missing.any(axis=1)):
            slow = np.flatnonzero(missing[b]).tolist()
            self._evaluate(draws.counts[:, b].astype(np.int64), slow, values[b], errors[b], reasons)
        errors[~(errors > 0)] = np.nan  # 0 is none: the drawn episodes are all the same
        return Run(values, errors, reasons)

    def _kernel(self, j: int, rows: Rows, draws: Draws) -> tuple[Floats, Floats]:
        """(BLOCK,) values and errors of MIS, nan where the mixture says nothing of the target."""
        mode, g = MODES[self.pairs[j][1].normalize], rows.steps.start_value
        size = rows.steps.n_rows * self.runs * PER_ROW
        kept = (rows.steps.horizon, rows.width, BLOCK) if self.errors else (0, 0, 0)
        d, n, by_mass = np.empty(kept), np.empty(kept, np.int32), np.empty((kept[0], BLOCK))
        values, squares = np.empty(BLOCK), np.full(BLOCK, np.nan)
        counts = np.pad(draws.counts, ((0, 0), (0, BLOCK - draws.many)))
        with np.errstate(over="ignore", invalid="ignore"):
            given = *rows.unpacked, rows.gamma, mode, rows.width, counts
            pick("resample.replicate", size)(*given, values, d, n, by_mass)
            if g is not None:
                values += (g @ counts) / counts.sum(axis=0)
            if self.errors:
                start = np.zeros(rows.steps.n_episodes) if g is None else g
                pick("resample.spread", size)(*given, d, n, by_mass, start, squares)
        values[~np.isfinite(values)] = np.nan
        return values, np.sqrt(np.where(np.isnan(values), np.nan, squares))

    def _evaluate(
        self,
        counts: Ints,
        which: list[int],
        values: Floats,
        errors: Floats,
        reasons: tuple[Counter[str], ...],
    ) -> None:
        """The pairs `which` on one mixture, by evaluating the log in which episodes are repeated;
        those of one target share its sums."""
        if not counts.any():
            for j in which:
                reasons[j]["no-episodes"] += 1
            return
        repeated: dict[int, EpisodeLog] = {}
        shared: dict[tuple[int, int], Evidence] = {}
        for j in which:
            (target, recipe), log = self.pairs[j], self.logs[j]
            if id(log) not in repeated:
                repeated[id(log)] = replace(log, steps=log.steps.repeated(counts), _cache={})
            key = id(log), id(target)
            if key not in shared:
                asked = [self.pairs[i][1] for i in which if self.pairs[i][0] is target]
                shared[key] = Evidence(
                    None, repeated[id(log)], target, "refuse", merged(asked), errors=self.errors
                )
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    solution = solve(shared[key], recipe, dropped=False).solution
                values[j] = finite(solution.value)
            except RefusedError as error:
                reasons[j][error.code] += 1
                values[j] = errors[j] = np.nan
                continue
            if solution.standard_error is not None:
                errors[j] = solution.standard_error


def _own_rows(log: EpisodeLog) -> EpisodeLog:
    """The log with its rows for the source: a copied row is known by the row it is a copy of."""
    steps = replace(log.steps, source_rows=None)
    if "episode_hash" in vars(log.steps):
        vars(steps)["episode_hash"] = log.steps.episode_hash
    return replace(log, steps=steps, _cache={})


def new_seed() -> int:
    """A seed that the machine draws; it is told beside what was drawn with it."""
    return secrets.randbits(32)


def _thresholds() -> npt.NDArray[np.uint64]:
    """2^64 P(X ≤ j) of X ~ Poisson(1): a random 64-bit number passes X of them."""
    found: list[int] = []
    below, j = 0.0, 0
    while True:
        below += math.exp(-1.0) / math.factorial(j)
        if int(below * 2**64) >= 2**64 or (found and int(below * 2**64) <= found[-1]):
            return np.array(found, np.uint64)
        found.append(int(below * 2**64))
        j += 1


THRESHOLDS = _thresholds()
