"""Marginal weights on clusters, pooled over the steps, with or without a fitted Q.

Rows of one cluster count as one state, and every step uses the rows of all steps:

    P(s'|s) = Σ ρ 1{s'} / Σ ρ   over the rows of s whose next cluster (or the end) is known
    d_{t+1} = d_t P,  d_0 from the first rows
    y_t(i)  = r + γ V_{t+1}(x') - Q_t(x, a)          (r alone without a Q)
    v = mean V_0(x_0) + Σ_t γ^t Σ_s d_t(s) Σ_{i in s} ρ_i y_t(i) / Σ_{i in s} ρ_i

self-normalized in each cluster. What the clusters leave out is carried by Q, and Q's error by the
weights. An episode's Q is fitted to the other folds. With u the same recursion backward,

    u_t(s) = mean_ρ y_t + γ Σ P u_{t+1}
    ψ_i = V_0 + u_0(s_0) - v + n Σ_rows Σ_t γ^t d_t(s) ρ [(y_t - mean_ρ y_t)/Σρ
                                                        + γ (u_{t+1}(s') - (P u_{t+1})(s))/Σ¹ρ]

Rows without a known next state have no y but at the last step, where nothing follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from reweigh.estimate.estimator import FOLDS
from reweigh.estimate.linear_q import RIDGE, LinearQ, effective, others
from reweigh.estimate.refusals import no_support
from reweigh.kernels import Bools, Floats, Ints, tally
from reweigh.log.feature_maps import Clusters, Fourier
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy
from reweigh.sums.feature_sums import (
    FeatureRows,
    columns_for_map,
    design_of,
    feature_sums,
    target_shares,
)
from reweigh.system import divided

KEPT = 1 << 24  # numbers of y that are kept between the two passes


@dataclass(frozen=True, eq=False)
class Clustered:
    """A log whose rows are in K clusters: `code` (N,) and `after` (N,), K at the end and -1 where
    it is not known; ρ (N,)."""

    log: EpisodeLog
    code: Ints
    after: Ints
    rho: Floats
    K: int

    @classmethod
    def of(cls, log: EpisodeLog, kind: Clusters, rho: Floats, rows: FeatureRows) -> Clustered:
        features = log.features if log.actions is None else columns_for_map(log)
        sized = kind.for_rows(log.steps.n_rows, 1)
        assert isinstance(sized, Clusters)
        sample = design_of(log, sized).map if log.actions is not None else sized.fit(features)
        z = (features - sample.center) / sample.scale
        code, K = sized.codes(z, *sample.fitted), len(sample.fitted[0])
        following, known = rows.following
        after = np.where(following >= 0, code[following], np.where(known, K, -1))
        return cls(log, code, after, rho, K)

    @property
    def known(self) -> Bools:
        return self.after >= 0


@dataclass(frozen=True, eq=False)
class ClusterSolution:
    """v, ψ (n,), the effective episodes by step (H,), v by step (H,), the mass that the log cannot
    follow (H,), and d (H, K)."""

    value: float
    psi: Floats
    ess: Floats
    per_step: Floats
    lost: Floats
    d: Floats


Shaped = Iterator[tuple[Ints, Floats]]  # rows, and their y by step (m, H)


def forward(of: Clustered) -> tuple[Floats, Floats, Floats, Callable[[Floats], Floats]]:
    """d (H, K), the lost mass (H,), Σρ by cluster, and u ↦ P u (without the end, which is 0)."""
    from scipy.sparse import csr_array

    steps, K = of.log.steps, of.K
    known, total = of.known, tally(of.code, of.rho, of.K)
    per_known = tally(of.code, np.where(known, of.rho, 0.0), K)
    share = divided(of.rho[known], per_known[of.code[known]])
    P = csr_array((share, (of.code[known], of.after[known])), shape=(K, K + 1))
    move = csr_array(P[:, :K])
    d, lost = np.zeros((steps.horizon, K)), np.zeros(steps.horizon)
    d[0] = np.bincount(of.code[: steps.n_episodes], minlength=K) / steps.n_episodes
    ended = 0.0
    for t in range(steps.horizon):
        lost[t] = d[t][total <= 0].sum()
        if t + 1 < steps.horizon:
            after = P.T @ d[t]
            ended, d[t + 1] = ended + after[K], after[:K]
            mass = ended + d[t + 1].sum()
            if not mass > 0:
                raise no_support(t + 1)
            d[t + 1], ended = d[t + 1] / mass, ended / mass  # what cannot be followed is left out
    return d, lost, total, lambda u: np.asarray(move @ u)


def solve_clusters(
    of: Clustered, shaped: Callable[[], Shaped], start: Floats, *, all_rows: bool
) -> ClusterSolution:
    """The solution for rewards y; `all_rows`: they are known without the next state."""
    from scipy.sparse import csr_array

    log, steps, K = of.log, of.log.steps, of.K
    n, H, gamma = log.n_episodes, log.horizon, log.discount
    d, lost, total, move = forward(of)
    per_known = tally(of.code, np.where(of.known, of.rho, 0.0), K)
    powers = gamma ** np.arange(H)
    kept = list(shaped()) if steps.n_rows * H <= KEPT else None

    def parts() -> Shaped:
        return iter(kept) if kept is not None else shaped()

    sums = np.zeros((K, H))
    for rows, y in parts():
        by_cluster = csr_array(
            (of.rho[rows], (of.code[rows], np.arange(len(rows)))), (K, len(rows))
        )
        sums += by_cluster @ _masked(y, of.known[rows], all_rows)
    over = np.repeat((total if all_rows else per_known)[:, None], H, axis=1)
    over[:, -1] = total
    mean = np.divide(sums, over, out=np.zeros((K, H)), where=over > 0)
    u, ahead = np.zeros((H + 1, K)), np.zeros((H, K))
    for t in range(H - 1, -1, -1):
        ahead[t] = gamma * move(u[t + 1]) if t + 1 < H else 0.0
        u[t] = mean[:, t] + ahead[t]
    per_step = powers * np.einsum("tk,kt->t", d, mean)
    per_step[0] += start.mean()
    psi, of_episode = start - start.mean(), np.zeros((n, H))
    first = of.code[:n]
    psi += u[0, first] - u[0, first].mean()
    u_next = np.concatenate([u[1:], np.zeros((H, 1))], axis=1)
    D = np.divide(d.T, over, out=np.zeros((K, H)), where=over > 0)
    D1 = np.divide(d.T, per_known[:, None], out=np.zeros((K, H)), where=per_known[:, None] > 0)
    for rows, y in parts():
        code, known, rho = of.code[rows], of.known[rows], of.rho[rows][:, None]
        weight = _masked(D[code] * rho, known, all_rows)
        moved = gamma * u_next[:, of.after[rows]].T - ahead.T[code]
        moved[:, -1] = 0.0
        terms = (weight * (y - mean[code]) + D1[code] * rho * moved * known[:, None]) @ powers
        episode = steps.episode_index[rows]
        np.add.at(psi, episode, n * terms)
        np.add.at(of_episode, episode, weight)
    psi -= psi.mean()
    return ClusterSolution(float(per_step.sum()), psi, effective(of_episode), per_step, lost, d)


def _masked(y: Floats, known: Bools, all_rows: bool) -> Floats:
    """0 in rows without a y, which is at every step but the last."""
    if all_rows or known.all():
        return y
    masked = np.where(known[:, None], y, 0.0)
    masked[:, -1] = y[:, -1]
    return masked


def logged_rewards(log: EpisodeLog) -> Callable[[], Shaped]:
    """y = r, in parts."""
    size = max((1 << 21) // log.horizon, 16)

    def shaped() -> Shaped:
        for low in range(0, log.steps.n_rows, size):
            rows = np.arange(low, min(low + size, log.steps.n_rows))
            yield rows, np.repeat(log.steps.reward[rows][:, None], log.horizon, axis=1)

    return shaped


def cross_fitted(rows: FeatureRows, ridge: float) -> list[LinearQ]:
    """For the episodes of each fold the Q of the others."""
    sums, log = feature_sums(rows), rows.log
    F = rows.design.folds
    made = [sums.of(others(F, f)) for f in range(F)]
    return [LinearQ.of(one, log.horizon, log.discount, ridge) for one in made]


def shape_by_features(log: EpisodeLog, target: Policy) -> tuple[Floats, Floats]:
    """(N,) y_t = r + γ V_{t+1}(x') - Q_t(x, a) of every row at its own step, and V_0(x_0) (n,): the
    control variate of DR and WDR."""
    key = f"shaped by features {target.fingerprint()}"
    return log._once(key, lambda: _shape_by_features(log, target))


def _shape_by_features(log: EpisodeLog, target: Policy) -> tuple[Floats, Floats]:
    design = design_of(log, Fourier(), folds=FOLDS)
    rows = FeatureRows(log, design, target_shares(log, target, None))
    fits = cross_fitted(rows, RIDGE)
    y = np.empty(log.steps.n_rows)
    by_step = replace(rows, design=replace(design, per_step=True))
    for part in by_step.parts():  # every row is in one part, with its step
        fit, at = fits[part.fold], slice(part.at, part.at + 1)
        ahead = log.discount * fit.v_ahead(part, at) - fit.q_of(part, at)
        y[part.rows] = log.steps.reward[part.rows] + ahead[:, 0]
    return y, shaped_by(rows, fits)[1]


def shaped_by(rows: FeatureRows, fits: list[LinearQ]) -> tuple[Callable[[], Shaped], Floats]:
    """y_t = r + γ V_{t+1}(x') - Q_t(x, a) of all steps, in parts; and V_0(x_0) (n,)."""
    log = rows.log

    def shaped() -> Shaped:
        every = slice(0, log.horizon)
        for part in rows.parts():
            fit, reward = fits[part.fold], log.steps.reward[part.rows][:, None]
            ahead = log.discount * fit.v_ahead(part, every)
            yield part.rows, reward + ahead - fit.q_of(part, every)

    psi, fold = rows.starts(), rows.fold[: log.n_episodes]
    start = np.zeros(log.n_episodes)
    for f, fit in enumerate(fits):
        start[fold == f] = psi[fold == f] @ fit.theta[0].ravel()
    return shaped, start
