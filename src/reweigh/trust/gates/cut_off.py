"""Were episodes cut off while others ended?"""

from __future__ import annotations

import numpy as np

from reweigh.log.log import EpisodeLog
from reweigh.log.states import END, UNKNOWN
from reweigh.sums.moments import Moments
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by


class CutOff(
    Gate,
    name="cut-off episodes",
    question="Were episodes cut off before an unknown state while others ended?",
    fault="cut-off",
    reads="solution",
    limits=limits_by(Limit(0.0, 0.05)),
    of={"states"},
):
    """Episodes cut off before a state that is not known, while others end: these are overrated."""

    def measure(self, context: Context) -> GateResult | None:
        share = cut_beside_ends(context.whole)
        if not share > 0:
            return None
        return self.judge(
            share,
            f"{share:.1%} of the episodes were cut off, nobody knows before which state, and "
            "others ended: the chance of ending is overestimated",
            "give next_state, the state after the last row too",
        )


def cut_beside_ends(data: EpisodeLog | Moments) -> float:
    """The share of the episodes that were cut off before a state that is not known while others
    ended: a move that is not known is left out although it was no end, so that ends are
    overestimated."""
    if isinstance(data, EpisodeLog):
        steps = data.steps
        ended = (steps.ending == END) & (steps.lengths < steps.horizon)
        return steps.unknown_before_horizon() / data.n_episodes if ended.any() else 0.0
    cells = data.transitions if data.transitions is not None else data.model
    if cells is None or not data.truncated:
        return 0.0
    early = cells.t_next < data.about.horizon
    if not np.any(early & (cells.s_next == END)):
        return 0.0
    return float(cells.n[early & (cells.s_next == UNKNOWN)].sum()) / data.n_episodes
