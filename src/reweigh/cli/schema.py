"""For programs and coding assistants: reweigh schema, the JSON Schema of what a command prints with
--json, and reweigh skill, what an assistant needs to know to use reweigh well."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Annotated, Any

import typer

from reweigh.cli.command import command
from reweigh.errors import UsageError, nearest

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    object: {},
    Any: {},
}
TEXT = Path(__file__).with_name("skill.md")


@command()
def schema(
    of: Annotated[
        str, typer.Argument(metavar="COMMAND", help="init, check, evaluate, compare or plan.")
    ],
) -> None:
    """Print the JSON Schema of what a command prints with --json.

    Example: reweigh schema evaluate > evaluate.schema.json
    """
    from reweigh.cli.outputs import OUTPUTS

    if of not in OUTPUTS:
        raise UsageError(
            f"{of!r} has no --json; schemas are there for {', '.join(OUTPUTS)}"
            f"{nearest(of, OUTPUTS)}"
        )
    print(json.dumps(schema_of(of, OUTPUTS[of]), indent=2))


def schema_of(name: str, shapes: tuple[type, ...]) -> dict[str, Any]:
    """The schema of an output that has one of these shapes."""
    defs: dict[str, Any] = {}
    nodes = [_node(shape, defs) for shape in shapes]
    top = nodes[0] if len(nodes) == 1 else {"anyOf": nodes}
    about = {"$schema": DIALECT, "title": f"reweigh {name} --json"}
    return {**about, **top, "$defs": dict(sorted(defs.items()))}


def _node(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; records are added to `defs` and referred to."""
    if kind in PLAIN:
        return dict(PLAIN[kind])
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        inner = _node(parts[0], defs)
        return {**inner, "description": parts[1]}
    if origin is typing.Literal:
        return {"enum": list(parts)}
    if origin in (typing.Union, types.UnionType):
        nodes = [_node(part, defs) for part in parts]
        if all(node.keys() == {"type"} for node in nodes):
            return {"type": [node["type"] for node in nodes]}
        return {"anyOf": nodes}
    if origin in (list, tuple):
        return {"type": "array", "items": _node(parts[0], defs)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _node(parts[1], defs)}
    if typing.is_typeddict(kind):
        required = kind.__required_keys__
    elif dataclasses.is_dataclass(kind):
        required = {field.name for field in dataclasses.fields(kind)}
    else:
        raise TypeError(f"{kind} has no schema")
    if kind.__name__ not in defs:
        defs[kind.__name__] = {}  # its place, for a record that holds itself
        defs[kind.__name__] = _record(kind, frozenset(required), defs)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _record(kind: Any, required: frozenset[str], defs: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    bare = {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) is typing.NotRequired else hint
        for name, hint in hints.items()
    }
    return {
        "type": "object",
        "properties": {name: _node(hint, defs) for name, hint in bare.items()},
        "required": sorted(required),
        "additionalProperties": False,
    }


@command()
def skill() -> None:
    """Print instructions for coding assistants: which command when, and how to read a verdict.

    Example: reweigh skill > SKILL.md
    """
    print(TEXT.read_text(encoding="utf-8"), end="")
