"""A policy whose answers for one log are kept while several estimators ask for them."""

from __future__ import annotations

import numpy as np

from reweigh.logs.log import EpisodeLog
from reweigh.logs.states import Label, Labels
from reweigh.policies.base import Floats, Policy


class RememberedPolicy:
    """The same policy. π(a_t|s_t) of the last log's rows is looked up once; a log with other
    rewards has the same rows."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._rows: object = None
        self._found: Floats = np.zeros(0)

    @property
    def name(self) -> str:
        return self.policy.name

    def probabilities(self, log: EpisodeLog) -> Floats:
        if self._rows is not log.steps.state:
            self._found = self.policy.probabilities(log)
            self._rows = log.steps.state
        return self._found

    def forget(self) -> None:
        """Give the memory back."""
        self._rows, self._found = None, np.zeros(0)

    def all_actions(self, log: EpisodeLog) -> Labels:
        return self.policy.all_actions(log)

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        return self.policy.of_action(log, action)

    @property
    def has_steps(self) -> bool:
        return self.policy.has_steps

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        return self.policy.unlogged_actions(log)

    def fingerprint(self) -> str:
        return self.policy.fingerprint()
