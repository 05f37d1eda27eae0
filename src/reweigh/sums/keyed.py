"""KeyedTable: sums by integer keys, as arrays of equal length. They add up.

TransitionMoments holds sums of ratios and rewards by (block, t, s, [a,] t', s'), StepMoments what
estimators with running products of ratios need, by (block, t) and by block. Running products span
hundreds of orders of magnitude, so every sum of them is stored relative to exp(log_scale), the
largest product among its rows: nothing over- or underflows before the estimator divides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from reweigh.errors import InputError
from reweigh.kernels import Groups, group_by
from reweigh.sums.tables import BUILT_IN, Table
from reweigh.system import divided

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
NO_ACTION = -1
NO_SCALE = -1e300  # of rows whose products are all 0: any other scale wins over it
DIFFERS = 1e-9  # of nΣπ²: what rounding leaves of nΣπ² - (Σπ)²
ABOVE_ONE = 1e-6
STATE_KEYS = ("s", "s_next", "s_before")
ACTION_KEYS = ("a", "a_before")


@dataclass(frozen=True, eq=False)
class KeyedTable:
    """The sums of a declared table (`tables.py`): one row per key that occurs."""

    TABLE: ClassVar[Table]
    KEYS: ClassVar[tuple[str, ...]]
    SUMS: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        if "TABLE" in vars(cls):
            cls.KEYS, cls.SUMS = cls.TABLE.keys, ("n", *cls.TABLE.columns)

    @property
    def declaration(self) -> Table:
        return self.TABLE

    @property
    def keys(self) -> tuple[str, ...]:
        return self.declaration.keys

    def arrays(self) -> dict[str, Array]:
        """Keys, n and sums by name; what else a table holds are its scalars."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def holding(self, arrays: dict[str, Array]) -> Self:
        """With these arrays instead."""
        return replace(self, **arrays)

    def __len__(self) -> int:
        return len(next(iter(self.arrays().values())))

    def __add__(self, other: Self) -> Self:
        return self.together([self, other])

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        """The sum of several, which have the same codes."""
        columns = [part.arrays() for part in parts]
        joined = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
        return parts[0].holding(joined).summed()

    def summed(self) -> Self:
        """One row per key."""
        arrays = self.arrays()
        groups = group_by([arrays[key] for key in self.keys])
        merged = self._merged(groups, {n: v for n, v in arrays.items() if n not in self.keys})
        return self.holding(dict(zip(self.keys, groups.keys, strict=True)) | merged)

    def _merged(self, groups: Groups, sums: dict[str, Array]) -> dict[str, Array]:
        return {name: groups.sum(values) for name, values in sums.items()}

    def select(self, keep: Mask | Ints) -> Self:
        if isinstance(keep, np.ndarray) and keep.dtype == bool and keep.all():
            return self
        return self.holding({name: values[keep] for name, values in self.arrays().items()})

    def keep_blocks(self, keep: Callable[[Any], Mask]) -> Self:
        return self.select(keep(self.arrays()["block"]))

    def forget(self, *keys: str) -> Self:
        """Sum over some of the keys (they become 0, an action NO_ACTION)."""
        empty = {key: NO_ACTION if key in ACTION_KEYS else 0 for key in keys}
        arrays = self.arrays()
        if all(np.all(arrays[key] == value) for key, value in empty.items()):
            return self
        blank = {key: np.full(len(self), value, np.int64) for key, value in empty.items()}
        return self.holding(arrays | blank).summed()

    def recode(self, states: Ints, actions: Ints | None = None) -> Self:
        """The same sums with other codes for states and actions (special codes stay)."""
        arrays = self.arrays()
        codes = dict.fromkeys(STATE_KEYS, states) | dict.fromkeys(ACTION_KEYS, actions)
        changed = {
            key: np.where(arrays[key] >= 0, table[np.maximum(arrays[key], 0)], arrays[key])
            for key, table in codes.items()
            if key in arrays and table is not None and len(table)
        }
        return self.holding(arrays | changed) if changed else self


@dataclass(frozen=True, eq=False)
class DeclaredSums(KeyedTable):
    """The sums of a table that was declared outside of the package, by block and its keys.

    Its columns are attributes: `moments.tables["capped"].w`.
    """

    table: Table
    columns: dict[str, Array]

    @property
    def declaration(self) -> Table:
        return self.table

    @property
    def keys(self) -> tuple[str, ...]:
        return keys_with_block(self.table)

    def arrays(self) -> dict[str, Array]:
        return self.columns

    def holding(self, arrays: dict[str, Array]) -> Self:
        return replace(self, columns=arrays)

    def __getattr__(self, name: str) -> Array:
        columns = self.__dict__.get("columns", {})
        if name not in columns:
            raise AttributeError(f"the table has no column {name!r} (columns: {list(columns)})")
        array: Array = columns[name]
        return array

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        first = parts[0].table
        if any(part.table != first for part in parts[1:]):
            raise InputError(
                f"these moments have different tables with the name {first.name!r}; make "
                "both with the same declaration"
            )
        return super().together(parts)


def keys_with_block(table: Table) -> tuple[str, ...]:
    """The keys of a table from outside of the package: by block too, so that parts can be left
    out."""
    return ("block", *(key for key in table.keys if key != "block"))


@dataclass(frozen=True, eq=False)
class TransitionMoments(KeyedTable):
    """A table of cells in coordinate form; memory is O(observed transitions).

    Keys: block, step t, state s, action a (NO_ACTION where it is not in the key), the next
    observed step t' and the state s' there (or END, UNKNOWN). A hidden stretch is one long step.

    n      transitions                    rho, rho2  Σρ, Σρ²   (ρ the product over the stretch)
    y, y2  Σy, Σy²  (y the reward, over a stretch Σ_j γ^j y_{t+j})
    z, z2  Σz, Σz²  (z = ρ y, over a stretch Σ_j ρ_{t:t+j} γ^j y_{t+j})       rhoz   Σρz
    one    what z would be if every reward were 1 (the placebo)
    pi, pi2, mu  Σπ(a|s), Σπ², Σμ(a|s) of the logged actions, where the action is in the key
    """

    TABLE = BUILT_IN["model"]

    block: Ints
    t: Ints
    s: Ints
    a: Ints
    t_next: Ints
    s_next: Ints
    n: Ints
    rho: Floats
    rho2: Floats
    z: Floats
    rhoz: Floats
    z2: Floats
    y: Floats
    y2: Floats
    one: Floats
    pi: Floats
    pi2: Floats
    mu: Floats

    @property
    def has_action(self) -> bool:
        return len(self.a) > 0 and bool(self.a[0] != NO_ACTION)


def summed(cells: TransitionMoments) -> TransitionMoments:
    """One cell per key."""
    return cells.summed()


@dataclass(frozen=True, eq=False)
class StartMoments(KeyedTable):
    """First states: by (block, s_0) their number, and Σg, Σg² of a control's start value."""

    TABLE = BUILT_IN["start"]

    block: Ints
    s: Ints
    n: Ints
    g: Floats
    g2: Floats


def is_one_number(
    n: Floats, pi: Floats, pi2: Floats, over_actions: Callable[[Floats], Floats]
) -> bool:
    """Whether π is the same in all rows of each (t, s, a), and these add up to at most 1; given are
    the rows of the groups, Σπ and Σπ², and what adds up over the actions of a (t, s)."""
    if not is_constant(n, pi, pi2):
        return False
    return not np.any(over_actions(divided(pi, n)) > 1 + ABOVE_ONE)


def is_constant(n: Floats, total: Floats, squares: Floats) -> bool:
    """Whether numbers are the same within each group, given its rows n, Σx and Σx²; not if they are
    not numbers."""
    return bool(np.all(n * squares - total**2 <= DIFFERS * n * squares))


@dataclass(frozen=True, eq=False)
class ScaledTable(KeyedTable):
    """Sums relative to exp(log_scale · power)."""

    block: Ints
    t: Ints
    n: Ints
    log_scale: Floats

    def total(self) -> Self:
        """Summed over the blocks."""
        if np.all(self.block == self.block[:1]):  # one block: every step is there once
            return replace(self, block=np.zeros(len(self.t), np.int64))
        return self.forget("block")

    def _merged(self, groups: Groups, sums: dict[str, Array]) -> dict[str, Array]:
        """Bring the rows of a group to their largest scale and add them."""
        scale = groups.max(self.log_scale)
        shift = self.log_scale - scale[groups.index()]
        merged: dict[str, Array] = {"n": groups.sum(self.n), "log_scale": scale}
        with np.errstate(over="ignore", invalid="ignore"):  # x and x² have no scale, may overflow
            for name, exponent in self.TABLE.power.items():
                values = sums[name] * np.exp(exponent * shift)
                largest = name in self.TABLE.largest_of
                merged[name] = groups.max(values) if largest else groups.sum(values)
        return merged


@dataclass(frozen=True, eq=False)
class StepSums(ScaledTable):
    """By (block, t), over all episodes; w is ρ_{0:t}, frozen once an episode has ended.

    n episodes, w Σw, w2 Σw², wy Σ w y_t, wmax the largest w.
    """

    w: Floats
    w2: Floats
    wy: Floats
    wmax: Floats

    TABLE = BUILT_IN["steps"]
    POWER = TABLE.power


@dataclass(frozen=True, eq=False)
class EpisodeSums(ScaledTable):
    """By block, per-episode sums (t is 0).

    x = g(s_0) + Σ_t γ^t ρ_{0:t} y_t:  x, x2, unscaled (IS has no ratio to cancel a scale).
    With W the whole product and G = Σ_t γ^t y_t:  w, w2, wg, wg2 = Σ(WG)², w2g = Σ W²G, wmax.
    g, g2: the start value, unscaled. ret: ΣG, the logged returns, unscaled.
    """

    x: Floats
    x2: Floats
    w: Floats
    w2: Floats
    wg: Floats
    wg2: Floats
    w2g: Floats
    wmax: Floats
    g: Floats
    g2: Floats
    ret: Floats

    TABLE = BUILT_IN["episodes"]
    POWER = TABLE.power


@dataclass(frozen=True, eq=False)
class StepMoments:
    """Both tables of one log."""

    steps: StepSums
    episodes: EpisodeSums

    def __add__(self, other: StepMoments) -> StepMoments:
        return self.together([self, other])

    @classmethod
    def together(cls, parts: Sequence[StepMoments]) -> StepMoments:
        """The sum of several."""
        steps = StepSums.together([part.steps for part in parts])
        return cls(steps, EpisodeSums.together([part.episodes for part in parts]))

    def keep_blocks(self, keep: Callable[[Any], Mask]) -> StepMoments:
        return StepMoments(self.steps.keep_blocks(keep), self.episodes.keep_blocks(keep))
