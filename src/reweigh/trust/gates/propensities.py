"""Do the propensities match the logged actions?

If they do, the ratios ρ = π/μ average to 1 within states, which is tested from sums alone. How rows
are compared with their propensities depends on the whole log, never on single cells: in sparse logs
a cell looks constant, or complete, by chance, and selecting cells by their data would make correct
propensities look wrong.

counts    π and μ follow from (t, s, a): how often was each action taken, against N μ(a|s)?
averages  elsewhere: how far is Σ(ρ - 1) from 0?

Both are summed over groups of at least 100 rows, which are chosen without using the ratios.

**Policies.** If the policies use more than the state, the ratio varies within a (t, s, a). The
value is sqrt(Σ(ρ - ρ̄)²/Σρ²), with deviations within (t, s, a), for each step and overall. The
place has the largest Σ(ρ - ρ̄)². That is no fault where it predicts nothing of what follows
(`predictive_ratios.py`). "hidden policies" is the same for rows with a hidden state, which a fitted
Q treats as one state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from reweigh.estimate.estimator import Place
from reweigh.estimate.standard_error import OVERFLOW
from reweigh.kernels import group_by, tally
from reweigh.log.states import Labels, label_text
from reweigh.sums.keyed import DIFFERS, TransitionMoments, is_constant, is_one_number
from reweigh.system import divided
from reweigh.trust.gates.gate import (
    NO_TRANSITIONS,
    ROUNDING,
    AssumptionGate,
    Context,
    Floats,
    Gate,
    GateResult,
    Ints,
    Limit,
    Outcome,
    limits_by,
    place_in_words,
)

GROUP_ROWS = 100  # of a state before its sums are near normal; smaller states are merged
STEP_ROWS = 20  # of a step before it has a p-value, which no verdict rests on
EXPECTED = 10.0  # rows of an action that its propensity must promise in the group's rows
LIKELY = 0.99  # the least chance that a counted action shows up among the rows of its (t, s)
NO_VARIANCE = 1e-9  # of the rows
TINY = np.finfo(np.float64).tiny


class Propensities(
    AssumptionGate,
    name="propensities",
    question="Do the propensities match the logged actions?",
    fault="propensities-low",
    needs={"choices"},
    limits=limits_by(
        Limit(None, 0.01, above=False),
        model=Limit(1e-6, None, above=False),  # it uses no ratios: only for an obvious mismatch
    ),
    holds="the ratios average to 1 in each state",
    fails="the ratios do not average to 1 within states",
    advice=(
        "check that the propensities belong to the logged actions (not swapped, not "
        "logarithms, not rounded), and that the target's actions are in the log"
    ),
):
    """A model uses no ratios. But if the logged actions contradict their propensities altogether,
    the columns of target and behavior may be swapped."""

    def test(self, context: Context) -> Outcome:
        sums = context.sums
        cells = sums.by_action or sums.transitions
        if cells is None or (sums.transitions is None and context.log is None):
            return Outcome(None, NO_TRANSITIONS)
        if sums.about.max_ratio is not None:
            return Outcome(
                None, ("the ratios were clipped, and clipped ratios need not average to 1")
            )
        if sums.about.behavior != "logged":
            fit = None if context.log is None else context.log.behavior_fit
            if fit is None or fit.per_step or not cells.has_action:
                why = "the propensities were estimated from this log, so they fit it"
                return Outcome(None, why)
            from reweigh.trust.gates.counted import change_by_step

            return change_by_step(cells.forget("block"), sums.about.horizon)
        return ratio_test(cells, sums.about.horizon, sums.states)

    def measure(self, context: Context) -> GateResult:
        result = self.of_outcome(*self.outcome(context), limit=self.limit(context.limits))
        if context.limits == "model" and result.level == "amber":
            text = f"{result.text}: a model uses no propensities, but the columns may have been "
            return replace(result, text=f"{text}swapped")
        return result


def ratio_test(cells: TransitionMoments, horizon: int, states: Labels) -> Outcome:
    """E[ρ | s] = 1: the ratios of every state average to 1 if the propensities are right.

    Given the past, deviations have mean 0, so they are uncorrelated, also within an episode. With
    D the sum of a group's deviations and V its variance, D²/V is about χ²(1), and the groups' add
    up. A group is a state, or several rare ones. The overall mean of each part, which alone sees a
    small common factor, counts as well: the smaller of both p-values, doubled.

    Rows with a hidden state are a separate part, because policies may be functions of every
    observed state but not of this one.
    """
    from scipy.special import chdtrc, ndtr

    if not np.isfinite(cells.rho2.sum()):
        return Outcome(None, OVERFLOW)
    hidden = np.array([value is None for value in states.values], bool)
    at_hidden = (cells.s >= 0) & hidden[np.maximum(cells.s, 0)]
    parts = [_compare(cells.select(keep), states) for keep in (~at_hidden, at_hidden) if keep.any()]
    parts = [part for part in parts if part.df > 0]
    if not parts:
        return Outcome(
            None, f"fewer than {GROUP_ROWS} rows are comparable, or all ratios are equal"
        )
    by_groups = chdtrc(sum(part.df for part in parts), sum(part.chi2 for part in parts))
    by_means = chdtrc(len(parts), sum(part.overall() for part in parts))
    p = min(float(by_groups), float(by_means))
    t, n, D, V = (np.concatenate(c) for c in zip(*(part.used() for part in parts), strict=True))
    steps = group_by([t])
    rows, D, V = (steps.sum(values) for values in (n, D, V))
    usable = (rows >= STEP_ROWS) & (NO_VARIANCE * rows < V) & (steps.keys[0] < horizon)
    step, z = steps.keys[0][usable], np.abs(D[usable]) / np.sqrt(V[usable])
    per_step = np.full(horizon, np.nan)
    per_step[step] = 2 * ndtr(-z)
    return Outcome(
        min(2 * p, 1.0),
        per_step=per_step,
        step=int(step[np.argmax(z)]) if len(step) else None,
        state=max(parts, key=lambda part: float(part.score.max())).worst_state(),
    )


@dataclass(frozen=True, eq=False)
class _Nodes:
    """By (t, s): rows N, the sum of their deviations D, its variance V, and the group."""

    t: Ints
    s: Ints
    N: Floats
    D: Floats
    V: Floats
    group: Ints

    def by_group(self) -> tuple[Floats, Floats, Floats]:
        N, D, V = (tally(self.group, values) for values in (self.N, self.D, self.V))
        return N, D, V


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows that are compared in one way: by group a score of how far off it is, 0 where it is not
    compared; χ² of all groups and its degrees of freedom, 0 where there is no group."""

    nodes: _Nodes
    score: Floats
    chi2: float
    df: float

    def used(self) -> tuple[Ints, Floats, Floats, Floats]:
        """t, N, D and V of the nodes that are compared."""
        nodes, used = self.nodes, (self.score > 0)[self.nodes.group]
        return nodes.t[used], nodes.N[used], nodes.D[used], nodes.V[used]

    def overall(self) -> float:
        """(ΣD)²/ΣV, about χ²(1)."""
        _, N, D, V = self.used()
        return float(D.sum()) ** 2 / float(max(V.sum(), NO_VARIANCE * N.sum()))

    def worst_state(self) -> int:
        """The state that is furthest off in the group that is."""
        worst = self.nodes.group == np.argmax(self.score)
        states = group_by([self.nodes.s[worst]])
        return int(states.keys[0][np.argmax(np.abs(states.sum(self.nodes.D[worst])))])


def _compare(cells: TransitionMoments, states: Labels) -> _Part:
    # What the ratios spread within cells they spread within all groups of cells.
    within = float((cells.rho2 - cells.rho**2 / cells.n).sum())
    if cells.has_action and not within > 2 * DIFFERS * float(cells.rho2.sum()):
        if _follows(cells, cells.s):
            return _counts(cells, states, steps_alike=True)
        if _follows(cells, group_by([cells.t, cells.s]).index()):
            return _counts(cells, states, steps_alike=False)
    return _averages(cells, states)


def _follows(cells: TransitionMoments, stratum: Ints) -> bool:
    """Whether π and ρ, and with them μ, follow from the stratum and the action: in no row they
    differ, and nowhere do the π of the actions that were seen add up to more than 1."""
    pairs = group_by([stratum, cells.a])
    n = pairs.sum(cells.n).astype(np.float64)
    if not is_constant(n, pairs.sum(cells.rho), pairs.sum(cells.rho2)):
        return False
    pi, pi2 = pairs.sum(cells.pi), pairs.sum(cells.pi2)
    return is_one_number(n, pi, pi2, lambda share: tally(pairs.keys[0], share))


def _counts(cells: TransitionMoments, states: Labels, *, steps_alike: bool) -> _Part:
    """How often actions were taken, against their propensities.

    Of N rows in a (t, s), n_a ~ binomial(N, μ_a) took action a. An action is known only if it was
    seen, so what counts is how often, given that it was: E[n_a | n_a > 0] = N μ_a / P_a with
    P_a = 1 - (1 - μ_a)^N. Where the policies are the same at every step, an action is known
    beforehand, seen or not, if the state showed it at an earlier step, or if all of the state's
    rows should show it EXPECTED times: then P_a = 1.

        D = Σ_a ρ_a (n_a - N μ_a / P_a)
        V = N (Σ_a ρ_a² μ_a (1 - μ_a) f_a / P_a + Σ_a x_a² - (Σ_a x_a)²),  x_a = ρ_a μ_a f_a / P_a

    over the known actions. f_a = 1 - N μ_a (1 - μ_a)^(N-1) / P_a is the share of the variance N μ_a
    (1 - μ_a) that is left given that a was seen, and dividing by P_a accounts for the actions that
    could have been drawn; the covariances in V are approximate. With many rows D = Σ(ρ - 1) and V =
    N (Σ π²/μ - 1). Actions expected fewer than EXPECTED times in the group's rows are left out,
    because their sum is far from normal; `support` checks the ones that are missing.
    """
    by_action = group_by([cells.t, cells.s, cells.a])
    t, s, a = by_action.keys
    n, pi, mu = (by_action.sum(values) for values in (cells.n, cells.pi, cells.mu))
    pi, mu = pi / n, np.minimum(mu / n, 1.0)
    nodes = group_by([t, s])
    at, N = nodes.index(), nodes.sum(n).astype(np.float64)
    group = _groups(nodes.keys[1], N, states)
    promised = tally(group, N)[group[at]] * mu
    rho = np.where(promised >= EXPECTED, divided(pi, mu), 0.0)
    here = np.ones(len(t), bool)  # known because it was seen in this (t, s)
    if steps_alike:
        state_actions, by_state = group_by([s, a]), group_by([nodes.keys[1]])
        first = t == -state_actions.max(-t)[state_actions.index()]
        certain = by_state.sum(N)[by_state.index()][at] * mu >= EXPECTED
        here = first & ~certain
    seen = np.flatnonzero(here)
    of, mu_seen, N_seen = at[seen], mu[seen], N[at[seen]]
    unseen = (1 - mu_seen) ** N_seen
    likely = 1 - unseen >= LIKELY
    P = np.where(likely, 1 - unseen, 1.0)
    f = 1 - divided(N_seen * mu_seen * unseen, (1 - mu_seen) * P)
    rho_seen = np.where(likely, rho[seen], 0.0)
    x = rho_seen * mu_seen * f / P
    counted = rho * n
    counted[seen] = rho_seen * (n[seen] - N_seen * mu_seen / P)
    D, nodes_of = tally(at, counted, len(N)), partial(tally, of, size=len(N))
    squares = nodes_of(rho_seen**2 * mu_seen * (1 - mu_seen) * f / P + x**2)
    X, total_mu = nodes_of(x), nodes_of(mu_seen)
    if steps_alike:  # and those that are known beforehand
        since = np.where(certain, -1, t)[first]
        known = _Known.of(since, s[first], nodes.keys[0], nodes.keys[1])
        x_known = known.sum((rho * mu)[first])
        D -= N * x_known
        X += x_known
        squares += known.sum((rho**2 * mu)[first])
        total_mu += known.sum(mu[first])
    # Propensities that add up to more than 1 leave (Σ ρ μ)² ≤ Σ ρ² μ Σ μ.
    V = N * (squares - X**2 / np.maximum(total_mu, 1.0))
    return _standardized(_Nodes(nodes.keys[0], nodes.keys[1], N, D, V, group))


@dataclass(frozen=True, eq=False)
class _Known:
    """By (t, s): the actions of s that are known since a step before t, as a range in the order of
    states and these steps."""

    order: Ints
    start: Ints
    stop: Ints

    @classmethod
    def of(cls, since: Ints, of_state: Ints, t: Ints, s: Ints) -> _Known:
        width = int(t.max()) + 2
        keys = of_state * width + since + 1
        order = np.argsort(keys, kind="stable")
        return cls(
            order,
            np.searchsorted(keys[order], s * width),
            np.searchsorted(keys[order], s * width + t + 1),
        )

    def sum(self, values: Floats) -> Floats:
        below = np.append(0.0, np.cumsum(values[self.order]))
        return np.asarray(below[self.stop] - below[self.start])


def _standardized(nodes: _Nodes) -> _Part:
    """D²/V of the groups. Without a variance only rounding could be luck."""
    rows, D, V = nodes.by_group()
    least = NO_VARIANCE * rows
    usable = (rows >= GROUP_ROWS) & ((least < V) | (np.abs(D) > 1e3 * least))
    score = np.where(usable, np.maximum(D**2 / np.maximum(V, least), TINY), 0.0)
    return _Part(nodes, score, float(score.sum()), float(usable.sum()))


def _averages(cells: TransitionMoments, states: Labels) -> _Part:
    """Σ(ρ - 1) of groups of rows, where the probabilities of other actions are not known.

    Dividing D² by what the group's own rows show, V = Σ(ρ - 1)², is wrong where a large ratio is
    rare: without one D is far below 0 and V small. But D² - V, which is Σ of the products of
    different rows, has mean 0 and variance 2 V² in any case, and the groups' can be added after
    dividing by N v, with v the variance of all rows together: a sum of λ (χ²(1) - 1) with
    λ = V / (N v), which has the mean, variance and skewness of a (χ²(d) - d).
    """
    by_node = group_by([cells.t, cells.s])
    t, s = by_node.keys
    N = by_node.sum(cells.n).astype(np.float64)
    D, V = by_node.sum(cells.rho) - N, by_node.sum(cells.rho2 - 2 * cells.rho + cells.n)
    nodes = _Nodes(t, s, N, D, V, _groups(s, N, states))
    rows, D, V = nodes.by_group()
    usable = rows >= GROUP_ROWS
    all_rows, spread = float(rows[usable].sum()), float(V[usable].sum())
    # Sums of squares leave rounding behind where every ratio is 1.
    if spread <= NO_VARIANCE * (float(cells.rho2.sum()) + all_rows):
        return _Part(nodes, np.zeros(len(rows)), 0.0, 0.0)
    scale = np.where(usable, rows, np.inf) * (spread / all_rows)
    weight = V / scale
    second, third = float((weight**2).sum()), float((weight**3).sum())
    df = second**3 / third**2
    chi2 = max(df + float(((D**2 - V) / scale).sum()) * second / third, 0.0)
    return _Part(nodes, np.where(usable, np.maximum(D**2 / scale, TINY), 0.0), chi2, df)


def _groups(s: Ints, N: Floats, states: Labels) -> Ints:
    """The group of each (t, s): its state, where that has GROUP_ROWS rows. The others are merged
    until they have as many, in the order of their names. This is independent of the ratios and the
    same for merged sites in any order; the number of a state's rows is not, because actions decide
    how long an episode stays. The rest is a group of fewer rows."""
    by_state = group_by([s])
    code, rows = by_state.keys[0], by_state.sum(N)
    number = np.arange(len(code))
    small = np.flatnonzero(rows < GROUP_ROWS)
    names = [_name(states, k) for k in code[small].tolist()]
    small = small[np.array(sorted(range(len(small)), key=names.__getitem__), np.int64)]

    def fill(so_far: tuple[int, float], more: float) -> tuple[int, float]:
        which, held = so_far
        return (which, held + more) if held < GROUP_ROWS else (which + 1, more)

    filled = accumulate(rows[small].tolist(), fill, initial=(len(code), 0.0))
    number[small] = [which for which, _ in filled][1:]
    _, number = np.unique(number, return_inverse=True)
    return np.asarray(number[by_state.index()])


def _name(states: Labels, code: int) -> str:
    return str(label_text(states.values[code])) if code >= 0 else states.name(code)


class Policies(
    Gate,
    name="policies",
    question="Do the policies use information that is not in the state?",
    fault="states-shuffled",
    needs={"choices", "state values"},
    limits=limits_by(Limit(0.01, 0.10)),
    softened="green if what the ratios differ by predicts nothing of what follows",
    assumption=True,
    # A fitted V(s) = Σ_a π(a|s) Q(s,a) is only right where π follows from the state.
    of={"states", "fitted control"},
):
    at_hidden = False
    keys = "step, state and action,"
    advice = (
        "the policies use information that is not in the state: add it to the state, or "
        "compare with wis, which uses no state"
    )

    def measure(self, context: Context) -> GateResult:
        result = context.once(self.name, lambda: self.of_ratios(context))
        if result.level not in ("amber", "red") or self.at_hidden:
            return result
        from reweigh.trust.gates.predictive_ratios import prediction

        return context.once("prediction by ratios", lambda: prediction(context)).judge(result)

    def of_ratios(self, context: Context) -> GateResult:
        sums, no_rows = context.sums, self.unknown("no state is observed")
        if self.at_hidden:
            no_rows = self.judge(0.0, "no state is hidden")
            if not sums.hidden:
                return no_rows
        if sums.about.continuous_actions:
            return self.unknown("actions are continuous, so no two rows share one")
        cells = sums.by_action
        if cells is None:
            return self.unknown(context.lacking("model", "the actions"))
        hidden = np.array([value is None for value in sums.states.values], bool)
        cells = cells.select(hidden[cells.s] == self.at_hidden)
        if not len(cells):
            return no_rows
        groups = group_by([cells.t, cells.s, cells.a])
        n, rho, rho2 = (groups.sum(values) for values in (cells.n, cells.rho, cells.rho2))
        total = float(rho2.sum())
        if not total > 0:
            return self.unknown("no ratio is above 0")
        if not math.isfinite(total):
            return self.unknown(OVERFLOW)
        within = np.maximum(rho2 - rho**2 / n, 0.0)
        by_step = np.zeros((2, sums.about.horizon))
        steps = group_by([groups.keys[0]])
        by_step[:, steps.keys[0]] = steps.sum(within), steps.sum(rho2)
        per_step, spread = np.sqrt(divided(*by_step)), math.sqrt(float(within.sum()) / total)
        if spread <= ROUNDING:
            none = np.where(per_step <= ROUNDING, 0.0, per_step)
            text = f"the ratios depend only on {self.keys.rstrip(',')}"
            return self.judge(0.0, text, per_step=none)
        worst = int(np.argmax(within))
        place = context.place(Place(*(int(key[worst]) for key in groups.keys)))
        if self.at_hidden:
            place["state"] = None
        return self.judge(
            spread,
            f"the ratios differ by {spread:.1%} (root mean square) at the same {self.keys} "
            f"most at {place_in_words(place['step'], place['state'])}",
            self.advice,
            per_step=per_step,
            **place,
        )


class HiddenPolicies(
    Policies,
    name="hidden policies",
    question="Do the policies use information that is hidden from the state?",
    fault="states-lost",
    needs={"choices"},
    limits=limits_by(Limit(None, 0.01)),  # beyond it a fitted Q is wrong at hidden states
    assumption=True,
    # Other estimators do not use hidden states, or have a gate that is red for them.
    of={"fitted control"},
):
    at_hidden = True
    keys = "step and action in hidden states,"
    advice = (
        "Q treats all hidden states as one state, the policies do not: use mis, which fits "
        "no Q, or log the hidden states"
    )
