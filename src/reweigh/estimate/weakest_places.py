"""Where an estimate is weakest: the (t, s), of a model the (t, s, a), that a gate names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reweigh.estimate.operators import SEEN_ENOUGH, OneStep
from reweigh.estimate.recursion import Forward
from reweigh.kernels.groups import tally
from reweigh.system.numbers import divided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ROUNDING = 1e-9  # of the largest: engines add up in other orders, and all are to name the same
EXPLAINED = 1e-6  # of the mass that is lost: probabilities are often rounded


@dataclass(frozen=True)
class Place:
    """A step, and the codes of a state (below 0: END) and of an action, None where it cannot be
    told."""

    step: int
    state: int
    action: int | None = None


def largest(values: Floats) -> int:
    """The first of those that are the largest but for rounding; none is below 0."""
    return int(np.argmax(values >= np.max(values) * (1 - ROUNDING)))


def rare_share(op: OneStep) -> Floats:
    """(K,) of a node's mass: what is on a (t, s), of a model on (t, s, a), that the log shows fewer
    than 10 times; 0 at the horizon."""
    visits = op.visits
    if op.at_steps is not None:  # pooled: a state's rows of all steps speak for it
        by_step = visits.reshape(op.horizon + 1, -1)
        visits = np.broadcast_to(by_step.sum(axis=0), by_step.shape).reshape(-1)
        rare = (visits < SEEN_ENOUGH).astype(np.float64)
    else:
        few = np.where(op.groups.visits < SEEN_ENOUGH, op.groups.share, 0.0)
        rare = np.where(visits < SEEN_ENOUGH, 1.0, tally(node_of(op), few, len(visits)))
    return np.where(op.node_t < op.horizon, rare, 0.0)


def node_of(op: OneStep) -> Ints:
    """(G,) the node of each group: every edge of a group leaves it."""
    node = np.zeros(len(op.groups.share), np.int64)
    node[op.groups.of] = op.src
    return node


def worst_node(node_s: Ints, mass: Floats) -> int | None:
    """The node with the most of this mass, a state if any has some; None where there is none."""
    of_states = np.where(node_s >= 0, mass, 0.0)
    mass = of_states if of_states.any() else mass
    return largest(mass) if mass.any() else None


def _place(op: OneStep, node: int, action: int | None = None) -> Place:
    return Place(int(op.node_t[node]), int(op.node_s[node]), action)


def most_rare(op: OneStep, mass: Floats, *, from_model: bool) -> Place | None:
    """Where the most of this mass is, (K,), d_t(s) times its `rare_share`."""
    node = worst_node(op.node_s, mass)
    if node is None:
        return None
    return _place(op, node, _rare_action(op, node) if from_model else None)


def _rare_action(op: OneStep, node: int) -> int | None:
    """The one that the target takes most among those that a node shows, but seldom."""
    edges = np.flatnonzero(op.src == node)
    group = op.groups.of[edges]
    share = np.where(op.groups.visits[group] < SEEN_ENOUGH, op.groups.share[group], 0.0)
    return int(op.cells.a[edges[largest(share)]]) if share.any() else None


def most_unseen(op: OneStep, flow: Forward, unseen: Floats, *, from_model: bool) -> Place | None:
    """The state with the most of the mass that is lost at the step that loses the most."""
    if not unseen.any():
        return None
    here = op.nodes(int(np.argmax(unseen)))
    lost = flow.d[here] * np.maximum(1 - op.covered[here], 0.0)
    node = here.start + largest(lost)
    return _place(op, node, _lost_action(op, node) if from_model else None)


def _lost_action(op: OneStep, node: int) -> int | None:
    """The action that the target takes in a state and that a step does not show: the sums hold it
    where the state's rows of other steps do. It is told where such actions have all of the
    probability that is lost, so that no other one can be among them."""
    c, lost = op.cells, 1 - float(op.covered[node])
    of = c.s == op.node_s[node]
    if not of.any():
        return None
    share = divided(tally(c.a[of], c.pi[of]), tally(c.a[of], c.n[of]))
    share[c.a[of & op.known & (c.t == op.node_t[node])]] = 0.0
    return largest(share) if abs(float(share.sum()) - lost) <= EXPLAINED * lost else None


def most_unfounded(op: OneStep, flow: Forward, rare: Floats) -> tuple[Floats, Place | None]:
    """Of a model without normalisation: the mass that a step adds to what is `rare` on average, or
    lost; and the place that adds the most."""
    seldom = flow.d * rare / op.horizon
    lost = np.where(op.node_t < op.horizon, flow.d * np.maximum(1 - op.covered, 0.0), 0.0)
    per_step = tally(op.node_t, seldom + lost, op.horizon + 1)[: op.horizon]
    node = worst_node(op.node_s, seldom + lost)
    if node is None:
        return per_step, None
    action = (_lost_action if lost[node] > seldom[node] else _rare_action)(op, node)
    return per_step, _place(op, node, action)


def most_left_out(op: OneStep, value: Floats) -> Place | None:
    """Of a model: where the most of this value is, (K,), of actions that the log does not show."""
    node = worst_node(op.node_s, value)
    return None if node is None else _place(op, node, _lost_action(op, node))
