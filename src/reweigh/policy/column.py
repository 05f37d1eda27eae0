"""A policy whose probabilities were logged: π(a_t|s_t) stands in a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from reweigh.errors import must_be
from reweigh.log import checks
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Label, Labels
from reweigh.policy.base import Floats, Scope, no_other_actions


@dataclass(frozen=True)
class ColumnPolicy:
    """π(a_t|s_t) of the logged action is the column `column` of the log."""

    column: str = "target_prob"
    scope: ClassVar[Scope] = "logged action"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise must_be("column", "the name of a column", self.column)

    @property
    def name(self) -> str:
        return f"column {self.column!r}"

    def probabilities(self, log: EpisodeLog) -> Floats:
        values = log.column(self.column)
        log._once(f"checked {self.column}", lambda: check_rows(log, self.column, values))
        return values

    def all_actions(self, log: EpisodeLog) -> Labels:
        raise no_other_actions(self.name)

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        raise no_other_actions(self.name)

    @property
    def has_steps(self) -> bool:
        return False  # not known

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        return {}

    def fingerprint(self) -> str:
        return f"column:{self.column}"


def check_rows(log: EpisodeLog, column: str, values: Floats) -> None:
    """Probabilities (or densities) of the logged actions, one per row."""
    density = log.continuous_actions
    if np.all((values >= 0) & (values < np.inf if density else values <= 1)):
        return
    order = np.argsort(log.steps.source_row, kind="stable")  # faults are listed as the log is
    values = values[order]
    faults = checks.Faults(lambda row: log.place(int(order[row]), column, None), len(values))
    checks.probabilities(faults, column, values, role="target_prob", density=density)
    faults.raise_if_any(f"the target policy ({column})")
