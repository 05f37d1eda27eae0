"""What the target wants and the log lacks: states and actions, with counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.kernels.groups import group_by
from reweigh.log.states import HIDDEN, Labels
from reweigh.show.basis import Basis, Missing
from reweigh.show.records import Hole, Holes
from reweigh.sums.moments import Moments
from reweigh.sums.transitions import TransitionMoments

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LISTED = 25
NOTHING = 1e-9  # probability: less is rounding
MOST_LOOKUPS = 50_000_000  # rows × actions
ANY = -1  # no action in particular
By = Literal["target", "log"]


@dataclass(frozen=True, eq=False)
class _Gaps:
    """Places (t, s, a) without a row: the target's mass there, and the logged visits to (t, s)."""

    t: Ints
    s: Ints
    a: Ints
    mass: Floats
    visits: Ints

    def where(self, keep: npt.NDArray[np.bool_]) -> _Gaps:
        return _Gaps(*(getattr(self, n)[keep] for n in ("t", "s", "a", "mass", "visits")))

    def __add__(self, other: _Gaps) -> _Gaps:
        names = ("t", "s", "a", "mass", "visits")
        return _Gaps(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in names))


@dataclass(frozen=True, eq=False)
class _Shown:
    """What the log shows: its (t, s, a) cells, its (t, s) pairs, and the mass there."""

    sums: Moments
    cells: TransitionMoments
    t: Ints
    s: Ints
    visits: Ints
    mass: Floats
    by: By


def holes_of(basis: Basis) -> Holes | Missing:
    """π's mass on (t, s, a) that the log never shows, weighed by d_t^π(s), or by d_t^μ(s) where the
    target's own distribution is not known."""
    sums = basis.sums
    if sums is None:
        return Missing("there are neither rows nor sums to look at")
    if sums.model is None:
        why = "actions are continuous: every one of them is seen once"
        if not sums.about.continuous_actions:
            why = "the sums hold no actions (evaluate with dm as well)"
        return Missing(why)
    cells = sums.model.forget("block", "t_next", "s_next")
    pairs = group_by([cells.t, cells.s])
    t, s = pairs.keys
    visits = pairs.sum(cells.n)
    shown = _Shown(sums, cells, t, s, visits, *_mass(basis, sums, t, s, visits))
    # 1 - Σ_a π̄(a|s) over the actions that the log shows at (t, s)
    share = sums.shares.of(group_by([cells.t, cells.s, cells.a]), cells)
    lacking = np.maximum(1 - pairs.sum(share), 0.0)
    gaps, actions, note = _by_action(basis, shown, np.where(lacking > NOTHING, lacking, 0.0))
    return _told(shown, gaps + _unseen_states(basis, shown), actions, note)


def _mass(basis: Basis, sums: Moments, t: Ints, s: Ints, visits: Ints) -> tuple[Floats, By]:
    """(K,) d_t(s) at these pairs, and whose it is."""
    solution = basis.solution(basis.by_state)
    if isinstance(solution, Missing) or sums.hidden:
        return visits / sums.n_episodes, "log"
    nodes = solution.nodes
    assert nodes is not None
    span = len(sums.states)
    real = nodes.s >= 0
    keys = nodes.t[real] * span + nodes.s[real]
    order = np.argsort(keys, kind="stable")
    wanted = t * span + s
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    found = nodes.target[real][order][at]
    return np.where(keys[order][at] == wanted, found, 0.0), "target"


def _unseen_states(basis: Basis, shown: _Shown) -> _Gaps:
    """States that the target reaches before the horizon and in which the log shows no row."""
    solution = basis.solution(basis.by_state)
    if shown.by == "log" or isinstance(solution, Missing):
        return _none()
    nodes = solution.nodes
    assert nodes is not None
    bare = (nodes.visits == 0) & (nodes.t < len(solution.ess))
    bare &= (nodes.target > NOTHING) & (nodes.s >= 0)
    t, s, mass = nodes.t[bare], nodes.s[bare], nodes.target[bare]
    return _Gaps(t, s, np.full(len(t), ANY), mass, np.zeros(len(t), np.int64))


def _by_action(basis: Basis, shown: _Shown, lacking: Floats) -> tuple[_Gaps, Labels | None, str]:
    """The gaps by action where the target tells its other actions, else by state alone; the
    actions' names, and why they are not known."""
    log, target, sums = basis.log, basis.target, shown.sums
    mass = lacking * shown.mass
    bare = _Gaps(shown.t, shown.s, np.full(len(mass), ANY), mass, shown.visits).where(
        mass > NOTHING
    )
    if log is None or target is None or sums.actions is None:
        return bare, None, "which actions they are is not known: sums hold the logged ones only"
    try:
        actions = target.all_actions(log)
        if len(actions) * log.steps.n_rows > MOST_LOOKUPS:
            why = f"{len(actions):,} actions in {log.steps.n_rows:,} rows are too many to look up"
            return bare, None, f"which actions they are is not told: {why}"
        row = _a_row_of_each(basis, shown)
        code = sums.actions.translate(actions)
        found = _none()
        for k, value in enumerate(actions.values):
            pi = target.of_action(log, value)[row]
            found += _of_action(shown, k, int(code[k]), pi)
    except RefusedError as error:
        return bare, None, f"which actions they are is not known: {error.reason}"
    return found, actions, ""


def _of_action(shown: _Shown, k: int, code: int, pi: Floats) -> _Gaps:
    """The (t, s) at which the target takes this action and the log does not."""
    span = len(shown.sums.states)
    cells = shown.cells
    mine = cells.a == code if code >= 0 else np.zeros(len(cells), bool)
    there = np.isin(shown.t * span + shown.s, (cells.t * span + cells.s)[mine])
    mass = shown.mass * pi
    every = _Gaps(shown.t, shown.s, np.full(len(mass), k), mass, shown.visits)
    return every.where(~there & (mass > NOTHING))


def _a_row_of_each(basis: Basis, shown: _Shown) -> Ints:
    """(K,) a row of the log at each (t, s)."""
    assert basis.log is not None
    steps = basis.log.steps
    span = len(shown.sums.states)
    state = np.where(steps.state == HIDDEN, span - 1, steps.state)  # as the model's cells have it
    keys, first = np.unique(steps.step * span + state, return_index=True)
    return np.asarray(first[np.searchsorted(keys, shown.t * span + shown.s)], np.int64)


def _told(shown: _Shown, gaps: _Gaps, actions: Labels | None, note: str) -> Holes:
    """The gaps summed over the steps, the largest first."""
    pairs = group_by([gaps.s, gaps.a])
    s, a = pairs.keys
    mass, visits = pairs.sum(gaps.mass), pairs.sum(gaps.visits)
    logged = _logged(shown, s, a, actions)
    order = np.lexsort((a, s, -np.round(mass, 12)))
    never = (logged == 0) & ((a != ANY) | (visits == 0))
    rows = tuple(
        Hole(
            state=shown.sums.states.name(int(s[k])),
            action=None if actions is None or a[k] == ANY else actions.name(int(a[k])),
            steps=steps_text(gaps.t[(gaps.s == s[k]) & (gaps.a == a[k])]),
            mass=float(mass[k]),
            visits=int(visits[k]),
            logged=int(logged[k]),
        )
        for k in order[:LISTED]
    )
    rest = order[LISTED:]
    others = (len(rest), float(mass[rest].sum()))
    return Holes(rows, others, float(mass.sum()), float(mass[never].sum()), shown.by, note)


def _logged(shown: _Shown, s: Ints, a: Ints, actions: Labels | None) -> Ints:
    """How often the log shows each pair, at any step."""
    if actions is None or shown.sums.actions is None:
        return np.zeros(len(s), np.int64)
    span = len(shown.sums.actions) + 1
    code = shown.sums.actions.translate(actions)
    theirs = np.where(a >= 0, code[np.maximum(a, 0)], ANY) if len(code) else a
    cells = group_by([shown.cells.s * span + shown.cells.a])
    wanted = np.where(theirs >= 0, s * span + theirs, -1)
    keys, n = cells.keys[0], cells.sum(shown.cells.n)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, n[at], 0)


def _none() -> _Gaps:
    empty = np.zeros(0, np.int64)
    return _Gaps(empty, empty, empty, np.zeros(0), empty)


def steps_text(t: Ints) -> str:
    """Steps in words: 3, 0–4, or how many where they are scattered."""
    steps = np.unique(t)
    low, high = int(steps[0]), int(steps[-1])
    if len(steps) == high - low + 1:
        return str(low) if low == high else f"{low}–{high}"
    return f"{len(steps)} of {low}–{high}"
