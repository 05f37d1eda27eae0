"""Finite worlds of which the log shows some states and hides the others."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reweigh.errors import UsageError, must_be
from reweigh.policy.table import TablePolicy
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import Floats, Ints, as_count


class HiddenMDP(TabularMDP):
    """A TabularMDP whose log hides the states `hidden`: it shows the others, or nothing.

    A policy cannot tell hidden states apart either, so that both policies have the same row for
    all of them (at a step). At least one state that is not terminal is shown.
    """

    hidden: tuple[int, ...]

    def __init__(self, *tables: Any, hidden: Iterable[int], **options: Any) -> None:
        super().__init__(*tables, **options)
        states = sorted({as_count("hidden", s, least=0, what="state") for s in hidden})
        shown = set(range(self.n_states)) - {*states, *self.terminal}
        if not states or states[-1] >= self.n_states or not shown:
            rule = f"states in 0..{self.n_states - 1}, at least one, that leave a living one out"
            raise must_be("hidden", rule, states)
        if set(states) & set(self.terminal):
            rule = f"without the terminal states {self.terminal}, which a log shows by ending"
            raise must_be("hidden", rule, states)
        for name, table in (("target", self._target), ("behavior", self._behavior)):
            if (table[:, states] != table[:, states[:1]]).any():
                raise UsageError(
                    f"the parameter {name!r} must have one row for all hidden states {states}: "
                    "a policy that tells them apart knows more than the log"
                )
        object.__setattr__(self, "hidden", tuple(states))

    @cached_property
    def target(self) -> TablePolicy:
        """π, with rows for the shown states and one for the hidden state."""
        return self._seen_or_hidden(self._target)

    @cached_property
    def behavior(self) -> TablePolicy:
        """μ, with rows for the shown states and one for the hidden state."""
        return self._seen_or_hidden(self._behavior)

    def _observe(self, states: Ints) -> NDArray[Any]:
        return np.ma.masked_array(states, np.isin(states, self.hidden))

    def _seen_or_hidden(self, policy: Floats) -> TablePolicy:
        import pyarrow as pa

        rows = [s for s in range(self.n_states) if s not in self.hidden[1:]]
        labels = [None if s in self.hidden else s for s in rows]
        kept = policy[:, rows]
        step, state, action = (index.reshape(-1) for index in np.indices(kept.shape))
        columns = {
            "step": pa.array(step),
            "state": pa.array([labels[k] for k in state.tolist()], pa.int64()),
            "action": pa.array(action),
            "prob": pa.array(kept.reshape(-1)),
        }
        if len(kept) == 1:
            del columns["step"]
        return TablePolicy(pa.table(columns))
