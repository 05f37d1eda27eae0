"""KeyedTable: sums by integer keys, as arrays of equal length. They add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from reweigh.errors import InputError
from reweigh.kernels.groups import Groups, group_by
from reweigh.sums.tables import Table

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NO_ACTION = -1
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
        """With these arrays in place of its own."""
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

    def where(self, keep: Mask | Ints) -> Self:
        if isinstance(keep, np.ndarray) and keep.dtype == bool and keep.all():
            return self
        return self.holding({name: values[keep] for name, values in self.arrays().items()})

    def keep_blocks(self, keep: Callable[[Any], Mask]) -> Self:
        return self.where(keep(self.arrays()["block"]))

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
        return own_keys(self.table)

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
                f"these moments hold different tables of the name {first.name!r}; make both with "
                "the same declaration"
            )
        return super().together(parts)


def own_keys(table: Table) -> tuple[str, ...]:
    """The keys of a table from outside of the package: by block too, so that parts can be left
    out."""
    return ("block", *(key for key in table.keys if key != "block"))
