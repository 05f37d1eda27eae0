"""Packages that only some users have."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from reweigh.errors import UsageError


def need(module: str, extra: str, what: str) -> Any:
    """A module of an optional package, or a word on what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
        raise UsageError(
            f"{what} needs the package {package}: pip install 'reweigh[{extra}]' ({error})"
        ) from error
