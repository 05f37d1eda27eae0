"""The record that every face shows: the terminal, JSON, tables, HTML and notebooks compute nothing.

An `Evaluation` is one estimator's answer; a `Report` has several of them, and where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from reweigh.errors import RefusedError, StationaryWarning
from reweigh.system import finite_or_none, p_text, rounded

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from reweigh.estimate.estimator import Recipe
    from reweigh.estimate.standard_error import Gain
    from reweigh.show.confounding import Confounding
    from reweigh.system.frames import FrameKind
    from reweigh.trust.breakdown import Decomposition, Heat, Missing, ValueParts
    from reweigh.trust.gates import Level, Verdict
    from reweigh.trust.intervals import Interval
    from reweigh.trust.overlap import Unlogged, Weights

    Floats = npt.NDArray[np.float64]

LEVEL = 0.95
PER_EPISODE = "per episode"
NEW_POLICY = "the new policy"
NO_TRUST = "not reliable: no interval is shown"
UNTRUSTED = "the verdict is red"
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """What the estimate rests on, computed before any normalization.

    ess                (H,) effective number of episodes at each step, nan where there is none
    unseen_mass        (H,) target probability that the log has no data on, by step, None where the
                       estimator has no state distribution
    placebo            the value if every reward were 1, END included, with its error
    placebo_expected   what it should be, Σ_t γ^t
    rare_mass          share of the target's mass on (step, state) pairs seen fewer than 10 times
    total_mass         (H,) Σ_s d_t(s) without normalization, nan inside hidden stretches
    """

    ess: Floats
    unseen_mass: Floats | None
    placebo: float
    placebo_error: float | None
    placebo_expected: float
    rare_mass: float | None
    total_mass: Floats | None
    variance_by_step: Floats | None

    @property
    def worst_step(self) -> int | None:
        """The step with the smallest effective number of episodes."""
        import numpy as np

        return None if np.all(np.isnan(self.ess)) else int(np.nanargmin(self.ess))

    @property
    def worst_ess(self) -> float | None:
        return None if self.worst_step is None else float(self.ess[self.worst_step])

    @property
    def total_unseen(self) -> float | None:
        return None if self.unseen_mass is None else float(self.unseen_mass.sum())

    def frame(self, per_step: Floats | None, kind: FrameKind | None = None) -> Any:
        """A row per step: what it adds to the value (`per_step`), and what it rests on there."""
        from reweigh.system.frames import frame_of

        columns = {
            "value": per_step,
            "effective_episodes": self.ess,
            "unseen_mass": self.unseen_mass,
            "total_mass": self.total_mass,
            "variance": None if self.variance_by_step is None else self.variance_by_step[1:],
        }
        known = {name: values for name, values in columns.items() if values is not None}
        return frame_of({"step": list(range(len(self.ess))), **known}, kind)

    def to_dict(self) -> dict[str, Any]:
        values = {
            "worst_ess": self.worst_ess,
            "worst_step": self.worst_step,
            "unseen_mass": self.total_unseen,
            "rare_mass": self.rare_mass,
            "placebo": self.placebo,
            "placebo_error": self.placebo_error,
            "placebo_expected": self.placebo_expected,
        }
        return {name: finite_or_none(value) for name, value in values.items()}


def value_text(value: float, error: float | None, warnings: Iterable[Warning]) -> str:
    """A value as it is printed beside this error. Where all stationary mass is on END the value is
    0 whatever was earned, and must not be taken for one."""
    on_end = value == 0 and any(isinstance(w, StationaryWarning) for w in warnings)
    return "0 (END)" if on_end else rounded(value, error)


@dataclass(frozen=True)
class Beside:
    """Another estimator on the same log.

    difference  its value less the answer's
    error       of the difference; `at_most` this where only both errors are known
    beyond      whether chance does not explain it; None where that is not known
    why         why it refused
    """

    estimator: str
    value: float | None = None
    difference: float | None = None
    error: float | None = None
    at_most: bool = False
    beyond: bool | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        names = ("estimator", "value", "difference", "error", "beyond")
        plain = {name: getattr(self, name) for name in names}
        return plain | {"error_at_most": self.at_most, "refused": self.why or None}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One estimator's answer, or why there is none (`refused`); in a comparison one target's.

    label          what a row of it is called: the estimator, or the target
    error          the standard error to print beside the interval
    interval       the requested one, also where it is not `trusted`
    untrusted      what is said instead of its interval if that is not reliable
    no_interval    what is said where no interval is shown
    gain           target - behavior, and its interval; None with `gain_why`
    tested         the gain with its error and p, or why there is none
    per_step       (H,) what each step adds to the value
    beside         by how much others differ, where they stand beside the default answer
    best           how likely the target is the best, in a comparison
    policy         what the target is called in a sentence
    state_columns, abstraction  what the names of its states stand for
    """

    label: str
    recipe: Recipe
    n_episodes: int
    horizon: int
    refused: RefusedError | None = None
    discount: float = 1.0
    value: float | None = None
    standard_error: float | None = None
    error: float | None = None
    error_method: str = ""
    interval: Interval | None = None
    untrusted: str = ""
    no_interval: str = ""
    behavior_value: float | None = None
    gain: float | None = None
    gain_interval: Interval | None = None
    gain_why: str = ""
    tested: Gain | RefusedError | None = None
    verdict: Verdict | None = None
    diagnostics: Diagnostics | None = None
    per_step: Floats | None = None
    warnings: tuple[Warning, ...] = ()
    chosen: str | None = None
    memory: dict[str, Any] | None = None  # the one that was chosen, why, and what was tried
    beside: tuple[Beside, ...] = ()
    sql: str | None = None
    best: float | None = None
    policy: str = NEW_POLICY
    state_columns: tuple[str, ...] = ()
    abstraction: str | None = None

    @property
    def estimator(self) -> str:
        return self.recipe.name

    @property
    def trusted(self) -> bool:
        """Whether its error may be shown: not where the verdict is red."""
        return not self.untrusted

    @property
    def reliable(self) -> bool:
        """Whether a decision may rest on it: there is an answer, and its verdict is not red."""
        return self.refused is None and self.level != "red"

    @property
    def text(self) -> str:
        """The value as it is printed."""
        return self.text_of(self.error)

    def text_of(self, error: float | None) -> str:
        """The same beside this error."""
        return "" if self.value is None else value_text(self.value, error, self.warnings)

    @property
    def around(self) -> Interval | None:
        """The interval, as far as it may be shown."""
        return self.interval if self.trusted else None

    @property
    def level(self) -> Level | None:
        """That of the verdict."""
        return None if self.verdict is None else self.verdict.level

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons against it, the worst first."""
        return () if self.verdict is None else tuple(g.name for g in self.verdict.reasons)

    @property
    def unseen_events(self) -> str:
        """How far an event that the log has not seen could move the value, where a range of rewards
        is declared; else empty."""
        gates = () if self.verdict is None else self.verdict.gates
        return next(
            (g.text for g in gates if g.name == "unseen events" and g.value is not None), ""
        )

    @property
    def ess(self) -> float | None:
        return None if self.diagnostics is None else self.diagnostics.worst_ess

    @property
    def gain_error(self) -> float | None:
        return None if self.gain_interval is None else self.gain_interval.standard_error

    @property
    def tested_gain(self) -> Gain | None:
        """The gain with its error and p, where there is one."""
        return None if isinstance(self.tested, RefusedError) else self.tested

    @property
    def better(self) -> str:
        """p of "the target is not better", in words; empty where there is none to show."""
        gain = self.tested_gain
        if self.gain_interval is None or gain is None:
            return ""
        return p_text(gain.p_value, at_most=gain.at_most)

    def with_gain(self, tested: Gain | RefusedError) -> Evaluation:
        """With target - behavior: its interval at the level of the value's, as far as it may be
        shown."""
        gain = None
        if self.value is not None and self.behavior_value is not None:
            gain = self.value - self.behavior_value
        if not self.trusted:
            return replace(self, gain=gain, gain_why=UNTRUSTED, tested=tested)
        if isinstance(tested, RefusedError):
            return replace(self, gain=gain, gain_why=tested.reason, tested=tested)
        from reweigh.trust.intervals import IntervalRequest, from_error

        around, why = None, "the difference shows no spread"
        if tested.standard_error:
            level = LEVEL if self.interval is None else self.interval.level
            method, why = "at most both errors" if tested.at_most else "paired", ""
            error = tested.standard_error
            wanted = IntervalRequest(level)
            around = from_error(tested.value, error, tested.df, wanted, method)
        return replace(self, gain=tested.value, gain_interval=around, gain_why=why, tested=tested)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as --json prints them."""
        if self.refused is not None or self.verdict is None or self.diagnostics is None:
            assert self.refused is not None
            nothing = ("value", "standard_error", "interval", "verdict")
            mark = {"reliable": False}
            size = {"warnings": [], "n_episodes": self.n_episodes, "horizon": self.horizon}
            entry = {"estimator": self.estimator, **dict.fromkeys(nothing), **mark, **size}
            return entry | refusal_json(self.refused)
        verdict, gain = self.verdict.to_dict(), self.tested
        assert gain is not None
        return {
            "estimator": self.estimator,
            "policy": self.policy,
            "value": self.value,
            "standard_error": self.standard_error,
            "error_method": self.error_method,
            "interval": None if self.interval is None else self.interval.to_dict(),
            "p_value": None if isinstance(gain, RefusedError) else finite_or_none(gain.p_value),
            "gain": refusal_json(gain) if isinstance(gain, RefusedError) else self._gain_json(gain),
            "chosen": self.chosen,
            "memory": self.memory,
            "beside": [other.to_dict() for other in self.beside],
            "verdict": verdict["level"],
            "reliable": self.reliable,
            "unchecked": verdict["unchecked"],
            "gates": verdict["gates"],
            "warnings": [str(warning) for warning in self.warnings],
            "n_episodes": self.n_episodes,
            "horizon": self.horizon,
            "discount": self.discount,
            "behavior_value": self.behavior_value,
            "diagnostics": self.diagnostics.to_dict(),
            "sql": self.sql,
        }

    def _gain_json(self, gain: Gain) -> dict[str, Any]:
        around = self.gain_interval
        return gain.to_dict() | {"interval": None if around is None else around.to_dict()}

    def row(self) -> dict[str, Any]:
        """One row of a frame, in the names of R's broom; None where there is no value. `p_value` is
        that of "not better than the behavior"."""
        low, high, level = _ends(self.interval)
        gain_low, gain_high, _ = _ends(self.gain_interval)
        gain = self.tested_gain
        return {
            "estimator": self.estimator,
            "estimate": self.value,
            "std_error": self.error,
            "conf_low": low,
            "conf_high": high,
            "level": level,
            "p_value": None if gain is None else finite_or_none(gain.p_value),
            "ess": self.ess,
            "trusted": self.trusted,
            "verdict": self.level,
            "reasons": ", ".join(self.reasons),
            "behavior_value": self.behavior_value,
            "gain": self.gain,
            "gain_low": gain_low,
            "gain_high": gain_high,
            "n_episodes": self.n_episodes,
            "horizon": self.horizon,
            "refused": None if self.refused is None else self.refused.reason,
        }


def _ends(interval: Interval | None) -> tuple[float | None, float | None, float | None]:
    """Low, high and level."""
    return (None, None, None) if interval is None else (interval.low, interval.high, interval.level)


def refusal_json(error: RefusedError) -> dict[str, Any]:
    return {"refused": {"code": error.code, "reason": error.reason}}


@dataclass(frozen=True)
class Change:
    """A changed choice, the value then, and by how much it moved; None with the reason, where the
    estimator refuses."""

    change: str
    value: float | None
    moved: float | None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "change": self.change,
            "value": self.value,
            "moved": self.moved,
            "why": self.why,
        }


@dataclass(frozen=True)
class GroupTable:
    """The answer by groups of episodes, as texts; `lines` stand below the table."""

    column: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Report:
    """An evaluation by several estimators with all that a report shows; a part that was not
    computed is Missing, with the reason.

    target     the policy in words
    results    one per estimator, in the requested order; `answer` is the place of the one whose
               number is the answer, None where every estimator refused
    changes    the answer under other choices
    confounding  the bounds if hidden causes moved the logged actions
    truth      the true value where a simulation knows it
    log        the log, as it describes itself; hashes: of the log and of the target
    unit       what the value is per
    tried      estimators that advice names, evaluated only to know whether they can answer
    """

    title: str
    target: str
    n_episodes: int
    horizon: int
    discount: float
    results: tuple[Evaluation, ...]
    answer: int | None
    weights: Weights | Missing
    heat: Heat | Missing
    value: ValueParts | Missing
    variance: Decomposition | Missing
    unlogged: Unlogged | Missing
    changes: tuple[Change, ...] | Missing
    confounding: Confounding | Missing
    log: Mapping[str, Any]
    hashes: Facts = ()
    truth: float | None = None
    command: str | None = None
    certificate: str | None = None
    remarks: tuple[str, ...] = ()
    unit: str = PER_EPISODE
    tried: tuple[Evaluation, ...] = ()
    groups: GroupTable | None = None

    @property
    def main(self) -> Evaluation | None:
        return None if self.answer is None else self.results[self.answer]

    @cached_property
    def rows(self) -> tuple[Evaluation, ...]:
        return ranked(self.results, self.answer)


def ranked(results: Sequence[Evaluation], answer: int | None) -> tuple[Evaluation, ...]:
    """The answer first, then by their verdicts, those of one verdict in the requested order. The
    same estimator may be there twice, with other options: the later ones are numbered."""
    order = {"green": 0, "amber": 1, "red": 2}
    places = range(len(results))
    count: dict[str, int] = {}
    rows = []
    for k in sorted(places, key=lambda k: (k != answer, order.get(results[k].level or "", 3))):
        e = results[k]
        times = count[e.label] = count.get(e.label, 0) + 1
        rows.append(e if times == 1 else replace(e, label=f"{e.label} #{times}"))
    return tuple(rows)


def error_beside(standard_error: float | None, interval: Interval | None) -> float | None:
    """The error to show beside an interval: that of the episodes, where this made it wider than
    the estimate's `standard_error`."""
    if (
        standard_error is None
        or interval is None
        or not interval.method.startswith(("cluster", "jackknife"))
    ):
        return standard_error
    return interval.standard_error
