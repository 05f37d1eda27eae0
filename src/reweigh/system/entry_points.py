"""What other packages add: objects that their metadata names in one of our groups.

    [project.entry-points."reweigh.estimators"]
    my-mis = "my_package:my_mis"

Groups are `reweigh.estimators`, `reweigh.gates` and `reweigh.adapters`. Reading the metadata of all
installed packages is slow: nothing here is called before a name is not one of ours, or all names
are wanted. `optional_module` imports from packages that only some users have.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from reweigh.errors import UsageError


@cache
def declared(group: str) -> dict[str, Any]:
    """The entry points of a group, such as "estimators", by name."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=f"reweigh.{group}")}


def added_names(group: str) -> tuple[str, ...]:
    """The names that other packages add to a group."""
    return tuple(declared(group))


def added(group: str, name: str) -> Any:
    """The object of that name, imported; None where no package adds it."""
    entry = declared(group).get(name)
    if entry is None:
        return None
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist is not None else entry.value
        raise UsageError(
            f"{name!r}, which the package {package!r} adds to reweigh.{group}, cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def forget() -> None:
    """Look again: packages were installed meanwhile."""
    declared.cache_clear()


def optional_module(module: str, extra: str, what: str) -> Any:
    """A module of an optional package, or a word on what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0].replace("sklearn", "scikit-learn")
        raise UsageError(
            f"{what} needs the package {package}: pip install 'reweigh[{extra}]' ({error})"
        ) from error
