"""Gates whose value is a p-value: what they share.

Each test works on sums, so that it is the same on every engine and for merged sites, and returns an
`Outcome`: a p-value, or the reason why there is none. They can be wrong both ways: a small p-value
is a reason to look, and a large one proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.estimate.operators import OneStep, importance_operator
from reweigh.estimate.recursion import backward
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.kernels.groups import group_by, tally
from reweigh.sums.diagnostic_tables import LaggedMoments
from reweigh.sums.transitions import TransitionMoments
from reweigh.system.arithmetic import divided
from reweigh.trust.gates.gate import Context, Gate, GateResult

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SPARE_ROWS = 10  # rows of a (t, s) beyond its groups before its spread is known
LEAST_LOG_P = -1000.0  # one state must not make a sum of logarithms infinite
NO_TRANSITIONS = "these sums hold no transitions"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A test's outcome.

    p         None where the test cannot be made
    why       why there is none, or none by step
    per_step  (H,) p-values step by step, nan where a step has none
    step, state  where the sums are furthest from what they should be (codes)
    share     of the (t, s) that were tested
    """

    p: float | None
    why: str = ""
    per_step: Floats | None = None
    step: int | None = None
    state: int | None = None
    share: float = 1.0


class AssumptionGate(Gate):
    """A gate of a p-value: what it says where the assumption holds and where it fails, what to do
    then, and the word before its place, where that is told."""

    def __init_subclass__(
        cls, holds: str = "", fails: str = "", advice: str = "", most: str = "", **declared: Any
    ) -> None:
        super().__init_subclass__(assumption=True, **declared)
        cls.holds, cls.fails, cls.advice, cls.most = holds, fails, advice, most

    holds: str
    fails: str
    advice: str
    most: str

    def test(self, context: Context) -> Outcome:
        raise NotImplementedError

    def measure(self, context: Context) -> GateResult:
        return self.of_outcome(*self.outcome(context))

    def outcome(self, context: Context) -> tuple[Outcome, str | None]:
        """The test's outcome, without a p-value where that is no number, and its state's name."""
        outcome = context.once(self.name, lambda: self.test(context))
        if outcome.p is not None and math.isnan(outcome.p):
            outcome = Outcome(None, OVERFLOW)
        code = -1 if outcome.state is None else outcome.state
        return outcome, context.sums.states.name(code) if code >= 0 else None

    def of_outcome(self, outcome: Outcome, state: str | None = None, **more: Any) -> GateResult:
        if outcome.p is None:
            return self.unknown(outcome.why)
        said = self.holds if self.limit().judge(outcome.p) == "green" else self.fails
        p = f"p = {outcome.p:.2g}" if outcome.p >= 1e-16 else "p < 1e-16"
        by_step = f"; by step it is not told: {outcome.why}" if outcome.why else ""
        if outcome.share < 1:
            one_in = f"1 of {1 / outcome.share:,.0f}"
            by_step += f"; tested at {one_in} (step, state) pairs, chosen by their hash"
        return self.judge(
            outcome.p,
            f"{said} ({p}{by_step})",
            self.advice,
            most=self.most,
            per_step=outcome.per_step,
            step=outcome.step,
            state=state,
            **more,
        )


def importance_weights(context: Context) -> OneStep | None:
    """The operator of MIS on the gates' sums."""
    sums, about = context.sums, context.sums.about
    if sums.transitions is None:
        return None
    return importance_operator(sums.transitions, sums.start, about.horizon, about.discount)


@dataclass(frozen=True, eq=False)
class StateValues:
    """V_t(s) over the nodes (t, s), sorted; 0 elsewhere (END, and states that are not known)."""

    t: Ints
    s: Ints
    v: Floats

    def at(self, t: Ints, s: Ints) -> Floats:
        width = int(max(self.s.max(initial=0), s.max(initial=0))) + 1
        real = self.s >= 0  # others have no key of their own
        # A last key that none asks for: there may be no other, where every state is hidden.
        keys = np.append((self.t * width + self.s)[real], np.iinfo(np.int64).max)
        v, wanted = np.append(self.v[real], 0.0), t * width + s
        place = np.searchsorted(keys, wanted)
        return np.where((s >= 0) & (keys[place] == wanted), v[place], 0.0)


def state_values(context: Context) -> StateValues | None:
    """V_t(s) by MIS."""

    def compute() -> StateValues | None:
        op = importance_weights(context)
        return None if op is None else StateValues(op.node_t, op.node_s, backward(op).u)

    return context.once("state values", compute)


def sums_of_q(cells: LaggedMoments | TransitionMoments, v: Floats) -> tuple[Floats, Floats]:
    """Σq and Σq² of q = ρ (y + v) by cell, v being the same within it."""
    q = cells.z + v * cells.rho
    return q, cells.z2 + 2 * v * cells.rhoz + v * v * cells.rho2


@dataclass(frozen=True, eq=False)
class Split:
    """Cells of strata (t, s), each split into groups: rows n, Σq and Σq²."""

    t: Ints
    s: Ints
    group: Ints
    n: Ints
    q: Floats
    q2: Floats


def split_test(cells: Split, horizon: int, why: str) -> Outcome:
    """Do the groups of a stratum have the same mean of q? `why` says that no stratum can tell.

    F = (Σ_g N_g (q̄_g - q̄)²/(K-1)) / (Σ_g Σ(q - q̄_g)²/(N-K)); the strata add up by Fisher's method.
    """
    from scipy.special import chdtrc, fdtrc

    groups = group_by([cells.t, cells.s, cells.group])
    n, first, second = (groups.sum(values) for values in (cells.n, cells.q, cells.q2))
    if not np.isfinite(second).all():
        return Outcome(None, OVERFLOW)
    strata = group_by([groups.keys[0], groups.keys[1]])
    N, K = strata.sum(n).astype(np.float64), strata.count().astype(np.float64)
    of_groups = strata.sum(divided(first**2, n.astype(np.float64)))
    between = of_groups - divided(strata.sum(first) ** 2, N)
    within = strata.sum(second) - of_groups
    noise = 1e-10 * strata.sum(second)  # sums of squares carry no digits below this
    use = (K >= 2) & (N - K >= SPARE_ROWS) & ((within > noise) | (between > noise))
    if not use.any():
        return Outcome(None, why)
    # Without any spread within the groups a difference between them is beyond doubt.
    within = np.maximum(within, noise)
    f = (between[use] / (K[use] - 1)) / (within[use] / (N[use] - K[use]))
    with np.errstate(divide="ignore"):
        log_p = np.log(fdtrc(K[use] - 1, N[use] - K[use], np.maximum(f, 0.0)))
    log_p = np.maximum(log_p, LEAST_LOG_P)
    t, s = (values[use] for values in strata.keys)
    score, count = tally(t, -2 * log_p, horizon + 1), tally(t, np.ones(len(t)), horizon + 1)
    per_step = np.full(horizon, np.nan)
    known = np.flatnonzero(count[:horizon] > 0)
    per_step[known] = chdtrc(2 * count[known], score[known])
    worst = int(np.argmin(log_p))
    p = float(chdtrc(2 * len(log_p), -2 * log_p.sum()))
    return Outcome(p, per_step=per_step, step=int(t[worst]), state=int(s[worst]))
