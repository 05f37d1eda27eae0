"""reweigh check: does the log keep its contract? With --diagnose: can it answer for a target?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import reweigh as rw
from reweigh.cli import options
from reweigh.cli.command import command
from reweigh.cli.terminal import Terminal, cell, collect_warnings, draw
from reweigh.errors import Fault, InputError, RefusedError, UsageError
from reweigh.show.record import refusal_json
from reweigh.show.text import by_text, plain_value

PARTS = 10_000  # shares of a policy are written with four decimals


@command(target=options.TargetOptions, log=options.LogOptions)
def check(
    log: options.LogOptions,
    target: options.TargetOptions,
    paths: options.LogFiles = None,
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
        options.WRITES,
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
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
    log: options.LogOptions,
    target_prob: str | None,
    policy_file: Path | None,
    terminal: Terminal,
) -> None:
    """Read the log and say what is in it, or every fault."""
    try:
        with collect_warnings() as warnings, terminal.working("reading the log"):
            data = log.read(paths, target_prob)
            facts = data.describe()
            if policy_file is not None:
                log.require_rows(data, "--write-policy")
                write_logged_policy(data, policy_file)
    except InputError as error:
        if terminal.as_json:
            # a file that cannot be read at all has one fault: that
            faults = error.faults or (Fault("file", str(error), "give a file that can be read"),)
            terminal.json({"ok": False, "faults": [_fault(fault) for fault in faults]})
        raise
    if terminal.as_json:
        terminal.json({"ok": True, "faults": [], "warnings": warnings, "log": facts})
        return
    if not terminal.silent:
        _print_facts(facts, "The log keeps its contract.")
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


def _print_facts(facts: Mapping[str, Any], title: str) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), cell(plain_value(value, "{:.6g}".format)))
    draw(table)


def write_logged_policy(log: rw.EpisodeLog, path: Path) -> None:
    """Write how often each action was taken in each state: a file that a target policy can be
    made from."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pacsv

    from reweigh.log.log import label_columns
    from reweigh.system.files import write_atomically

    if log.actions is None:
        raise UsageError("--write-policy needs actions that can be listed, not continuous ones")
    width = len(log.actions)
    counts = np.zeros((len(log.states) + 1, width), np.int64)
    np.add.at(counts, (log.steps.state + 1, log.steps.action), 1)  # row 0: the hidden state
    visited = np.flatnonzero(counts.sum(axis=1))
    states = label_columns("state", log.states, np.repeat(visited - 1, width))
    names = log.columns.state if len(states) == len(log.columns.state) else tuple(states)
    actions = label_columns("action", log.actions, np.tile(np.arange(width), len(visited)))
    columns: dict[str, Any] = dict(zip(names, states.values(), strict=True))
    columns |= dict(zip([log.columns.action], actions.values(), strict=True))
    table = pa.table(columns | {"prob": rounded_shares(counts[visited]).reshape(-1)})
    write_atomically(path, lambda stream: pacsv.write_csv(table, stream))


def rounded_shares(counts: Any) -> Any:
    """Rows of counts as shares of four decimals that add up to 1: what rounding down leaves goes
    to the largest remainders."""
    exact = PARTS * counts / counts.sum(axis=1, keepdims=True)
    parts = exact.astype(int)
    rank = (parts - exact).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return (parts + (rank < (PARTS - parts.sum(axis=1))[:, None])) / PARTS


def _diagnose(
    paths: list[Path] | None,
    log: options.LogOptions,
    target: options.TargetOptions,
    estimators: str,
    strict: bool,
    terminal: Terminal,
) -> None:
    """Print every gate. The values are computed on the way, and not told: whoever decides whether
    to believe a number should not have visited it."""
    recipes = options.estimators_named(estimators, None)
    with collect_warnings() as warnings:
        with terminal.working("reading"):
            inputs = options.read_inputs(paths, log, target)
        with terminal.working("diagnosing", inputs.data) as data:
            results = rw.evaluate_all(data, inputs.policy, recipes)
            verdicts = [r.verdict for r in results if isinstance(r, rw.Estimate)]
    if terminal.as_json:
        entries = [_entry(result) for result in results]
        beside = {"log": inputs.about, "warnings": warnings, "version": rw.__version__}
        terminal.json({"diagnoses": entries, **beside})
    else:
        columns = ("gate", "level", "of", "found")
        terminal.table(columns, _gate_rows(results), left=columns, wrapped="found")
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


def _entry(result: rw.Estimate | rw.Refusal) -> dict[str, Any]:
    entry: dict[str, Any] = {"estimator": result.estimator, "verdict": None}
    if isinstance(result, rw.Refusal):
        return entry | refusal_json(result.error)
    verdict = result.verdict.to_dict()
    parts = {name: verdict[name] for name in ("unchecked", "gates")}
    return entry | {"verdict": verdict["level"], **parts}


def _gate_rows(results: Sequence[rw.Estimate | rw.Refusal]) -> list[tuple[str, ...]]:
    """One row per gate and finding, with the estimators that it concerns; the worst first."""
    from reweigh.trust.gates.gate import ORDER

    findings: list[tuple[str, tuple[str, str, str]]] = []
    for result in results:
        for gate in () if isinstance(result, rw.Refusal) else result.verdict.gates:
            level = "hint" if gate.hint and gate.level == "amber" else gate.level
            against = gate.level in ("amber", "red")
            text = f"{gate.text} [{gate.limit}]" if against else gate.text
            findings.append((result.estimator, (level, gate.name, text)))
    names, rank = by_text(findings), ("hint", *ORDER)
    rows: list[tuple[str, ...]] = []
    for finding in sorted(names, key=lambda finding: -rank.index(finding[0])):
        level_name, gate_name, finding_text = finding
        words = "not checked" if level_name == "unknown" else level_name
        rows.append((gate_name, words, ", ".join(names[finding]), cell(finding_text)))
    return rows


def _verdict_line(result: rw.Estimate | rw.Refusal) -> str:
    if isinstance(result, rw.Refusal):
        return f"{result.estimator}: refused ({result.error.code}): {result.error}"
    return f"{result.estimator}: {result.verdict}"
