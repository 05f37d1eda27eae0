"""Gates: what must hold before an estimate is to be believed, and what to do where it does not.

Every gate is computed on un-normalised quantities, because normalising hides missing overlap. The
limits stand in `limits.py`, the gates of what was logged, and how, in `log_gates.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.trust.assumption_words import WORDS
from reweigh.trust.assumptions import Outcome
from reweigh.trust.decisive import Decisive
from reweigh.trust.limits import LIMITS, MATERIAL, Kind, Level, Limit, limit_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gate:
    """One question about an estimate, and its answer.

    value     what was judged, None where it could not be computed (level "unknown", `text` why)
    per_step  (H,) the same step by step, where that has a meaning
    step, state, action  where it is worst
    limit     from where on it is amber or red
    text      what was found, in words; advice: what to do about it

    What is asked of the log or of the estimate as a whole belongs to no step: episodes, hidden
    states, cut-off episodes, estimated propensities, dependence, decisive episodes, interval, and
    steadiness, which compares the steps. Drift is judged by whole returns, and told of the rewards
    of each step. Pareto k is of the whole products, which the last step completes.
    """

    name: str
    level: Level
    value: float | None
    text: str
    advice: str = ""
    limit: str = ""
    per_step: Floats | None = None
    step: int | None = None
    state: str | None = None
    action: str | None = None

    @property
    def sentence(self) -> str:
        """What was found, and what to do about it."""
        return f"{self.text}; {self.advice}" if self.advice else self.text

    def to_dict(self) -> dict[str, Any]:
        per_step = None
        if self.per_step is not None:
            per_step = [None if not math.isfinite(v) else v for v in self.per_step.tolist()]
        return {
            "name": self.name,
            "level": self.level,
            "value": self.value,
            "text": self.text,
            "advice": self.advice,
            "limit": self.limit,
            "per_step": per_step,
            "step": self.step,
            "state": self.state,
            "action": self.action,
        }


DECISIVE = "decisive episodes"
ROUNDING = 1e-6  # what it leaves of a spread, which is a difference of sums of squares
NEARLY_ALL = 0.9  # of the episodes: then it is not the target that is far


def unknown(name: str, why: str) -> Gate:
    return Gate(name, "unknown", None, why)


def gate(
    name: str,
    value: float | None,
    text: str,
    advice: str,
    *,
    kind: Kind = "states",
    **where: Any,
) -> Gate:
    """The gate of this name, judged by its limit; a value that is no number is unknown."""
    limit = limit_of(name, kind)
    if value is None or not math.isfinite(value):
        return unknown(name, text)
    level = limit.judge(value)
    return Gate(name, level, value, text, "" if level == "green" else advice, str(limit), **where)


def place_in_words(step: int, state: str | None = None, action: str | None = None) -> str:
    """A place in words, as far as it is known."""
    text = f"step {step}" if state is None else f"step {step} in state {state}"
    return text if action is None else f"{text}, action {action}"


def with_place(found: Gate, most: str = "most") -> Gate:
    """With its place in words, where it speaks against the estimate."""
    if found.step is None or found.level not in ("amber", "red"):
        return found
    place = place_in_words(found.step, found.state, found.action)
    return replace(found, text=f"{found.text}, {most} at {place}")


def support(
    unseen: Floats | None,
    *,
    from_model: bool,
    max_ratio: float | None = None,
    name: str = "support",
    state: str | None = None,
    action: str | None = None,
) -> Gate:
    """Target mass that reaches what the log never shows: summed over the steps. The products'
    own cannot tell: "marginal support" is that of the marginal weights on the same log. `state` and
    `action` are where the worst step loses the most."""
    if unseen is None:
        return unknown(name, "this estimator has no state distribution; see marginal support")
    total, step = float(unseen.sum()), int(np.argmax(unseen))
    if total <= 0:
        return gate(name, 0.0, "the log shows all that the target does", "", per_step=unseen)
    why = "the log does not show what it would do there"
    if not from_model:
        why += ", or the propensities are too large"
        if max_ratio is not None:
            why += f", or the clipping of ratios at {max_ratio:g} has cut it away"
    return gate(
        name,
        total,
        f"{total:.1%} of the target's mass is lost, most of it at "
        f"{place_in_words(step, state, action)} ({why})",
        "the value cannot speak for that part; ask for a target nearer to the behaviour, a coarser "
        "state, or log more there",
        kind="model" if from_model else "states",
        per_step=unseen,
        step=step,
        state=state,
        action=action,
    )


def effective_size(ess: Floats, n: int, kind: Kind = "states") -> Gate:
    """The smallest effective number of episodes over the steps."""
    if not np.any(np.isfinite(ess)):
        return unknown("effective size", "no step has weights to judge")
    step = int(np.nanargmin(ess))
    return gate(
        "effective size",
        float(ess[step]),
        f"{ess[step]:,.0f} of {n:,} episodes speak for the target at step {step}",
        "log more episodes"
        if ess[step] > NEARLY_ALL * n
        else "log more episodes, shorten the horizon, or ask for a target nearer to the behaviour",
        kind=kind,
        per_step=ess,
        step=step,
    )


def marginal_size(ess: Floats, n: int) -> Gate:
    """The same of the marginal weights: products vary more than these, so that a larger size of
    theirs only says that the log does not show their tail."""
    if not np.any(np.isfinite(ess)):
        return unknown("marginal size", "no step has weights to judge")
    step = int(np.nanargmin(ess))
    return gate(
        "marginal size",
        float(ess[step]),
        f"with marginal weights {ess[step]:,.0f} of {n:,} episodes speak for the target at step "
        f"{step}",
        "running products cannot have more: log more episodes, or use mis",
        per_step=ess,
        step=step,
    )


def rare_states(
    share: float | None,
    ess: Floats,
    state: str | None,
    step: int | None,
    *,
    from_model: bool,
    per_state: bool = False,
    per_step: Floats | None = None,
    action: str | None = None,
) -> Gate:
    """Target mass on (t, s), of a model on (t, s, a), seen fewer than 10 times: the mean over the
    steps. Without a model, and without weights that are normalised within a state, which few rows
    bias, it is red only with few effective episodes."""
    if share is None:
        return unknown("rare states", "this estimator has no state distribution")
    what = "states and actions" if from_model else "states"
    found = gate(
        "rare states",
        share,
        f"{share:.1%} of the target's mass is on {what} seen fewer than 10 times at their step",
        "a coarser state would help",
        kind="model" if from_model else "states",
        per_step=per_step,
        step=step,
        state=state,
        action=action,
    )
    found = with_place(found)
    least = np.nanmin(ess) if np.any(np.isfinite(ess)) else 0.0
    few = LIMITS["effective size"].judge(float(least)) == "red"
    if found.level == "red" and not (from_model or per_state or few):
        return replace(found, level="amber")
    return found


def total_mass(mass: Floats | None) -> Gate:
    """Σ_s d_t(s) of the un-normalised recursion, which should be 1: a hint, never more."""
    if mass is None or not np.any(np.isfinite(mass)):
        return unknown("total mass", "this estimator has no state distribution")
    off = np.abs(mass - 1)
    step = int(np.nanargmax(off))
    if not math.isfinite(off[step]):
        why = f"the target's mass at step {step} is beyond what a number can hold"
        return unknown("total mass", why)
    if off[step] <= ROUNDING:  # that of a recursion that is normalised within states
        text = "the target's mass is 1 at every step"
        return gate("total mass", 0.0, text, "", per_step=mass)
    found = gate(
        "total mass",
        float(off[step]),
        f"before normalising, the target's mass at step {step} is {mass[step]:.3g} instead of 1",
        "large weights, or propensities that are not those of the log",
        per_step=mass,
        step=step,
    )
    return replace(found, level="amber") if found.level == "red" else found


def heaviest_episode(share: Floats | None, ess: Floats) -> Gate:
    """The share of the weight that one episode holds, of estimators with running products: at the
    step with the fewest effective episodes."""
    if share is None or not np.any(np.isfinite(ess)):
        return unknown("heaviest episode", "no episode has a weight of its own here")
    step = int(np.nanargmin(ess))
    return gate(
        "heaviest episode",
        float(share[step]),
        f"one episode holds {share[step]:.1%} of the weight at the worst step, {step}",
        "the interval is not to be trusted: use mis, or certify() for a bound that holds",
        per_step=share,
        step=step,
    )


def pareto_k(k: float | None, n: int, why: str, step: int | None = None) -> Gate:
    """The tail of the weights at this step: above min(1 - 1/log10 n, 0.7) their mean is slow to
    settle."""
    if k is None:
        return unknown("Pareto k", why)
    limit = Limit(min(1 - 1 / math.log10(max(n, 11)), 0.7), LIMITS["Pareto k"].red)
    level = limit.judge(k)
    advice = (
        "" if level == "green" else "their mean is slow to settle: use mis, or log more episodes"
    )
    text = f"the weights' tail has the shape k = {k:.2f}"
    return Gate("Pareto k", level, k, text, advice, str(limit), step=step)


def _p_text(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-16 else "p < 1e-16"


def assumption(name: str, test: Outcome, state: str | None = None) -> Gate:
    """The gate of an assumption's p-value; with its place in words where there are some for it."""
    if test.p is None:
        return unknown(name, test.why)
    words = WORDS[name]
    fine = LIMITS[name].judge(test.p) == "green"
    untold = f"; by step it is not told: {test.why}" if test.why else ""
    found = gate(
        name,
        test.p,
        f"{words['text' if fine else 'bad']} ({_p_text(test.p)}{untold})",
        words["advice"],
        per_step=test.per_step,
        step=test.step,
        state=state,
    )
    return with_place(found, words["most"]) if "most" in words else found


ABSURD = 1e3  # times what it should be: no luck, whatever its error is
LOST = (
    "check that the log shows what the target does, and that the propensities are not too large; "
    "clipped ratios lose mass too"
)
GAINED = "check that the propensities are those of the logged actions: some are too small"
LOST_BY_MODEL = "the target takes actions that the log never shows there: log them, or use mis"


def placebo(
    value: float,
    error: float | None,
    expected: float,
    per_step: Floats | None = None,
    step: int | None = None,
    *,
    from_model: bool = False,
) -> Gate:
    """The value if every reward were 1, END included, which is known: off by how many errors? Per
    step what it adds to that value, which should be γ^t; `step` is the one that is most off."""
    off = abs(value - expected)
    lost = value < expected
    advice = (LOST_BY_MODEL if from_model else LOST) if lost else GAINED
    if error is None or not math.isfinite(value) or not math.isfinite(error):
        if not off > ABSURD * expected:
            return unknown("placebo", "the placebo has no error here")
        number = "a number beyond all measure" if not math.isfinite(value) else f"{value:.2g}"
        text = f"the target gains mass: a constant reward of 1 gives {number} instead of "
        return Gate("placebo", "red", None, f"{text}{expected:g}", GAINED, str(LIMITS["placebo"]))
    # What a model has not seen is known to be missing, without luck: "support" judges it.
    fine = LIMITS["support, model"].amber if from_model else None
    if off <= max(fine or 0.0, 1e-9) * expected:
        text = f"a constant reward of 1 gives {value:.4g}, as it must"
        return gate("placebo", 0.0, text, "", per_step=per_step)
    errors = off / max(error, 1e-9 * expected)  # without any spread only rounding is luck
    right = LIMITS["placebo"].judge(errors) == "green"
    found = gate(
        "placebo",
        errors,
        ("" if right else f"the target {'loses' if lost else 'gains'} mass: ")
        + f"a constant reward of 1 gives {value:.4g} instead of {expected:g} (error "
        f"{error:.2g})",
        advice,
        per_step=per_step,
        step=step,
    )
    found = with_place(found, "furthest off")
    # Many episodes find what rounded propensities do: to be red, it must also matter.
    immaterial = found.level == "red" and off < MATERIAL * expected
    return replace(found, level="amber") if immaterial else found


def episodes(n: int, kind: Kind = "states") -> Gate:
    return gate(
        "episodes",
        float(n),
        f"{n:,} episodes" if n != 1 else "one episode",
        "an interval from so few is not to be trusted: log more episodes",
        kind=kind,
    )


def decisive_episodes(found: Decisive) -> Gate:
    """On how many episodes the error rests."""
    share = f"episode {found.episode} has {found.share:.0%} of it"
    few = LIMITS[DECISIVE].judge(found.size) != "green"
    one = f"{found.size:.0f} episode{'' if round(found.size) == 1 else 's'}"
    return gate(
        DECISIVE,
        found.size,
        f"the error rests on about {one}: {share}, and without it the value would move by about "
        f"{found.moved:+.3g}"
        if few
        else f"the error rests on many episodes: {share}",
        "an interval from so few is not to be trusted: check the rewards of that episode, or log "
        "more of what is rare",
    )


def hidden(there: bool) -> Gate:
    """A model takes the hidden state for a state like any other; MIS and running products do not
    look at it."""
    return gate(
        "hidden states",
        float(there),
        "some states are hidden, and a model takes them for one state"
        if there
        else "no state is hidden",
        "use mis, which sees a hidden stretch as one long step",
    )


def stationarity(gap: float, **where: Any) -> Gate:
    """SSD-IS gives every step the distribution of the long run. By how much those of the steps
    differ MIS tells, luck included: without a great many episodes this is red."""
    found = gate(
        "stationarity",
        gap,
        "every step is taken to have the same distribution of states, and by mis they are "
        f"{gap:.1%} from their mean (total variation, on average over the steps)",
        "use mis, which needs no such assumption",
        **where,
    )
    return with_place(found)


def cut_off(share: float) -> Gate:
    """Episodes cut off before a state that is not known, while others end: these are overrated."""
    return gate(
        "cut-off episodes",
        share,
        f"{share:.1%} of the episodes were cut off, nobody knows before which state, and others "
        "ended: the chance of ending is overestimated",
        "give next_state, the state after the last row too",
    )


def no_interval(why: str) -> Gate:
    """An estimate of which nobody can say how sure it is."""
    return gate(
        "interval",
        1.0,
        f"there is no interval: {why}",
        "do not take the value for exact: what was not seen has no spread",
    )
