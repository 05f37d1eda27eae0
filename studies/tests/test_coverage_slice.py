"""A small seeded slice of the coverage study that fails when an interval is mis-scaled by 15 %.

An interval's scale is its mean half-width over the half-width that it should have, t · sd. The
real spread sd of the estimates comes from 16,000 logs by independent code (`dense.py`) and is known
to 0.6 %; the mean half-width of 200 logs to about 1 %. With TOLERANCE for what small samples do
(the errors are asymptotic) a right interval is 4 Monte-Carlo errors away from failing, and so is
one that is off by 15 % from passing. Coverage over 200 logs is known to 1.5 percentage points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import dense
import numpy as np
import pytest
from reweigh_studies.coverage import measures as coverage_measures
from reweigh_studies.coverage.cells import TrustCell
from reweigh_studies.coverage.measures import BOOTSTRAPS, LEVEL, Measure, column
from reweigh_studies.coverage.tables import columns_of, mc_error
from reweigh_studies.coverage.worlds import WORLDS
from scipy import stats

from reweigh.errors import RefusedError
from reweigh.estimate import standard_error
from reweigh.estimate.standard_error import Freedom
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.evaluation.result import Estimate, Refusal
from reweigh.evaluation.uncertainty import EstimateUncertainty
from reweigh.paper.cells import CellResult, run_replicates
from reweigh.trust.bootstrap import Replicates
from reweigh.trust.intervals import Analytic, Cluster, Uncertainty
from reweigh.worlds import TabularMDP

ESTIMATORS = ("mis", "mis-plain", "mis-state", "dm", "is", "wis", "dr", "wdr", "mdr")
TOLERANCE = 0.06  # of the scale, for small samples
SLACK = 0.01  # of the coverage
BY_ERROR = ("analytic", "cluster", "jackknife")
BARE = Measure(("analytic", "cluster"), gates=False)
WITH_BOOTSTRAPS = Measure(("analytic", "cluster", *BOOTSTRAPS), gates=False)
# The state is Markov, and all methods must hold; at two sizes, so that a width that does not
# follow n shows.
SMALL = TrustCell("tiny-better", 200, measure=BARE)
LARGE = TrustCell("tiny-better", 800, measure=BARE)
DRAWN = TrustCell("tiny-better", 200, measure=WITH_BOOTSTRAPS)
# Episodes are good or bad throughout, which the log does not tell: whoever takes rows for
# independent is wrong, and the analytic error does.
FATE = TrustCell("fate", 200, measure=WITH_BOOTSTRAPS)
REPLICATES = 200


@cache
def spread(world: str, n: int) -> dict[str, tuple[float, float]]:
    built = WORLDS[world].world()
    assert isinstance(built, TabularMDP)
    half = built.simulate(n, 0).steps.episode_hash % 2  # by the ids, which are those of every log
    return dense.spread(built, n, half, blind=WORLDS[world].reading == "blind")


def run(cell: TrustCell, asked: Sequence[str], replicates: int = REPLICATES) -> CellResult:
    return run_replicates(cell, asked, 0, range(replicates))[1]


def complaints(cell: TrustCell, result: CellResult, without: Sequence[str] = ()) -> list[str]:
    """What is wrong with the intervals of a cell: "estimator, method: …"."""
    columns, found = columns_of(result), []
    truth, _ = cell.of.truth()
    real = spread(cell.world, cell.n)
    quantile = stats.t.ppf(0.5 + LEVEL / 2, cell.n - 1)
    for name in ESTIMATORS:
        for method in (*BY_ERROR, *BOOTSTRAPS):
            if method in without or column(name, method, "low") not in columns:
                continue
            low = columns[column(name, method, "low")]
            if not np.all(np.isfinite(low)):
                found.append(f"{name}, {method}: no interval")
                continue
            high = columns[column(name, method, "high")]
            sd, sd_error = real[name]
            half = (high - low) / 2
            scale = float(half.mean()) / (quantile * sd)
            error = np.hypot(sd_error, half.std(ddof=1) / half.mean() / np.sqrt(len(half)))
            if abs(scale - 1) > TOLERANCE + 4 * scale * error:
                found.append(f"{name}, {method}: width × {scale:.3f}")
            covered = (low <= truth) & (truth <= high)
            spare = SLACK + 4 * mc_error(LEVEL * len(covered), len(covered))
            if abs(covered.mean() - LEVEL) > spare:
                found.append(f"{name}, {method}: covers {covered.mean():.3f}")
    return found


def told(found: Sequence[str], name: str, method: str) -> bool:
    return any(text.startswith(f"{name}, {method}:") for text in found)


@pytest.fixture(scope="module")
def small() -> CellResult:
    return run(SMALL, ESTIMATORS)


@pytest.fixture(scope="module")
def drawn() -> CellResult:
    return run(DRAWN, ("mis",))


@pytest.fixture(scope="module")
def fate() -> CellResult:
    return run(FATE, ("mis",))


def test_every_interval_has_the_right_scale(small: CellResult) -> None:
    assert complaints(SMALL, small) == []
    made = {tuple(name.split("/")) for name in small.values}
    for name in ESTIMATORS:
        assert {(name, "analytic low"), (name, "cluster high")} <= made
    assert ("mis", "jackknife low") in made


def test_widths_follow_the_number_of_episodes() -> None:
    assert complaints(LARGE, run(LARGE, ("mis", "dm", "is", "wis"))) == []


def test_bootstraps_have_the_right_scale(drawn: CellResult) -> None:
    assert complaints(DRAWN, drawn) == []
    assert {"mis/percentile low", "mis/bootstrap-t high"} <= set(drawn.values)


def test_episodes_that_depend_on_something_unseen(fate: CellResult) -> None:
    """All but the analytic error take the episode for the unit; that one assumes a Markov state."""
    assert complaints(FATE, fate, without=("analytic",)) == []
    assert told(complaints(FATE, fate), "mis", "analytic")


# Mutants: every one must be reported


@pytest.mark.parametrize("factor", [0.85, 1.15])
def test_an_interval_off_by_fifteen_percent_is_reported(
    small: CellResult, drawn: CellResult, fate: CellResult, factor: float
) -> None:
    for cell, result, without in (
        (SMALL, small, ()),
        (DRAWN, drawn, ()),
        (FATE, fate, ("analytic",)),
    ):
        found = complaints(cell, scaled(result, factor), without)
        for name in result.values:
            if name.endswith(" low") and name.split("/")[1].removesuffix(" low") not in without:
                estimator, part = name.split("/")
                assert told(found, estimator, part.removesuffix(" low")), (name, factor)


def scaled(result: CellResult, factor: float) -> CellResult:
    values = dict(result.values)
    for name in result.values:
        if name.endswith(" low"):
            above = name.removesuffix("low") + "high"
            ends = zip(result.values[name], result.values[above], strict=True)
            mid_half = [((h + w) / 2, factor * (h - w) / 2) for w, h in ends]  # type: ignore[operator]
            values[name] = [mid - half for mid, half in mid_half]
            values[above] = [mid + half for mid, half in mid_half]
    return CellResult(values, {})


FEW = 60  # replicates: these mutants are off by more than 15 %


def test_a_quantile_with_all_of_alpha_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """t at 1 - α instead of 1 - α/2: × 0.84."""
    honest = standard_error.t_quantile
    monkeypatch.setattr(standard_error, "t_quantile", lambda p, df: honest(2 * p - 1, df))
    found = complaints(SMALL, run(SMALL, ("mis", "dm"), REPLICATES))
    assert all(told(found, name, m) for name in ("mis", "dm") for m in ("analytic", "cluster"))
    assert told(found, "mis", "jackknife")


def test_a_width_that_does_not_shrink_with_n(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spread of an episode instead of that of a mean, right at n = 200 by luck: it is the
    larger log that shows it."""
    for method in (Analytic, Cluster):
        honest = method.error

        def mutant(self: object, of: Uncertainty, honest: Any = honest) -> Freedom:
            freedom = honest(self, of)
            return Freedom(freedom.error * np.sqrt(of.n_episodes / 200), freedom.df)

        monkeypatch.setattr(method, "error", mutant)
    assert complaints(SMALL, run(SMALL, ("mis",), REPLICATES)) == []
    found = complaints(LARGE, run(LARGE, ("mis", "is"), FEW))
    assert all(told(found, name, m) for name in ("mis", "is") for m in ("analytic", "cluster"))


def test_the_error_of_another_normalization(monkeypatch: pytest.MonkeyPatch) -> None:
    """The un-normalized estimator's error on the normalized estimate."""

    def mutant(log: object, target: object, names: list[str]) -> list[Estimate | Refusal]:
        *results, plain = evaluate_in_study(log, target, [*names, "mis-plain"])  # type: ignore[arg-type]
        assert isinstance(plain, Estimate)
        wrong = {"error": plain.uncertainty.error, "freedom": plain.uncertainty.freedom}
        return [
            replace(r, uncertainty=replace(r.uncertainty, **wrong))
            if isinstance(r, Estimate)
            else r
            for r in results
        ]

    monkeypatch.setattr(coverage_measures, "evaluate_in_study", mutant)
    found = complaints(SMALL, run(SMALL, ("mis", "mis-state"), FEW))
    assert told(found, "mis", "analytic")
    assert told(found, "mis-state", "analytic")
    assert not told(found, "mis", "cluster")


def mutant_resample(
    draw: Callable[[np.random.Generator, int, int, int], np.ndarray], *, frozen: bool
) -> Callable[..., Replicates]:
    """A bootstrap of MIS gone wrong: `draw` gives counts (B, n, H), and with `frozen` the
    denominators n_t(s) stay those of the log."""

    def resample(log, pairs, replicates, *, seed, errors):  # type: ignore[no-untyped-def]
        [(target, _)] = pairs
        steps, H, S = log.steps, log.horizon, len(log.states)
        rho = target.probabilities(log) / steps.behavior_prob
        counts = draw(np.random.default_rng(seed), replicates, log.n_episodes, H)
        states = np.eye(S)
        d = counts[:, :, 0] @ states[steps.state[steps.rows(0)]]
        d /= d.sum(axis=1, keepdims=True)
        values = np.zeros(replicates)
        for t in range(H):
            at = steps.rows(t)
            here, following = states[steps.state[at]], states[steps.next_state[at]]
            c = counts[:, :, t]
            under = here.sum(axis=0)[None] if frozen else c @ here
            cr = c * rho[at]
            with np.errstate(divide="ignore", invalid="ignore"):
                reward = (cr * steps.reward[at]) @ here / under
                move = np.einsum("bi,is,ix->bsx", cr, here, following) / under[:, :, None]
            values += np.nansum(d * reward, axis=1)
            d = np.einsum("bs,bsx->bx", d, np.nan_to_num(move))
            if not frozen:
                d /= d.sum(axis=1, keepdims=True)
        error = np.full((replicates, 1), values.std())
        return Replicates(values[:, None], error, seed, ({},))

    return resample


def test_denominators_that_are_not_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    def episodes(rng: np.random.Generator, B: int, n: int, H: int) -> np.ndarray:
        return np.repeat(rng.poisson(1.0, (B, n))[:, :, None].astype(float), H, axis=2)

    honest = mutant_resample(episodes, frozen=False)
    monkeypatch.setattr(coverage_measures, "resample", honest)
    assert not told(complaints(DRAWN, run(DRAWN, ("mis",), FEW)), "mis", "percentile")
    frozen = mutant_resample(episodes, frozen=True)
    monkeypatch.setattr(coverage_measures, "resample", frozen)
    assert told(complaints(DRAWN, run(DRAWN, ("mis",), FEW)), "mis", "percentile")


def test_rows_resampled_instead_of_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(rng: np.random.Generator, B: int, n: int, H: int) -> np.ndarray:
        return rng.poisson(1.0, (B, n, H)).astype(float)

    monkeypatch.setattr(coverage_measures, "resample", mutant_resample(rows, frozen=False))
    assert told(complaints(FATE, run(FATE, ("mis",), FEW)), "mis", "percentile")


def test_an_interval_that_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, minus: object = None) -> None:
        raise RefusedError("no-error", "none")

    monkeypatch.setattr(EstimateUncertainty, "spread", refuse)
    found = complaints(SMALL, run(SMALL, ("mis",), 3))
    assert "mis, cluster: no interval" in found


def test_the_reference_has_the_librarys_values() -> None:
    world = WORLDS["tiny-better"].world()
    assert isinstance(world, TabularMDP)
    log = world.simulate(60, np.random.default_rng(5))
    many = dense.simulated(world, 1, 60, log.steps.episode_hash % 2, 5, blind=False)
    mine = dense.all_values(many)
    for result in evaluate_in_study(log, world.target, list(mine)):
        assert isinstance(result, Estimate)
        assert mine[result.estimator][0] == pytest.approx(result.value, rel=1e-9)
