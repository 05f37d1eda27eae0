"""Logs as JSON Lines: one object per line, whose nested fields are columns with dotted names.

A file is read in blocks of whole lines, and of these only the fields that are needed: prompts
and answers that a log holds besides take no memory. The first read finds out what the fields are.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pajson

from reweigh.errors import Fault, InputError, Place, input_error
from reweigh.log import csv_files as csvfile
from reweigh.log.sources import FileSource
from reweigh.log.states import plain_table

BLOCK = 1 << 22  # bytes
LONGEST_LINE = 1 << 28
QUOTED = 40  # characters of a broken line
EMPTY = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


@dataclass(frozen=True)
class Field:
    """A field that holds a value: its dotted name, its keys from the outermost in, its type."""

    name: str
    keys: tuple[str, ...]
    kind: pa.DataType


@dataclass(frozen=True, eq=False)
class JsonSource(FileSource):
    """Files of JSON Lines, plain or gzip."""

    @cached_property
    def _schema(self) -> pa.Schema:
        """The fields of all files; a field that has two types is refused."""
        self.parts.clear()
        known: pa.Schema | None = None
        for path in self.paths:
            rows, lines = 0, 0
            for first, block in _blocks(path):
                table = _parsed(path, first, block, None)
                kinds = [field.with_type(_as_text(field.type)) for field in table.schema]
                known = _united(path, first, known, pa.schema(kinds))
                rows, lines = rows + table.num_rows, lines + block.count(b"\n")
            self.parts.append((rows, rows == lines))
        if known is None or not len(known):
            raise input_error(self.describe(), [csvfile.EMPTY_FILE])
        return known

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The fields that hold values, by their dotted names."""
        fields = list(_fields(self._schema, ()))
        csvfile.refuse_duplicates([field.name for field in fields], str(self.paths[0]))
        return {field.name: field for field in fields}

    @property
    def names(self) -> list[str]:
        return list(self.fields)

    @property
    def num_rows(self) -> int:
        _ = self.fields
        return sum(rows for rows, _ in self.parts)

    def schema_of(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([pa.field(name, self.fields[name].kind) for name in names])

    def read(self, names: Sequence[str], ids: Sequence[str]) -> pa.Table:
        names = list(dict.fromkeys(names))
        batches = [batch for path in self.paths for batch in self.batches(path, names)]
        return plain_table(
            pa.concat_tables([pa.Table.from_batches([], self.schema_of(names)), *batches])
        )

    def batches(self, path: Path, names: Sequence[str]) -> Iterator[pa.Table]:
        """The named fields of a file, block after block."""
        chosen = [self.fields[name] for name in names]
        schema = _pruned(self._schema, {field.keys for field in chosen}, ())
        self.refuse_change()
        for first, block in _blocks(path):
            table = _parsed(path, first, block, schema)
            columns = [_column(table, field) for field in chosen]
            yield pa.table(columns, schema=self.schema_of(names))
        self.refuse_change()

    def place(self, row: int) -> Place:
        place = super().place(row)
        # no line is a header
        return place if place.line is None else replace(place, line=place.line - 1)


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in blocks of whole lines, with the number of their first line."""
    first, held = 1, b""
    with csvfile.open_stream(path) as stream:
        while True:
            try:
                more = stream.read(BLOCK)
            except (OSError, EOFError) as error:
                raise InputError(f"{str(path)!r} is damaged after line {first}: {error}") from error
            end = more.rfind(b"\n") + 1
            block, held = (held + more[:end], more[end:]) if end else (b"", held + more)
            if not more and held:
                block, held = held + b"\n", b""
            if first == 1:
                block = block.removeprefix(b"\xef\xbb\xbf")
            if len(held) > LONGEST_LINE:
                raise InputError(f"{str(path)!r}: a line has more than {LONGEST_LINE:,} bytes")
            if block.strip():
                yield first, block
            first += block.count(b"\n")
            if not more:
                return


def _parsed(path: Path, first: int, block: bytes, schema: pa.Schema | None) -> pa.Table:
    options = pajson.ParseOptions(
        explicit_schema=schema,
        unexpected_field_behavior="infer" if schema is None else "ignore",
    )
    try:
        table = pajson.read_json(
            io.BytesIO(block),
            read_options=pajson.ReadOptions(block_size=len(block) + 1, use_threads=False),
            parse_options=options,
        )
        table.validate(full=True)
    except EMPTY as error:
        raise _broken(path, first, block, error) from error
    return table


def _broken(path: Path, first: int, block: bytes, cause: Exception) -> InputError:
    """The first line that is no JSON object, found line by line."""
    for number, line in enumerate(block.split(b"\n"), first):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            at = getattr(error, "colno", getattr(error, "start", 0) + 1)
            what = error.msg if isinstance(error, json.JSONDecodeError) else "it is not UTF-8"
            excerpt = line[max(at - QUOTED // 2, 0) :][:QUOTED].decode(errors="replace")
            return _fault(path, number, f"the line is no JSON: {what} at character {at}", excerpt)
        except RecursionError:
            return _fault(path, number, "the line is nested too deeply", line[:QUOTED].decode())
        if not isinstance(value, dict):
            what = f"the line holds a {type(value).__name__}, and must hold an object"
            return _fault(path, number, what, line[:QUOTED].decode())
    # a field that has two types; rows are counted without empty lines
    lines = [k for k, line in enumerate(block.split(b"\n"), first) if line.strip()]
    reason, _, row = str(cause).removeprefix("JSON parse error: ").partition(" in row ")
    at = (
        f"line {lines[int(row)]}" if row.isdigit() and int(row) < len(lines) else f"line {first} on"
    )
    return InputError(f"{str(path)!r}, {at}: {reason}; write every field with one type")


def _fault(path: Path, line: int, rule: str, excerpt: str) -> InputError:
    place = Place(excerpt, row=line, line=line)
    fix = "write one JSON object per line"
    return input_error(str(path), [Fault("json", rule, fix, (place,), 1)])


def _as_text(kind: pa.DataType) -> pa.DataType:
    """Timestamps stay as they are written."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _as_text(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_text(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) else kind


def _united(path: Path, line: int, known: pa.Schema | None, more: pa.Schema) -> pa.Schema:
    if known is None or known.equals(more):
        return more
    try:
        return pa.unify_schemas([known, more], promote_options="permissive")
    except EMPTY as error:
        raise InputError(
            f"{str(path)!r}: a field has another type from line {line} on: {error}"
        ) from error


def _fields(parent: Any, keys: tuple[str, ...]) -> Iterator[Field]:
    for field in parent:
        path = (*keys, field.name)
        if pa.types.is_struct(field.type):
            yield from _fields(field.type, path)
        else:
            yield Field(".".join(path), path, field.type)


def _pruned(parent: Any, wanted: set[tuple[str, ...]], keys: tuple[str, ...]) -> Any:
    """The schema without the fields that are not wanted."""
    kept = []
    for field in parent:
        path = (*keys, field.name)
        if path in wanted:
            kept.append(field)
        elif pa.types.is_struct(field.type) and any(k[: len(path)] == path for k in wanted):
            kept.append(pa.field(field.name, pa.struct(_pruned(field.type, wanted, path))))
    return kept if keys else pa.schema(kept)


def _column(table: pa.Table, field: Field) -> pa.ChunkedArray:
    column = table.column(field.keys[0])
    for key in field.keys[1:]:
        column = pc.struct_field(column, key)
    return column.cast(field.kind)
