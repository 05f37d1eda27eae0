"""reweigh check: does the log keep its contract? With --diagnose: can it answer for a target?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import reweigh as rw
from reweigh.cli.command import command
from reweigh.cli.inputs import estimators_named, read_inputs
from reweigh.cli.options import WRITES, Json, LogFiles, LogOptions, Quiet, TargetOptions
from reweigh.cli.terminal import Terminal, noted
from reweigh.errors import Fault, InputError, RefusedError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from reweigh.evaluation.result import Estimate, Refusal


@command(target=TargetOptions, log=LogOptions)
def check(
    log: LogOptions,
    target: TargetOptions,
    paths: LogFiles = None,
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
    from reweigh.sums.read import is_moments_file

    terminal = Terminal(quiet, as_json)
    if write_policy is not None:
        if diagnose:
            raise UsageError("give --write-policy or --diagnose, not both")
        if write_policy.exists():
            raise UsageError(f"{str(write_policy)!r} exists; give another name")
    if diagnose:
        _diagnose(paths, log, target, estimators or "mis,wis,dm", strict, terminal)
        return
    if any(is_moments_file(path) for path in paths or []):
        raise UsageError(
            "this is a file of moments, not a log: reweigh evaluate takes it, and --diagnose"
        )
    only_diagnosing = (
        ("--target", target.target), ("--estimators", estimators), ("--strict", strict or None),
    )  # fmt: skip
    for name, value in only_diagnosing:
        if value is not None:
            raise UsageError(f"{name} belongs to --diagnose")
    _check(paths, log, target.target_prob, write_policy, terminal)


def _check(
    paths: list[Path] | None,
    log: LogOptions,
    target_prob: str | None,
    policy_file: Path | None,
    terminal: Terminal,
) -> None:
    """Read the log and say what is in it, or every fault."""
    from reweigh.cli.tables import facts_table

    try:
        with noted() as warnings, terminal.working("reading the log"):
            data = log.read(paths, target_prob)
            facts = data.describe()
            if policy_file is not None:
                from reweigh.cli.own_policy import write_own_policy

                log.require_rows(data, "--write-policy")
                write_own_policy(data, policy_file)
    except InputError as error:
        if terminal.as_json:
            # a file that cannot be read at all has one fault: that
            faults = error.faults or (Fault("file", str(error), "give a file that can be read"),)
            terminal.json({"ok": False, "faults": [_fault(fault) for fault in faults]})
        raise
    if terminal.as_json:
        terminal.json({"ok": True, "faults": [], "warnings": warnings, "log": facts})
        return
    terminal.table(facts_table(facts, "The log keeps its contract."))
    if policy_file is not None:
        terminal.say(f"the log's own policy: {policy_file}")
    terminal.warn(f"! {text}" for text in warnings)


def _fault(fault: Any) -> dict[str, Any]:
    plain = asdict(fault)
    for place in plain["places"]:
        value = place["value"]
        if isinstance(value, float) and not abs(value) < float("inf"):  # nan too
            place["value"] = str(value)
    return plain


def _diagnose(
    paths: list[Path] | None,
    log: LogOptions,
    target: TargetOptions,
    estimators: str,
    strict: bool,
    terminal: Terminal,
) -> None:
    """Print every gate. The values are computed on the way, and not told: whoever decides whether
    to believe a number should not have seen it."""
    recipes = estimators_named(estimators, None)
    with noted() as warnings:
        with terminal.working("reading"):
            inputs = read_inputs(paths, log, target)
        with terminal.at_work(inputs.data, "diagnosing") as data:
            results = rw.evaluate_all(data, inputs.policy, recipes)
            verdicts = [r.verdict for r in results if isinstance(r, rw.Estimate)]
    if terminal.as_json:
        terminal.json(
            {
                "diagnoses": [_entry(result) for result in results],
                "log": inputs.about,
                "warnings": warnings,
                "version": rw.__version__,
            }
        )
    else:
        terminal.table(gates_table(results))
        lines = [_verdict_line(result) for result in results]
        terminal.say(*lines)
        terminal.answer(*lines)
        reasons = [gate for verdict in verdicts for gate in verdict.reasons]
        terminal.warn(dict.fromkeys(f"{gate.name}: {gate.advice}" for gate in reasons))
        terminal.warn(f"! {text}" for text in warnings)
    if not verdicts:
        raise RefusedError("refused", "no estimator could answer for this target")
    if strict and any(verdict.level == "red" for verdict in verdicts):
        raise RefusedError("red", "a verdict is red, and --strict takes it for a refusal")


def _entry(result: Estimate | Refusal) -> dict[str, Any]:
    if isinstance(result, rw.Refusal):
        error = result.error
        refused = {"code": error.code, "reason": error.reason}
        return {"estimator": result.estimator, "verdict": None, "refused": refused}
    verdict = result.verdict.to_dict()
    return {
        "estimator": result.estimator,
        "verdict": verdict["level"],
        "unchecked": verdict["unchecked"],
        "gates": verdict["gates"],
    }


def gates_table(results: Sequence[Estimate | Refusal]) -> Table:
    """One row per gate and finding, with the estimators that it speaks of; the worst first."""
    from reweigh.cli.tables import cell, ruled_table
    from reweigh.trust.gates.gate import ORDER

    names: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        for gate in () if isinstance(result, rw.Refusal) else result.verdict.gates:
            level = "hint" if gate.hint and gate.level == "amber" else gate.level
            against = gate.level in ("amber", "red")
            text = f"{gate.text} [{gate.limit}]" if against else gate.text
            names.setdefault((level, gate.name, text), []).append(result.estimator)
    table = ruled_table()
    for column in ("gate", "level", "of"):
        table.add_column(column, no_wrap=True)
    table.add_column("found")
    rank = ("hint", *ORDER)
    for finding in sorted(names, key=lambda finding: -rank.index(finding[0])):
        at, name, text = finding
        at = "not checked" if at == "unknown" else at
        table.add_row(name, at, ", ".join(names[finding]), cell(text))
    return table


def _verdict_line(result: Estimate | Refusal) -> str:
    if isinstance(result, rw.Refusal):
        return f"{result.estimator}: refused ({result.error.code}): {result.error}"
    return f"{result.estimator}: {result.verdict}"
