"""A policy given as a function of batches of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError, must_be
from reweigh.log.log import EpisodeLog
from reweigh.log.states import Label, Labels
from reweigh.policy.base import Floats
from reweigh.policy.column import check_rows
from reweigh.system.files import digest_of
from reweigh.system.fingerprint import digest_of_callable

BatchFunction = Callable[[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]], Any]


@dataclass(frozen=True)
class FunctionPolicy:
    """π(action|state) from `f(state, action, step)`, called with arrays of one length.

    `state` holds the logged states, before any abstraction: (N,), or (N, k) for k columns, with
    None where hidden. `f` returns N probabilities (densities for continuous actions).
    """

    f: BatchFunction
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.f):
            raise must_be("f", "callable as f(state, action, step)", self.f)
        if not self.name:
            label = getattr(self.f, "__qualname__", type(self.f).__qualname__)
            object.__setattr__(self, "name", f"function {label}")

    def probabilities(self, log: EpisodeLog) -> Floats:
        values = call_batch(self.f, self.name, log, log.raw_actions())
        check_rows(log, self.name, values)
        return values

    def all_actions(self, log: EpisodeLog) -> Labels:
        """A function cannot list its actions: those of the log."""
        assert log.actions is not None
        return log.actions

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        values = call_batch(self.f, self.name, log, np.full(log.steps.n_rows, action))
        check_rows(log, self.name, values)
        return values

    @property
    def has_steps(self) -> bool:
        return False  # not known

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        return {}

    def fingerprint(self) -> str:
        return f"function:{digest_of(self.name, digest_of_callable(self.f))}"


def call_batch(f: BatchFunction, name: str, log: EpisodeLog, actions: npt.NDArray[Any]) -> Floats:
    """Call a batch function on the rows of a log and check the shape of its answer."""
    try:
        result = np.asarray(f(log.raw_states(), actions, log.steps.step), np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} failed; it is called as f(state, action, step) with arrays and returns one "
            f"number per row: {error}"
        ) from error
    if result.shape != (log.steps.n_rows,):
        raise UsageError(
            f"{name} returned shape {result.shape} for {log.steps.n_rows} rows; it must return "
            "one number per row"
        )
    return result
