"""Sums of features: what a linear recursion over φ(x) needs of a log, per action and fold.

    G_a = Σ φ φᵀ   G¹_a = the same over the rows whose next state is known   b_a = Σ φ r
    C_a = Σ φ ψ(x')ᵀ,   ψ(x) = (π(a'|x) φ(x))_{a'},   ψ(END) = 0        S = Σ ψ(x_0)

over the rows of action a, pooled over the steps or step by step. They add up. Where only the
logged action's probability is known (a column, continuous actions), ρ of the row that follows
stands for π: ψ(x') = ρ' φ(x') in the block of a', whose mean is the same. Continuous actions have
one block, and features of (x, a).

Rows are taken in parts of a few megabytes: features once for each, then matrix products.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from reweigh.errors import InputError, RefusedError, ResourceError
from reweigh.kernels import Bools, Floats, Ints
from reweigh.log.feature_maps import FeatureMap, FittedMap, sample_order
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, Labels
from reweigh.policy import Policy
from reweigh.sums.engines import ratios

PART = 1 << 21  # numbers of a part's ψ
MOST_BYTES = 1 << 32


@dataclass(frozen=True, eq=False)
class Design:
    """What features are summed by: a fitted map, by these actions (None: of (x, a)), in so many
    folds of the episodes' hashes, pooled over the steps or not."""

    map: FittedMap
    actions: Labels | None
    horizon: int
    folds: int = 1
    per_step: bool = False

    @property
    def blocks(self) -> int:
        return 1 if self.actions is None else len(self.actions)

    @property
    def steps(self) -> int:
        """How many steps have sums of their own."""
        return self.horizon if self.per_step else 1

    def require_memory(self, width: int) -> None:
        a, d = self.blocks, width
        size = 8 * self.folds * self.steps * a * d * d * (2 + a)
        if size > MOST_BYTES:
            by = f" × {self.steps} steps" if self.per_step else ""
            raise ResourceError(
                f"the sums of {d} features for {a} actions{by} would take {size / 2**30:.1f} GiB; "
                "use fewer features" + (", or pool the steps" if self.per_step else "")
            )


def columns_for_map(log: EpisodeLog) -> Floats:
    """(N, k) the columns that a map takes: the features, with continuous actions beside them."""
    if log.actions is not None:
        return log.features
    return np.column_stack([log.features, log.steps.action])


def design_of(
    log: EpisodeLog, kind: FeatureMap, *, folds: int = 1, per_step: bool = False
) -> Design:
    """The design for a log in memory, its map fitted to it."""
    blocks = 1 if log.actions is None else len(log.actions)
    sized = kind.for_rows(log.steps.n_rows, blocks)
    fitted = log._once(f"map {sized!r}", lambda: sized.fit(columns_for_map(log)[fitting_rows(log)]))
    return Design(fitted, log.actions, log.horizon, folds, per_step)


def fitting_rows(log: EpisodeLog) -> Ints:
    """The rows that maps are fitted to."""
    steps = log.steps
    return sample_order(steps.episode_hash[steps.episode_index], steps.step)


def target_shares(log: EpisodeLog, target: Policy, max_ratio: float | None) -> Floats:
    """(N, A) π(a|x) of the actions, or ρ in the column of the logged action alone."""
    if log.actions is not None and max_ratio is None:
        try:
            return np.stack([target.of_action(log, a) for a in log.actions.values], axis=1)
        except RefusedError as error:
            if error.code != "target-probabilities":
                raise
    return logged_shares(log, ratios(log, target, max_ratio)[1])


def logged_shares(log: EpisodeLog, of_row: Floats) -> Floats:
    """(N, A) `of_row` in the column of the logged action; ones are the behavior itself."""
    if log.actions is None:
        return of_row[:, None]
    shares = np.zeros((len(of_row), len(log.actions)))
    shares[np.arange(len(of_row)), log.steps.action] = of_row
    return shares


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of one fold and step (0 if pooled): φ (m, d), the block of their action, ψ of what
    follows (m, A d), and whether that is known."""

    fold: int
    at: int
    rows: Ints
    phi: Floats
    block: Ints
    ahead: Floats
    known: Bools


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """The rows of a log, as a design sums them; `shares` (N, A) are of the target."""

    log: EpisodeLog
    design: Design
    shares: Floats

    @cached_property
    def block(self) -> Ints:
        steps = self.log.steps
        if self.log.actions is None:
            return np.zeros(steps.n_rows, np.int64)
        return np.asarray(steps.action, np.int64)

    @cached_property
    def following(self) -> tuple[Ints, Bools]:
        """(N,) the row that follows, -1 without one; and whether what follows is known."""
        steps = self.log.steps
        following, known = np.full(steps.n_rows, -1), np.zeros(steps.n_rows, bool)
        for t in range(steps.horizon):
            here, alive = steps.rows(t), np.zeros(0)
            if t + 1 < steps.horizon:
                alive = np.arange(steps.offsets[t + 1], steps.offsets[t + 2])
            going_on = len(alive)
            following[here.start : here.start + going_on] = alive
            known[here.start : here.start + going_on] = True
            ends = steps.ending[going_on : here.stop - here.start] == END
            known[here.start + going_on : here.stop] = ends
        return following, known

    @cached_property
    def fold(self) -> Ints:
        """(N,) the fold of each row's episode."""
        return (self.log.steps.episode_hash % self.design.folds)[self.log.steps.episode_index]

    def phi(self, rows: Ints) -> Floats:
        return self.design.map(columns_for_map(self.log)[rows])

    def psi(self, rows: Ints, phi: Floats) -> Floats:
        """(m, A d)"""
        blocks = self.shares[rows][:, :, None] * phi[:, None, :]
        return np.asarray(blocks.reshape(len(rows), blocks.shape[1] * blocks.shape[2]))

    def parts(self) -> Iterator[Part]:
        """All rows, fold by fold and step by step."""
        steps, (following, known) = self.log.steps, self.following
        at = steps.step if self.design.per_step else np.zeros(steps.n_rows, np.int64)
        order = np.lexsort((steps.step, steps.episode_index, at, self.fold))
        width = self.phi(order[:1]).shape[1]
        self.design.require_memory(width)
        size = max(PART // (width * self.design.blocks), 16)
        keys = self.fold[order] * steps.horizon + at[order]
        begins = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(order)]
        for begin, end in pairwise(begins):
            for low in range(begin, end, size):
                rows = order[low : min(low + size, end)]
                after = following[rows]
                goes = after >= 0
                need = np.union1d(rows, after[goes])
                phi = self.phi(need)
                ahead = np.zeros((len(rows), width * self.design.blocks))
                next_phi = phi[np.searchsorted(need, after[goes])]
                ahead[goes] = self.psi(after[goes], next_phi)
                own = phi[np.searchsorted(need, rows)]
                first = int(rows[0])
                yield Part(
                    int(self.fold[first]), int(at[first]), rows, own, self.block[rows], ahead,
                    known[rows],
                )  # fmt: skip

    def starts(self) -> Floats:
        """(n, A d) ψ(x_0) of the episodes."""
        rows = np.arange(self.log.n_episodes)
        return self.psi(rows, self.phi(rows))


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """The sums, by fold F, step T (1 if pooled) and action A, of d features.

    n         (F,) episodes
    rows      (F, T, A) rows
    G, G1     (F, T, A, d, d)
    C         (F, T, A, d, A d)
    b         (F, T, A, d)
    start     (F, A d)
    name      the map's fingerprint: only sums of one map add up
    """

    n: Floats
    rows: Floats
    G: Floats
    G1: Floats
    C: Floats
    b: Floats
    start: Floats
    name: str

    def __add__(self, other: FeatureSums) -> FeatureSums:
        if (self.name, self.C.shape) != (other.name, other.C.shape):
            raise InputError("sums of features add up only with the same map, actions and folds")
        return self._with(x + y for x, y in zip(self.arrays(), other.arrays(), strict=True))

    def arrays(self) -> tuple[Floats, ...]:
        return self.n, self.rows, self.G, self.G1, self.C, self.b, self.start

    def of(self, folds: Bools) -> FeatureSums:
        """Those of some of the folds together."""
        return self._with(x[folds].sum(axis=0, keepdims=True) for x in self.arrays())

    def _with(self, arrays: Iterable[Floats]) -> FeatureSums:
        n, rows, G, G1, C, b, start = arrays
        return FeatureSums(n, rows, G, G1, C, b, start, self.name)

    @property
    def width(self) -> int:
        return int(self.G.shape[-1])


def feature_sums(rows: FeatureRows) -> FeatureSums:
    """The sums of the rows of a log."""
    design, steps, log = rows.design, rows.log.steps, rows.log
    F, T, A, d = design.folds, design.steps, design.blocks, rows.phi(np.zeros(1, np.int64)).shape[1]
    design.require_memory(d)
    G, G1, C = np.zeros((F, T, A, d, d)), np.zeros((F, T, A, d, d)), np.zeros((F, T, A, d, A * d))
    b, count = np.zeros((F, T, A, d)), np.zeros((F, T, A))
    for part in rows.parts():
        for a in range(A):
            mine = part.block == a if A > 1 else slice(None)
            phi, known = part.phi[mine], part.known[mine]
            at = part.fold, part.at, a
            count[at] += len(phi)
            gram = phi.T @ phi
            G[at] += gram
            b[at] += phi.T @ steps.reward[part.rows[mine]]
            if known.all():
                G1[at] += gram
                C[at] += phi.T @ part.ahead[mine]
            else:
                some = phi[known]
                G1[at] += some.T @ some
                C[at] += some.T @ part.ahead[mine][known]
    fold = log.steps.episode_hash % F
    psi = rows.starts()
    start = np.stack([psi[fold == f].sum(axis=0) for f in range(F)])
    n = np.bincount(fold, minlength=F).astype(np.float64)
    return FeatureSums(n, count, G, G1, C, b, start, design.map.fingerprint())
