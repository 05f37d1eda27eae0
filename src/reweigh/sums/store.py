"""Moments as one Parquet file: a `kind` column, the sums, and what they are of as metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reweigh.errors import InputError, ResourceError
from reweigh.sums.columns import check_tables, rule_of, tables_of
from reweigh.sums.diagnostic_tables import (
    LaggedMoments,
    LargestWeights,
    OrderedMoments,
    PacedMoments,
)
from reweigh.sums.header import Header, header_text, read_header
from reweigh.sums.keyed import DeclaredSums, own_keys
from reweigh.sums.moments import Moments
from reweigh.sums.policy import PolicyMoments
from reweigh.sums.trajectories import EpisodeSums, StepMoments, StepSums
from reweigh.sums.transitions import StartMoments, TransitionMoments
from reweigh.system.files import digest_of, write_atomically

KEY = b"reweigh"
KIND = "kind"  # the column that says which table a row belongs to
RECORDS: dict[str, Any] = {
    "start": StartMoments,
    "start_model": StartMoments,
    "transitions": TransitionMoments,
    "model": TransitionMoments,
    "policy": PolicyMoments,
    "steps": StepSums,
    "episodes": EpisodeSums,
    "lagged": LaggedMoments,
    "ordered": OrderedMoments,
    "paced": PacedMoments,
    "largest": LargestWeights,
    "choices": TransitionMoments,
}
# What files of before lack, from what they hold: π is taken for one number in each cell.
LACKING: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "pi2": lambda held: held["pi"] ** 2 / np.maximum(held["n"], 1)
}
TOGETHER = (("start",), ("start_model", "model"), ("steps", "episodes"))  # all of them or none


def save(moments: Moments, path: str | Path, *, overwrite: bool) -> None:
    """What `load_moments` would refuse is not written."""
    check_tables(moments, "these sums cannot be saved:")
    parts = tables_of(moments)
    tables = [
        pa.table(
            {KIND: pa.array([kind] * _rows(part), pa.string())}
            | {
                name: values.astype(rule_of(kind, name).dtype, copy=False)
                for name, values in part.arrays().items()
            }
        )
        for kind, part in parts.items()
    ]
    table = pa.concat_tables(tables, promote_options="default")
    header = header_text(moments, parts, _checksum(table))
    table = table.replace_schema_metadata({KEY: header})

    def write(stream: Any) -> None:
        pq.write_table(table, stream, compression="zstd", write_page_checksum=True)

    write_atomically(path, write, overwrite=overwrite, inputs=moments.files)


def load_moments(path: str | Path) -> Moments:
    """Read sums that `Moments.save` wrote; InputError where they are not whole and consistent."""
    path = Path(path)
    if not path.is_file():
        raise ResourceError(f"there is no file {str(path)!r}")
    what = f"the file of moments {str(path)!r}"
    with _damage(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        raw = (file.schema_arrow.metadata or {}).get(KEY)
        if raw is None:
            raise InputError(
                f"{str(path)!r} holds no moments of reweigh; make them with `reweigh moments`"
            )
        header = read_header(raw, what)
        table = file.read(use_threads=False)
        if header.content is not None and header.content != _checksum(table):
            raise InputError(f"{what} is damaged: its content does not match its checksum")
        parts = _parts(table, header, what)
    trajectories = None
    if "steps" in parts:
        trajectories = StepMoments(parts.pop("steps"), parts.pop("episodes"))
    moments = Moments(
        about=header.about,
        states=header.states,
        actions=header.actions,
        trajectories=trajectories,
        truncated=header.truncated,
        hidden=header.hidden,
        left_out=header.left_out,
        unchecked=header.unchecked,
        rewards=header.rewards,
        files=(path,),
        tables={name: parts.pop(name) for name in header.tables},
        **parts,
    )
    check_tables(moments, f"{what} is damaged:")
    return moments


def is_moments_file(path: str | Path) -> bool:
    """True for a Parquet file that `Moments.save` wrote: by its metadata, or by its columns where
    the metadata is damaged."""
    try:
        with Path(path).open("rb") as stream:
            if stream.read(4) != b"PAR1":
                return False
        schema = pq.read_schema(path)
        every = {KIND, *(f.name for f in fields(StartMoments))}
        return KEY in (schema.metadata or {}) or every <= set(schema.names)
    except (
        OSError,
        pa.ArrowException,
        ValueError,
    ):  # a type that there is not, a name that is no text
        return False


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except PermissionError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is not a whole Parquet file: {error}") from error


def _checksum(table: pa.Table) -> str:
    """Of all that a table holds: names, types, values, and where there is none."""
    parts: list[str | bytes] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        parts += [name, str(column.type), np.packbits(_array(column.is_valid())).tobytes()]
        if pa.types.is_string(column.type):
            words = pc.dictionary_encode(column).combine_chunks()
            parts += [repr(words.dictionary.to_pylist()), _array(words.indices).tobytes()]
        else:
            parts.append(_array(column.fill_null(0)).tobytes())
    return digest_of(*parts)


def _array(column: Any) -> Any:
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False))


def _parts(table: pa.Table, header: Header, what: str) -> dict[str, Any]:
    """The tables by their kind."""
    kinds = set(header.kinds)
    wrong = [kind for kind in header.kinds if kind not in RECORDS or kind in header.extras]
    torn = [names for names in TOGETHER if len(kinds & set(names)) not in (0, len(names))]
    if wrong or torn or "start" not in kinds or len(kinds) < len(header.kinds):
        listed = ", ".join(map(repr, header.kinds))
        raise InputError(f"{what} is damaged: it cannot hold the kinds {listed}")
    if KIND not in table.column_names or not pa.types.is_string(table.schema.field(KIND).type):
        raise InputError(f"{what} is damaged: it lacks the column {KIND!r} of texts")
    kind = pc.dictionary_encode(table.column(KIND)).combine_chunks()
    words = kind.dictionary.to_pylist()
    if kind.null_count or not set(words) <= header.rows_of:
        raise InputError(f"{what} is damaged: rows are of kinds that its header does not name")
    code = _array(kind.indices)
    found = {}
    for name in (*header.kinds, *header.extras, *header.tables):
        rows = np.flatnonzero(code == words.index(name)) if name in words else np.zeros(0, int)
        # as `save` writes them the rows of a table stand together, and need no copy
        together = not len(rows) or rows[-1] - rows[0] + 1 == len(rows)
        begin = int(rows[0]) if len(rows) else 0
        chosen = table.slice(begin, len(rows)) if together else table.take(pa.array(rows))
        if name in header.tables:
            own = header.tables[name]
            columns = (*own_keys(own), "n", *own.columns)
            arrays = {column: _column(chosen, name, column, what) for column in columns}
            found[name] = DeclaredSums(own, arrays)
        else:
            found[name] = _part(chosen, name, header.extras.get(name, {}), what)
    return found


def _part(rows: pa.Table, kind: str, scalars: dict[str, Any], what: str) -> Any:
    """One table; of what an older file lacks some follows from what it holds."""
    columns: dict[str, Any] = dict(scalars)
    for f in fields(RECORDS[kind]):
        if f.name in columns:
            continue
        if f.name not in rows.column_names and f.name in LACKING:
            columns[f.name] = LACKING[f.name](columns)
        else:
            columns[f.name] = _column(rows, kind, f.name, what)
    return RECORDS[kind](**columns)


def _column(rows: pa.Table, kind: str, name: str, what: str) -> Any:
    """One array of a table, of the type that it was written with."""
    place = f"column {name!r} of the table {kind!r}"
    if name not in rows.column_names:
        raise InputError(f"{what} is damaged: it lacks the {place}")
    column, wanted = rows.column(name), pa.from_numpy_dtype(rule_of(kind, name).dtype)
    if column.type != wanted:
        raise InputError(f"{what} is damaged: {place} is {column.type}, not {wanted}")
    if column.null_count:
        raise InputError(f"{what} is damaged: {place} has {column.null_count:,} holes")
    return _array(column)


def _rows(part: Any) -> int:
    return len(next(iter(part.arrays().values())))
