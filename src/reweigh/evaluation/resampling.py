"""Running estimators again on other mixtures of the same episodes: the bootstrap, and deleting
blocks of episodes.

Episodes are independent, so episodes are drawn, never rows; where a log has clusters of episodes,
clusters are. In a replicate of the Poisson bootstrap episode i occurs c_i ~ Poisson(1) times, for
large n the same as drawing n episodes with replacement. The draws are a function of (seed, episode,
replicate): a replicate is the same whatever the number of replicates or threads, and for every
estimator and target, so that differences between them are paired. The whole estimator is run again:
a control variate's Q is fitted to the drawn episodes, and copies of an episode stay in one fold.

Cost: the sums of 64 replicates, or of as many as fit into half a gigabyte, are made and solved
together (`estimate/resampled_log.py`), their errors included. MIS on observed states of large logs
takes one compiled pass over the rows per 64 replicates instead, and another one back for their
errors (`kernels/resample.py`; threads share the blocks of replicates). The rest (SSD-IS, fitted MDR
on hidden states, DR of a policy that uses more than the state, tables that are too large) is
evaluated on the repeated episodes, each replicate costing about what the estimate costs: some 10 ms
for 1,000 episodes of 30 steps.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh import kernels
from reweigh.errors import MOST_REPLICATES, RefusedError, check_threads, check_whole
from reweigh.estimate.direct import MODES, Rows
from reweigh.estimate.doubly_robust import shape_log
from reweigh.estimate.estimator import JACKKNIFE_BLOCKS, Recipe
from reweigh.estimate.marginal import Marginal, observed
from reweigh.estimate.refusals import overflow
from reweigh.estimate.replicates import AGAIN, Draws
from reweigh.estimate.resampled_log import ResampledLog
from reweigh.evaluation.data import RowsData, check_target
from reweigh.evaluation.solved import solve
from reweigh.kernels import draw as draw_few
from reweigh.kernels import kernel, pick
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END
from reweigh.policy import Policy, RowsPolicy
from reweigh.system.process import each
from reweigh.trust.bootstrap import Replicates
from reweigh.trust.intervals import REPLICATES

if TYPE_CHECKING:
    from reweigh.estimate.clusters import Clustering

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[Any]  # of refusals, as text
Pair = tuple[Policy, Recipe]
BLOCK = 64  # mixtures that are run at once, as in kernels/resample.py
LOADED_IN_VAIN = 100  # below so many times the rows of one pass Numba costs more than it saves
MOST_KEPT = 1 << 28  # bytes of the forward recursions that errors are computed from


def resample(
    log: EpisodeLog,
    pairs: Sequence[Pair],
    replicates: int = REPLICATES,
    *,
    seed: int | None = None,
    errors: bool = False,
    threads: int = 1,
    drawn_errors: Callable[[Codes, Floats], Floats] | None = None,
) -> Replicates:
    """The values (and errors) of (target, estimator) pairs on common resampled episodes.

    The seed is drawn if none is given, and kept. Leave out estimators that refuse the log itself;
    refused replicates are counted. Where the log has clusters these are drawn, and `drawn_errors`
    makes the errors, from the counts (G, m) of the clusters and the values (m,) of the first pair.
    """
    replicates = check_whole("replicates", replicates, 1, MOST_REPLICATES)
    threads = check_threads(threads)
    seed = new_seed() if seed is None else check_whole("seed", seed, 0)
    errors_by_run = errors and drawn_errors is None
    resampler = Resampler.of(log, pairs, errors=errors_by_run, runs=replicates)
    _ = resampler.by_kernel, resampler.by_sums  # before threads need them
    of = _clusters(log)
    units = log.n_episodes if of is None else len(of.names)
    draw = pick("resample.draw", units * replicates, draw_few)

    def block(number: int) -> Run:
        counts, many = np.empty((units, BLOCK), np.uint8), min(BLOCK, replicates - number * BLOCK)
        draw(seed, number, THRESHOLDS, counts)
        run = resampler.run(Draws(counts if of is None else counts[of.code]), many)
        if errors and drawn_errors is not None:
            made = drawn_errors(counts[:, :many], run.values[:, 0])
            run = replace(run, errors=made[:, None])
        return run

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


def _clusters(log: EpisodeLog) -> Clustering | None:
    """What is drawn, or deleted, in place of episodes."""
    if log.steps.cluster is None and log.steps.weight is None:
        return None
    from reweigh.estimate.clusters import Clustering

    return Clustering.of(log)


def _all_reasons(runs: Sequence[Run], pairs: int) -> tuple[dict[str, int], ...]:
    total = [sum((run.reasons[j] for run in runs), Counter[str]()) for j in range(pairs)]
    return tuple({code: count for code, count in each.items() if count} for each in total)


@dataclass(frozen=True, eq=False)
class Deleted:
    """Values (g, k) without one block of episodes each, nan where refused; sizes (g,) of the
    blocks, and the reasons of refusals, as in Replicates."""

    values: Floats
    sizes: Ints
    reasons: tuple[dict[str, int], ...]


def delete_blocks(
    log: EpisodeLog, pairs: Sequence[Pair], blocks: int = JACKKNIFE_BLOCKS
) -> Deleted:
    """The values without each block of episodes in turn: the blocks are those of the moments, or
    the clusters."""
    of, clusters = log.steps.blocks(blocks), _clusters(log)
    of = of if clusters is None else clusters.blocks(of)
    names, sizes = np.unique(of, return_counts=True)
    resampler = Resampler.of(log, pairs, errors=False, runs=len(names))
    made = []
    for start in range(0, len(names), BLOCK):
        some = names[start : start + BLOCK]
        made.append(resampler.run(Draws.without_each(of, some), len(some)))
    values = np.concatenate([run.values for run in made])
    return Deleted(values, sizes, _all_reasons(made, len(pairs)))


@dataclass(frozen=True, eq=False)
class Run:
    """Values and errors (m, k) on m mixtures of the episodes, and why those missing are missing."""

    values: Floats
    errors: Floats
    reasons: tuple[Counter[str], ...]


@dataclass(frozen=True, eq=False)
class Resampler:
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
    def of(cls, log: EpisodeLog, pairs: Sequence[Pair], *, errors: bool, runs: int) -> Resampler:
        known: dict[int, RowsPolicy] = {}
        plain = _as_source_rows(log)
        if any(recipe.needs.blocks > 1 for _, recipe in pairs):
            _ = plain.steps.episode_hash  # once, not in every mixture
        made: list[Pair] = []
        logs: list[EpisodeLog] = []
        for target, recipe in pairs:
            if errors and recipe.weights.only_jackknife:
                raise RefusedError(
                    "no-error",
                    f"bootstrap-t needs a standard error, and {recipe.name} has only that of "
                    "its jackknife (which would run in every replicate); use "
                    "method='percentile' or method='jackknife'",
                )
            if id(target) not in known:
                known[id(target)] = RowsPolicy(check_target(target), log)
            control = recipe.control
            if control is not None and control.is_array_or_function and not control.blends:
                logs.append(_as_source_rows(shape_log(log, target, recipe, None).log))
                made.append((known[id(target)], replace(recipe, control=None)))
            else:
                logs.append(plain)
                made.append((known[id(target)], recipe))
        return cls(tuple(made), tuple(logs), errors, runs)

    @cached_property
    def by_kernel(self) -> dict[int, Rows]:
        """The pairs of which a compiled kernel runs a block of mixtures at once, with its rows."""
        return {
            j: Rows.of(log, target, recipe.max_ratio)
            for j, ((target, recipe), log) in enumerate(zip(self.pairs, self.logs, strict=True))
            if self._fits_kernel(log, recipe)
        }

    def _fits_kernel(self, log: EpisodeLog, recipe: Recipe) -> bool:
        many = log.steps.n_rows * self.runs >= LOADED_IN_VAIN * kernels.COMPILED_FROM
        plain = recipe.weights == Marginal() and recipe.reward == "logged"
        counted = log.steps.weight is None
        if not (many and plain and counted and recipe.control is None and observed(log)):
            return False
        if not self.errors:
            return True
        cut = np.any((log.steps.ending < END) & (log.steps.lengths < log.horizon))
        return not cut and log.horizon * (len(log.states) + 1) * BLOCK * 12 <= MOST_KEPT

    @cached_property
    def by_sums(self) -> list[tuple[ResampledLog, dict[int, int]]]:
        """The pairs that are solved together over sums, by what they share: a log and a target.
        With each the number of mixtures that can be held."""
        logs: dict[tuple[int, int, float | None], tuple[ResampledLog, dict[int, int]]] = {}
        for j, ((target, recipe), log) in enumerate(zip(self.pairs, self.logs, strict=True)):
            if j in self.by_kernel:
                continue
            key = id(log), id(target), recipe.max_ratio
            shared = logs.setdefault(key, (ResampledLog(log, target, recipe.max_ratio), {}))
            together = shared[0].together(recipe, self.errors)
            if together:
                shared[1][j] = together
        return [(log, of_pairs) for log, of_pairs in logs.values() if of_pairs]

    def run(self, draws: Draws, many: int) -> Run:
        """The pairs on the first `many` of up to BLOCK mixtures."""
        shape = many, len(self.pairs)
        values, errors = np.full(shape, np.nan), np.full(shape, np.nan)
        refused = np.full(shape, AGAIN, object)
        for j, rows in self.by_kernel.items():
            values[:, j], errors[:, j] = (found[:many] for found in self._kernel(j, rows, draws))
            refused[:, j] = np.where(np.isnan(values[:, j]), "no-overlap", "")
            refused[draws.total[:many] == 0, j] = "no-episodes"
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for log, of_pairs in self.by_sums:
                for which, some in draws.first(many).parts(min(of_pairs.values())):
                    for j in of_pairs:
                        solved = log.solve(self.pairs[j][1], some, errors=self.errors)
                        if solved is None:
                            continue
                        values[which, j], refused[which, j] = solved.values, solved.refused
                        if solved.errors is not None:
                            errors[which, j] = solved.errors
        for b in np.flatnonzero((refused == AGAIN).any(axis=1)):
            slow = np.flatnonzero(refused[b] == AGAIN).tolist()
            counts = draws.counts[:, b].astype(np.int64)
            self._evaluate(counts, slow, values[b], errors[b], refused[b])
        errors[~(errors > 0)] = np.nan  # 0 is none: the drawn episodes are all the same
        reasons = tuple(Counter(code for code in of_pair if code) for of_pair in refused.T.tolist())
        return Run(values, errors, reasons)

    def _kernel(self, j: int, rows: Rows, draws: Draws) -> tuple[Floats, Floats]:
        """(BLOCK,) values and errors of MIS, nan where the mixture has no data on the target."""
        mode, g = MODES[self.pairs[j][1].normalize], rows.steps.start_value
        kept = (rows.steps.horizon, rows.width, BLOCK) if self.errors else (0, 0, 0)
        d, n, by_mass = np.empty(kept), np.empty(kept, np.int32), np.empty((kept[0], BLOCK))
        values, squares = np.empty(BLOCK), np.full(BLOCK, np.nan)
        counts = np.pad(draws.counts, ((0, 0), (0, BLOCK - draws.many)))
        with np.errstate(over="ignore", invalid="ignore"):
            given = *rows.unpacked, rows.gamma, mode, rows.width, counts
            kernel("resample.replicate")(*given, values, d, n, by_mass)
            if g is not None:
                values += (g @ counts) / counts.sum(axis=0)
            if self.errors:
                start = np.zeros(rows.steps.n_episodes) if g is None else g
                kernel("resample.spread")(*given, d, n, by_mass, start, squares)
        values[~np.isfinite(values)] = np.nan
        return values, np.sqrt(np.where(np.isnan(values), np.nan, squares))

    def _evaluate(
        self, counts: Ints, which: list[int], values: Floats, errors: Floats, refused: Codes
    ) -> None:
        """The pairs `which` on one mixture, by evaluating the log in which episodes are repeated;
        those of one target share its sums."""
        refused[which] = "" if counts.any() else "no-episodes"
        repeated: dict[int, EpisodeLog] = {}
        shared: dict[tuple[int, int], RowsData] = {}
        for j in which if counts.any() else []:
            (target, recipe), log = self.pairs[j], self.logs[j]
            if id(log) not in repeated:
                repeated[id(log)] = replace(log, steps=log.steps.repeated(counts), _cache={})
            key = id(log), id(target)
            if key not in shared:
                recipes = [self.pairs[i][1] for i in which if self.pairs[i][0] is target]
                shared[key] = RowsData.of(repeated[id(log)], target, recipes, "refuse")
                shared[key].errors = self.errors
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    solution = solve(shared[key], recipe, dropped=False).solution
                if not np.isfinite(solution.value):
                    raise overflow()
                values[j] = solution.value
            except RefusedError as error:
                refused[j], values[j], errors[j] = error.code, np.nan, np.nan
                continue
            if solution.standard_error is not None:
                errors[j] = solution.standard_error


def _as_source_rows(log: EpisodeLog) -> EpisodeLog:
    """The log with its rows for the source: a copied row is known by the row it is a copy of."""
    steps = replace(log.steps, source_rows=None)
    if "episode_hash" in vars(log.steps):
        vars(steps)["episode_hash"] = log.steps.episode_hash
    return replace(log, steps=steps, _cache={})


def new_seed() -> int:
    """A random seed; results drawn with it name it."""
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
