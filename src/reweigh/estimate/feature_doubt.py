"""Reasons to doubt an estimate on features, as numbers that gates judge.

*The behavior's own value*: the same method is asked for what the log knows. *Bellman residual*:
where Q is right, E[r + γ V(x') - Q(x, a)] = 0 for the rows of any region; regions are clusters of
the features, by thirds of the horizon and by action, and the rows are those of folds that did not
fit Q. *Support*: the target's mass on clusters with few effective rows. *Spread*: the values by
other choices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reweigh.errors import RefusedError
from reweigh.estimate.cluster_weights import Clustered, cross_fitted
from reweigh.estimate.estimator import FOLDS
from reweigh.estimate.linear_q import RIDGE, LinearQ
from reweigh.kernels import Floats, group_by, tally
from reweigh.log.feature_maps import Clusters
from reweigh.log.log import EpisodeLog
from reweigh.sums.feature_sums import FeatureRows
from reweigh.system import divided

REGIONS, THIRDS, LEAST_ROWS = 8, 3, 30
RARE = 10.0  # effective rows of a cluster


@dataclass(frozen=True, eq=False)
class Run:
    """An estimate with one set of choices: the value, ψ (n,); effective episodes, v and lost mass
    by step (H,); the rows, and the fits or clusters behind it."""

    value: float
    psi: Floats
    ess: Floats
    per_step: Floats
    lost: Floats
    rows: FeatureRows
    fit: LinearQ | None = None
    fits: list[LinearQ] | None = None
    clustered: Clustered | None = None
    d: Floats | None = None


@dataclass(frozen=True, eq=False)
class Residual:
    """The region whose mean residual is furthest from 0: how many errors (`z`, the largest of so
    many `regions`), the mean residual of its rows and its sum by episode (`effect`), and the region
    in words."""

    z: float
    regions: int
    mean: float
    effect: float
    where: str
    step: int


@dataclass(frozen=True, eq=False)
class Doubt:
    """sampling_error     the error of ψ alone
    behavior      the behavior's value by the method; `logged` its mean return (None: not known)
    others        the values by other choices, nan where one has none
    residual      None without a fitted Q, or too few rows
    thin          the share of the target's mass on clusters with few effective rows, and the worst
                  of them in words; None without clusters
    """

    value: float
    sampling_error: float
    behavior: float | None
    logged: float | None
    others: dict[str, float]
    residual: Residual | None
    thin: tuple[float, str] | None

    @property
    def spread(self) -> float:
        """The root of the mean square of what other choices change; 0 without any."""
        apart = np.array([v - self.value for v in self.others.values() if np.isfinite(v)])
        return float(np.sqrt(np.mean(apart**2))) if len(apart) else 0.0


def doubt_of(log: EpisodeLog, run: Run, behavior: Run | None, others: dict[str, float]) -> Doubt:
    from reweigh.sums.engines import mean_return

    logged = None if log.n_truncated else mean_return(log)
    return Doubt(
        run.value,
        float(np.sqrt(np.mean(run.psi**2) / log.n_episodes)),
        None if behavior is None else behavior.value,
        logged,
        others,
        None if run.fit is None and run.fits is None else residual_of(log, run),
        thin_clusters(log, run),
    )


def thin_clusters(log: EpisodeLog, run: Run) -> tuple[float, str] | None:
    """The share of d on clusters whose (Σρ)²/Σρ² is below RARE."""
    of = run.clustered
    if of is None or run.d is None:
        return None
    first, second = (tally(of.code, of.rho**power, of.K) for power in (1, 2))
    mass = np.where(divided(first**2, second) < RARE, run.d.sum(axis=0), 0.0)
    share = float(mass.sum() / max(run.d.sum(), 1e-300))
    worst = log.features[of.code == int(np.argmax(mass))].mean(axis=0)
    return share, _center_in_words(log, worst)


def residual_of(log: EpisodeLog, run: Run) -> Residual | None:
    """The worst region of held-out rows, each at its own step. Episodes are independent: a region's
    error is that of the sums of its episodes."""
    design = replace(run.rows.design, folds=FOLDS)
    rows = replace(run.rows, design=design)
    try:
        fits = run.fits or cross_fitted(rows, RIDGE)
    except RefusedError:
        return None
    by_step = replace(rows, design=replace(design, per_step=True))
    pooled = len(fits[0].beta) == 1
    steps, delta = log.steps, np.full(log.steps.n_rows, np.nan)
    for part in by_step.parts():
        fit, at = fits[part.fold], slice(part.at, part.at + 1)
        if not pooled:
            return None
        y = steps.reward[part.rows] + log.discount * fit.v_ahead(part, at)[:, 0]
        usable = part.known | (part.at == log.horizon - 1)
        delta[part.rows] = np.where(usable, y - fit.q_of(part, at)[:, 0], np.nan)
    fitted = Clusters(REGIONS, seed=7).fit(log.features)
    region = Clusters(REGIONS).codes((log.features - fitted.center) / fitted.scale, *fitted.fitted)
    third = steps.step * THIRDS // log.horizon
    used = np.flatnonzero(np.isfinite(delta))
    keys = [region[used], third[used], rows.block[used]]
    groups = group_by(keys)
    of = groups.index()
    count = np.bincount(of, minlength=len(groups))
    sums = tally(of, delta[used], len(groups))
    both = group_by([of, steps.episode_index[used]])
    squares = tally(both.keys[0], both.sum(delta[used]) ** 2, len(groups))
    enough = (count >= LEAST_ROWS) & (squares > 0)
    if not enough.any():
        return None
    z = np.where(enough, np.abs(sums) / np.sqrt(np.where(enough, squares, 1.0)), 0.0)
    worst = int(np.argmax(z))
    _, s, a = (int(key[worst]) for key in groups.keys)
    mine = used[of == worst]
    return Residual(
        float(z[worst]),
        int(enough.sum()),
        float(sums[worst] / count[worst]),
        float(sums[worst] / log.n_episodes),
        _in_words(log, log.features[mine].mean(axis=0), s, a),
        int(np.median(steps.step[mine])),
    )


def _center_in_words(log: EpisodeLog, center: Floats) -> str:
    """Where it is in the user's columns: those that are furthest from their mean."""
    mean, sd = log.features.mean(axis=0), log.features.std(axis=0)
    order = np.argsort(-np.abs(center - mean) / np.where(sd > 0, sd, np.inf))[:2]
    return " and ".join(f"{log.feature_names[j]} near {center[j]:.3g}" for j in order)


def _in_words(log: EpisodeLog, center: Floats, third: int, action: int) -> str:
    at = _center_in_words(log, center)
    first, last = (-(-log.horizon * k // THIRDS) for k in (third, third + 1))
    steps = f"steps {first} to {last - 1}" if last - 1 > first else f"step {first}"
    return f"{at}, {steps}" + (
        "" if log.actions is None else f", action {log.actions.name(action)}"
    )
