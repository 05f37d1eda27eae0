"""The sums of a log that stays where it is, for several estimators at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reweigh.estimate.estimator import JACKKNIFE_BLOCKS, Recipe
from reweigh.evaluation.data import merged, with_gates
from reweigh.policy import Policy
from reweigh.sums.engines import Request
from reweigh.sums.keyed import StepMoments
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog
from reweigh.trust.gates import unanswerable_by_sums


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
