"""Policies around another one, whose answers for the rows of a log are kept."""

from __future__ import annotations

from pathlib import Path

from reweigh.log.log import EpisodeLog
from reweigh.log.states import Label, Labels
from reweigh.policy.base import Floats, Policy, Scope, scope_of
from reweigh.system.files import files_behind

MOST_KEPT = 1 << 25  # numbers: 256 MiB


class WrappedPolicy:
    """All that does not concern the rows is the policy's own."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def files(self) -> tuple[Path, ...]:
        return files_behind(self.policy)

    def probabilities(self, log: EpisodeLog) -> Floats:
        return self.policy.probabilities(log)

    def all_actions(self, log: EpisodeLog) -> Labels:
        return self.policy.all_actions(log)

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        return self.policy.of_action(log, action)

    @property
    def scope(self) -> Scope:
        return scope_of(self.policy)

    @property
    def has_steps(self) -> bool:
        return self.policy.has_steps

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        return self.policy.unlogged_actions(log)

    def fingerprint(self) -> str:
        return self.policy.fingerprint()


class RememberedPolicy(WrappedPolicy):
    """The same policy. π(a_t|s_t) of the last log's rows is looked up once, and so is π(a|s_t) of
    as many actions as fit; a log with other rewards has the same rows."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._rows: object = None
        self._found: dict[Label, Floats] = {}
        self._logged: Floats | None = None

    def probabilities(self, log: EpisodeLog) -> Floats:
        self._look_at(log)
        if self._logged is None:
            self._logged = self.policy.probabilities(log)
        return self._logged

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        self._look_at(log)
        if action in self._found:
            return self._found[action]
        found = self.policy.of_action(log, action)
        if (len(self._found) + 1) * len(found) <= MOST_KEPT:
            self._found[action] = found
        return found

    def _look_at(self, log: EpisodeLog) -> None:
        if self._rows is not log.steps.state:
            self.forget()
            self._rows = log.steps.state

    def forget(self) -> None:
        """Give the memory back."""
        self._rows, self._logged, self._found = None, None, {}


class RowsPolicy(WrappedPolicy):
    """A policy whose probabilities of a log's rows are known, for logs made of copies of these."""

    def __init__(self, policy: Policy, log: EpisodeLog) -> None:
        super().__init__(policy)
        self.log, self.known = log, policy.probabilities(log)
        self.of_actions: dict[Label, Floats] = {}

    def probabilities(self, log: EpisodeLog) -> Floats:
        return _copied(self.known, log)

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        if action not in self.of_actions:
            self.of_actions[action] = self.policy.of_action(self.log, action)
        return _copied(self.of_actions[action], log)


def _copied(known: Floats, log: EpisodeLog) -> Floats:
    rows = log.steps.source_rows
    return known if rows is None else known[rows]
