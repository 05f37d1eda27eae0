"""Control variates: a shaped reward y = r + f and a start value g.

With Q and V = Σ_a π(a|s) Q(s,a):  f_t = -Q_t(s_t,a_t) + γ V_{t+1}(s_{t+1}),  g = V_0(s_0),
V(END) = 0, V_H = 0. DR, WDR and MDR are IS, WIS and MIS on y, plus the mean of g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from reweigh.errors import RefusedError, UsageError
from reweigh.estimate.estimator import Recipe
from reweigh.estimate.influence import sums_for
from reweigh.estimate.model import fit_q
from reweigh.estimate.refusals import lacking, needs_discrete
from reweigh.estimate.tabular_q import TabularQ, WeightedReturns, shrunken_q
from reweigh.kernels import Array, Floats, Ints
from reweigh.log.log import EpisodeLog
from reweigh.log.states import HIDDEN, UNKNOWN
from reweigh.policy import Policy, call_batch, dense_of
from reweigh.sums.engines import ratios
from reweigh.sums.gather import ProductGradient
from reweigh.sums.keyed import NO_ACTION, StartMoments, TransitionMoments, summed
from reweigh.sums.moments import Moments
from reweigh.sums.products import running_weights

if TYPE_CHECKING:
    from reweigh.estimate.control import ModelControl

IN_SAMPLE, SPLIT, CROSS_FIT = "in-sample Q", "Q of the odd blocks", "Q of the other folds"


def fold_of(control: ModelControl | None, count: Ints) -> Ints:
    """The fold of a block (or of a hash); when split, 0 sums and 1 fits Q."""
    return count % (1 if control is None else control.blocks)


@dataclass(frozen=True, eq=False)
class Shaped:
    """A log with shaped rewards, and the name under which its sums may be added. `kept` (H,): the
    shares of the steps' shaped rewards that a blend keeps, None without one."""

    log: EpisodeLog
    name: str
    kept: Floats | None = None


def shape_log(log: EpisodeLog, target: Policy, recipe: Recipe, fit: Moments | None) -> Shaped:
    """The log whose rewards are y and whose start values are g, with Q from the model's sums by
    blocks, `fit`, or of the user's own (None).

    If the target uses more than the state, DR and WDR compute V from the policy in each row,
    Σ_a π(a|x) Q(s,a): then E[ρ Q] = V row by row. MDR's weights are those of cells, and so is its
    V = Σ_a π̄(a|s) Q(s,a), with π̄ of the rows that are summed.
    """
    control = recipe.control
    assert control is not None
    count = log.steps.unknown_before_horizon()
    if count:
        raise RefusedError(
            "truncated",
            f"{count:,} episodes were cut off before an unknown state, so the shaped reward "
            "r - Q + γV(s') is unknown too. Give next_state, drop these episodes "
            "(truncated='drop'), or use mis()",
        )
    if control.is_array_or_function:
        y, g = _shape_by_users_q(log, target, control)
        return _blended(Shaped(log.with_rewards(y, g), "own Q"), target, recipe)
    if control.on_features:
        from reweigh.estimate.cluster_weights import shape_by_features

        return Shaped(log.with_rewards(*shape_by_features(log, target)), "Q on features")
    assert fit is not None
    seen = target if fit.policy is not None and recipe.uses_trajectories else None
    fold, name = np.zeros(log.n_episodes, np.int64), IN_SAMPLE
    if control.blocks > 1:
        fold, name = fold_of(control, log.steps.episode_hash), CROSS_FIT
        refuse_empty_fold(control, fold)
    returns = None
    if control.fit == "variance" and recipe.uses_trajectories:
        rho = ratios(log, target, recipe.max_ratio)[1]
        returns = WeightedReturns.of(log, rho), fold
    tables = _fit_folds(control, fit, returns) if control.blocks > 1 else [fit_q(fit)]
    if control.q == "split":
        log, fold, name = log.select(fold == 0), fold[fold == 0], SPLIT
    y, g = _shape_tabular(log, tables, fold, seen)
    return _blended(Shaped(log.with_rewards(y, g), name), target, recipe)


def _blended(shaped: Shaped, target: Policy, recipe: Recipe) -> Shaped:
    """With the shares of the shaped rewards that MAGIC keeps (`blending.py`)."""
    control, log, plain = recipe.control, shaped.log, recipe.plain
    if control is None or control.lengths is None:
        return shaped
    from reweigh.estimate import blending

    sums = sums_for(log, target, plain)
    if recipe.uses_trajectories:
        weight = product_weights(log, target, recipe, sums)
        kept = blending.shares_of(
            control.lengths, log.horizon, lambda j: blending.by_products(log, weight, j)
        )
    else:
        kept = blending.of_sums(control.lengths, sums)
    assert log.steps.start_value is not None
    y = log.steps.reward * kept[log.steps.step]
    return Shaped(log.with_rewards(y, log.steps.start_value), shaped.name, kept)


def product_weights(
    log: EpisodeLog, target: Policy, recipe: Recipe, sums: Moments | None = None
) -> Floats:
    """(N,) W = n ∂v/∂y: γ^t ρ_{0:t}, for WIS over its mean."""
    plain = recipe.plain
    gradient = plain.weights.gradient(plain, sums or sums_for(log, target, plain))
    assert isinstance(gradient, ProductGradient)
    rho = ratios(log, target, recipe.max_ratio)[1]
    return running_weights(log.steps, rho, log.discount, gradient.log_mean)


def _looked_up(find: Sequence[Callable[..., Floats]], which: Ints, *keys: Ints) -> Floats:
    """(E,) Q or V at these keys, each from the one of the tables that has its number."""
    values = find[0](*keys)
    for index in range(1, len(find)):
        e = which == index
        values[e] = find[index](*(key[e] for key in keys))
    return values


def _fit_folds(
    control: ModelControl, moments: Moments, returns: tuple[WeightedReturns, Ints] | None = None
) -> list[TabularQ]:
    """For the episodes of each fold the Q of the others; when split, for the first one alone. With
    `returns`, and the folds (n,) of the episodes, it is fitted to these."""
    first = 1 if control.q == "split" else control.blocks
    return [_fit_others(control, moments, fold, returns) for fold in range(first)]


def _fit_others(
    control: ModelControl,
    moments: Moments,
    fold: int,
    returns: tuple[WeightedReturns, Ints] | None,
) -> TabularQ:
    part = moments.keep_blocks(lambda block: fold_of(control, block) == fold)
    others = moments.keep_blocks(lambda block: fold_of(control, block) != fold)
    if returns is not None:
        rows, folds = returns
        fitted = rows.q(folds != fold, others)
    else:
        fitted = shrunken_q(others, by_variance=control.fit == "variance")
    return fitted.with_shares_of(part) if len(part.start.n) else fitted


def refuse_empty_fold(control: ModelControl, fold: Ints) -> None:
    if len(np.unique(fold)) < 2:
        where = "half" if control.blocks == 2 else "fold"
        raise RefusedError(
            "empty-half",
            f"all episodes fall into one {where}, so none is left to fit Q; use more episodes, "
            "or q='in-sample'",
        )


def _shape_tabular(
    log: EpisodeLog, tables: list[TabularQ], which: Ints, seen: Policy | None
) -> tuple[Floats, Floats]:
    """(N,) y - Q + γV' and (n,) V_0, each episode by the table of that number. `seen`: V is that of
    what this policy sees in a row."""
    steps = log.steps
    hidden = len(log.states)  # the code of the hidden state in the model's cells
    s = np.where(steps.state == HIDDEN, hidden, steps.state).astype(np.int64)
    after = steps.next_state.astype(np.int64)
    after = np.where(after == HIDDEN, hidden, after)
    last = steps.step == log.horizon - 1
    find_q, find_v = [table.q for table in tables], [table.v for table in tables]
    which = which[steps.episode_index]
    q = _looked_up(find_q, which, steps.step, s, steps.action.astype(np.int64))
    v = _looked_up(find_v, which, steps.step, s)
    ahead = np.where(last, 0.0, _looked_up(find_v, which, steps.step + 1, after))
    if seen is not None:
        assert log.actions is not None
        v = np.zeros(steps.n_rows)
        for code, action in enumerate(log.actions.values):  # never a table of rows × actions
            a = np.full(steps.n_rows, code)
            v += seen.of_action(log, action) * _looked_up(find_q, which, steps.step, s, a)
        ahead = _of_following(log, v, ahead)
    return steps.reward - q + log.discount * ahead, v[steps.rows(0)].copy()


def _of_following(log: EpisodeLog, v: Floats, otherwise: Floats) -> Floats:
    """(N,) v of each row's following row; `otherwise` where it is the episode's last."""
    steps, following_value = log.steps, otherwise.copy()
    for t in range(log.horizon - 1):
        here, following = steps.rows(t), steps.rows(t + 1)
        going_on = following.stop - following.start
        following_value[here.start : here.start + going_on] = v[following]
    return following_value


def _shape_by_users_q(
    log: EpisodeLog, target: Policy, control: ModelControl
) -> tuple[Floats, Floats]:
    """A Q of the user's: q(state, action, step), or an array over states and actions 0, 1, 2, …"""
    if log.actions is None:
        raise needs_discrete()
    if log.n_truncated:
        raise RefusedError(
            "truncated", "your own Q cannot be used on cut-off episodes; use truncated='drop'"
        )
    steps = log.steps
    q = _users_q(log, control, log.raw_actions())
    v, covered = _values_of_users_q(log, target, control)
    if np.any(covered < 1 - 1e-6):
        raise RefusedError(
            "target-probabilities",
            f"the target {target.name} takes actions that are not in the log (up to "
            f"{1 - covered.min():.1%} of the time); V = Σ π Q needs all of them: give the "
            "target as a table",
        )
    ahead = _of_following(log, v, np.zeros(steps.n_rows))
    return steps.reward - q + log.discount * ahead, v[steps.rows(0)].copy()


def _values_of_users_q(
    log: EpisodeLog, target: Policy, control: ModelControl
) -> tuple[Floats, Floats]:
    """(N,) V(s_t) = Σ_a π(a|s_t) Q(s_t,a) and Σ_a π(a|s_t) of the rows."""
    actions, steps = target.all_actions(log), log.steps
    pi = None if callable(control.q) else dense_of(target, log, actions)
    if pi is not None:  # both are of step and state: look the sums up, not their terms
        pi = pi[:, :-1]  # of observed states
        of_state = (pi * _q_table(log, control, actions.array())).sum(-1), pi.sum(-1)
        v, covered = (table[steps.step if len(table) > 1 else 0, steps.state] for table in of_state)
        if not np.isnan(covered).any():
            return v, covered
    v, covered = np.zeros(steps.n_rows), np.zeros(steps.n_rows)
    for action in actions.values:  # one at a time: no rows × actions table
        of_rows = target.of_action(log, action)
        v += of_rows * _users_q(log, control, np.full(steps.n_rows, action))
        covered += of_rows
    return v, covered


def _users_q(log: EpisodeLog, control: ModelControl, values: Array) -> Floats:
    """(N,) the user's Q of these actions in the rows' states."""
    if callable(control.q):
        return call_batch(control.q, "the Q function", log, values)
    actions, code = np.unique(values, return_inverse=True)
    table = _q_table(log, control, actions)
    t = log.steps.step if len(table) > 1 else 0
    return np.asarray(table[t, log.steps.state, code])


def _q_table(log: EpisodeLog, control: ModelControl, actions: Array) -> Floats:
    """(H or 1, S, A) the user's Q array at the log's states and these actions."""
    table = np.asarray(control.q, np.float64)
    table = table[None] if table.ndim == 2 else table
    labels = log.states.array()
    numbers = labels.dtype.kind in "iu" and labels.ndim == 1 and actions.dtype.kind in "iu"
    if not numbers or log.has_hidden:
        raise UsageError(
            "a Q array needs observed states and actions 0, 1, 2, …; give a function "
            "q(state, action, step) instead"
        )
    have = (log.horizon if len(table) == 1 else len(table), *table.shape[1:])
    need = (log.horizon, int(labels.max()) + 1, int(actions.max()) + 1)
    short = any(has < needs for has, needs in zip(have, need, strict=True))
    if short or labels.min() < 0 or actions.min() < 0:
        raise UsageError(f"the Q array has shape {have}; this log needs at least {need}")
    used = table if len(table) == 1 else table[: log.horizon]
    return np.asarray(used[:, labels[:, None], actions])


@dataclass(frozen=True, eq=False)
class Control:
    """The control variate by cell: f = γV_{t+1}(s') - Q_t(s,a) of the model's cells (E,) that are
    summed, and g = V_0(s_0) of their first states; `which` (E,) of the tables has a cell's Q, and
    `kept` (H,) are the shares of the shaped rewards that a blend keeps."""

    cells: TransitionMoments
    starts: StartMoments
    f: Floats
    g: Floats
    tables: list[TabularQ]
    which: Ints
    kept: Floats | None = None

    @property
    def start_value(self) -> Floats:
        """(E,) g of the cell's state, if an episode starts there."""
        find_v = [table.v for table in self.tables]
        return _looked_up(find_v, self.which, 0 * self.cells.t, self.cells.s)

    def shaped(self, moments: Moments, *, errors: bool = True) -> Moments:
        """The sums with shaped rewards and start values, without the action; without `errors` those
        that a value needs. Within a cell f is constant:

        Σz' = Σz + fΣρ,  Σρz' = Σρz + fΣρ²,  Σz'² = Σz² + 2fΣρz + f²Σρ².
        """
        cells, f, n = self.cells, self.f, self.starts.n
        X = 1.0 if self.kept is None else self.kept[cells.t]
        columns: dict[str, Any] = {"z": X * (cells.z + f * cells.rho)}
        if errors:
            columns["rhoz"] = X * (cells.rhoz + f * cells.rho2)
            columns["z2"] = X * X * (cells.z2 + 2 * f * cells.rhoz + f * f * cells.rho2)
        if f.ndim == 1:
            columns["y"] = X * (cells.y + f * cells.n)
            columns["y2"] = X * X * (cells.y2 + 2 * f * cells.y + f * f * cells.n)
        else:  # MDR reads neither y nor π: of replicates these are not summed on
            columns |= dict.fromkeys(("y", "y2", "pi", "pi2"), np.zeros((len(cells), 1)))
        return replace(
            moments,
            transitions=summed(replace(cells, a=np.full(len(cells), NO_ACTION), **columns)),
            start=replace(self.starts, g=self.g * n, g2=self.g**2 * n),
            model=None,
            start_model=None,
            trajectories=None,
        )


def fit_control(control: ModelControl, moments: Moments) -> Control:
    """f and g with the Q of all episodes, or of the other folds of the blocks."""
    cells, starts = moments.model, moments.start_model
    if cells is None or starts is None or not cells.has_action:
        raise lacking("model")
    if np.any((cells.s_next == UNKNOWN) & (cells.t_next < moments.about.horizon)):
        raise RefusedError(
            "truncated", "shaped rewards need the next state of the episodes that were cut off"
        )
    if moments.about.blocks % control.blocks:
        raise RefusedError(
            "blocks",
            "the episodes are split by blocks; make the moments with a multiple of "
            f"{control.blocks} blocks, such as blocks=20",
        )
    if control.q == "in-sample":
        tables = [fit_q(moments)]
        which, start_which = np.zeros(len(cells), np.int64), np.zeros(len(starts.n), np.int64)
    else:
        refuse_empty_fold(control, fold_of(control, starts.block))
        tables = _fit_folds(control, moments)
        if control.q == "split":
            cells = cells.select(fold_of(control, cells.block) == 0)
            starts = starts.select(fold_of(control, starts.block) == 0)
        which, start_which = fold_of(control, cells.block), fold_of(control, starts.block)
    find_v = [table.v for table in tables]
    f = _looked_up(find_v, which, cells.t_next, cells.s_next)
    f[cells.t == moments.about.horizon - 1] = 0.0
    f *= moments.about.discount
    f -= _looked_up([table.q for table in tables], which, cells.t, cells.s, cells.a)
    g = _looked_up(find_v, start_which, 0 * starts.s, starts.s)
    return Control(cells, starts, f, g, tables, which)


def marginal_control(recipe: Recipe, moments: Moments) -> Control:
    """The control variate of MDR, whose shaped sums can be computed exactly from cells with the
    action."""
    assert recipe.control is not None
    if recipe.control.is_array_or_function:
        raise RefusedError("needs-log", "your own Q needs the log itself, not its moments")
    if moments.hidden:
        raise RefusedError(
            "needs-log", "where states are hidden, shaped rewards need the log itself"
        )
    control = fit_control(recipe.control, moments)
    if recipe.control.lengths is None:
        return control
    from reweigh.estimate.blending import of_sums

    return replace(control, kept=of_sums(recipe.control.lengths, control.shaped(moments)))


def shape_moments(recipe: Recipe, moments: Moments, *, errors: bool = True) -> Moments:
    """`shape_log` from sums alone."""
    return marginal_control(recipe, moments).shaped(moments, errors=errors)
