"""The arguments of worlds, checked: each function returns what it was given, made regular."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from reweigh.errors import UsageError, must_be
from reweigh.worlds.world import Floats, as_count

ROW_TOLERANCE = 1e-9


def floats(parameter: str, value: ArrayLike) -> Floats:
    """A new array of finite or infinite numbers."""
    try:
        return np.array(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise must_be(parameter, "an array of numbers", value) from error


def timed_table(parameter: str, value: ArrayLike, axes: str) -> tuple[Floats, int | None]:
    """A table over `axes` such as "SAS" with a leading time axis, and how many steps it tells of.

    A table without a time axis gets one of length 1, and tells of any number of steps: None.
    """
    table = floats(parameter, value)
    if table.ndim not in (len(axes), len(axes) + 1) or table.size == 0:
        plain = ",".join(axes)
        rule = f"a table of shape ({plain}) or (H,{plain}), not empty"
        raise must_be(parameter, rule, f"shape {table.shape}")
    return (table[None], None) if table.ndim == len(axes) else (table, len(table))


def shared_horizon(horizon: object, steps: dict[str, int | None]) -> int:
    """The horizon as given and as the tables' time axes have it, which must agree."""
    timed = {name: length for name, length in steps.items() if length is not None}
    if horizon is None:
        if not timed:
            raise must_be("horizon", "given where no table has a time axis", horizon)
        H = next(iter(timed.values()))
    else:
        H = as_count("horizon", horizon, least=1)
    for name, length in timed.items():
        if length != H:
            raise must_be(name, f"a table of {H} steps, the horizon", f"{length} steps")
    return H


def terminal_states(terminal: Iterable[int] | None, n_states: int) -> tuple[int, ...]:
    """The terminal states, sorted, each once."""
    if terminal is None:
        return ()
    rule = f"an iterable of states, integers in 0..{n_states - 1}, that leaves one out"
    if not isinstance(terminal, Iterable):
        raise must_be("terminal", rule, terminal)
    states = sorted({as_count("terminal", state, least=0, what="state") for state in terminal})
    if states and (states[-1] >= n_states or len(states) == n_states):
        raise must_be("terminal", rule, states)
    return tuple(states)


def check_rows(parameter: str, table: Floats) -> None:
    """Every row (last axis) is a probability distribution."""
    sums = table.sum(axis=-1)
    bad = ~(np.abs(sums - 1) <= ROW_TOLERANCE) | (table < 0).any(axis=-1)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f" (row {place})" if place else ""
        raise UsageError(
            f"the parameter {parameter!r} must be rows of probabilities that sum to 1 within "
            f"{ROW_TOLERANCE:g}; got {table[place].tolist()}{where}, which sums to "
            f"{sums[place]:g}, instead"
        )


def check_finite(parameter: str, table: Floats) -> None:
    """No entry is NaN or infinite."""
    bad = ~np.isfinite(table)
    if bad.any():
        raise must_be(parameter, "finite everywhere", float(table[bad][0]))


def reward_spread(
    reward_sd: ArrayLike, shape: tuple[int, ...], terminal: tuple[int, ...]
) -> Floats:
    """The rewards' standard deviations, no larger than given: 0 in terminal states."""
    sd = floats("reward_sd", reward_sd)
    try:
        np.broadcast_to(sd, shape)
    except ValueError as error:
        raise must_be(
            "reward_sd", f"a number, or an array that broadcasts to {shape}", f"shape {sd.shape}"
        ) from error
    if not (np.isfinite(sd) & (sd >= 0)).all():
        raise must_be("reward_sd", "finite and at least 0 everywhere", reward_sd)
    if terminal:
        living = np.ones((shape[1], 1, 1))
        living[list(terminal)] = 0.0
        sd = sd * living
    return sd
