"""Sums by cell of many mixtures of the episodes at once, and the direct method on them.

In a mixture a row counts as often as its episode occurs, so the sums of the mixtures by cell are a
sparse matrix, rows by cell, times the counts; where each mixture lacks one block of episodes, sums
by cell and block. What follows is arithmetic on arrays (cells, m), and (nodes, m) over the (t, s)
that occur. Only for logs without cut-off episodes; hidden states are for models and what subtracts
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from reweigh.estimate.recipe import Model, Recipe
from reweigh.estimate.variance import NOISE
from reweigh.kernels.choose import pick
from reweigh.trust.draws import CHUNK, Draws
from reweigh.trust.log_cells import Cells

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(eq=False)
class Mixed:
    """The sums of m mixtures by cell, each made when it is first asked for; `of_rows` are the
    rows' π, y, ρ and running products w."""

    cells: Cells
    draws: Draws
    of_rows: dict[str, Floats]
    made: dict[str, Floats] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Floats:
        """Σ of a product of columns, such as "ρy"; "n" counts."""
        if name not in self.made:
            weights = None
            for letter in name.replace("n", ""):
                own = self.of_rows[letter]
                weights = own if weights is None else weights * own
            self.made[name] = self._summed(weights)
        return self.made[name]

    def _summed(self, weights: Floats | None) -> Floats:
        """(K, m) Σ c_i weight over the rows of the cells, and Σ c_i without weights."""
        cells, draws = self.cells, self.draws
        data = np.ones(len(cells.order)) if weights is None else weights[cells.order]
        if draws.left_out is None:
            shape = len(cells), len(draws.counts)
            return np.asarray(
                sparse.csr_array((data, cells.episode, cells.starts), shape) @ draws.times
            )
        found = np.empty((len(cells), draws.many))
        run = pick("mixtures.left_out", len(cells) * draws.many)
        run(cells.starts, self._block, data, found)
        return found

    @cached_property
    def _block(self) -> Ints:
        """(N,) of the rows by cell: the block of their episodes."""
        assert self.draws.left_out is not None
        return self.draws.left_out[self.cells.episode]

    def by_episode(self, name: str, of_cells: Floats) -> Iterator[tuple[slice, Floats]]:
        """Of some episodes after the other, which these are and (k, m) Σ over their rows of a
        column times what the mixtures have for the row's cell."""
        starts, cell, row = self.cells.by_episode
        for first in range(0, len(starts) - 1, CHUNK):
            some = starts[first : first + CHUNK + 1]
            rows = slice(some[0], some[-1])
            given = self.of_rows[name][row[rows]], cell[rows], some - some[0]
            shape = len(some) - 1, len(self.cells)
            found = sparse.csr_array(given, shape) @ of_cells
            yield slice(first, first + len(some) - 1), np.asarray(found)

    @property
    def total(self) -> Floats:
        """(m,) episodes."""
        return self.draws.episodes

    @cached_property
    def visits(self) -> Floats:
        """(G, m) rows by group."""
        return np.asarray(self.cells.by_group @ self["n"])

    @cached_property
    def per_row(self) -> Floats:
        """(G, m) what divides by them."""
        return inverse(self.visits)

    @cached_property
    def probability(self) -> Floats:
        """(G, m) π(a|s) as the rows show it."""
        return np.asarray(self.cells.by_group @ self["π"]) * self.per_row

    @cached_property
    def start(self) -> Floats:
        """(nodes of step 0, m) the share of the episodes that begin there."""
        first = self.cells.steps[0]
        here = first.by_state @ self.visits[first.groups]
        return np.asarray(here / self.total)

    @cached_property
    def fitted(self) -> tuple[Floats, Floats]:
        return self.values(self.probability)

    @cached_property
    def shaped(self) -> tuple[Floats, Floats]:
        """f (K, m) = γ V_{t+1}(s') - Q_t(s,a) and g (nodes of step 0, m) = V_0(s_0), with the Q of
        all episodes."""
        return self._shaped(np.arange(len(self.visits)), self.cells.next_node, across=False)

    @cached_property
    def shaped_across(self) -> tuple[Floats, Floats]:
        """The same with the Q of the half in which the row's episode is not."""
        return self._shaped(*self.cells.other_half, across=True)

    def _shaped(self, group: Ints, after: Ints, *, across: bool) -> tuple[Floats, Floats]:
        cells, (q, v) = self.cells, self.fitted
        f = v[after]
        f[cells.t + 1 == cells.horizon] = 0.0
        f *= cells.gamma
        f -= q[group[cells.group]]
        g = v[cells.nodes_at(0)]
        return f, np.roll(g, cells.firsts, axis=0) if across else g

    def values(self, share: Floats) -> tuple[Floats, Floats]:
        """Q (G + 1, m), the last being that of what was not seen, 0, and V (nodes, m):
        Q_t = r̂_t + γ Σ_{s'} n(s,a,s')/N V_{t+1}(s') and V_t = Σ_a share Q_t."""
        cells, m = self.cells, self.draws.many
        q, v = np.zeros((len(self.visits) + 1, m)), np.zeros((cells.nodes, m))
        q[:-1] = (cells.by_group @ self["y"]) * self.per_row
        for t in range(cells.horizon - 1, -1, -1):
            step = cells.steps[t]
            if t + 1 < cells.horizon:
                ahead = self["n"][step.cells] * v[cells.next_node[step.cells]]
                q[step.groups] += cells.gamma * (step.by_group @ ahead) * self.per_row[step.groups]
            v[cells.nodes_at(t)] = step.by_state @ (share[step.groups] * q[step.groups])
        return q, v


def inverse(values: Floats) -> Floats:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


@dataclass(frozen=True, eq=False)
class Flow:
    """The forward recursion: d (nodes, m), the mass (H, m) that each step was divided by, and (m,)
    whether the target could have made some row at every step."""

    d: Floats
    mass: Floats
    fine: npt.NDArray[np.bool_]


def forward(
    cells: Cells, start: Floats, carried: Floats, placebo: Floats, *, simplex: bool
) -> Flow:
    """Each cell passes on `carried` of its source's mass, END stays END; `placebo` is by node."""
    d = np.zeros((cells.nodes, start.shape[1]))
    masses = np.ones((cells.horizon, start.shape[1]))
    d[cells.nodes_at(0)] = start
    fine = np.ones(start.shape[1], bool)
    for t, step in enumerate(cells.steps):
        here, after = d[cells.nodes_at(t)], d[cells.nodes_at(t + 1)]
        if simplex and t > 0:
            mass = here.sum(axis=0)
            masses[t] = np.where(mass > 0, mass, 1.0)
            here /= masses[t]
        possible = np.sum(here * placebo[cells.nodes_at(t)], axis=0)
        stay = ends(cells, here)
        fine &= possible + stay.sum(axis=0) > 0
        after[:] = step.arriving @ (d[cells.node[step.cells]] * carried[step.cells])
        ends(cells, after)[:] += stay
    return Flow(d, masses, fine)


def ends(cells: Cells, here: Floats) -> Floats:
    """END's rows among those of one step's nodes: the last of each half."""
    each = len(here) // cells.halves
    return here[each - 1 :: each]


def by_node(cells: Cells, of_groups: Floats) -> Floats:
    """(nodes, m) sums of the groups' values by (t, s)."""
    found = np.zeros((cells.nodes, of_groups.shape[1]))
    for t, step in enumerate(cells.steps):
        found[cells.nodes_at(t)] = step.by_state @ of_groups[step.groups]
    return found


def model(recipe: Recipe, errors: bool, mixed: Mixed) -> tuple[Floats, Floats | None]:
    """(m,) values and errors of the direct method, nan where there is no overlap."""
    assert isinstance(recipe.weights, Model)
    renorm = recipe.weights.unseen == "renorm"
    cells, share = mixed.cells, mixed.probability
    if renorm:
        share = share * inverse(by_node(cells, share))[cells.group_node]
    carried = mixed["n"] * (share * mixed.per_row)[cells.group]
    flow = forward(cells, mixed.start, carried, by_node(cells, share), simplex=False)
    powers = cells.gamma ** cells.group_keys[0][:, None]
    D = powers * flow.d[cells.group_node] * share
    earned = (cells.by_group @ mixed["y"]) * mixed.per_row
    values = np.where(flow.fine, np.sum(D * earned, axis=0), np.nan)
    if not errors:
        return values, None
    # SE² = Var[V_0(s_0)]/n + Σ (D/N)² Σ_i (x_i - x̄)², with x = y + γ V'(s') in the group
    _, v = mixed.values(share) if renorm else mixed.fitted
    ahead = np.where((cells.t + 1 < cells.horizon)[:, None], cells.gamma * v[cells.next_node], 0.0)
    y, n = mixed["y"], mixed["n"]
    first = cells.by_group @ (y + n * ahead)
    second = cells.by_group @ (mixed["yy"] + 2 * ahead * y + n * ahead**2)
    apart = cells.by_group @ (mixed["yy"] + n * ahead**2)
    by = (D * mixed.per_row) ** 2
    parts = np.sum(by * np.maximum(second - first**2 * mixed.per_row, 0.0), axis=0)
    scale = np.sum(by * apart, axis=0)
    return values, root(parts, scale, mixed.start, v[cells.nodes_at(0)], mixed.total)


def root(
    parts: Floats, scale: Floats, start: Floats, u: Floats, n: Floats, g: Floats | float = 0.0
) -> Floats:
    """(m,) the root of SE² = Var[u(s_0) + g(s_0)]/n + parts, nan where rounding has eaten it;
    `start` is the share of the first states, `scale` what the parts are differences of."""
    mean, square = (np.sum(start * (u + g) ** k, axis=0) for k in (1, 2))
    squares = np.maximum(square - mean**2, 0.0) / n + parts
    scale = scale + np.sum(start * (np.abs(u) + np.abs(g)) ** 2, axis=0) / n
    return np.sqrt(np.where(squares <= NOISE * scale, np.nan, squares))
