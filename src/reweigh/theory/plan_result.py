"""A plan: its goal, the episodes every estimator needs, and the plan as text of 80 columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from reweigh.errors import RefusedError, check
from reweigh.show.record import refusal_json
from reweigh.show.text import by_text, columns_of, display_names, wrapped
from reweigh.system import number, rounded, two_digits
from reweigh.trust.breakdown import Decomposition

NORMAL = NormalDist()
WIDTH = 80
MOST_PAIRS, MOST_STEPS = 8, 5
WANTED = (
    "wanted/logged: the optimal share of a step's visits (the target's mass times the spread "
    "there) over the share in the log; above 1, more data there helps most"
)


@dataclass(frozen=True)
class Goal:
    """The goal: a half-width, or a difference to detect with some power."""

    level: float
    half_width: float | None = None
    difference: float | None = None
    power: float | None = None

    @property
    def quantile(self) -> float:
        return NORMAL.inv_cdf(0.5 + self.level / 2)

    def episodes(self, variance: float) -> int:
        """n, at least 1."""
        z = self.quantile if self.power is None else self.quantile + NORMAL.inv_cdf(self.power)
        size = self.half_width or self.difference or 0.0
        root = math.sqrt(variance) * z / size
        if not root < 1e150:
            raise RefusedError("too-many", "the number of episodes needed overflows floating point")
        return max(math.ceil(root * root), 1)

    def reached(self, variance: float, n: float) -> float:
        """What n episodes give: the half-width, or the power (of both sides)."""
        error = math.sqrt(variance / n)
        if self.difference is None:
            return self.quantile * error
        if error == 0:
            return 1.0
        z, shift = self.quantile, self.difference / error
        return NORMAL.cdf(shift - z) + NORMAL.cdf(-shift - z)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Need:
    """The episodes one estimator needs; if it refuses, `refused` has the reason.

    episodes    n
    variance    σ², per episode: of the value, or of the difference to the behavior
    times       n as a multiple of the reference's
    value       of the pilot, or exact
    difference  value less the behavior's (None if unknown)
    now         half-width or power that the pilot itself has; None for a world
    ess         effective number of the pilot's episodes at the worst step
    """

    estimator: str
    episodes: int | None = None
    variance: float | None = None
    times: float | None = None
    value: float | None = None
    difference: float | None = None
    now: float | None = None
    ess: float | None = None
    refused: RefusedError | None = None
    warnings: tuple[Warning, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name != "refused"}
        plain["warnings"] = [str(warning) for warning in self.warnings]
        return plain if self.refused is None else plain | refusal_json(self.refused)


@dataclass(frozen=True, eq=False)
class Plan:
    """How many episodes every estimator needs, and where the variance comes from.

    reference       the estimator that the others are compared with: mis, or the first with a result
    source          "log", "moments" or "world"
    pilot_episodes  None for a world
    """

    goal: Goal
    needs: tuple[Need, ...]
    reference: str
    source: str
    pilot_episodes: int | None
    horizon: int
    decomposition: Decomposition | None
    warnings: tuple[Warning, ...] = ()

    def need(self, estimator: str) -> Need:
        by_name = {need.estimator: need for need in self.needs}
        check(estimator in by_name, "estimator", f"one of {', '.join(by_name)}", estimator)
        return by_name[estimator]

    @property
    def episodes(self) -> int:
        """What the reference needs."""
        episodes = self.need(self.reference).episodes
        assert episodes is not None
        return episodes

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `reweigh plan --json` prints them."""
        return {
            "goal": self.goal.to_dict(),
            "source": self.source,
            "pilot_episodes": self.pilot_episodes,
            "horizon": self.horizon,
            "reference": self.reference,
            "episodes": self.episodes,
            "estimators": [need.to_dict() for need in self.needs],
            "decomposition": None if self.decomposition is None else self.decomposition.to_dict(),
            "warnings": [str(warning) for warning in self.warnings],
        }

    def chart(self) -> Any:
        """An Altair chart: what n episodes give, and where the variance comes from."""
        from reweigh.theory.plan_chart import plan_chart

        return plan_chart(self)

    def __str__(self) -> str:
        return plan_text(self)

    __repr__ = __str__


def plan_text(plan: Plan, words: Callable[[str], str] = str) -> str:
    """The tables of a plan, and its remarks, each of them put through `words` before wrapping."""
    lines = [question(plan.goal), source(plan), "", *_needs(plan)]
    lines += _wrapped(_goal_lines(plan, plan.need(plan.reference)))
    if plan.decomposition is not None:
        lines += ["", *_decomposition(plan, plan.decomposition)]
    notes = _wrapped(words(line) for line in remarks(plan))
    return "\n".join([*lines, *([""] if notes else []), *notes])


def question(goal: Goal) -> str:
    level, power = (
        f"{share:.4%}".rstrip("0%").rstrip(".") for share in (goal.level, goal.power or 0.0)
    )
    if goal.half_width is not None:
        return f"Episodes for a {level} % interval of half-width {number(goal.half_width)}"
    return (
        f"Episodes to detect a difference of {number(goal.difference)} to the behavior "
        f"({level} %, power {power} %)"
    )


def origin(plan: Plan, parts: Decomposition) -> str:
    whose = "" if plan.goal.half_width is not None else "'s difference"
    return f"Where the variance of {parts.estimator}{whose} comes from"


def remarks(plan: Plan) -> list[str]:
    """Refusals and warnings, the same text once with all its estimators."""
    texts = []
    for need in plan.needs:
        if need.refused is not None:
            texts.append((need.estimator, f"refused ({need.refused.code}): {need.refused.reason}"))
        texts += [(need.estimator, f"! {warning}") for warning in need.warnings]
    listed = [f"{', '.join(names)}: {text}" for text, names in by_text(texts).items()]
    return [*(f"! {warning}" for warning in plan.warnings), *listed]


def source(plan: Plan) -> str:
    """What the plan is made from."""
    if plan.pilot_episodes is None:
        return f"exact, from the world (horizon {plan.horizon})"
    kind = "a pilot" if plan.source == "log" else "the sums of a pilot"
    return f"from {kind} of {plan.pilot_episodes:,} episodes (horizon {plan.horizon})"


def _needs(plan: Plan) -> list[str]:
    goal, pilot = plan.goal, plan.pilot_episodes is not None
    head = ["estimator", "episodes", f"times {plan.reference}", "sd/episode"]
    if pilot:
        head += ["± now" if goal.half_width is not None else "power now", "ESS"]
    rows = [head]
    for need in plan.needs:
        if need.variance is None or need.times is None:
            rows.append([need.estimator, "refused", *[""] * (len(head) - 2)])
            continue
        times = f"{need.times:,.1f}" if 0.05 <= need.times < 1e6 else f"{need.times:.1e}"
        name = need.estimator + (" !" if need.warnings else "")
        row = [name, episodes_text(need), times, number(need.variance**0.5)]
        if pilot:
            now = number(need.now) if goal.half_width is not None else f"{need.now:.1%}"
            row += [now, "none" if need.ess is None else f"{need.ess:,.0f}"]
        rows.append(row)
    return _table(rows, left=(0,))


def _goal_lines(plan: Plan, base: Need) -> list[str]:
    """The goal relative to the estimated numbers."""
    goal, pilot, name = plan.goal, plan.pilot_episodes, base.estimator
    lines = []
    if goal.half_width is not None:
        whose = "the" if pilot is None else f"{name}'s"
        line = f"{whose} value is {number(base.value)}"
        if base.value:
            share = two_digits(100 * goal.half_width / abs(base.value))
            line += f"; the half-width is {share} % of it"
        lines.append(line)
    elif base.difference is not None and pilot is None:
        lines.append(f"the difference is {base.difference:+.4g}")
    elif base.difference is not None and pilot is not None and base.variance is not None:
        margin = goal.quantile * (base.variance / pilot) ** 0.5
        difference = f"{rounded(base.difference, margin / 2)} ± {two_digits(margin)}"
        lines.append(f"the pilot's difference ({name}): {difference}")
    if pilot is not None and plan.episodes > pilot:
        lines.append(f"{name} needs {_count(plan.episodes - pilot)} more than the pilot has")
    elif pilot is not None:
        lines.append(f"the pilot is enough for {name}")
    return lines


def _decomposition(plan: Plan, parts: Decomposition) -> list[str]:
    logged = "log there" if plan.pilot_episodes is not None else "behavior there"
    head = ["step", "state", "variance", "target there", logged]
    by_state = dict(list(parts.by_state().items())[:MOST_STEPS])
    names = display_names([*parts.state[:MOST_PAIRS], *by_state])
    rows = [
        [
            str(parts.step[k]),
            names[parts.state[k]],
            f"{parts.share[k]:.1%}",
            f"{parts.target[k]:.1%}",
            f"{parts.visits[k]:.1%}",
        ]
        for k in range(min(MOST_PAIRS, len(parts.state)))
    ]
    if parts.wanted is not None:
        head.append("wanted/logged")
        rows = [[*row, f"{parts.wanted[k]:.2f}"] for k, row in enumerate(rows)]
    empty = [""] * (len(head) - 3)
    rest = len(parts.state) - MOST_PAIRS
    if rest > 0:
        share = float(parts.share[MOST_PAIRS:].sum())
        rows.append(["", f"{rest:,} others", f"{share:.1%}", *empty])
    rows.append(["", "the first state", f"{parts.start:.1%}", *empty])
    lines = [origin(plan, parts), *_table([head, *rows], left=(1,))]
    heavy = parts.heaviest_steps(MOST_STEPS).tolist()
    steps = ", ".join(f"{t} ({parts.by_step[t]:.1%})" for t in heavy)
    states = ", ".join(f"{names[name]} ({share:.1%})" for name, share in by_state.items())
    sentences = [f"by step: {steps}", f"by state: {states}"]
    if parts.wanted is not None:
        sentences.append(WANTED)
    return lines + _wrapped(sentences)


def episodes_text(need: Need) -> str:
    assert need.episodes is not None
    return _count(need.episodes)


def _count(n: int) -> str:
    return f"{n:,}" if n < 10**10 else f"{n:.2e}"


def _table(rows: list[list[str]], left: Sequence[int]) -> list[str]:
    return [f"  {line}" for line in columns_of(rows, left)]


def _wrapped(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in wrapped(text, WIDTH, "  ")]
