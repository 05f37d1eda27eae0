"""Moments as one Parquet file: a `kind` column, the sums, and their description as metadata.

The metadata is JSON, the header, with a checksum over itself and over the tables. Every value of
the header and every column has one line with its rule (`HEADER`, `ABOUT`, `SCALAR` here;
`stored_columns.py`), checked before a file is written and after it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reweigh.errors import InputError, ResourceError, UsageError
from reweigh.log.states import Labels, label_text
from reweigh.sums import diagnostic_tables as diagnostic
from reweigh.sums.diagnostic_tables import EARLIER, VERSIONS
from reweigh.sums.keyed import (
    DeclaredSums,
    EpisodeSums,
    StartMoments,
    StepMoments,
    StepSums,
    TransitionMoments,
    keys_with_block,
)
from reweigh.sums.moments import About, Moments
from reweigh.sums.policy import PolicyMoments
from reweigh.sums.stored_columns import check_tables, rule_of, tables_of
from reweigh.sums.tables import Table
from reweigh.system.files import digest_of, parse_object, sealed, unsealed, write_atomically

KEY = b"reweigh"
KIND = "kind"  # the column with the table a row belongs to
FORMAT = 2
READ = (1, FORMAT)  # 1 had no checksum
RECORDS: dict[str, Any] = {
    "start": StartMoments,
    "start_model": StartMoments,
    "transitions": TransitionMoments,
    "model": TransitionMoments,
    "policy": PolicyMoments,
    "steps": StepSums,
    "episodes": EpisodeSums,
    "lagged": diagnostic.LaggedMoments,
    "ordered": diagnostic.OrderedMoments,
    "paced": diagnostic.PacedMoments,
    "largest": diagnostic.LargestWeights,
    "choices": TransitionMoments,
}
SCALARS: dict[str, tuple[str, ...]] = {  # fields of such a record that are not columns
    "lagged": ("level",),
    "ordered": ("shift",),
    "paced": ("shift",),
    "largest": ("floor", "n"),
}
# Columns that earlier files lack, from those they have: π counts as one number in each cell.
LACKING: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "pi2": lambda held: held["pi"] ** 2 / np.maximum(held["n"], 1)
}
TOGETHER = (("start",), ("start_model", "model"), ("steps", "episodes"))  # all of them or none


def save(moments: Moments, path: str | Path, *, overwrite: bool) -> None:
    """What `load_moments` would refuse is not written."""
    check_tables(moments, "these sums cannot be saved:")
    tables = []
    for kind, part in tables_of(moments).items():
        columns = {
            name: values.astype(rule_of(kind, name).dtype, copy=False)
            for name, values in part.arrays().items()
        }
        rows = len(next(iter(columns.values())))
        tables.append(pa.table({KIND: pa.array([kind] * rows, pa.string())} | columns))
    table = pa.concat_tables(tables, promote_options="default")
    table = table.replace_schema_metadata({KEY: _header_text(moments, _checksum(table))})

    def write(stream: Any) -> None:
        pq.write_table(table, stream, compression="zstd", write_page_checksum=True)

    write_atomically(path, write, overwrite=overwrite, inputs=moments.files)


def load_moments(path: str | Path) -> Moments:
    """Read sums that `Moments.save` wrote; InputError where they are not whole and consistent."""
    path = Path(path)
    if not path.is_file():
        raise ResourceError(f"there is no file {str(path)!r}")
    what = f"the file of moments {str(path)!r}"
    with _file_errors(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        raw = (file.schema_arrow.metadata or {}).get(KEY)
        if raw is None:
            raise InputError(
                f"{str(path)!r} contains no moments of reweigh; make them with `reweigh moments`"
            )
        header = read_header(raw, what)
        table = file.read(use_threads=False)
        if header.content is not None and header.content != _checksum(table):
            raise InputError(f"{what} is damaged: its content does not match its checksum")
        parts = _parts(table, header, what)
    if "steps" in parts:
        parts["trajectories"] = StepMoments(parts.pop("steps"), parts.pop("episodes"))
    own = {name: parts.pop(name) for name in header.tables}
    moments = Moments(**header.values, files=(path,), tables=own, **parts)
    check_tables(moments, f"{what} is damaged:")
    return moments


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowMemoryError:
        raise
    except PermissionError as error:
        raise ResourceError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is not a complete Parquet file: {error}") from error


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


# ---- tables ------------------------------------------------------------------------------------


def _parts(table: pa.Table, header: Header, what: str) -> dict[str, Any]:
    """The tables by their kind."""
    kinds = set(header.kinds)
    wrong = [kind for kind in header.kinds if kind not in RECORDS or kind in header.scalars]
    torn = [names for names in TOGETHER if len(kinds & set(names)) not in (0, len(names))]
    if wrong or torn or "start" not in kinds or len(kinds) < len(header.kinds):
        listed = ", ".join(map(repr, header.kinds))
        raise InputError(f"{what} is damaged: it cannot contain the kinds {listed}")
    if KIND not in table.column_names or not pa.types.is_string(table.schema.field(KIND).type):
        raise InputError(f"{what} is damaged: it has no text column {KIND!r}")
    kind = pc.dictionary_encode(table.column(KIND)).combine_chunks()
    words = kind.dictionary.to_pylist()
    if kind.null_count or not set(words) <= header.rows_of:
        raise InputError(f"{what} is damaged: its rows have kinds that its header does not list")
    code = _array(kind.indices)
    parts = {}
    for name in (*header.kinds, *header.scalars, *header.tables):
        rows = np.flatnonzero(code == words.index(name)) if name in words else np.zeros(0, int)
        # `save` writes the rows of a table together, so they need no copy
        together = not len(rows) or rows[-1] - rows[0] + 1 == len(rows)
        begin = int(rows[0]) if len(rows) else 0
        chosen = table.slice(begin, len(rows)) if together else table.take(pa.array(rows))
        own, columns = header.tables.get(name), dict(header.scalars.get(name, {}))
        needed: tuple[str, ...] = tuple(f.name for f in fields(RECORDS[name])) if own is None else (
            *keys_with_block(own), "n", *own.columns
        )  # fmt: skip
        for column in [column for column in needed if column not in columns]:
            if column not in chosen.column_names and column in LACKING:
                columns[column] = LACKING[column](columns)
            else:
                columns[column] = _column(chosen, name, column, what)
        parts[name] = RECORDS[name](**columns) if own is None else DeclaredSums(own, columns)
    return parts


def _column(rows: pa.Table, kind: str, name: str, what: str) -> Any:
    """One array of a table, of the type that it was written with."""
    place = f"column {name!r} of the table {kind!r}"
    if name not in rows.column_names:
        raise InputError(f"{what} is damaged: it has no {place}")
    column, wanted = rows.column(name), pa.from_numpy_dtype(rule_of(kind, name).dtype)
    if column.type != wanted:
        raise InputError(f"{what} is damaged: {place} is {column.type}, not {wanted}")
    if column.null_count:
        raise InputError(f"{what} is damaged: {place} has {column.null_count:,} missing values")
    return _array(column)


# ---- the header --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What a value of the header must be, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]

    def or_null(self) -> Rule:
        return Rule(f"{self.words}, or null", lambda value: value is None or self.fits(value))


def _whole(low: int, high: int = 2**63 - 1) -> Rule:
    upper = "on" if high == 2**63 - 1 else f"to {high}"
    fits = range(low, high + 1)
    return Rule(f"a whole number from {low} {upper}", lambda v: type(v) is int and v in fits)


def _every(words: str, of: type[Any], fits: Callable[[Any], bool]) -> Rule:
    """A list, or an object by its values."""

    def all_fit(given: Any) -> bool:
        items = given.values() if isinstance(given, dict) else given
        return isinstance(given, of) and all(map(fits, items))

    return Rule(words, all_fit)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_range(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    return bool(pair and value[0] <= value[1])


def _are_labels(values: Any) -> bool:
    if not isinstance(values, list):
        return False
    for value in values:
        parts = value if isinstance(value, list) else [value]
        if value is not None and not all(type(part) in (int, str) for part in parts):
            return False
    return len({label_text(value) for value in values}) == len(values)


def _is_table(value: Any) -> bool:
    """What declares a table of a user's own."""
    try:
        return bool(_table(value).described() == value)
    except (KeyError, TypeError, AttributeError, UsageError):
        return False


def _table(value: Any) -> Table:
    return Table(**value | {"keys": tuple(value["keys"])})


TEXT = Rule("a text", lambda value: isinstance(value, str))
TRUTH = Rule("true or false", lambda value: type(value) is bool)
TEXTS = _every("a list of texts", list, TEXT.fits)
LABELS = Rule("a list of different whole numbers and texts", _are_labels)
ABOUT: dict[str, Rule] = {
    "horizon": _whole(1),
    "discount": Rule("a number in (0, 1]", lambda value: _is_number(value) and 0 < value <= 1),
    "target": TEXT,
    "target_has_steps": TRUTH,
    "abstraction": TEXT.or_null(),
    "state_columns": TEXTS,
    "continuous_actions": TRUTH,
    "behavior": TEXT,
    "max_ratio": Rule("a number above 0", lambda v: _is_number(v) and v > 0).or_null(),
    "control": TEXT.or_null(),
    "blocks": _whole(1),
    "sources": TEXTS,
    "ordered_by": TEXT,
    "cluster": TEXT.or_null(),
}
HEADER: dict[str, Rule] = {
    "about": Rule("an object", lambda value: isinstance(value, dict)),
    "states": LABELS,
    "actions": LABELS.or_null(),
    "truncated": _whole(0),
    "hidden": TRUTH,
    "kinds": TEXTS,
    "left_out": _every("texts by kind", dict, TEXT.fits),
    "unchecked": TEXTS,
    "rewards": Rule("two numbers, the smaller first", _is_range).or_null(),
    "extras": _every("objects by kind", dict, lambda v: isinstance(v, dict) and "version" in v),
    "tables": _every("objects", list, _is_table),
    "content": TEXT,
}
LATER: dict[str, Any] = {  # what the first files lack
    "left_out": {}, "unchecked": [], "rewards": None, "extras": {}, "tables": [], "content": "",
}  # fmt: skip
SCALAR: dict[str, Rule] = {
    "level": _whole(0, diagnostic.BITS),
    "shift": _whole(0, diagnostic.UNORDERED),
    "floor": Rule("a number", _is_number).or_null(),
    "n": _whole(0),
}


@dataclass(frozen=True)
class Header:
    """A header that was read and checked.

    values   the fields of the moments that are not tables
    kinds    the tables that have no version
    scalars  by kind, of the versions that this version reads
    tables   those that were declared outside of the package
    rows_of  the names of all kinds that the tables may hold, other versions' too
    content  the checksum of the tables; None in files of the first format
    """

    values: dict[str, Any]
    kinds: tuple[str, ...]
    scalars: dict[str, dict[str, Any]]
    tables: dict[str, Table]
    rows_of: frozenset[str]
    content: str | None


def _header_text(moments: Moments, content: str) -> bytes:
    """The header of these sums; `content` is the checksum of their tables."""
    tables = tables_of(moments)
    extras: dict[str, dict[str, Any]] = {}
    for kind in [kind for kind in tables if kind in VERSIONS]:
        scalars = {name: getattr(tables[kind], name) for name in SCALARS.get(kind, ())}
        # JSON has no infinity: a floor of -inf is null
        plain = {n: None if value == -math.inf else value for n, value in scalars.items()}
        extras[kind] = {"version": VERSIONS[kind]} | plain
    header = {
        "format": FORMAT,
        "about": asdict(moments.about),
        "states": moments.states.values,
        "actions": None if moments.actions is None else moments.actions.values,
        "truncated": moments.truncated,
        "hidden": moments.hidden,
        "left_out": moments.left_out,
        "unchecked": moments.unchecked,
        "rewards": moments.rewards,
        "kinds": [kind for kind in tables if kind not in VERSIONS and kind not in moments.tables],
        "tables": [part.table.described() for part in moments.tables.values()],
        "extras": extras,
        "content": content,
    }
    return json.dumps(sealed(header), allow_nan=False).encode()


def read_header(raw: bytes, what: str) -> Header:
    """Parse and check a header; InputError, which names `what`, where it breaks a rule."""
    header = parse_object(raw, f"the header of {what}")
    version = header.get("format")
    if type(version) is not int or version not in READ:
        raise InputError(f"{what} has format {version!r}, and this version reads {FORMAT}")
    header = LATER | unsealed(header, what, required=version > 1)
    _check(header, HEADER, what)
    about = header["about"]
    optional = {f.name for f in fields(About) if f.default is not MISSING}
    _check(about, {k: rule for k, rule in ABOUT.items() if k in about or k not in optional}, what)
    if set(about) > set(ABOUT):
        raise InputError(f"{what} has an unknown field {min(set(about) - set(ABOUT))!r}")
    if (None in header["states"]) != header["hidden"]:
        raise InputError(f"{what} is damaged: 'hidden' and its states contradict each other")
    scalars: dict[str, dict[str, Any]] = {}
    for kind, part in header["extras"].items():
        earlier = EARLIER.get((kind, part["version"]))
        if earlier is None and part["version"] != VERSIONS.get(kind):
            continue
        names = SCALARS.get(kind, ())
        held = (earlier or {}) | part
        _check(held, {name: SCALAR[name] for name in names}, what)
        scalars[kind] = {name: -math.inf if held[name] is None else held[name] for name in names}
    tables = {value["name"]: _table(value) for value in header["tables"]}
    listed = {name: tuple(about[name]) for name in ("state_columns", "sources")}
    values = {name: header[name] for name in ("truncated", "hidden", "left_out")} | {
        "about": About(**about | listed),
        "states": _labels(header["states"]),
        "actions": None if header["actions"] is None else _labels(header["actions"]),
        "unchecked": tuple(header["unchecked"]),
        "rewards": None if header["rewards"] is None else tuple(header["rewards"]),
    }
    rows_of = frozenset([*header["kinds"], *header["extras"], *tables])
    content = header["content"] if version > 1 else None
    return Header(values, tuple(header["kinds"]), scalars, tables, rows_of, content)


def _check(values: Mapping[str, Any], rules: Mapping[str, Rule], what: str) -> None:
    for key, rule in rules.items():
        if key not in values:
            raise InputError(f"{what} is damaged: its header has no {key!r}")
        if not rule.fits(values[key]):
            shown = repr(values[key])
            shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
            raise InputError(f"{what} is damaged: {key!r} must be {rule.words}; it is {shown}")


def _labels(values: list[Any]) -> Labels:
    return Labels(tuple(tuple(v) if isinstance(v, list) else v for v in values))
