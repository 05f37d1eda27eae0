"""Sensitivity on the terminal: by how much the number moves when a choice behind it is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reweigh.cli.terminal import Voice
from reweigh.errors import RefusedError

if TYPE_CHECKING:
    from reweigh.evaluation.result import Estimate
    from reweigh.evaluation.sensitivity import Sensitivity


def sensitivities(results: Sequence[Estimate]) -> dict[str, Sensitivity]:
    """By estimator; refused where the rows are not in memory."""
    from reweigh.errors import UsageError
    from reweigh.system.progress import each

    try:
        found = each("other choices", results, lambda result: result.sensitivity())
        return {moved.estimator: moved for moved in found}
    except RefusedError as error:
        if error.code != "needs-log":
            raise
        raise UsageError("--sensitivity needs the log in memory: use --engine arrays") from error


def moved_entry(moved: Mapping[str, Sensitivity], estimator: str) -> dict[str, Any]:
    return {"sensitivity": moved[estimator].to_dict()} if estimator in moved else {}


def say_moved(found: Sensitivity, voice: Voice) -> None:
    """The changes as a table; --quiet leaves the largest."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from reweigh.cli.messages import printable
    from reweigh.evaluation.result import rounded

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
    table.add_column(f"{found.estimator}, if …")
    for name in ("value", "moves by"):
        table.add_column(name, justify="right", no_wrap=True)
    refused = [
        f"{found.estimator}: {change.change}: no value: {change.why}"
        for change in found.changes
        if change.value is None
    ]
    for what, value, moved in found.rows():
        cell = "refused" if value.startswith("none:") else value
        table.add_row(escape(printable(what)), cell, moved)
    voice.say("")
    voice.table(table)
    if found.untried:
        voice.say(found.untried)
    for line in refused:
        voice.warn(line)
    most = found.largest
    if most is not None and most.moved is not None:
        moved = rounded(most.moved, found.standard_error)
        voice.answer(f"{found.estimator} moves most by {moved}: {most.change}")
