"""reweigh check: does the log keep its contract?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from reweigh.cli.options import OR_TABLE, LogOptions, TargetOptions, with_options


@with_options(target=TargetOptions, log=LogOptions)
def check(
    log: LogOptions,
    target: TargetOptions,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LOG…", help="Files of the log. " + OR_TABLE),
    ] = None,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose",
            help="Could an estimate of the target's value be believed? Every gate, no estimate. "
            "Also of a file of moments.",
        ),
    ] = False,
    estimators: Annotated[
        str | None,
        typer.Option(help="Whose gates --diagnose tells, by name. (default: mis,wis,dm)"),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="With --diagnose: exit 4 where a verdict is red.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a log: counts, ranges, and every fault at once. With --diagnose also whether it can
    answer for a target policy.

    Example: reweigh check episodes.csv --behavior-prob mu --terminated done

    Example: reweigh check episodes.csv --diagnose --target policy.csv
    """
    from reweigh.cli.diagnose import tell
    from reweigh.cli.show import facts_table, noted, print_json, print_table, say, working
    from reweigh.errors import Fault, InputError, UsageError
    from reweigh.moments.store import is_moments_file

    if diagnose:
        tell(paths, log, target, estimators or "mis,wis,dm", strict=strict, as_json=as_json)
        return
    if any(is_moments_file(path) for path in paths or []):
        raise UsageError(
            "this is a file of moments, not a log: reweigh evaluate takes it, and --diagnose"
        )
    for name, given in (("--target", target.target), ("--estimators", estimators)):
        if given is not None:
            raise UsageError(f"{name} belongs to --diagnose")
    if strict:
        raise UsageError("--strict belongs to --diagnose")
    try:
        with noted() as warned, working("reading the log", quiet=as_json):
            found = log.read(paths, target.target_prob).describe()
    except InputError as error:
        if as_json:
            # a file that cannot be read at all has one fault: that
            faults = error.faults or (Fault("file", str(error), "give a file that can be read"),)
            print_json({"ok": False, "faults": [_fault(fault) for fault in faults]})
        raise
    if as_json:
        print_json({"ok": True, "faults": [], "warnings": warned, "log": found})
        return
    print_table(facts_table(found, "The log keeps its contract."))
    for text in warned:
        say(f"! {text}")


def _fault(fault: Any) -> dict[str, Any]:
    plain = asdict(fault)
    for place in plain["places"]:
        if isinstance(place["value"], float) and place["value"] != place["value"]:
            place["value"] = "nan"
        elif place["value"] in (float("inf"), float("-inf")):
            place["value"] = str(place["value"])
    return plain
