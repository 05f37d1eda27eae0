"""Where the sums of an evaluation come from: a log and an engine, or moments alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reweigh.errors import RefusedError, UsageError, must_be
from reweigh.estimate.direct import from_rows
from reweigh.estimate.estimator import Recipe
from reweigh.log.log import EpisodeLog
from reweigh.policy.base import Policy, RememberedPolicy, scope_of
from reweigh.sums.engines.arrays import ArraysEngine
from reweigh.sums.engines.base import Engine, Request
from reweigh.sums.engines.base import named as with_name
from reweigh.sums.moments import Moments
from reweigh.system.files import files_behind
from reweigh.trust.diagnostics import (
    hopeless,
    hopeless_sums,
    unlogged_actions,
    unlogged_in_sums,
)
from reweigh.trust.gates import tables_for

Truncated = Literal["refuse", "drop"]


@dataclass
class Evidence:
    """What an evaluation rests on; sums are made once and shared by the estimators."""

    stored: Moments | None
    log: EpisodeLog | None
    target: Policy | None
    truncated: Truncated
    requests: dict[float | None, Request]
    engine: Engine = field(default_factory=ArraysEngine)
    made: dict[tuple[bool, float | None], Moments] = field(default_factory=dict)
    asked: dict[tuple[bool, float | None], frozenset[str]] = field(default_factory=dict)
    errors: bool = True  # False: values are enough
    within_rewards: bool = True  # a value that the logged rewards do not allow is refused
    hopeless: RefusedError | None = None
    remarks: list[Warning] = field(default_factory=list)
    whole: EpisodeLog | None = None  # the log without cut-off episodes, once asked for
    gated: dict[tuple[bool, float | None, bool], Moments] = field(default_factory=dict)
    # what gates computed from these sums, by their identity, for all estimators
    measured: dict[int, dict[str, Any]] = field(default_factory=dict)
    wide: dict[float | None, Moments | None] = field(default_factory=dict)
    recipes: list[Recipe] = field(default_factory=list)  # of the whole evaluation

    @property
    def size(self) -> tuple[int, int]:
        """Episodes and horizon of all that there is."""
        if self.stored is not None:
            return self.stored.n_episodes, self.stored.about.horizon
        assert self.log is not None
        return self.log.n_episodes, self.log.horizon

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that all of it was read from."""
        return files_behind(self.log, self.target, self.stored)

    @property
    def cut(self) -> int:
        """Episodes that were cut off."""
        if self.stored is not None:
            return self.stored.truncated
        assert self.log is not None
        return self.log.n_truncated

    @property
    def certifiable(self) -> bool:
        """Whether its log, in memory, can have a certificate (`certify` refuses others)."""
        if self.stored is not None:
            return not self.cut and self.stored.about.behavior == "logged"
        return not self.cut and self.log is not None and self.log.behavior_source == "logged"

    def moments(self, recipe: Recipe, *, dropped: bool = False) -> Moments:
        """The sums that an estimator needs, and those that others have needed before it."""
        if self.stored is not None:
            stored = self.stored
            by_ratios = stored.model is not None and stored.shares.rule == "ratios"
            ratios_matter = by_ratios or recipe.weights.uses_ratios
            if ratios_matter and self.stored.about.max_ratio != recipe.max_ratio:
                raise RefusedError(
                    "max-ratio",
                    f"these moments were made with max_ratio={self.stored.about.max_ratio}, and "
                    f"{recipe.name} asks for {recipe.max_ratio}; make them again",
                )
            return self.stored
        kinds = frozenset({"model"}) if recipe.fitted else recipe.needs.kinds
        return self._made(kinds, recipe.max_ratio, dropped, named=False)

    def all_moments(self, recipe: Recipe, *, dropped: bool = False) -> Moments:
        """The sums that all estimators asked for together need, for the user to keep."""
        if self.stored is not None:
            return self.moments(recipe, dropped=dropped)
        kinds = self.requests[recipe.max_ratio].kinds
        return self._made(kinds, recipe.max_ratio, dropped, named=True)

    def for_gates(self, recipe: Recipe, *, dropped: bool = False) -> Moments:
        """The sums that the gates of the log and target read, made once for all estimators."""
        if self.stored is not None:
            return self.stored
        log, target = self.rows(dropped)
        key = (dropped, recipe.max_ratio, False)
        if key not in self.gated:
            recipes = self.recipes or [recipe]
            kinds = tables_for(recipes, values_from_rows=from_rows(log))
            request = Request(kinds, max_ratio=recipe.max_ratio, named=False)
            self.gated[key] = self.engine.moments(log, target, request)
        if not recipe.needs.policy or scope_of(target) != "row":
            return self.gated[key]
        of_rows = (dropped, recipe.max_ratio, True)
        if of_rows not in self.gated:
            policy = self.moments(recipe, dropped=dropped).policy
            self.gated[of_rows] = replace(self.gated[key], policy=policy)
        return self.gated[of_rows]

    def _made(
        self, kinds: frozenset[str], max_ratio: float | None, dropped: bool, *, named: bool
    ) -> Moments:
        """Each kind of sums is made once, when it is first needed: estimators that read the rows
        themselves need none."""
        key = (dropped, max_ratio)
        log, target = self.rows(dropped)
        if log.n_truncated:  # the products of cut-off episodes mean nothing
            kinds = kinds - {"trajectories"}
        before, asked = self.made.get(key), self.asked.get(key, frozenset())
        if before is None or not kinds <= asked:
            request = replace(self.requests[max_ratio], kinds=kinds - asked, named=False)
            made = self.engine.moments(log, target, request)
            if before is not None:
                names = (*before.kinds, "start_model", "policy")
                held = {name: getattr(before, name) for name in names}
                kept = {name: table for name, table in held.items() if table is not None}
                made = replace(made, **kept)
            self.made[key], self.asked[key] = made, asked | kinds
        made = self.made[key]
        if named and not made.about.sources:
            self.made[key] = made = with_name(made, log.identity())
        return made

    def every_kind(self, max_ratio: float | None) -> Moments | None:
        """All kinds of sums that the rows allow, made once, or those that there are."""
        if self.stored is not None:
            return self.stored
        if max_ratio not in self.wide:
            self.wide[max_ratio] = every_kind(self.log, self.target, max_ratio)
        return self.wide[max_ratio]

    def rows(self, dropped: bool = False) -> tuple[EpisodeLog, Policy]:
        assert self.log is not None
        assert self.target is not None
        if dropped and self.whole is None:
            self.whole = self.log.drop_truncated()
        log = self.whole if dropped else self.log
        assert log is not None
        return log, self.target

    def rest(self) -> None:
        """Forget what was kept for the next estimator; sums stay for the user."""
        if isinstance(self.target, RememberedPolicy):
            self.target.forget()


def every_kind(
    log: EpisodeLog | None, target: Policy | None, max_ratio: float | None
) -> Moments | None:
    """All kinds of sums that these rows allow; None without rows or propensities."""
    if log is None or target is None or not log.steps.has_propensities:
        return None
    kinds = {"transitions", "model", "trajectories"}
    if log.continuous_actions:
        kinds.discard("model")
    if log.n_truncated:  # the products of cut-off episodes mean nothing
        kinds.discard("trajectories")
    request = Request(frozenset(kinds), max_ratio=max_ratio, policy=True)
    with np.errstate(over="ignore", invalid="ignore"):
        return ArraysEngine().moments(log, target, request)


def gather(
    data: EpisodeLog | Moments,
    target: Policy | None,
    recipes: list[Recipe],
    truncated: Truncated,
) -> Evidence:
    if isinstance(data, Moments):
        if target is not None and check_target(target).fingerprint() != data.about.target:
            raise UsageError("these moments are of another target policy than the one given")
        return Evidence(
            data,
            None,
            None,
            truncated,
            {},
            hopeless=hopeless_sums(data),
            remarks=[] if target is None else unlogged_in_sums(data, target),
        )
    if not isinstance(data, EpisodeLog):
        raise must_be("data", "a log (read_log, log_from_arrays) or moments", type(data).__name__)
    target = check_target(target)
    return Evidence(
        None,
        data,
        RememberedPolicy(target) if _ask_again(recipes) else target,
        truncated,
        merged(recipes),
        hopeless=hopeless(data, target),
        remarks=unlogged_actions(data, target),
        recipes=recipes,
    )


def _ask_again(recipes: list[Recipe]) -> bool:
    """Whether the target's probabilities will be needed more than once; WIS's error does."""
    return len(recipes) > 1 or any(
        recipe.control is not None or recipe.normalize == "step" or recipe.needs.policy
        for recipe in recipes
    )


def merged(recipes: list[Recipe]) -> dict[float | None, Request]:
    """What these estimators ask for, by the clipping of the ratios: each needs its own scan."""
    requests: dict[float | None, Request] = {}
    for recipe in recipes:
        before = requests.get(recipe.max_ratio)
        requests[recipe.max_ratio] = recipe.needs if before is None else before | recipe.needs
    return requests


def check_target(target: object) -> Policy:
    if isinstance(target, Policy):
        return target
    raise must_be(
        "target",
        "a policy: TablePolicy, ColumnPolicy, FunctionPolicy or read_policy(…)",
        type(target).__name__,
    )


def leaves_cut_ones_out(evidence: Evidence, recipe: Recipe) -> bool:
    """Whether cut-off episodes must be left out, and may be. MIS and DM use what they show."""
    log = evidence.log
    cut = evidence.cut
    if not cut:
        return False
    if log is None:
        if recipe.uses_trajectories:
            raise RefusedError(
                "truncated",
                f"{cut:,} of the episodes behind these moments were cut off, and running products "
                "need whole ones; make the moments from a log without them",
            )
        return False
    unknown = log.steps.unknown_before_horizon() > 0
    over_stretches = "transitions" in recipe.needs.kinds and log.has_hidden
    needs_whole = (
        recipe.weights.whole_episodes
        or (recipe.control is not None and (unknown or recipe.control.own))
        or (unknown and over_stretches)
    )
    if not needs_whole:
        return False
    if evidence.truncated == "drop":
        if cut == log.n_episodes:
            raise RefusedError("truncated", "every episode was cut off: none is left")
        return True
    if recipe.uses_trajectories:
        raise RefusedError(
            "truncated",
            f"{cut:,} episodes were cut off, and running products need whole ones; use mis() or "
            "dm(), or leave the cut ones out (truncated='drop')",
        )
    return False  # the solver says what it misses
