"""The sums of a log that stays where it is, for several estimators at once, and a second scan of it
for the influence values of its episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import JACKKNIFE_BLOCKS, Recipe
from reweigh.estimate.influence import Spread, gradient_of, returns_of
from reweigh.estimate.marginal import behavior_gradient, behavior_value
from reweigh.estimate.memory_rows import PaddedEpisodes, sampled, share_of
from reweigh.estimate.refusals import overflow
from reweigh.evaluation.data import merged, with_gates
from reweigh.evaluation.uncertainty import BEHAVIOR, ByCluster, Column, Pair
from reweigh.kernels import Floats
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy, RememberedPolicy
from reweigh.sums.engines import Request, ratios
from reweigh.sums.gather import gathered
from reweigh.sums.keyed import StepMoments
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog
from reweigh.trust.gates import unanswerable_by_sums

if TYPE_CHECKING:
    from reweigh.sums.engines.stream_chunks import Visit


def scanned_sums(log: ScannedLog, target: Policy, recipes: Sequence[Recipe]) -> list[Moments]:
    """The sums that each estimator, its error and its gates need, by one scan per clipping of the
    ratios. Without rows in memory the error of WIS comes from the jackknife: its products
    are scanned apart, by blocks, since cells by blocks might not fit into memory."""
    whole, by_blocks = {}, {}
    for ratio, (request, apart) in _scans(recipes).items():
        sums = log.moments(target, request)
        whole[ratio] = by_blocks[ratio] = sums
        # questions that no estimator can answer need no second scan, which takes memory by steps
        # and blocks
        if apart is not None and unanswerable_by_sums(sums) is None:
            products = log.moments(target, apart)
            if sums.sql is not None and products.sql is not None:
                sums = replace(sums, sql=f"{sums.sql}\n\n{products.sql}")
            split = products.trajectories  # None where the log was cut off
            together = split and StepMoments(split.steps.total(), split.episodes.total())
            whole[ratio] = replace(sums, trajectories=together)
            by_blocks[ratio] = replace(
                sums,
                about=replace(sums.about, blocks=products.about.blocks),
                start=products.start,
                trajectories=split,
            )
    return [(by_blocks if _products_by_blocks(r) else whole)[r.max_ratio] for r in recipes]


def scanned_sql(log: ScannedLog, target: Policy, recipes: Sequence[Recipe]) -> str:
    """The queries of `scanned_sums`, without running them: those in `Moments.sql` of its sums."""
    requests = [request for scans in _scans(recipes).values() for request in scans if request]
    return "\n\n".join(log.sql(target, request) for request in requests)


def _scans(recipes: Sequence[Recipe]) -> dict[float | None, tuple[Request, Request | None]]:
    """By the clipping of the ratios: the scan for all, and that of products by blocks, if any."""
    split = [recipe for recipe in recipes if _products_by_blocks(recipe)]
    apart = {r.max_ratio: replace(r.needs, blocks=JACKKNIFE_BLOCKS) for r in split}
    scans: dict[float | None, tuple[Request, Request | None]] = {}
    for ratio, request in merged(recipes).items():
        if ratio in apart:
            request = replace(request, kinds=request.kinds - {"trajectories"})
        scans[ratio] = with_gates(request), apart.get(ratio)
    return scans


def _products_by_blocks(recipe: Recipe) -> bool:
    return "trajectories" in recipe.needs.kinds and recipe.weights.error_by_blocks(recipe)


@dataclass(eq=False)
class ScanInfluence:
    """From a second scan of a log; `sums` are those of each estimator, of the first scan."""

    log: ScannedLog
    target: Policy
    sums: dict[Column, Moments] = field(default_factory=dict)
    _spreads: dict[Pair, Spread] = field(default_factory=dict, repr=False)
    _refused: dict[Column, RefusedError] = field(default_factory=dict, repr=False)
    _parts: list[PaddedEpisodes] = field(default_factory=list, repr=False)
    _sample: PaddedEpisodes | None = field(default=None, repr=False)
    _clusters: Any = field(default=None, repr=False)

    def by_cluster(self, column: Column, minus: Column | None = None) -> ByCluster:
        self.spread(column, minus)
        of = self._clusters
        sums = of.sums[column] if minus is None else of.sums[column] - of.sums[minus]
        return sums, of.sizes, of.names

    def spread(self, column: Column, minus: Column | None = None) -> Spread:
        wanted = [column] if minus is None else [column, minus]
        for each in wanted:
            if (each, None) not in self._spreads and each not in self._refused:
                self._scan()
        for each in wanted:
            if each in self._refused:
                raise self._refused[each]
        if minus is not None and (minus, column) in self._spreads:
            return -self._spreads[minus, column]
        return self._spreads[column, minus]

    def sample(self, recipe: Recipe) -> PaddedEpisodes:
        """Of the episodes, with the influence values of all estimators."""
        self.spread(recipe)
        if self._sample is None:
            first = next(iter(self.sums.values()))
            self._sample = PaddedEpisodes.together(self._parts, self._share(first))
            self._parts.clear()
        return self._sample

    def _share(self, sums: Moments) -> float:
        return share_of(sums.n_episodes, sums.about.horizon)

    def _scan(self) -> None:
        """ψ of all estimators and of the behavior, part by part of the log."""
        first, once = next(iter(self.sums.values())), RememberedPolicy(self.target)
        gradients: dict[Column, Any] = {}
        for column in (BEHAVIOR, *self.sums):
            try:
                gradients[column] = self._gradient(column, first)
            except RefusedError as error:
                self._refused[column] = error
        spreads: dict[Pair, Spread] = {}

        def visit(part: EpisodeLog) -> None:
            once.forget()
            psi = {
                column: self._gathered(column, of, part, once) for column, of in gradients.items()
            }
            differences: dict[Pair, Floats] = {
                (column, None): values for column, values in psi.items()
            }
            differences |= {(a, b): psi[a] - psi[b] for a, b in combinations(psi, 2)}
            for pair, values in differences.items():
                spread = Spread.of(values, part.steps.episode)
                spreads[pair] = spreads[pair] + spread if pair in spreads else spread
            if part.steps.cluster is not None:
                self._clusters.add(part, psi)
            if not first.truncated:
                which, pi = sampled(part.steps, self._share(first)), once.probabilities(part)
                padded = PaddedEpisodes.of(part.steps, pi, len(part.states), which)
                padded.psi.update((column, values[which]) for column, values in psi.items())
                self._parts.append(padded)

        def begin() -> Visit:
            spreads.clear()
            self._parts.clear()
            self._sample = None  # of fewer estimators
            if first.about.cluster is not None:
                from reweigh.estimate.clusters import ScannedClusters

                self._clusters = ScannedClusters()
            return visit

        self._visit(first, begin)
        for column in gradients:
            if not np.isfinite(spreads[column, None].top):
                self._refused[column] = overflow()
        self._spreads.update(spreads)

    def _visit(self, sums: Moments, begin: Callable[[], Visit]) -> None:
        from reweigh.sums.engines.second_scan import visit_episodes

        visit_episodes(self.log, self.target, sums, begin)

    def _gradient(self, column: Column, sums: Moments) -> Any:
        """The terms gathered over a part of the log. For the behavior's value these are the mean
        return, or with cut-off episodes the gradient of the recursion with every ratio 1."""
        if column != BEHAVIOR:
            return gradient_of(column, self.sums[column])  # type: ignore[arg-type]
        if not sums.truncated:
            mean = behavior_value(sums)
            if mean is None:
                raise RefusedError("no-behavior", "the behavior's value is unknown")
            return mean
        if sums.transitions is None:
            raise RefusedError("missing-moments", "these sums have no transitions")
        about, cells = sums.about, sums.transitions.forget("block")
        start, hidden = sums.start.forget("block"), sums.hidden
        of = behavior_gradient(cells, start, about.horizon, about.discount, hidden=hidden)
        return of.gradient

    def _gathered(self, column: Column, gradient: Any, part: EpisodeLog, target: Policy) -> Floats:
        if isinstance(gradient, float):
            return returns_of(part) - gradient
        if column == BEHAVIOR:
            return gathered(gradient, part, target, np.ones(part.steps.n_rows))
        rho = ratios(part, target, self.sums[column].about.max_ratio)[1]
        return gathered(gradient, part, target, rho)


class SampledInfluence(ScanInfluence):
    """From the episodes that a verdict samples, of a log whose rows stay where they are."""

    def _visit(self, sums: Moments, begin: Callable[[], Visit]) -> None:
        from reweigh.sums.engines.second_scan import visit_sample

        visit_sample(self.log, self.target, sums, self._share(sums), begin)
