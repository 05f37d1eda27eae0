"""reweigh check: does the log keep its contract?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from reweigh.cli.options import LogOptions, with_options


@with_options(log=LogOptions)
def check(
    paths: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Files of the log.")],
    log: LogOptions,
    target_prob: Annotated[
        str | None, typer.Option(help="Column with the target's probabilities, to check too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a log: counts, ranges, and every fault at once.

    Example: reweigh check episodes.csv --behavior-prob mu --terminated done
    """
    from reweigh.cli.show import facts_table, print_json, print_table, working
    from reweigh.errors import InputError

    try:
        with working("reading the log", quiet=as_json):
            found = log.read(paths, target_prob)
    except InputError as error:
        if as_json:
            print_json({"ok": False, "faults": [_fault(fault) for fault in error.faults]})
        raise
    if as_json:
        print_json({"ok": True, "faults": [], "log": found.describe()})
    else:
        print_table(facts_table(found.describe(), "The log keeps its contract."))


def _fault(fault: Any) -> dict[str, Any]:
    plain = asdict(fault)
    for place in plain["places"]:
        if isinstance(place["value"], float) and place["value"] != place["value"]:
            place["value"] = "nan"
        elif place["value"] in (float("inf"), float("-inf")):
            place["value"] = str(place["value"])
    return plain
