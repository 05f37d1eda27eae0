"""What every policy answers: π(a|s) for the rows of a log."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from reweigh.errors import RefusedError
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Label, Labels

Floats = npt.NDArray[np.float64]
Scope = Literal["state", "row", "logged action"]


@runtime_checkable
class Policy(Protocol):
    """A target policy. All arrays are in the order of the log's steps."""

    @property
    def name(self) -> str: ...

    def probabilities(self, log: EpisodeLog) -> Floats:
        """(N,) π(a_t|s_t) of the logged actions, checked."""
        ...

    def all_actions(self, log: EpisodeLog) -> Labels:
        """Every action that the policy may take, as far as it knows."""
        ...

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        """(N,) π(a|s_t) of one action in every row's state."""
        ...

    @property
    def has_steps(self) -> bool:
        """True where the policy is known to depend on the step."""
        ...

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        """Actions that the policy is known to take and the log never shows: how often."""
        ...

    def fingerprint(self) -> str:
        """Equal for equal policies, as far as can be told."""
        ...


def scope_of(policy: Policy) -> Scope:
    """What a policy's `scope` says it looks at: the state as the log has it, with the step; or all
    that is known of a row (the default); or it knows nothing but the logged action's probability.
    """
    scope: Scope = getattr(policy, "scope", "row")
    return scope


def no_other_actions(name: str) -> RefusedError:
    return RefusedError(
        "target-probabilities",
        f"the policy {name} only knows the probabilities of the logged actions; a Q function of "
        "your own needs those of all actions: give the target as a table or a function",
    )
