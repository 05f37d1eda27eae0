"""Our own JSON: read strictly, and sealed with a checksum."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any, NoReturn

from reweigh.errors import InputError, InputWarning
from reweigh.system.fingerprint import digest_of

CHECKSUM = "checksum"


def parse_object(text: bytes | str, what: str) -> dict[str, Any]:
    """The JSON object that this text is. InputError, which names `what`, for anything else: another
    value, a key that stands twice, NaN, a number that no float holds, nesting without end."""
    try:
        found = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError as error:
        raise InputError(f"{what} is damaged: its JSON is nested too deeply") from error
    except ValueError as error:  # also bytes that are no UTF-8, and integers without end
        raise InputError(f"{what} is damaged: it is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise InputError(
            f"{what} is damaged: its JSON must be an object, and is {type(found).__name__}"
        )
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def checksum_of(*parts: Any) -> str:
    """Of values that JSON can hold; the same whatever the order of keys and the spaces."""
    return digest_of(*(json.dumps(part, sort_keys=True, allow_nan=False) for part in parts))


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """The content with its checksum."""
    return content | {CHECKSUM: checksum_of(content)}


def unsealed(content: dict[str, Any], what: str, *, required: bool) -> dict[str, Any]:
    """The content without its checksum, which must be right. Where there is none although it is
    `required` the content is refused; else it comes with a remark."""
    rest = {key: value for key, value in content.items() if key != CHECKSUM}
    if CHECKSUM not in content and not required:
        remark_unsealed(what)
    elif content.get(CHECKSUM) != checksum_of(rest):
        raise InputError(f"{what} is damaged: its content does not match its checksum")
    return rest


def remark_unsealed(what: str) -> None:
    warnings.warn(
        InputWarning(
            f"{what} was written by an older version, without a checksum: damage to it may go "
            "unnoticed; write it again"
        ),
        stacklevel=3,
    )
