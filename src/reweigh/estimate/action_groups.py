"""Groups of actions: the ratios marginalized over the actions of a group (MIPS, Saito and Joachims
2022).

With thousands of actions π(a|s)/μ(a|s) is huge, or no row shows what the target takes. Where an
action acts through its group alone (the group decides the reward and the next state),

    ρ_g = π(g|s)/μ(g|s),   π(g|s) = Σ_{a∈g} π(a|s),   μ(g|s) = Σ_{a∈g} μ(a|s)

takes its place, with the probabilities of all actions, also of those that the log does not show.
The cells (t, s, a, s') of a model tell everything: a's group has one ρ in (t, s), so that the
grouped cells are Σρ = n ρ_g, Σz = ρ_g Σy, … and MIS and DM run on them as on any others. Whether
actions act through their groups alone is tested by the gate "action groups".
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from reweigh.errors import RefusedError, UsageError, must_be
from reweigh.estimate.estimator import LogAndTarget, Recipe, Solution
from reweigh.estimate.marginal import Marginal
from reweigh.estimate.model import Model
from reweigh.estimate.operators import cells_of
from reweigh.estimate.refusals import needs_discrete
from reweigh.estimate.solution import Operators
from reweigh.kernels import Floats, Ints, group_by, rowwise
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Labels, label_text, plain_label
from reweigh.policy import Policy
from reweigh.policy.table import TablePolicy
from reweigh.sums.gather import CellGradient
from reweigh.sums.keyed import NO_ACTION, TransitionMoments, summed
from reweigh.sums.moments import Moments
from reweigh.system.files import digest_of


@dataclass(frozen=True, eq=False)
class ActionGroups:
    """Which group each action belongs to, of a target and, for `mis`, a behavior.

    groups    {action: group}, of every action of the log and of both policies
    target    the target that is evaluated, as a table
    behavior  the policy that made the log, as a table: the log alone does not hold the
              probabilities of the actions that were not taken, and only their sum is the group's
    """

    groups: Mapping[Any, Any]
    target: TablePolicy
    behavior: TablePolicy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Mapping) or not self.groups:
            raise must_be("groups", "a mapping {action: group}", self.groups)
        for what, policy in (("target", self.target), ("behavior", self.behavior)):
            if not isinstance(policy, TablePolicy) and (policy is not None or what == "target"):
                text = "a table with the probability of every action (TablePolicy, read_policy)"
                raise must_be(what, text, type(policy).__name__)
        _ = self.policies  # refuses actions without a group

    def __repr__(self) -> str:
        parts = sorted(f"{action!r}: {group!r}" for action, group in self.groups.items())
        policies = [p.fingerprint() for p in (self.target, self.behavior) if p is not None]
        return f"ActionGroups({digest_of(*parts, *policies)})"

    @cached_property
    def policies(self) -> list[TablePolicy | None]:
        """The target and the behavior over groups."""
        both = self.target, self.behavior
        return [None if policy is None else grouped(policy, self.groups) for policy in both]

    def sums(self, sums: Moments) -> Moments:
        """The sums whose actions are the groups, kept with them."""
        kept: dict[ActionGroups, Moments] = vars(sums).setdefault("grouped", {})
        if self not in kept:
            kept[self] = self._sums(sums)
        return kept[self]

    def _sums(self, sums: Moments) -> Moments:
        if sums.about.continuous_actions or sums.actions is None:
            raise needs_discrete()
        if sums.hidden:
            text = "the ratio of a group of actions needs the state, and some are hidden"
            raise RefusedError("hidden", f"{text}; use mis() without groups")
        if sums.about.target != self.target.fingerprint():
            text = "these groups of actions are of another target; make ActionGroups for this one"
            raise RefusedError("other-target", text)
        cells, start = cells_of(sums, "model")
        group, labels = group_codes(sums.actions, self.groups)
        g = group[cells.a]
        pi, mu = (self._of_group(p, sums, cells, g, labels) for p in self.policies)
        n = cells.n.astype(np.float64)
        if mu is None:  # a model needs no ratios, but gates read them
            rows, pairs = group_by([cells.t, cells.s]), group_by([cells.t, cells.s, g])
            n = n if n.ndim == 1 else n.sum(axis=1)  # those of replicates together
            mu = pairs.sum(n)[pairs.index()] / rows.sum(n)[rows.index()]
            n = cells.n.astype(np.float64)
        impossible = np.flatnonzero(~(mu > 0))
        if len(impossible):
            k = int(impossible[0])
            raise RefusedError(
                "behavior-zero",
                f"the behavior never takes group {labels.name(int(g[k]))} in state "
                f"{sums.states.name(int(cells.s[k]))} at step {int(cells.t[k])}, and the log "
                "has rows of it: the behavior or the groups are not those of this log",
            )
        rho = rowwise(pi / mu, cells.n)
        pi, mu = rowwise(pi, cells.n), rowwise(mu, cells.n)
        columns: dict[str, Any] = {
            "rho": n * rho, "rho2": n * rho**2, "one": n * rho, "z": rho * cells.y,
            "rhoz": rho**2 * cells.y, "z2": rho**2 * cells.y2,
            "pi": n * pi, "pi2": n * pi**2, "mu": n * mu,
        }  # fmt: skip
        grouped = replace(cells, a=g, **columns)
        return replace(
            sums,
            actions=labels,
            model=summed(grouped),
            transitions=summed(replace(grouped, a=np.full(len(cells), NO_ACTION))),
            start=start,
            start_model=start,
            share_rule="one number",
            policy=None,
            choices=None,
            lagged=None,
            trajectories=None,
            largest=None,
            left_out=sums.left_out | {"lagged": "its ratios are of single actions, not of groups"},
        )

    def _of_group(
        self, policy: TablePolicy | None, sums: Moments, cells: TransitionMoments, g: Ints,
        labels: Labels,
    ) -> Any:  # fmt: skip
        """(E,) the policy's probability of each cell's group."""
        if policy is None:
            return None
        code = policy._entries.actions.translate(labels)[g]
        prob, known = policy.find(sums.states, cells.s, cells.t, code)
        if not known.all():
            k = int(np.flatnonzero(~known)[0])
            state, step = sums.states.name(int(cells.s[k])), int(cells.t[k])
            text = f"the policy {policy.name!r} has no row for state {state} at step {step}"
            raise RefusedError("unknown-state", f"{text}; add it to the table")
        return prob

    def by_action(self, gradient: CellGradient, sums: Moments) -> CellGradient:
        """The gradient by the cells with actions, from that by the grouped cells: of a row ρ and
        z = ρ y are those of its group."""
        cells, (group, _) = (
            cells_of(sums, "model")[0],
            group_codes(sums.actions or Labels(()), self.groups),
        )
        g = group[cells.a] if gradient.moves == "actions" else np.full(len(cells), NO_ACTION)
        of = gradient.cells
        keys = [(of.t, cells.t), (of.s, cells.s), (of.a, g), (of.s_next, cells.s_next)]
        index = group_by([np.concatenate(pair) for pair in keys]).index()
        place = np.empty(int(index.max()) + 1, np.int64)
        place[index[: len(of)]] = np.arange(len(of))
        at = place[index[len(of) :]]
        grouped, all_groups = self.sums(sums).model, group[cells.a]
        assert grouped is not None
        rho = self._ratio(grouped, cells, all_groups)
        none = np.zeros(len(cells))
        return CellGradient(
            "actions",
            cells,
            one=gradient.one[at] + rho * gradient.rho[at],
            rho=none,
            z=none,
            y=gradient.y[at] + rho * gradient.z[at],
            start=gradient.start[at],
        )

    @staticmethod
    def _ratio(grouped: TransitionMoments, cells: TransitionMoments, g: Ints) -> Floats:
        """(E,) ρ_g of the cells."""
        keys = [(grouped.t, cells.t), (grouped.s, cells.s), (grouped.a, g)]
        index = group_by([np.concatenate(pair) for pair in keys]).index()
        ratio = np.empty(int(index.max()) + 1)
        ratio[index[: len(grouped)]] = grouped.rho / grouped.n
        return np.asarray(ratio[index[len(grouped) :]], np.float64)


def group_codes(actions: Labels, groups: Mapping[Any, Any]) -> tuple[Ints, Labels]:
    """The code of each action's group, and the groups, in the order of their texts."""
    of = {label_text(plain_label(action)): group for action, group in groups.items()}
    lacking = [action for action in actions.values if label_text(action) not in of]
    if lacking:
        shown = ", ".join(repr(action) for action in lacking[:3])
        raise UsageError(
            f"{len(lacking):,} of {len(actions):,} actions have no group, such as {shown}: every "
            "action of the log and of the policies needs one"
        )
    text = {action: str(label_text(plain_label(group))) for action, group in of.items()}
    names = sorted(set(text.values()))
    place = {name: code for code, name in enumerate(names)}
    code = [place[text[label_text(action)]] for action in actions.values]
    return np.array(code, np.int64), Labels(tuple(names))


def grouped(policy: TablePolicy, groups: Mapping[Any, Any]) -> TablePolicy:
    """The probabilities of groups of actions: sums over their actions."""
    e, made = policy._entries, copy(policy)
    vars(made).pop("_fingerprint", None)
    group, labels = group_codes(e.actions, groups)
    step = np.zeros_like(e.state) if e.step is None else e.step
    cells = group_by([step, e.state, group[e.action]])
    t, state, action = cells.keys
    made._entries = replace(
        e,
        step=None if e.step is None else t,
        state=state,
        action=action,
        prob=cells.sum(e.prob),
        actions=labels,
    )
    return made


@dataclass(frozen=True, eq=False)
class GroupedMarginal(Marginal):
    """MIS with the ratios of groups of actions."""

    groups: ActionGroups | None = None
    kinds = frozenset({"model"})
    takes_control = False
    further_traits = frozenset({"action groups"})
    formula = Marginal.formula + ",  ρ = Σ π(a|s) / Σ μ(a|s) over the actions of the group"

    def __post_init__(self) -> None:
        if self.groups is None or self.groups.behavior is None:
            raise UsageError(
                "mis with groups of actions needs the behavior's probabilities of all actions: "
                "give ActionGroups(…, behavior=…), or use dm with them, which takes the shares of "
                "the groups from the log"
            )

    def description(self, recipe: Recipe) -> str:
        return f"{super().description(recipe)}; ratios of groups of actions"

    def regrouped(self, sums: Moments) -> Moments:
        assert self.groups is not None
        return self.groups.sums(sums)

    def groups_of(self, sums: Moments) -> Ints:
        assert self.groups is not None
        assert sums.actions is not None
        return group_codes(sums.actions, self.groups.groups)[0]

    def operators(self, recipe: Recipe, sums: Moments) -> Operators:
        return super().operators(recipe, self.regrouped(sums))

    def gradient(self, recipe: Recipe, sums: Moments) -> CellGradient:
        assert self.groups is not None
        return self.groups.by_action(super().gradient(recipe, sums), sums)

    def solve_rows(
        self, recipe: Recipe, log: EpisodeLog, target: Policy, *, errors: bool = True
    ) -> Solution | None:
        return None


@dataclass(frozen=True, eq=False)
class GroupedModel(Model):
    """A model whose actions are groups."""

    groups: ActionGroups | None = None
    further_traits = frozenset({"model", "action groups"})
    formula = Model.formula + ", a being groups of actions"

    def description(self, recipe: Recipe) -> str:
        return f"{super().description(recipe)}; its actions are groups"

    def regrouped(self, sums: Moments) -> Moments:
        assert self.groups is not None
        return self.groups.sums(sums)

    def groups_of(self, sums: Moments) -> Ints:
        assert self.groups is not None
        assert sums.actions is not None
        return group_codes(sums.actions, self.groups.groups)[0]

    def operators(self, recipe: Recipe, sums: Moments) -> Operators:
        return super().operators(recipe, self.regrouped(sums))

    def gradient(self, recipe: Recipe, sums: Moments) -> CellGradient:
        assert self.groups is not None
        return self.groups.by_action(super().gradient(recipe, self.regrouped(sums)), sums)

    def with_error(
        self, recipe: Recipe, solution: Solution, sums: Moments, rows: LogAndTarget | None
    ) -> Solution:
        return solution
