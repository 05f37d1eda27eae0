"""Overlap of log and target: the curse of horizon on this log (running products of ratios against
marginalized weights), and the target's states and actions that were never logged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.estimate.estimator import Solution
from reweigh.kernels import group_by
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, HIDDEN, Labels
from reweigh.sums.engines import ratios
from reweigh.sums.keyed import TransitionMoments
from reweigh.sums.moments import Moments
from reweigh.trust.breakdown import NO_SUMS, Missing, Sources, node_of_each

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PRODUCTS = "running products (is, wis)"
MARGINAL = "marginalized weights (mis)"
SAME = 1e-9  # relative: ratios of a cell that differ by less are one ratio
Gaps = tuple[Ints, Ints, Ints, Floats, Ints]  # t, s, a, the target's mass, logged visits to (t, s)
LISTED = 25
NOTHING = 1e-9  # probability: less is rounding
MOST_LOOKUPS = 50_000_000  # rows × actions
ANY = -1  # no action in particular


@dataclass(frozen=True, eq=False)
class Curve:
    """One kind of weights, step by step; nan where a step has none.

    ess      (H,) effective number of episodes
    largest  (H,) the largest weight as a multiple of the mean weight, None with `why`
    """

    name: str
    ess: Floats
    largest: Floats | None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Weights:
    """Running products against marginalized weights; a missing kind has its reason."""

    n_episodes: int
    curves: tuple[Curve, ...]
    missing: tuple[str, ...]


def weight_curves(sources: Sources) -> Weights | Missing:
    """Effective sizes and largest weights of both kinds, as far as there are sums."""
    sums = sources.sums
    if sums is None:
        return Missing(NO_SUMS)
    kinds = [_products(sums), _marginal(sources, sums)]
    curves = tuple(curve for curve in kinds if isinstance(curve, Curve))
    missing = tuple(kind.why for kind in kinds if isinstance(kind, Missing))
    return Weights(sums.n_episodes, curves, missing) if curves else Missing("; ".join(missing))


def _products(sums: Moments) -> Curve | Missing:
    """ESS_t = (Σ_i ρ_{0:t})² / Σ_i ρ_{0:t}²"""
    if sums.trajectories is None:
        why = "the sums do not include them (evaluate with is or wis as well)"
        why = "episodes were cut off" if sums.truncated else why
        return Missing(f"the running products are not available: {why}")
    steps = sums.trajectories.steps.total()
    alive = steps.w > 0
    if not alive.any():
        return Missing("all running products are 0: no logged episode is possible under the target")
    w, w2 = np.where(alive, steps.w, 1.0), np.where(alive, steps.w2, 1.0)
    ess = np.where(alive, w**2 / w2, np.nan)
    return Curve(PRODUCTS, ess, np.where(alive, sums.n_episodes * steps.wmax / w, np.nan))


def _marginal(sources: Sources, sums: Moments) -> Curve | Missing:
    solved = sources.solved(sources.marginal)
    if isinstance(solved, Missing):
        return Missing(f"the marginalized weights are not available: {solved.why}")
    if sums.hidden:
        why = "with hidden states a weight covers a stretch of steps, not one step"
        return Curve(MARGINAL, solved[0].ess, None, why)
    rows = _rows(sources, sums)
    if rows is None:
        why = "the sums do not include the largest ratio of a cell"
        return Curve(MARGINAL, solved[0].ess, None, why)
    return Curve(MARGINAL, solved[0].ess, _largest(solved[0], sums.n_episodes, *rows))


def _largest(solution: Solution, n: int, t: Ints, s: Ints, rho: Floats, count: Ints) -> Floats:
    """max over the rows of step t of ω = d_t(s) ρ/N_t(s), times n over Σω: the largest weight as a
    multiple of the mean; an episode that has ended weighs d_t(END)/N_t(END)."""
    nodes, horizon = solution.nodes, len(solution.ess)
    assert nodes is not None
    seen = nodes.visits > 0
    per_row = np.divide(nodes.target, nodes.visits, out=np.zeros_like(nodes.target), where=seen)
    omega = per_row[node_of_each(nodes, t, s)] * rho
    total = np.bincount(t, omega * count, horizon)[:horizon]
    most = np.zeros(horizon)
    np.maximum.at(most, t, omega)
    ended = (nodes.s == END) & (nodes.t < horizon)
    total[nodes.t[ended]] += nodes.target[ended]
    np.maximum.at(most, nodes.t[ended], per_row[ended])
    return np.where(total > 0, n * most / np.where(total > 0, total, 1.0), np.nan)


def _rows(sources: Sources, sums: Moments) -> tuple[Ints, Ints, Floats, Ints] | None:
    """(t, s, ρ, how often): the rows, or cells with the action where all rows of a cell have one
    ratio."""
    if sources.log is not None and sources.target is not None:
        steps = sources.log.steps
        rho = ratios(sources.log, sources.target, sums.about.max_ratio)[1]
        return steps.step, steps.state.astype(np.int64), rho, np.ones(steps.n_rows, np.int64)
    cells = sums.model
    if cells is None:
        return None
    mean = cells.rho / cells.n
    if np.any(np.abs(cells.rho2 - cells.rho * mean) > SAME * np.maximum(cells.rho2, 1e-300)):
        return None
    return cells.t, cells.s, mean, cells.n


@dataclass(frozen=True, eq=False)
class UnloggedPair:
    """A state and a target action without logged rows at some steps.

    action  None if only the mass is known, or if the log has no row of the state at all
    mass    how often per episode the target takes it without logged rows
    visits  logged visits to the state at those steps; logged: rows with this pair at any step
    """

    state: str
    action: str | None
    steps: str
    mass: float
    visits: int
    logged: int


@dataclass(frozen=True, eq=False)
class Unlogged:
    """The target's behavior without logged data, largest first.

    others   number and mass of the pairs that are not listed
    mass     the total per episode; `never` is the part without logged data at any step
    by       the visits it is weighted by: the target's, or the log's
    note     why the actions are not named
    """

    rows: tuple[UnloggedPair, ...]
    others: tuple[int, float]
    mass: float
    never: float
    by: Literal["target", "log"]
    note: str


@dataclass(frozen=True, eq=False)
class _Logged:
    """The logged (t, s, a) cells; the K pairs (t, s) with their visits and the target's mass."""

    sums: Moments
    cells: TransitionMoments
    t: Ints
    s: Ints
    visits: Ints
    mass: Floats


def unlogged(sources: Sources) -> Unlogged | Missing:
    """π's mass on (t, s, a) without logged rows, weighted by d_t^π(s), or by d_t^μ(s) if the
    target's distribution is unknown."""
    sums = sources.sums
    if sums is None:
        return Missing(NO_SUMS)
    if sums.model is None:
        why = "the sums do not include actions (evaluate with dm as well)"
        continuous = "actions are continuous, so each one occurs once"
        return Missing(continuous if sums.about.continuous_actions else why)
    cells = sums.model.forget("block", "t_next", "s_next")
    pairs = group_by([cells.t, cells.s])
    (t, s), visits = pairs.keys, pairs.sum(cells.n)
    solved = sources.solved(sources.by_state)
    by: Literal["target", "log"] = "log"
    mass: Floats = visits / sums.n_episodes
    gaps: list[Gaps] = []
    if not isinstance(solved, Missing) and not sums.hidden:
        nodes = solved[0].nodes
        assert nodes is not None
        node = node_of_each(nodes, t, s)
        by, mass = "target", np.where(node >= 0, nodes.target[node], 0.0)
        # states that the target reaches before the horizon without logged rows
        bare = (nodes.visits == 0) & (nodes.t < sums.about.horizon)
        bare &= (nodes.target > NOTHING) & (nodes.s >= 0)
        nobody = np.zeros(int(bare.sum()), np.int64)
        gaps = [(nodes.t[bare], nodes.s[bare], nobody + ANY, nodes.target[bare], nobody)]
    logged = _Logged(sums, cells, t, s, visits, mass)
    # 1 - Σ_a π̄(a|s) over the actions logged at (t, s)
    share = sums.shares.of(group_by([cells.t, cells.s, cells.a]), cells)
    lacking = np.maximum(1 - pairs.sum(share), 0.0)
    by_action, actions, note = _by_action(sources, logged)
    if not by_action:
        lacking = np.where(lacking > NOTHING, lacking, 0.0) * mass
        by_action = [_gaps_at(lacking > NOTHING, logged, ANY, lacking)]
    return _summed(logged, [*by_action, *gaps], actions, by, note)


def _gaps_at(keep: npt.NDArray[np.bool_], logged: _Logged, action: int, mass: Floats) -> Gaps:
    code = np.full(int(keep.sum()), action)
    return logged.t[keep], logged.s[keep], code, mass[keep], logged.visits[keep]


def _by_action(sources: Sources, logged: _Logged) -> tuple[list[Gaps], Labels | None, str]:
    """The gaps by action and the actions' names, if the target lists its other actions; else why
    they are unknown."""
    log, target, known = sources.log, sources.target, logged.sums.actions
    if log is None or target is None or known is None:
        return [], None, "the actions are unknown: sums contain only the logged ones"
    try:
        actions = target.all_actions(log)
        if len(actions) * log.steps.n_rows > MOST_LOOKUPS:
            why = f"{len(actions):,} actions in {log.steps.n_rows:,} rows are too many to check"
            return [], None, f"the actions are unknown: {why}"
        span, cells = len(logged.sums.states), logged.cells
        row, code = _row_of_each(log, logged, span), known.translate(actions)
        gaps: list[Gaps] = []
        for k, value in enumerate(actions.values):
            shown = (cells.t * span + cells.s)[cells.a == code[k]] if code[k] >= 0 else []
            mass = logged.mass * target.of_action(log, value)[row]
            lacks = ~np.isin(logged.t * span + logged.s, shown) & (mass > NOTHING)
            gaps.append(_gaps_at(lacks, logged, k, mass))
    except RefusedError as error:
        return [], None, f"the actions are unknown: {error.reason}"
    return gaps, actions, ""


def _row_of_each(log: EpisodeLog, logged: _Logged, span: int) -> Ints:
    """(K,) a row of the log at each (t, s)."""
    steps = log.steps
    state = np.where(steps.state == HIDDEN, span - 1, steps.state)  # as the model's cells have it
    keys, first = np.unique(steps.step * span + state, return_index=True)
    return np.asarray(first[np.searchsorted(keys, logged.t * span + logged.s)], np.int64)


def _summed(
    logged: _Logged,
    gaps: list[Gaps],
    actions: Labels | None,
    by: Literal["target", "log"],
    note: str,
) -> Unlogged:
    """The gaps summed over the steps, the largest first."""
    gap_t, gap_s, gap_a, gap_mass, gap_visits = map(np.concatenate, zip(*gaps, strict=True))
    pairs = group_by([gap_s, gap_a])
    s, a = pairs.keys
    mass, visits = pairs.sum(gap_mass), pairs.sum(gap_visits)
    count = _times_logged(logged, s, a, actions)
    order = np.lexsort((a, s, -np.round(mass, 12)))
    never = (count == 0) & ((a != ANY) | (visits == 0))
    rows = tuple(
        UnloggedPair(
            state=logged.sums.states.name(int(s[k])),
            action=None if actions is None or a[k] == ANY else actions.name(int(a[k])),
            steps=steps_text(gap_t[(gap_s == s[k]) & (gap_a == a[k])]),
            mass=float(mass[k]),
            visits=int(visits[k]),
            logged=int(count[k]),
        )
        for k in order[:LISTED]
    )
    rest = order[LISTED:]
    others = (len(rest), float(mass[rest].sum()))
    return Unlogged(rows, others, float(mass.sum()), float(mass[never].sum()), by, note)


def _times_logged(logged: _Logged, s: Ints, a: Ints, actions: Labels | None) -> Ints:
    """The number of logged rows of each pair, at any step."""
    known = logged.sums.actions
    if actions is None or known is None:
        return np.zeros(len(s), np.int64)
    span, code = len(known) + 1, known.translate(actions)
    theirs = np.where(a >= 0, code[np.maximum(a, 0)], ANY) if len(code) else a
    cells = group_by([logged.cells.s * span + logged.cells.a])
    wanted = np.where(theirs >= 0, s * span + theirs, -1)
    keys, n = cells.keys[0], cells.sum(logged.cells.n)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, n[at], 0)


def steps_text(t: Ints) -> str:
    """Steps as text: 3, 0–4, or their number if they are scattered."""
    steps = np.unique(t)
    low, high = int(steps[0]), int(steps[-1])
    if len(steps) == high - low + 1:
        return str(low) if low == high else f"{low}–{high}"
    return f"{len(steps)} of {low}–{high}"
