"""Which scans of a log that stays where it is give the sums of some estimators and their gates."""

from __future__ import annotations

from dataclasses import replace

from reweigh.estimate.estimator import JACKKNIFE_BLOCKS, Recipe
from reweigh.evaluation.inputs import merged
from reweigh.policy.base import Policy
from reweigh.sums.engines.base import Request
from reweigh.sums.moments import Moments
from reweigh.sums.read import ScannedLog
from reweigh.sums.trajectories import StepMoments
from reweigh.trust.diagnostics import hopeless_sums
from reweigh.trust.gates import tables_needed


def scanned_sums(log: ScannedLog, target: Policy, recipes: list[Recipe]) -> list[Moments]:
    """The sums that each of these estimators, its error and its gates need. One scan per clipping
    of the ratios is for all of them, since a log that is scanned may be large. Without the rows at
    hand the error of WIS comes from the jackknife: its products are scanned apart, by blocks, since
    cells by blocks might not fit into memory."""
    whole, by_blocks = {}, {}
    for ratio, (request, apart) in _scans(recipes).items():
        found = log.moments(target, request)
        whole[ratio] = by_blocks[ratio] = found
        # what no estimator can answer needs no second scan, which takes memory by steps and blocks
        if apart is not None and hopeless_sums(found) is None:
            products = log.moments(target, apart)
            if found.sql is not None and products.sql is not None:
                found = replace(found, sql=f"{found.sql}\n\n{products.sql}")
            whole[ratio] = replace(found, trajectories=_unsplit(products.trajectories))
            by_blocks[ratio] = replace(
                found,
                about=replace(found.about, blocks=products.about.blocks),
                start=products.start,
                trajectories=products.trajectories,
            )
    return [(by_blocks if _products_by_blocks(r) else whole)[r.max_ratio] for r in recipes]


def scanned_sql(log: ScannedLog, target: Policy, recipes: list[Recipe]) -> str:
    """The queries of `scanned_sums`, without running them: what its sums tell in `Moments.sql`."""
    asked = [request for scans in _scans(recipes).values() for request in scans if request]
    return "\n\n".join(log.sql(target, request) for request in asked)


def _scans(recipes: list[Recipe]) -> dict[float | None, tuple[Request, Request | None]]:
    """By the clipping of the ratios: the scan for all, and that of products by blocks, if any."""
    apart = {
        r.max_ratio: replace(r.needs, blocks=JACKKNIFE_BLOCKS)
        for r in recipes
        if _products_by_blocks(r)
    }
    found: dict[float | None, tuple[Request, Request | None]] = {}
    for ratio, request in merged(recipes).items():
        if ratio in apart:
            request = replace(request, kinds=request.kinds - {"trajectories"})
        found[ratio] = with_gates(request), apart.get(ratio)
    return found


def _products_by_blocks(recipe: Recipe) -> bool:
    """Whether its error comes from running products by blocks."""
    return "trajectories" in recipe.needs.kinds and recipe.weights.error_by_blocks(recipe)


def _unsplit(products: StepMoments | None) -> StepMoments | None:
    """The products of all blocks together; None where the log has none (it was cut off)."""
    if products is None:
        return None
    return StepMoments(products.steps.total(), products.episodes.total())


def with_gates(request: Request) -> Request:
    """With the sums that only gates read; the cells with actions, which can be many, are spare."""
    asked = tables_needed(request.max_ratio)
    return request | replace(asked, spare=asked.kinds & {"model"})
