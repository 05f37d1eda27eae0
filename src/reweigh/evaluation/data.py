"""The data of an evaluation: the rows of a log in memory, or sums from a scan of a log or from a
file. Both serve the same requests for sums; estimators are solved on the result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from reweigh import kernels
from reweigh.errors import (
    RefusedError,
    SelectionWarning,
    StationaryWarning,
    UsageError,
    must_be,
)
from reweigh.estimate.estimator import CLUSTER_BLOCKS, JACKKNIFE_BLOCKS, Recipe
from reweigh.estimate.influence import refuse_weights
from reweigh.estimate.marginal import from_rows
from reweigh.estimate.standard_error import LEAST_BLOCKS, error_of_blocks
from reweigh.log.log import EpisodeLog
from reweigh.policy import Policy, RememberedPolicy, scope_of
from reweigh.sums.engines import ArraysEngine, Request, named
from reweigh.sums.keyed import TransitionMoments
from reweigh.sums.moments import Moments
from reweigh.system.files import files_behind
from reweigh.trust.gates import tables_for, tables_needed, unanswerable_by_sums, unlogged_in_sums

if TYPE_CHECKING:
    from reweigh.sums.read import ScannedLog

Floats = npt.NDArray[np.float64]
StateValues = Callable[[], tuple[Floats, npt.NDArray[np.bool_]]]
Jackknife = tuple[float | None, str, int]  # error, or None and why; how many blocks
SumsKey = tuple[bool, float | None, int]  # without cut-off episodes, clipping of ratios, blocks
Truncated = Literal["refuse", "drop"]
Result = TypeVar("Result")
ESTIMATED = frozenset({"transitions", "model", "trajectories"})  # kinds that estimators read
TABLES = (*ESTIMATED, "start_model", "policy", "lagged", "ordered", "paced", "largest", "choices")


@dataclass(eq=False)
class EvaluationData:
    """The interface of rows and sums.

    size            episodes and horizon of all the data
    certifiable     whether the log, in memory, can have a certificate (`certify` refuses others)
    files           the files it was read from
    log             the rows, None if there are only sums
    errors, within_rewards  whether errors are needed, and values that rewards rule out refused
    reward_range    of rewards that can occur, as declared
    unanswerable    why no estimator can answer; warnings: about the log and the target
    kept            results computed once for all estimators
    """

    target: Policy | None
    size: tuple[int, int]
    certifiable: bool
    files: tuple[Path, ...]
    unanswerable: RefusedError | None = None
    warnings: Sequence[Warning] = ()
    errors: bool = True
    within_rewards: bool = True
    reward_range: tuple[float, float] | None = None
    log: EpisodeLog | None = None
    kept: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @property
    def has_states(self) -> bool:
        """Whether the log names a state; False of one with features alone."""
        raise NotImplementedError

    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        if key not in self.kept:
            self.kept[key] = compute()
        result: Result = self.kept[key]
        return result

    def log_used(self, dropped: bool) -> EpisodeLog | None:
        """The rows, without cut-off episodes if these are dropped."""
        if self.log is None or not dropped:
            return self.log
        return self.once("without cut-off episodes", self.log.drop_truncated)


@dataclass(eq=False)
class RowsData(EvaluationData):
    """The rows of a log in memory. Each kind of sums is made once, when it is first needed, and
    shared by estimators and gates.

    recipes   the estimators of the evaluation
    requests  the tables they need, by the clipping of the ratios
    sums      those made so far, by blocks: other blocks would add up to other last bits
    """

    truncated: Truncated = "refuse"
    recipes: Sequence[Recipe] = ()
    requests: dict[float | None, Request] = field(default_factory=dict)
    sums: dict[SumsKey, Moments] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, log: EpisodeLog, target: Policy, recipes: Sequence[Recipe], truncated: Truncated
    ) -> RowsData:
        if not isinstance(log, EpisodeLog):
            what = "a log (read_log, log_from_arrays) or moments"
            raise must_be("data", what, type(log).__name__)
        # of a large log π is kept only where it is needed again, as by the error of WIS
        again = len(recipes) > 1 or log.steps.n_rows < kernels.COMPILED_FROM
        for r in recipes:
            again |= r.control is not None or r.normalize == "step" or r.needs.policy
        return cls(
            RememberedPolicy(target) if again else target,
            (log.n_episodes, log.horizon),
            not (log.n_truncated or log.columns.cluster) and log.behavior_source == "logged",
            files_behind(log, target),
            log=log,
            truncated=truncated,
            recipes=recipes,
            requests=merged(recipes),
        )

    @property
    def has_states(self) -> bool:
        return bool(self.rows()[0].columns.state)

    def rows(self, dropped: bool = False) -> tuple[EpisodeLog, Policy]:
        """The log that is used, and the target."""
        log, target = self.log_used(dropped), self.target
        assert log is not None
        assert target is not None
        return log, target

    def moments(self, recipe: Recipe, dropped: bool = False) -> Moments:
        """Sums that hold what an estimator needs."""
        kinds = frozenset({"model"}) if recipe.fitted else recipe.needs.all_kinds
        return self.with_kinds(kinds, (dropped, recipe.max_ratio, recipe.needs.blocks))

    def for_gates(self, recipe: Recipe, dropped: bool = False, *more: str) -> Moments:
        """The sums that the gates of the log and target read, and `more` of them."""
        log, _ = self.rows(dropped)
        if log.steps.weight is not None:
            return self.unweighted().for_gates(recipe, dropped, *more)
        kinds = tables_for(self.recipes or [recipe], values_from_rows=from_rows(log)) | {*more}
        return self.with_kinds(kinds, (dropped, recipe.max_ratio, 1))

    def unweighted(self) -> RowsData:
        """The same rows without sampling weights: gates count rows."""
        from reweigh.sums.weights import unweighted

        log, target = self.rows()
        of = unweighted(log), target, self.recipes, self.truncated
        return self.once("unweighted", lambda: RowsData.of(*of))

    def state_values(self, recipe: Recipe, dropped: bool) -> StateValues | None:
        """V_t(s) from the rows, where the recursions of MIS run over them."""
        rows = self.rows(dropped)
        if not from_rows(rows[0]):
            return None
        from reweigh.estimate.direct import state_values

        return partial(state_values, *rows, recipe.max_ratio)

    def with_rewards(
        self, recipe: Recipe, dropped: bool
    ) -> Callable[[Floats], TransitionMoments] | None:
        """What sums the cells by action with other rewards, of a log whose state values come from
        the rows: one pass, where cells by action and next state would be as many as rows."""
        log, target = self.rows(dropped)
        if not from_rows(log):
            return None
        request = Request(frozenset({"choices"}), max_ratio=recipe.max_ratio, named=False)

        def cells(reward: Floats) -> TransitionMoments:
            shaped = log.with_rewards(reward, None)
            made = ArraysEngine().moments(shaped, target, request).choices
            assert made is not None
            return made

        return cells

    def all_moments(self, recipe: Recipe, dropped: bool = False) -> Moments:
        refuse_weights(self.rows()[0], "moments")
        request = self.requests[recipe.max_ratio]
        sums = self.with_kinds(request.all_kinds, (dropped, recipe.max_ratio, request.blocks))
        return named(sums.only(request.all_kinds), self.rows(dropped)[0].identity())

    def every_kind(self, max_ratio: float | None) -> Moments | None:
        """All kinds of sums that the rows allow; None without propensities."""
        log, _ = self.rows()
        if not log.steps.has_propensities:
            return None
        kinds = ESTIMATED - {"model"} if log.continuous_actions else ESTIMATED
        with np.errstate(over="ignore", invalid="ignore"):
            sums = self.with_kinds(kinds, (False, max_ratio, 1), policy=True)
            return named(sums, log.identity())

    def with_kinds(self, kinds: frozenset[str], key: SumsKey, *, policy: bool = False) -> Moments:
        """Sums that hold these kinds; only those that are not there yet are made."""
        dropped, max_ratio, blocks = key
        log, target = self.rows(dropped)
        if log.n_truncated:  # the products of cut-off episodes mean nothing
            kinds = kinds - {"trajectories"}
        request = self.requests.get(max_ratio, Request(max_ratio=max_ratio))
        policy = (policy or request.policy) and scope_of(target) == "row"
        wanted = kinds | ({"policy"} if policy and "model" in kinds else set())
        made, before = self.once(("kinds", *key), set[str]), self.sums.get(key)
        missing = wanted - made
        if before is None or missing:
            own = tuple(table for table in request.tables if table.name in missing)
            kinds = missing - {"policy", *request.all_kinds - request.kinds}
            kinds |= {"model"} if "policy" in missing else set()
            request = replace(request, kinds=kinds, tables=own, blocks=blocks, named=False)
            sums = ArraysEngine().moments(log, target, replace(request, policy=policy))
            self.sums[key] = sums if before is None else _joined(before, sums)
            made |= missing
        return self.sums[key]

    def jackknife(self, recipe: Recipe, value: float, dropped: bool) -> Jackknife:
        from reweigh.evaluation.resampling import delete_blocks

        log, target = self.rows(dropped)
        made = delete_blocks(log, [(target, recipe)])
        of = made.values[:, 0], made.sizes, made.reasons[0], log.columns.cluster
        return *error_of_blocks(value, *of), len(made.sizes)

    def drops_cut_ones(self, recipe: Recipe) -> bool:
        """Whether cut-off episodes must be left out, and may be. MIS and DM use their rows."""
        log, _ = self.rows()
        cut, unknown = log.n_truncated, log.steps.unknown_before_horizon() > 0
        by_moves = "transitions" in recipe.needs.kinds or recipe.weights.holds_others
        needs_whole = (
            recipe.weights.whole_episodes
            or (recipe.control is not None and (unknown or recipe.control.is_array_or_function))
            or (unknown and by_moves and log.has_hidden)
        )
        if not cut or not needs_whole:
            return False
        if self.truncated == "drop":
            if cut == log.n_episodes:
                raise RefusedError("truncated", "every episode was cut off, so none is left")
            return True
        if recipe.uses_trajectories:
            text = f"{cut:,} episodes were cut off, and running products need complete episodes; "
            text += "use mis() or dm(), or leave the cut ones out (truncated='drop')"
            raise RefusedError("truncated", text)
        return False  # the solver says what is missing

    def forget_rows(self) -> None:
        """Drop the row data kept for the next estimator of a large log; sums stay."""
        log, target = self.rows()
        if log.steps.n_rows >= kernels.COMPILED_FROM and isinstance(target, RememberedPolicy):
            target.forget()


@dataclass(eq=False)
class SumsData(EvaluationData):
    """Sums alone.

    scanned, influences  the log that they are of, where it can be scanned again: for sums by
                         blocks, and for the influence values of its episodes
    sampled              the influence values of some of its episodes, also of a log whose rows stay
                         where they are
    """

    stored: Moments = field(kw_only=True)
    scanned: ScannedLog | None = None
    influences: Any = None
    sampled: Any = None

    @classmethod
    def of(cls, sums: Moments, target: Policy | None) -> SumsData:
        if target is not None and check_target(target).fingerprint() != sums.about.target:
            raise UsageError("these moments belong to another target policy")
        warnings = [] if target is None else unlogged_in_sums(sums, target)
        return cls(
            target,
            (sums.n_episodes, sums.about.horizon),
            not (sums.truncated or sums.about.cluster) and sums.about.behavior == "logged",
            files_behind(sums),
            unanswerable_by_sums(sums),
            warnings,
            stored=sums,
        )

    @property
    def has_states(self) -> bool:
        return bool(self.stored.about.state_columns)

    def moments(self, recipe: Recipe, dropped: bool = False) -> Moments:
        sums = self.stored
        by_ratios = sums.model is not None and sums.shares.rule == "ratios"
        ratios_matter = by_ratios or recipe.weights.uses_ratios
        if ratios_matter and sums.about.max_ratio != recipe.max_ratio:
            raise RefusedError(
                "max-ratio",
                f"these moments were made with max_ratio={sums.about.max_ratio}, but "
                f"{recipe.name} needs {recipe.max_ratio}; make them again",
            )
        return sums

    all_moments = moments

    def for_gates(self, recipe: Recipe, dropped: bool = False, *more: str) -> Moments:
        return self.stored

    def state_values(self, recipe: Recipe, dropped: bool) -> None:
        return None

    with_rewards = state_values

    def every_kind(self, max_ratio: float | None) -> Moments:
        return self.stored

    def jackknife(self, recipe: Recipe, value: float, dropped: bool) -> Jackknife:
        sums = self.by_blocks(recipe)
        from reweigh.estimate.replicates import jackknife_error

        return *jackknife_error(recipe, sums, value), len(sums.block_sizes()[0])

    def by_blocks(self, recipe: Recipe) -> Moments:
        """Sums by blocks of episodes or clusters, as far as they can be had."""
        sums, clustered = self.moments(recipe), self.stored.about.cluster is not None
        if self.scanned is None or len(sums.block_sizes()[0]) >= LEAST_BLOCKS:
            return sums
        assert self.target is not None
        blocks = CLUSTER_BLOCKS if clustered else JACKKNIFE_BLOCKS
        return self.scanned.moments(self.target, replace(recipe.needs, blocks=blocks))

    def drops_cut_ones(self, recipe: Recipe) -> bool:
        if self.stored.truncated and recipe.uses_trajectories:
            raise RefusedError(
                "truncated",
                f"{self.stored.truncated:,} of the episodes in these moments were cut off, "
                "and running products need complete episodes; make the moments from a log "
                "without them",
            )
        return False

    def forget_rows(self) -> None:
        """Sums have none."""


LogData = RowsData | SumsData


def _joined(before: Moments, sums: Moments) -> Moments:
    """These sums together with those made before."""
    kept = {name: table for name in TABLES if (table := getattr(before, name)) is not None}
    if sums.policy is not None:  # the model was made again with it
        kept |= {"policy": sums.policy, "model": sums.model, "start_model": sums.start_model}
    left_out = before.left_out | sums.left_out
    return replace(sums, **kept, tables=before.tables | sums.tables, left_out=left_out)


def merged(recipes: Sequence[Recipe]) -> dict[float | None, Request]:
    """The requests of these estimators, by the clipping of the ratios: each needs its own scan."""
    requests: dict[float | None, Request] = {}
    for recipe in recipes:
        before = requests.get(recipe.max_ratio)
        requests[recipe.max_ratio] = recipe.needs if before is None else before | recipe.needs
    return requests


def with_gates(request: Request) -> Request:
    """With the sums that only gates read; the many cells with actions are spare."""
    needed = tables_needed(request.max_ratio)
    return request | replace(needed, spare=needed.kinds & {"model"})


def check_target(target: object) -> Policy:
    if isinstance(target, Policy):
        return target
    raise must_be(
        "target",
        "a policy: TablePolicy, ColumnPolicy, FunctionPolicy or read_policy(…)",
        type(target).__name__,
    )


def left_out(log: EpisodeLog | None) -> list[Warning]:
    """The warning if cut-off episodes were left out of this log."""
    assert log is not None
    return [
        SelectionWarning(
            f"{log.n_truncated:,} of {log.n_episodes:,} episodes were cut off and left out; "
            "if the cut depends on the outcome, the estimate is biased"
        )
    ]


def pools_steps(recipe: Recipe) -> list[Warning]:
    """The warning if the target depends on the step."""
    if not recipe.weights.pools_steps:
        return []
    return [
        StationaryWarning(
            "the target depends on the step, but this estimator pools all steps and "
            "evaluates a mixture of them. Use mis()"
        )
    ]
