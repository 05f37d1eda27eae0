"""What an estimate's own numbers give rise to: warnings, and questions that no data answers."""

from __future__ import annotations

import numpy as np

from reweigh.errors import (
    InputWarning,
    LowOverlapWarning,
    PlaceboWarning,
    RefusedError,
    SelectionWarning,
    SmallSampleWarning,
    nearest,
)
from reweigh.estimators.weights import Solution
from reweigh.logs.log import EpisodeLog
from reweigh.logs.states import Labels
from reweigh.moments.bundle import Moments
from reweigh.moments.visits import visits_of
from reweigh.policies.base import Policy
from reweigh.policies.table import TablePolicy

FEW_EPISODES = 30
FEW_EFFECTIVE = 30
MUCH_UNSEEN = 0.01  # of the target's mass
MUCH_RARE = 0.05  # of the target's mass, on states seen fewer than 10 times
FAR_OFF = 4.0  # standard errors of the placebo
LONG_SINGLE_EPISODE = 1000  # rows


def unlogged_actions(log: EpisodeLog, target: Policy) -> list[Warning]:
    """A target that takes actions which no episode shows: a misspelled name, or no support."""
    return _unlogged_remark(target.unlogged_actions(log), log.actions)


def unlogged_in_sums(moments: Moments, target: Policy) -> list[Warning]:
    """The same from sums, whose states the target knows; only a table lists its actions."""
    visits = visits_of(moments)
    if visits is None or moments.actions is None or not isinstance(target, TablePolicy):
        return []
    every = target._entries.actions
    shares = {}
    for code in np.flatnonzero(moments.actions.translate(every) < 0).tolist():
        action = np.full(len(visits.n), code)
        prob, _ = target.find(moments.states, visits.state, visits.step, action)
        shares[str(every.values[code])] = float(prob @ visits.n / visits.n.sum())
    return _unlogged_remark({a: share for a, share in shares.items() if share > 0}, moments.actions)


def _unlogged_remark(found: dict[str, float], actions: Labels | None) -> list[Warning]:
    """`found` tells how often the target takes an action that is none of `actions`."""
    if not found or actions is None:
        return []
    shown = [str(value) for value in actions.values]
    listed = ", ".join(
        f"{action!r} ({share:.0%} of the time{nearest(action, shown)})"
        for action, share in list(found.items())[:5]
    )
    return [
        LowOverlapWarning(
            f"the target takes actions that the log never shows: {listed}; the log's actions are "
            f"{', '.join(map(repr, shown[:10]))}{', …' if len(shown) > 10 else ''}"
        )
    ]


def hopeless(log: EpisodeLog, target: Policy) -> RefusedError | None:
    """Questions that no estimator can answer."""
    rows = log.steps.n_rows
    if log.n_episodes == 1 and rows > LONG_SINGLE_EPISODE:
        return _one_episode(rows)
    mu = log.steps.behavior_prob
    if log.continuous_actions or mu is None or not np.all(mu == 1.0):
        return None
    return None if np.all(target.probabilities(log) == 1.0) else _deterministic()


def hopeless_sums(moments: Moments) -> RefusedError | None:
    """The same from sums: no probability exceeds 1, so a mean of 1 says that all are."""
    cells = moments.model if moments.model is not None else moments.transitions
    if cells is None:
        return None
    rows = int(cells.n.sum())
    if moments.n_episodes == 1 and rows > LONG_SINGLE_EPISODE:
        return _one_episode(rows)
    if moments.about.continuous_actions or float(cells.mu.sum()) != rows:
        return None
    return None if float(cells.pi.sum()) == rows else _deterministic()


def _one_episode(rows: int) -> RefusedError:
    return RefusedError(
        "one-episode",
        f"1 episode of {rows:,} rows: episodes are the sample, and there is one. Check the "
        "episode column",
    )


def _deterministic() -> RefusedError:
    return RefusedError(
        "deterministic-log",
        "behavior_prob is 1 in every row: the log was made by a deterministic policy, or the "
        "propensities were not logged. Log them, or estimate them with fit_behavior(log)",
    )


def remarks(solution: Solution, used: Moments) -> list[Warning]:
    """Warnings that the numbers themselves give rise to."""
    found = _about_the_log(solution, used)
    n = used.n_episodes
    if n < FEW_EPISODES:  # too few for the warnings below to mean anything
        text = f"{n} episodes: the interval is not to be trusted below {FEW_EPISODES}"
        if n < 2:
            text = "one episode: there is a value, but no interval"
        return [*found, SmallSampleWarning(text), *_unseen_remark(solution, used)]
    low = _effective_remark(solution, n)
    if solution.rare_mass is not None and solution.rare_mass > MUCH_RARE:
        found.append(
            LowOverlapWarning(
                f"{solution.rare_mass:.0%} of the target's mass is on states that the log shows "
                "fewer than 10 times at their step: the estimate rests on few rows there. "
                "Coarser states would help"
            )
        )
    found += low + _unseen_remark(solution, used)
    # With few effective episodes the placebo's own error means nothing.
    return found if low else found + _placebo_remark(solution, used)


def _about_the_log(solution: Solution, used: Moments) -> list[Warning]:
    found: list[Warning] = []
    if used.truncated:
        found.append(
            SelectionWarning(
                f"{used.truncated:,} of {used.n_episodes:,} episodes were cut off and are used up "
                "to there, which is right only if being cut off does not depend on what would "
                "have followed"
            )
        )
    at = solution.normalized_at
    if at is not None and not at.all():
        found.append(
            InputWarning(
                f"states are hidden: the target's distribution is normalised at {int(at.sum())} of "
                f"{len(at)} steps, where every living episode is observed"
            )
        )
    return found


def _effective_remark(solution: Solution, n: int) -> list[Warning]:
    sizes = solution.ess
    if np.all(np.isnan(sizes)) or np.nanmin(sizes) >= FEW_EFFECTIVE:
        return []
    worst = int(np.nanargmin(sizes))
    one = ""
    if solution.heaviest is not None:
        one = f", and one episode holds {solution.heaviest:.0%} of the weight"
    return [
        LowOverlapWarning(
            f"at step {worst} the effective sample size is {sizes[worst]:.1f} of {n:,} "
            f"episodes{one}: few of them speak for the target policy"
        )
    ]


def _unseen_remark(solution: Solution, used: Moments) -> list[Warning]:
    if solution.unseen_mass is None or solution.unseen_mass.sum() <= MUCH_UNSEEN:
        return []
    worst = int(np.argmax(solution.unseen_mass))
    why = "the log does not show what it would do there"
    if not solution.from_model:
        why += ", or the propensities are too large"
        if used.about.max_ratio is not None:
            why += f", or the clipping of ratios at {used.about.max_ratio:g} has cut it away"
    return [
        LowOverlapWarning(
            f"{solution.unseen_mass.sum():.1%} of the target's mass is lost, most of it at "
            f"step {worst}: {why}. The value cannot speak for that part"
        )
    ]


def _placebo_remark(solution: Solution, used: Moments) -> list[Warning]:
    expected = float(np.sum(used.about.discount ** np.arange(used.about.horizon)))
    off = abs(solution.placebo - expected)
    if solution.from_model or solution.placebo_error is None:
        return []
    if not np.isfinite(solution.placebo) or not np.isfinite(solution.placebo_error):
        return []
    if off <= FAR_OFF * solution.placebo_error or off < 0.01 * expected:
        return []
    return [
        PlaceboWarning(
            f"if every reward were 1 the value would be {expected:g}, and the estimate of that is "
            f"{solution.placebo:.4g} (error {solution.placebo_error:.2g}): the ratios do not "
            f"average to 1. {'They were clipped. ' if used.about.max_ratio else ''}Check the "
            "propensities and the names of the actions"
        )
    ]
