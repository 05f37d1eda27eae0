"""Where the sums of an evaluation come from: a log and an engine, or moments alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from reweigh.errors import RefusedError, UsageError, must_be
from reweigh.estimators.recipe import Marginal, Model, Recipe, Stationary
from reweigh.inference.diagnostics import hopeless, hopeless_sums, unlogged_actions
from reweigh.logs.log import EpisodeLog
from reweigh.moments.bundle import Moments
from reweigh.moments.engines.arrays import ArraysEngine
from reweigh.moments.engines.base import Engine, Request
from reweigh.policies.base import Policy

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
    errors: bool = True  # False: values are enough
    hopeless: RefusedError | None = None
    remarks: list[Warning] = field(default_factory=list)

    @property
    def size(self) -> tuple[int, int]:
        """Episodes and horizon of all that there is."""
        if self.stored is not None:
            return self.stored.n_episodes, self.stored.about.horizon
        assert self.log is not None
        return self.log.n_episodes, self.log.horizon

    @property
    def cut(self) -> int:
        """Episodes that were cut off."""
        if self.stored is not None:
            return self.stored.truncated
        assert self.log is not None
        return self.log.n_truncated

    def moments(self, recipe: Recipe, *, dropped: bool = False) -> Moments:
        if self.stored is not None:
            ratios_matter = not isinstance(recipe.weights, Model)
            if ratios_matter and self.stored.about.max_ratio != recipe.max_ratio:
                raise RefusedError(
                    "max-ratio",
                    f"these moments were made with max_ratio={self.stored.about.max_ratio}, and "
                    f"{recipe.name} asks for {recipe.max_ratio}; make them again",
                )
            return self.stored
        key = (dropped, recipe.max_ratio)
        if key not in self.made:
            log, target = self.rows(dropped)
            request = self.requests[recipe.max_ratio]
            if log.n_truncated:
                request = replace(request, kinds=request.kinds - {"trajectories"})
            self.made[key] = self.engine.moments(log, target, request)
        return self.made[key]

    def rows(self, dropped: bool = False) -> tuple[EpisodeLog, Policy]:
        assert self.log is not None
        assert self.target is not None
        return (self.log.drop_truncated() if dropped else self.log), self.target


def gather(
    data: EpisodeLog | Moments,
    target: Policy | None,
    recipes: list[Recipe],
    truncated: Truncated,
) -> Evidence:
    if isinstance(data, Moments):
        if target is not None and check_target(target).fingerprint() != data.about.target:
            raise UsageError("these moments are of another target policy than the one given")
        return Evidence(data, None, None, truncated, {}, hopeless=hopeless_sums(data))
    if not isinstance(data, EpisodeLog):
        raise must_be("data", "a log (read_log, log_from_arrays) or moments", type(data).__name__)
    target = check_target(target)
    return Evidence(
        None,
        data,
        target,
        truncated,
        merged(recipes),
        hopeless=hopeless(data, target),
        remarks=unlogged_actions(data, target),
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
    needs_whole = (
        recipe.uses_trajectories
        or isinstance(recipe.weights, Stationary)
        or (recipe.control is not None and (unknown or recipe.control.own))
        or (unknown and isinstance(recipe.weights, Marginal) and log.has_hidden)
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
