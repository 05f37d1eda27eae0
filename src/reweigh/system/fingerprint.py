"""Names for contents: equal if the contents are known to be equal.

What cannot be looked into is equal only to itself, so that unknown never means equal.
"""

from __future__ import annotations

import functools
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from reweigh.system.files import digest_of

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)


def digest_of_callable(f: Any) -> str:
    """Of what a function does and holds: its code, defaults, closure, or its object's attributes.

    The same in every process. What it reads from elsewhere (globals, files) cannot be seen.
    """
    return digest_of(_callable(f, frozenset()))


def _callable(f: Any, above: frozenset[int]) -> str:
    if isinstance(f, functools.partial):
        return f"partial {_content([f.func, f.args, f.keywords], above)}"
    if isinstance(f, np.ufunc):
        return f"ufunc {f.__name__}"
    owner = getattr(f, "__self__", None)
    code = getattr(f, "__code__", None)
    if code is None:
        owner, code = f, getattr(type(f).__call__, "__code__", None)
    closed = [_cell(cell) for cell in getattr(f, "__closure__", None) or ()]
    held = [
        getattr(f, "__defaults__", None),
        getattr(f, "__kwdefaults__", None),
        closed,
        _attributes(owner) if owner is not None else None,
    ]
    name = f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', type(f).__qualname__)}"
    return digest_of(name, "" if code is None else _code(code), _content(held, above | {id(f)}))


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _code(code: CodeType) -> str:
    constants = [
        _code(c) if isinstance(c, CodeType) else _content(c, frozenset()) for c in code.co_consts
    ]
    return digest_of(code.co_code, repr(code.co_names), repr(constants))


def _attributes(value: Any) -> Any:
    """The attributes of an object, None where it has none that can be seen."""
    slots: list[str] = []
    for base in type(value).__mro__:
        named = getattr(base, "__slots__", ())
        slots += [named] if isinstance(named, str) else list(named)
    slots = [name for name in slots if not name.startswith("__") and hasattr(value, name)]
    attributes = dict(getattr(value, "__dict__", {})) | {
        name: getattr(value, name) for name in slots
    }
    return attributes or (None if not hasattr(value, "__dict__") else {})


def _content(value: Any, above: frozenset[int]) -> str:
    """A text for a value in which arrays are whole, sets are sorted and nothing is an address."""
    if isinstance(value, PLAIN):
        return f"{type(value).__name__} {value!r}"
    if id(value) in above:
        return "itself"
    above = above | {id(value)}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return _content(value.tolist(), above)
        return digest_of(str(value.dtype), repr(value.shape), np.ascontiguousarray(value).tobytes())
    if isinstance(value, dict):
        return repr([(_content(k, above), _content(v, above)) for k, v in value.items()])
    if isinstance(value, set | frozenset):
        return repr(sorted(_content(item, above) for item in value))
    if isinstance(value, list | tuple):
        return repr([_content(item, above) for item in value])
    if isinstance(value, ModuleType | type):
        return getattr(value, "__qualname__", value.__name__)
    if isinstance(value, FunctionType | functools.partial | np.ufunc) or hasattr(value, "__func__"):
        return _callable(value, above)
    attributes = _attributes(value)
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if attributes is None:
        return f"{name} {id(value)}"
    return f"{name} {_content(attributes, above)}"
