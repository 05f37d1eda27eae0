"""The rows of a log by step, state, action and next state: what mixtures are summed over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.estimate.direct import observed
from reweigh.kernels.groups import group_by
from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, HIDDEN, UNKNOWN
from reweigh.trust.draws import adding

Ints = npt.NDArray[np.int64]
Short = npt.NDArray[np.int32]  # as sparse matrices of so many rows have them


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows of a log by step, column, action and next column, in this order. A state's column is
    its code, END's the last of `width`; the halves of a log have columns of their own.

    order    (N,) the rows by cell
    starts   (K + 1,) where the rows of each cell begin
    episode  (N,) of the rows in this order
    t        (K,) step              s, to    (K,) column here and after
    group    (K,) of (t, s, a), in their order
    """

    horizon: int
    gamma: float
    width: int
    columns: int
    order: Ints
    starts: Ints
    episode: Ints
    t: Ints
    s: Ints
    to: Ints
    group: Ints
    group_keys: tuple[Ints, Ints, Ints]

    @classmethod
    def of(cls, log: EpisodeLog, part: Ints | None = None) -> Cells:
        """`part` (n,) is the half of each episode. Hidden states are one, as a model has it."""
        of, hidden = log.steps, len(log.states)
        width = hidden + 1 if observed(log) else hidden + 2
        shift = np.zeros(of.n_episodes, np.int64) if part is None else part * width
        shift = shift[of.episode_index]
        # What follows the last step, known or not, is worth nothing.
        after = np.where(of.next_state == HIDDEN, hidden, of.next_state)
        after = np.where(after < 0, width - 1, after)
        state = np.where(of.state == HIDDEN, hidden, of.state)
        columns = width if part is None else 2 * width
        return cls._of(log, [of.step, state + shift, of.action, after + shift], width, columns)

    @classmethod
    def pooled(cls, log: EpisodeLog) -> Cells | None:
        """Those of all steps and actions together; where nothing is to follow, after the last step
        of a log that does not tell, `to` is `width`. None where it tells of some episodes only:
        then it is the mixture that decides whether these moves count."""
        of, width = log.steps, len(log.states) + 1
        final = of.ending[: of.rows(log.horizon - 1).stop - of.offsets[-2]] == UNKNOWN
        if final.any() and not final.all():
            return None
        none = np.zeros(of.n_rows, np.int64)
        after = np.where(of.next_state == END, width - 1, of.next_state)
        after = np.where(after == UNKNOWN, width, after)
        return cls._of(log, [none, of.state, none, after], width, width)

    @classmethod
    def _of(cls, log: EpisodeLog, keys: list[Any], width: int, columns: int) -> Cells:
        of, cells = log.steps, group_by(keys)
        t, s, a, to = cells.keys
        groups = group_by([t, s, a])
        return cls(
            log.horizon, log.discount, width, columns, cells.order,
            np.append(cells.starts, cells.size), of.episode_index[cells.order], t, s, to,
            groups.index(), (groups.keys[0], groups.keys[1], groups.keys[2]),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.t)

    @cached_property
    def by_group(self) -> Any:
        return adding(self.group, len(self.group_keys[0]))

    @cached_property
    def by_episode(self) -> tuple[Short, Short, Short]:
        """The same rows by episode and step: (n + 1,) where those of each episode begin, and (N,)
        their cells and rows."""
        by = np.argsort(self.episode, kind="stable")  # cells are in the order of the steps
        cell = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.starts))
        starts = np.concatenate([[0], np.cumsum(np.bincount(self.episode))])
        return starts.astype(np.int32), cell[by], self.order[by].astype(np.int32)

    @cached_property
    def first_node(self) -> Ints:
        """(n,) the nodes in which the episodes begin."""
        starts, cell, _ = self.by_episode
        return self.node[cell[starts[:-1]]]

    @property
    def halves(self) -> int:
        return self.columns // self.width

    @cached_property
    def _keys(self) -> Ints:
        """(nodes,) t * columns + column of every (t, s) that rows are in or lead to, and of every
        (t, END); what occurs in one half stands in both, so that the halves of a step are alike."""
        t, col = (
            np.concatenate(parts)
            for parts in ((self.t, self.t + 1), (self.s % self.width, self.to % self.width))
        )
        ends = np.arange(self.horizon + 1) * self.columns + self.width - 1
        own = np.unique(np.concatenate([t * self.columns + col, ends]))
        return np.sort(np.concatenate([own + half * self.width for half in range(self.halves)]))

    @cached_property
    def _bounds(self) -> list[int]:
        """(H+2,) where the nodes of each step begin."""
        firsts = np.arange(self.horizon + 2) * self.columns
        return [int(place) for place in np.searchsorted(self._keys, firsts)]

    def node_of(self, t: Ints, s: Ints) -> Ints:
        """The place of (t, s) in arrays over the nodes."""
        return np.searchsorted(self._keys, t * self.columns + s)

    @cached_property
    def group_node(self) -> Ints:
        """(G,) the nodes of the groups."""
        return self.node_of(self.group_keys[0], self.group_keys[1])

    @cached_property
    def node(self) -> Ints:
        return self.node_of(self.t, self.s)

    @cached_property
    def next_node(self) -> Ints:
        return self.node_of(self.t + 1, self.to)

    @property
    def nodes(self) -> int:
        return len(self._keys)

    @property
    def largest(self) -> int:
        """Numbers of a mixture in the largest of its arrays: by cell, by node, or, of cells that
        are not told apart by step, by column."""
        return max(len(self), self.nodes if self.t.any() else self.width)

    @property
    def kept(self) -> int:
        """Numbers of a mixture beside these: the d of all steps of cells that are not told apart by
        step, from which errors are made."""
        return 0 if self.t.any() else self.horizon * self.width

    def nodes_at(self, t: int) -> slice:
        return slice(self._bounds[t], self._bounds[t + 1])

    @property
    def firsts(self) -> int:
        """Nodes of step 0 in one half."""
        return self._bounds[1] // self.halves

    @cached_property
    def steps(self) -> list[Step]:
        """The cells and groups of every step."""
        cells = np.searchsorted(self.t, np.arange(self.horizon + 1))
        groups = np.searchsorted(self.group_keys[0], np.arange(self.horizon + 1))
        found = []
        for t in range(self.horizon):
            c, g = slice(cells[t], cells[t + 1]), slice(groups[t], groups[t + 1])
            here, there = self.nodes_at(t), self.nodes_at(t + 1)
            found.append(
                Step(
                    c,
                    g,
                    adding(self.next_node[c] - there.start, there.stop - there.start),
                    adding(self.group[c] - g.start, g.stop - g.start),
                    adding(self.group_node[g] - here.start, here.stop - here.start),
                )
            )
        return found

    @cached_property
    def other_half(self) -> tuple[Ints, Ints]:
        """(G,) the same (t, s, a) in the other half, G where it was not seen there; and (K,) the
        next node there."""
        t, s, a = self.group_keys
        across = np.where(s < self.width, s + self.width, s - self.width)
        many = int(a.max(initial=0)) + 1
        key, wanted = ((t * self.columns + col) * many + a for col in (s, across))
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        group = np.where(key[at] == wanted, at, len(key))
        to = np.where(self.to < self.width, self.to + self.width, self.to - self.width)
        return group, self.node_of(self.t + 1, to)


@dataclass(frozen=True, eq=False)
class Step:
    """Cells and groups of one step, and what adds cells up by the node they lead to, by group, and
    groups by node."""

    cells: slice
    groups: slice
    arriving: Any
    by_group: Any
    by_state: Any
