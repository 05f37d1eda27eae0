"""reweigh init --tidy: a copy of a log whose columns are what their roles want.

Steps that count from 1 count from 0 in it, percentages are shares, and yes and no are true and
false. Everything else stays as it is; the log itself is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reweigh.cli.init.look import Look
from reweigh.errors import Fault, Place, input_error
from reweigh.log.sources import open_source
from reweigh.log.states import floats, is_text, texts
from reweigh.system.files import write_atomically

PERCENT = r"^\s*[0-9]+([.,][0-9]+)?\s*%\s*$"
WORDS = {"yes": True, "no": False, "y": True, "n": False, "t": True, "f": False}
Kind = Literal["steps", "percent", "truth"]


@dataclass(frozen=True)
class Repair:
    """What is done to a column. first: the number of an episode's first step."""

    column: str
    kind: Kind
    first: int = 0

    @property
    def wrong(self) -> str:
        """What the column holds, and what it should."""
        name = repr(self.column)
        if self.kind == "steps":
            return f"{name} counts from {self.first}, and reweigh counts from 0"
        if self.kind == "percent":
            return f"{name} holds percentages, and reweigh wants shares (0.5 for 50 %)"
        return f"{name} says yes and no, and reweigh wants true and false"

    def of(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The column as it should be; null where a cell is not of its kind."""
        if self.kind == "steps":
            return pc.subtract(pc.cast(column, pa.int64()), self.first)
        if self.kind == "percent":
            return pa.chunked_array([pa.array(shares(column), from_pandas=True)])
        lower = pc.utf8_lower(pc.utf8_trim_whitespace(texts(column)))
        true = pa.array([word for word, value in WORDS.items() if value])
        known = pc.is_in(lower, pa.array(list(WORDS)))
        return pc.if_else(known, pc.is_in(lower, true), pa.scalar(None, pa.bool_()))


def is_percent(column: pa.ChunkedArray) -> bool:
    """Texts such as 12.5 % or 12,5%."""
    if not is_text(column.type) or column.null_count == len(column):
        return False
    return bool(pc.all(pc.match_substring_regex(texts(column), PERCENT)).as_py())


def is_yes_or_no(column: pa.ChunkedArray) -> bool:
    if not is_text(column.type) or column.null_count:
        return False
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(texts(column)))
    return bool(pc.all(pc.is_in(lower, pa.array(list(WORDS)))).as_py())


def shares(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """(N,) percentages, as texts or numbers, over 100; nan where a cell is none."""
    if is_text(column.type):
        cells = texts(column)
        fine = pc.match_substring_regex(cells, PERCENT)
        plain = pc.replace_substring(pc.replace_substring_regex(cells, r"[\s%]", ""), ",", ".")
        column = pc.cast(pc.if_else(fine, plain, pa.scalar(None, pa.string())), pa.float64())
    values = floats(column).fill_null(np.nan)
    return np.asarray(values.to_numpy(zero_copy_only=False), float) / 100


def write_tidy(
    look: Look, paths: Sequence[Path], repairs: Sequence[Repair], output: Path, *, overwrite: bool
) -> None:
    """Write the whole log, repaired, as Parquet. A cell that cannot be repaired is refused: roles
    were proposed from the first rows."""
    source = open_source([str(path) for path in paths], look.csv)
    numbers = {seen.name for seen in look.columns if seen.kind == "number"}
    names = [seen.name for seen in look.columns]
    table = source.read(names, [name for name in names if name not in numbers])
    faults = []
    for repair in repairs:
        at = table.column_names.index(repair.column)
        before = table.column(at)
        after = repair.of(before)
        lost = np.flatnonzero(np.asarray(pc.and_(after.is_null(), before.is_valid())))
        if len(lost):
            faults.append(_fault(repair, before, lost))
        table = table.set_column(at, repair.column, after)
    if faults:
        raise input_error(source.describe(), faults)
    write_atomically(output, lambda stream: pq.write_table(table, stream), overwrite=overwrite)


def _fault(repair: Repair, column: pa.ChunkedArray, lost: npt.NDArray[np.int64]) -> Fault:
    places = tuple(
        Place(column[int(row)].as_py(), column=repair.column, row=int(row) + 1) for row in lost[:20]
    )
    rule = {
        "steps": "a step must be a whole number",
        "percent": "a percentage is written like 12.5 %",
        "truth": "yes or no must stand here",
    }[repair.kind]
    return Fault("type", rule, "correct these cells", places, len(lost), len(column))
