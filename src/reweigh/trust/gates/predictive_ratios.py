"""Does what the policies see beyond the state predict what follows?

Ratios can differ within a (t, s, a) and every estimate stay right: several loggers, or one that
adapts, who recorded their own propensities. MIS is right where earlier ratios say nothing about
what follows a state that the state does not say:

    E[ρ_{0:t-1} (q_t - V_t(s_t)) | s_t] = 0,   q_t = ρ_t (y_t + γ V_{t+1}(s_{t+1}))

That holds if, given (t, s, a), the outcome f = y + γ V_{t+1}(s') is independent of ρ: then the
state and the action hold all that matters for f, no matter which logger chose the action. It fails
if the policies look at something hidden that matters. So the correlation of f and ρ is tested
within every (t, s, a). A Markov state makes the rows of an episode independent of each other there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reweigh.kernels import Floats, group_by
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Labels
from reweigh.sums.engines import SPARE_CELLS
from reweigh.sums.keyed import TransitionMoments
from reweigh.sums.moments import Moments
from reweigh.trust.gates.gate import NO_TRANSITIONS, Context, GateResult
from reweigh.trust.gates.states import LEAST_LOG_P, SPARE_ROWS, StateValues, state_values

PREDICTS = 0.01  # p below which the ratios predict what follows
NOISE = 1e-10  # of a sum of squares, which carries no digits below this
LEAST_FREEDOM = 30  # rows beyond one of each (t, s, a)
LEAST_SHARE = 0.5  # of the differences between ratios


@dataclass(frozen=True)
class Prediction:
    """p of "the ratios predict nothing of what follows"; None, and why, if that is unknown."""

    p: float | None
    why: str = ""

    def judge(self, result: GateResult) -> GateResult:
        """The result of a gate that found ratios to differ."""
        if self.p is None:
            why = f"whether that predicts what follows is unknown: {self.why}"
            return replace(result, text=f"{result.text}; {why}")
        p = f"p = {self.p:.2g}" if self.p >= 1e-16 else "p < 1e-16"
        if self.p < PREDICTS:
            return replace(result, text=f"{result.text}; that predicts what follows ({p})")
        text = f"{result.text}; that predicts nothing of what follows ({p})"
        return replace(result, level="green", text=text, advice="")


def prediction(context: Context) -> Prediction:
    """From the cells by action and next state, or of a large log from those by action with the
    rewards f. Where a scan of a large log would leave the first out, nobody reads them: the verdict
    is the same on every engine."""
    sums, values, log = context.sums, state_values(context), context.log
    cells = sums.model
    if values is None:
        return Prediction(None, NO_TRANSITIONS)
    if possible_cells(sums) > SPARE_CELLS:
        cells = None
    elif log is not None and context.with_rewards is not None:
        cells, values = context.with_rewards(outcomes(log, values)), None
    elif context.with_model is not None:
        cells = context.with_model().model
    if cells is None:
        return Prediction(None, "there are too many cells by action and next state")
    p = prediction_p(cells, values, sums.about.discount, sums.states)
    return Prediction(p, "too few rows share a step, state and action" if p is None else "")


def possible_cells(sums: Moments) -> int:
    """By step, state, action and next state."""
    cells, states = sums.by_action, len(sums.states)
    rows = 0 if cells is None else int(cells.n.sum())
    possible = sums.about.horizon * states * len(sums.actions or ("",)) * (states + 2)
    return min(rows, possible)


def outcomes(log: EpisodeLog, values: StateValues) -> Floats:
    """(N,) f = y + γ V_{t+1}(s'); V is 0 after the end and where s' is not known."""
    steps, table = log.steps, np.zeros((log.horizon + 1, len(log.states) + 1))
    known = values.s >= 0
    table[values.t[known], values.s[known]] = log.discount * values.v[known]
    f = np.array(steps.reward)
    for t in range(log.horizon):
        here, going = steps.rows(t), 0
        if t + 1 < log.horizon:
            ahead = steps.rows(t + 1)
            going = ahead.stop - ahead.start
            f[here.start : here.start + going] += table[t + 1, steps.state[ahead]]
        after = steps.ending[going : here.stop - here.start]
        f[here.start + going : here.stop] += table[t + 1, np.maximum(after, -1)]
    return f


def prediction_p(
    cells: TransitionMoments, values: StateValues | None, discount: float, states: Labels
) -> float | None:
    """The p-value of "what follows does not depend on the ratio, given step, state and action";
    None if the log cannot tell. Without values the rewards of the cells are f.

    Of N rows of a (t, s, a), with C = Σ(ρ - ρ̄)(f - f̄), A = Σ(ρ - ρ̄)² and B = Σ(f - f̄)²:

        by group  r² = C²/(A B),  F = (N - 2) r²/(1 - r²), added up by Fisher's method
        together  z = Σ C / sqrt(Σ A B/(N - 1)), what MIS and a model of the actions differ by

    The smaller of both p-values, doubled.
    """
    from scipy.special import chdtrc, fdtrc, ndtr

    hidden = np.array([value is None for value in states.values], bool)
    after = np.maximum(cells.s_next, 0)
    cells = cells.select(~hidden[cells.s] & ~((cells.s_next >= 0) & hidden[after]))
    v = 0.0 if values is None else discount * values.at(cells.t_next, cells.s_next)
    groups = group_by([cells.t, cells.s, cells.a])
    N, rho, rho2, f, f2, rho_f = (
        groups.sum(column)
        for column in (
            cells.n.astype(np.float64),
            cells.rho,
            cells.rho2,
            cells.y + v * cells.n,
            cells.y2 + 2 * v * cells.y + v * v * cells.n,
            cells.z + v * cells.rho,
        )
    )
    A, B, C = rho2 - rho**2 / N, f2 - f**2 / N, rho_f - rho * f / N
    differ = NOISE * rho2 < A
    tested = differ & (N >= 3)
    N, A, B, C, least = N[tested], A[tested], B[tested], C[tested], NOISE * f2[tested]
    spread = float(np.maximum(rho2 - rho**2 / groups.sum(cells.n), 0.0)[differ].sum())
    if not (N - 1).sum() >= LEAST_FREEDOM or not A.sum() >= LEAST_SHARE * spread:
        return None
    if not np.isfinite(A @ np.maximum(B, 0.0)):
        return None
    varies = least < B
    N, A, B, C = N[varies], A[varies], B[varies], C[varies]
    if not len(N):
        return 1.0  # what follows is the same in every row
    together = 2 * float(ndtr(-abs(C.sum()) / np.sqrt((A * B / (N - 1)).sum())))
    many = N - 2 >= SPARE_ROWS
    if not many.any():
        return together
    r2 = np.minimum(C[many] ** 2 / (A[many] * B[many]), 1.0)
    with np.errstate(divide="ignore"):
        log_p = np.log(fdtrc(1.0, N[many] - 2, (N[many] - 2) * r2 / (1 - r2)))
    by_group = float(chdtrc(2 * many.sum(), -2 * np.maximum(log_p, LEAST_LOG_P).sum()))
    return min(2 * min(together, by_group), 1.0)
