"""Names for contents: equal where contents are equal, as far as can be told."""

from __future__ import annotations

import hashlib
from types import CodeType
from typing import Any

import numpy as np


def digest_of(*parts: str | bytes) -> str:
    """A short name for a content: 16 bytes of SHA-256 in hexadecimal."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()[:32]


def digest_of_callable(f: Any) -> str:
    """Of what a function does and holds: its code, defaults, closure, or its object's attributes.

    What it reads from elsewhere (globals, files) cannot be seen.
    """
    owner = getattr(f, "__self__", None)
    code = getattr(f, "__code__", None)
    if code is None and callable(f):
        owner, code = f, getattr(type(f).__call__, "__code__", None)
    closed = [cell.cell_contents for cell in getattr(f, "__closure__", None) or ()]
    held = [getattr(f, "__defaults__", None), closed, getattr(owner, "__dict__", None)]
    name = f"{getattr(f, '__module__', '')}.{getattr(f, '__qualname__', type(f).__qualname__)}"
    return digest_of(name, "" if code is None else _code(code), _content(held))


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return digest_of(code.co_code, repr(code.co_names), repr(constants))


def _content(value: Any) -> str:
    """A text for a value in which arrays are whole and nothing is an address."""
    if isinstance(value, np.ndarray):
        return digest_of(str(value.dtype), repr(value.shape), np.ascontiguousarray(value).tobytes())
    if isinstance(value, dict):
        return repr([(str(key), _content(item)) for key, item in value.items()])
    if isinstance(value, list | tuple | set | frozenset):
        return repr([_content(item) for item in value])
    if callable(value) and hasattr(value, "__code__"):
        return digest_of_callable(value)
    if repr(value).startswith(f"<{type(value).__module__}."):  # the default, with an address
        return f"{type(value).__qualname__} {_content(getattr(value, '__dict__', None))}"
    return repr(value)
