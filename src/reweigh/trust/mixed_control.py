"""DR, WDR and MDR on many mixtures of the episodes at once.

The Q of a mixture is fitted to its sums by cell (`mixed_cells.py`). Within a cell the shaped reward
is y + f with one f, which joins the sums of the logged rewards. Only the errors of DR and WDR,
squares of sums over an episode, take f to the rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reweigh.estimate.recipe import Recipe
from reweigh.estimate.variance import NOISE
from reweigh.trust.mixed_cells import Flow, Mixed, by_node, ends, forward, inverse, root
from reweigh.trust.mixed_products import Products

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def shaped(mixed: Mixed, fit: str) -> tuple[Floats, Floats]:
    return mixed.shaped if fit == "in-sample" else mixed.shaped_across


def _used(mixed: Mixed, fit: str) -> Bools:
    """(m,) whether both halves have episodes."""
    if fit == "in-sample":
        return np.ones(mixed.draws.many, bool)
    first = mixed.start[: mixed.cells.firsts].sum(axis=0)
    second = mixed.start[mixed.cells.firsts :].sum(axis=0)
    return np.asarray((first > 0) & (second > 0))


def doubly_robust(
    recipe: Recipe, products: Products, among: Bools | None, errors: bool, mixed: Mixed
) -> tuple[Floats, Floats | None]:
    """(m,) values and errors of DR and WDR, `among` being the episodes that are summed where not
    all are. nan where there are none with weight, or a half is empty."""
    assert recipe.control is not None
    cells, fit = mixed.cells, str(recipe.control.q)
    weights = products.step_weights(mixed.draws, among)
    f, g = shaped(mixed, fit)
    earned = mixed["wy"] + f * mixed["w"]
    start = mixed.start * mixed.total  # episodes by first state
    if fit == "split":
        earned *= (cells.s < cells.width)[:, None]
        start = start * (np.arange(len(start)) < cells.firsts)[:, None]
    n = start.sum(axis=0)
    per_step = np.stack([earned[step.cells].sum(axis=0) for step in cells.steps])
    per_step /= weights if recipe.normalize == "step" else n
    mean_g = np.sum(start * g, axis=0) / n
    values = products.powers @ per_step + mean_g
    values[~(_used(mixed, fit) & np.all(weights > 0, axis=0))] = np.nan
    if not errors:
        return values, None
    # ψ_i = g_i - c + Σ_t b_t w_it (y_it + f_it - v_t), and SE² = Var(ψ)/n
    #   DR:   b_t = γ^t,            v_t = 0,                          c = 0
    #   WDR:  b_t = γ^t/mean(w_t),  v_t = Σ w_t (y_t + f_t)/Σ w_t,    c = ḡ
    weighted = recipe.normalize == "step"
    by = products.powers[:, None] * (n / weights if weighted else np.ones(len(n)))
    first, second = np.zeros((2, len(n)))
    for k, psi in mixed.by_episode("w", f * by[cells.t]):
        psi += g[cells.first_node[k]]
        if weighted:
            psi += products.wy[k] @ by - products.w[k] @ (by * per_step) - mean_g
        else:
            psi += products.x[k, None]
        times = mixed.draws.counts[k] if among is None else mixed.draws.counts[k] * among[k, None]
        first += np.sum(times * psi, axis=0)
        second += np.sum(times * psi**2, axis=0)
    squares = second / n - (first / n) ** 2
    # as variance.nothing_left and lost_in_rounding
    lost = squares <= n * (NOISE * values) ** 2 if weighted else squares <= NOISE * second / n
    return values, np.sqrt(np.where(lost, np.nan, squares) / n)


def marginal(recipe: Recipe, errors: bool, mixed: Mixed) -> tuple[Floats, Floats | None]:
    """(m,) values and errors of MDR: with the Q of all episodes, or of one half on the other."""
    assert recipe.control is not None
    cells, fit, simplex = mixed.cells, str(recipe.control.q), recipe.normalize == "simplex"
    f, g = shaped(mixed, fit)
    start, n = mixed.start, mixed.total
    own = np.ones(len(cells), bool)
    if fit == "split":
        own = cells.s < cells.width
        start = start * (np.arange(len(start)) < cells.firsts)[:, None]
        share = start.sum(axis=0)
        start, n = start * inverse(share), n * share
    per_row = inverse(by_node(cells, mixed.visits))
    carried = mixed["ρ"] * per_row[cells.node] * own[:, None]
    placebo = by_node(cells, cells.by_group @ carried)
    flow = forward(cells, start, carried, placebo, simplex=simplex)
    weight = cells.gamma ** cells.t[:, None] * (flow.d * per_row)[cells.node]
    values = np.sum(weight * (mixed["ρy"] + f * mixed["ρ"]), axis=0) + np.sum(start * g, axis=0)
    values[~(flow.fine & _used(mixed, fit))] = np.nan
    if not errors:
        return values, None
    u, parts, scale = _backward(mixed, flow, f, per_row, simplex=simplex)
    return values, root(parts, scale, start, u, n, g)


def _backward(
    mixed: Mixed, flow: Flow, f: Floats, per_row: Floats, *, simplex: bool
) -> tuple[Floats, Floats, Floats]:
    """u (nodes of step 0, m), and (m,) the steps' parts of SE² and what they are differences of.

    With x = ρ (y + f + γ a_{t+1}(s')) of the N rows in (t, s):  u_t(s) = x̄, whose part of SE² is
    (γ^t d_t(s)/N)² Σ (x - x̄)². a is u, or (u - <d, u>)/c where d was divided by c.
    """
    cells, gamma = mixed.cells, mixed.cells.gamma
    parts, scale = np.zeros((2, mixed.draws.many))
    a = np.zeros_like(flow.d[cells.nodes_at(cells.horizon)])
    for t in range(cells.horizon - 1, -1, -1):
        step, here = cells.steps[t], cells.nodes_at(t)
        d, by = flow.d[here], per_row[here]
        rho, z, rho2, rhoz, z2 = (
            mixed[name][step.cells] for name in ("ρ", "ρy", "ρρ", "ρρy", "ρρyy")
        )
        own = f[step.cells]
        ahead = gamma * a[cells.next_node[step.cells] - cells.nodes_at(t + 1).start]
        both = own + ahead
        first, second, apart = (
            step.by_state @ (step.by_group @ sums)
            for sums in (
                z + both * rho,
                z2 + both * (2 * rhoz + both * rho2),
                z2 + own * (2 * rhoz + own * rho2) + ahead**2 * rho2,
            )
        )
        weight = (gamma**t * d * by) ** 2
        parts += np.sum(weight * np.maximum(second - first**2 * by, 0.0), axis=0)
        scale += np.sum(weight * apart, axis=0)
        u = first * by
        ends(cells, u)[:] += gamma * ends(cells, a)
        a = (u - np.sum(d * u, axis=0)) / flow.mass[t] if simplex and t > 0 else u
    return a, parts, scale
