"""reweigh check: does the log keep its contract?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from reweigh.cli.files import WRITES
from reweigh.cli.options import OR_TABLE, LogOptions, TargetOptions, with_options
from reweigh.cli.terminal import Json, Quiet, Voice


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
    write_policy: Annotated[
        Path | None,
        typer.Option(
            help="Write the log's own policy to this CSV file: every state and action, with the "
            "share of its uses. Change the shares, and it is a target policy."
        ),
        WRITES,
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a log: counts, ranges, and every fault at once. With --diagnose also whether it can
    answer for a target policy.

    Example: reweigh check episodes.csv --behavior-prob mu --terminated done

    Example: reweigh check episodes.csv --diagnose --target policy.csv

    Example: reweigh check episodes.csv --write-policy policy.csv

    With --quiet nothing is printed of a log that is fine; with --diagnose, the verdicts.
    """
    from reweigh.cli.diagnose import tell
    from reweigh.cli.policyfile import write_policy as own_policy_to
    from reweigh.cli.tables import facts_table, noted, print_json
    from reweigh.errors import Fault, InputError, UsageError
    from reweigh.log.log import EpisodeLog
    from reweigh.sums.store import is_moments_file

    voice = Voice(quiet, as_json)
    if write_policy is not None:
        if diagnose:
            raise UsageError("give --write-policy or --diagnose, not both")
        if write_policy.exists():
            raise UsageError(f"{str(write_policy)!r} exists; give another name")
    if diagnose:
        tell(paths, log, target, estimators or "mis,wis,dm", strict=strict, voice=voice)
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
        with noted() as warned, voice.working("reading the log"):
            data = log.read(paths, target.target_prob)
            found = data.describe()
            if write_policy is not None:
                if not isinstance(data, EpisodeLog):
                    raise UsageError("--write-policy needs the log in memory: use --engine arrays")
                own_policy_to(data, write_policy)
    except InputError as error:
        if as_json:
            # a file that cannot be read at all has one fault: that
            faults = error.faults or (Fault("file", str(error), "give a file that can be read"),)
            print_json({"ok": False, "faults": [_fault(fault) for fault in faults]})
        raise
    if as_json:
        print_json({"ok": True, "faults": [], "warnings": warned, "log": found})
        return
    voice.table(facts_table(found, "The log keeps its contract."))
    if write_policy is not None:
        voice.say(f"the log's own policy: {write_policy}")
    for text in warned:
        voice.warn(f"! {text}")


def _fault(fault: Any) -> dict[str, Any]:
    plain = asdict(fault)
    for place in plain["places"]:
        if isinstance(place["value"], float) and place["value"] != place["value"]:
            place["value"] = "nan"
        elif place["value"] in (float("inf"), float("-inf")):
            place["value"] = str(place["value"])
    return plain
