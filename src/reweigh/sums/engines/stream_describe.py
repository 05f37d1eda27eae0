"""What a streamed log is, as plain values: the counts and ranges of one scan."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.log.log import SHOWN_LABELS, EpisodeLog
from reweigh.log.states import HIDDEN, Label, describe_abstraction
from reweigh.sums.engines.stream_chunks import Findings
from reweigh.sums.engines.stream_unordered import LooseSteps
from reweigh.sums.scanned_log import Reading


class Tally:
    """Counts of the chunks of a log, under the names of `EpisodeLog.describe`."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.clear()

    def clear(self) -> None:
        self.episodes = self.rows = self.hidden = self.ended_early = self.truncated = 0
        self.discounted = 0.0
        self.states: set[Label] = set()
        self.actions: set[Label] = set()
        self.reward, self.behavior = [np.inf, -np.inf], [np.inf, -np.inf]

    def add(self, log: EpisodeLog) -> None:
        steps = log.steps
        short = steps.lengths < log.horizon
        self._rows(log)
        self.episodes += log.n_episodes
        self.truncated += log.n_truncated
        self.ended_early += int(np.sum(short & ~steps.truncated))

    def add_loose(self, log: EpisodeLog) -> None:
        steps = log.steps
        assert isinstance(steps, LooseSteps)
        self._rows(log)
        first, cut = steps.rows(0), int(steps.cut_early.sum())
        self.episodes += first.stop - first.start
        self.truncated += cut
        over = (steps.following < 0) & (steps.step < log.horizon - 1) & ~steps.cut_early
        self.ended_early += int(over.sum())

    def _rows(self, log: EpisodeLog) -> None:
        steps = log.steps
        self.rows += steps.n_rows
        self.hidden += int(np.sum(steps.state == HIDDEN))
        self.states.update(log.states.values)
        self.actions.update(() if log.actions is None else log.actions.values)
        self.discounted += float(np.dot(steps.reward, log.discount ** steps.step.astype(float)))
        for ends, values in ((self.reward, steps.reward), (self.behavior, steps.behavior_prob)):
            if values is not None and len(values):
                ends[:] = min(ends[0], float(values.min())), max(ends[1], float(values.max()))

    def described(self, source: str, horizon: int, found: Findings) -> dict[str, Any]:
        reading = self.reading
        shown = self.states - {None}
        states = sorted(shown & found.own) + sorted(shown - found.own)  # type: ignore[type-var]
        actions = sorted(self.actions)  # type: ignore[type-var]
        discrete = not reading.continuous_actions
        notes = []
        if found.rows > self.rows:
            later = found.rows - self.rows
            notes.append(f"cut at the horizon {horizon}: {later:,} later rows are not used")
        if 2 * len(found.own) > self.rows:
            notes.append(
                f"{len(found.own):,} states for {self.rows:,} rows: most are seen once; "
                "bin them (abstraction=Rounding or Grid)"
            )
        if self.truncated:
            ending = "s" if self.truncated != 1 else ""
            notes.append(
                f"mean_return counts only what was logged of the {self.truncated:,} cut-off "
                f"episode{ending}"
            )
        notes += found.seen.unchecked
        logged = reading.columns.behavior_prob is not None
        return {
            "source": source,
            "episodes": self.episodes,
            "rows": self.rows,
            "horizon": horizon,
            "discount": reading.discount,
            "states": len(states),
            "state_examples": [str(label) for label in states[:SHOWN_LABELS]],
            "state_columns": list(reading.columns.state),
            "abstraction": describe_abstraction(reading.abstraction),
            "actions": len(actions) if discrete else None,
            "action_examples": [str(a) for a in actions[:SHOWN_LABELS]] if discrete else None,
            "continuous_actions": reading.continuous_actions,
            "hidden_rows": self.hidden,
            "terminated_early": self.ended_early,
            "truncated": self.truncated,
            "reward_range": self.reward,
            "behavior_prob_range": self.behavior if logged else None,
            "behavior_prob_from": "logged" if logged else None,
            "mean_return": self.discounted / self.episodes,
            "notes": notes,
        }
