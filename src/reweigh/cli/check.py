"""reweigh check: does the log meet the contract? With --diagnose: can it evaluate a target?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

import reweigh as rw
from reweigh.cli import options
from reweigh.cli.command import command
from reweigh.cli.inputs import estimators_named, read_inputs
from reweigh.cli.terminal import Terminal, cell, collect_warnings, draw
from reweigh.errors import Fault, InputError, RefusedError, UsageError
from reweigh.show import first_screen
from reweigh.show.record import PER_EPISODE, Evaluation, refusal_json
from reweigh.show.text import by_text, facts_in_words, plain_value
from reweigh.system import number

PARTS = 10_000  # shares of a policy are written with four decimals
SAME_MU, NEAR_ONE = 1e-6, 1e-3  # propensities are rounded when they are logged


@command(target=options.TargetOptions, log=options.LogOptions)
def check(
    log: options.LogOptions,
    target: options.TargetOptions,
    paths: options.LogFiles = None,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose",
            help=(
                "Check every gate for this target without estimating its value. Also works "
                "on a file of moments."
            ),
        ),
    ] = False,
    estimators: Annotated[
        str | None,
        typer.Option(
            help=("Estimators whose gates --diagnose shows, comma-separated. (default: mis,wis,dm)")
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="With --diagnose: exit 4 if a verdict is red.")
    ] = False,
    write_policy: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Write the logged policy to this CSV file: every state and action with the "
                "logged propensity, where that depends on them alone, else with its share of the "
                "rows. Change the probabilities to make a target policy."
            )
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
            "this is a file of moments, not a log: use reweigh evaluate, or add --diagnose"
        )
    only_diagnosing = (
        ("--target", target.target), ("--rule", target.rule), ("--estimators", estimators),
        ("--strict", strict or None),
    )  # fmt: skip
    for name, value in only_diagnosing:
        if value is not None:
            raise UsageError(f"{name} needs --diagnose")
    _check(paths, log, target.target_prob, write_policy, terminal)


def _check(
    paths: list[Path] | None,
    log: options.LogOptions,
    target_prob: str | None,
    policy_file: Path | None,
    terminal: Terminal,
) -> None:
    """Read the log and describe it, or report every fault."""
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
        elif error.faults:
            terminal.say(faulty_sentence(len(error.faults)))
        raise
    if terminal.as_json:
        terminal.json({"ok": True, "faults": [], "warnings": warnings, "log": facts})
        return
    if not terminal.silent:
        terminal.say(log_sentence(facts))
        _print_facts(facts)
    if policy_file is not None:
        terminal.say(f"the logged policy: {policy_file}")
    terminal.warn(f"! {text}" for text in warnings)


def _fault(fault: Any) -> dict[str, Any]:
    plain = asdict(fault)
    for place in plain["places"]:
        value = place["value"]
        if isinstance(value, float) and not abs(value) < float("inf"):  # nan too
            place["value"] = str(value)
    return plain


def _print_facts(facts: Mapping[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in facts_in_words(facts).items():
        table.add_row(name.replace("_", " "), cell(plain_value(value, "{:.6g}".format)))
    draw(table)


def write_logged_policy(log: rw.EpisodeLog, path: Path) -> None:
    """Write the logged propensity of each action in each state, or how often it was taken there: a
    file that a target policy can be made from."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as pacsv

    from reweigh.log.read import label_columns
    from reweigh.system.files import write_atomically

    if log.actions is None:
        raise UsageError("--write-policy needs a finite set of actions, but these are continuous")
    width = len(log.actions)
    counts = np.zeros((len(log.states) + 1, width), np.int64)
    np.add.at(counts, (log.steps.state + 1, log.steps.action), 1)  # row 0: the hidden state
    visited = np.flatnonzero(counts.sum(axis=1))
    shares = rounded_shares(counts[visited])
    if log.describe()["behavior_prob_from"] == "logged":
        shares = logged_shares(log, shares, visited)
    states = label_columns("state", log.states, np.repeat(visited - 1, width))
    names = log.columns.state if len(states) == len(log.columns.state) else tuple(states)
    actions = label_columns("action", log.actions, np.tile(np.arange(width), len(visited)))
    columns: dict[str, Any] = dict(zip(names, states.values(), strict=True))
    columns |= dict(zip([log.columns.action], actions.values(), strict=True))
    table = pa.table(columns | {"prob": shares.reshape(-1)})
    write_atomically(path, lambda stream: pacsv.write_csv(table, stream))


def rounded_shares(counts: Any) -> Any:
    """Rows of counts as shares of four decimals that add up to 1: the rest from rounding down goes
    to the largest remainders."""
    exact = PARTS * counts / counts.sum(axis=1, keepdims=True)
    parts = exact.astype(int)
    rank = (parts - exact).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return (parts + (rank < (PARTS - parts.sum(axis=1))[:, None])) / PARTS


def logged_shares(log: rw.EpisodeLog, shares: Any, visited: Any) -> Any:
    """The logged propensities in place of these shares, in the states where they depend on the
    action alone and add up to 1: a target made of shares would depend on the log's own draws."""
    import numpy as np

    cells, mu = (log.steps.state + 1, log.steps.action), log.steps.behavior_prob
    if mu is None:
        return shares
    low = np.full((len(log.states) + 1, shares.shape[1]), np.inf)
    high = np.zeros_like(low)
    np.minimum.at(low, cells, mu)
    np.maximum.at(high, cells, mu)
    low, high = low[visited], high[visited]
    total = high.sum(axis=1, keepdims=True)
    fixed = np.all((high == 0) | (high - low <= SAME_MU), axis=1, keepdims=True)
    exact = np.where(np.abs(total - 1) <= 1e-9, high, high / total)
    return np.where(fixed & (np.abs(total - 1) <= NEAR_ONE), exact, shares)


def _diagnose(
    paths: list[Path] | None,
    log: options.LogOptions,
    target: options.TargetOptions,
    estimators: str,
    strict: bool,
    terminal: Terminal,
) -> None:
    """Print every gate. The values are computed but not printed: decide whether an estimate is
    reliable before you see it."""
    from reweigh.evaluation.evaluations import main_of

    recipes = estimators_named(estimators, None)
    with collect_warnings() as warnings:
        with terminal.working("reading"):
            inputs = read_inputs(paths, log, target)
        with terminal.working("diagnosing", inputs.data) as data:
            results = rw.evaluate_all(data, inputs.policy, recipes)
            verdicts = [r.verdict for r in results if isinstance(r, rw.Estimate)]
            main = main_of(results)
            tried = () if main is None else main.tried(results)
    if terminal.as_json:
        entries = [_entry(result) for result in results]
        beside = {"log": inputs.about, "warnings": warnings, "version": rw.__version__}
        terminal.json({"diagnoses": entries, **beside})
    else:
        columns, records = ("gate", "level", "of", "found"), _judged(results, inputs.about)
        terminal.say(diagnosis_sentence(records), "")
        terminal.table(columns, _gate_rows(records), left=columns, wrapped="found")
        lines = [
            f"{r.estimator}: refused ({r.error.code}): {r.error}"
            if isinstance(r, rw.Refusal)
            else f"{r.estimator}: {r.verdict}"
            for r in results
        ]
        terminal.say(*lines)
        terminal.answer(*lines)
        terminal.warn(advice_lines(records, tried))
        terminal.warn(f"! {text}" for text in warnings)
        if not any(e.reliable for e in records):
            terminal.say(first_screen.help_after(records, tried))
    if not verdicts:
        raise RefusedError("refused", "no estimator has an answer for this target")
    if strict and any(verdict.level == "red" for verdict in verdicts):
        raise RefusedError("red", "a verdict is red, and --strict treats that as a refusal")


def _entry(result: rw.Estimate | rw.Refusal) -> dict[str, Any]:
    entry: dict[str, Any] = {"estimator": result.estimator, "verdict": None}
    if isinstance(result, rw.Refusal):
        return entry | refusal_json(result.error)
    verdict = result.verdict.to_dict()
    parts = {name: verdict[name] for name in ("unchecked", "gates")}
    return entry | {"verdict": verdict["level"], **parts}


def _judged(
    results: Sequence[rw.Estimate | rw.Refusal], about: Mapping[str, Any]
) -> list[Evaluation]:
    """The verdicts as records without a value, of a log with this description."""
    state: dict[str, Any] = {
        "state_columns": tuple(about.get("state_columns", ())),
        "abstraction": about.get("abstraction"),
    }
    return [
        replace(r.record(), **state)
        if isinstance(r, rw.Refusal)
        else Evaluation(r.estimator, r.recipe, r.n_episodes, r.horizon, verdict=r.verdict, **state)
        for r in results
    ]


def _gate_rows(records: Sequence[Evaluation]) -> list[tuple[str, ...]]:
    """One row per gate and finding, with the estimators that it concerns; the worst first."""
    from reweigh.trust.gates.gate import ORDER

    findings: list[tuple[str, tuple[str, str, str]]] = []
    for e in records:
        for gate in () if e.verdict is None else e.verdict.gates:
            level = "hint" if gate.hint and gate.level == "amber" else gate.level
            against = gate.level in ("amber", "red")
            text = first_screen.reason_text(e, gate) + (f" [{gate.limit}]" if against else "")
            findings.append((e.label, (level, gate.name, text)))
    names, rank = by_text(findings), ("hint", *ORDER)
    worst_first = sorted(names, key=lambda finding: -rank.index(finding[0]))
    return [
        (
            gate,
            "not checked" if level == "unknown" else level,
            ", ".join(names[level, gate, text]),
            cell(text),
        )
        for level, gate, text in worst_first
    ]


# --- in words


def log_sentence(facts: Mapping[str, Any], unit: str = PER_EPISODE) -> str:
    """What a log that meets the contract holds, of its description."""
    steps, rows = facts["horizon"], facts["rows"]
    long = "one step each" if steps == 1 else f"up to {steps:,} steps"
    earned = f"today's policy earned {number(facts['mean_return'])} {unit}"
    return f"The log is fine: {facts['episodes']:,} episodes of {long}, {rows:,} rows; {earned}."


def faulty_sentence(faults: int) -> str:
    """What a log is called that breaks rules of the contract."""
    rules = (
        "1 rule is broken, with its fix"
        if faults == 1
        else f"{faults} rules are broken, each with its fix"
    )
    return f"The log cannot be used yet: {rules} below."


def diagnosis_sentence(records: Sequence[Evaluation]) -> str:
    """Whether the question can be answered, from the checks alone: by whom, or why not."""
    rank = ("green", "amber", "red")
    judged = [e for e in records if e.level in rank]
    if not judged:
        why = next((e.refused.reason for e in records if e.refused is not None), "")
        return f"The log cannot answer this question: {first_screen.ended(why)}"
    best = min(judged, key=lambda e: rank.index(e.level or "red"))
    if best.level == "red":
        assert best.verdict is not None
        why = first_screen.ended(first_screen.reason_text(best, best.verdict.reasons[0]))
        return f"The log cannot answer this question by {best.label}: {why}"
    return (
        f"The log can answer this question by {best.label}. {first_screen.verdict_sentence(best)}"
    )


def advice_lines(records: Sequence[Evaluation], tried: Sequence[Evaluation]) -> list[str]:
    """What to do against each gate, without advice that leads nowhere."""
    leads = first_screen.leading([*records, *tried])
    gates = [gate for e in records if e.verdict for gate in e.verdict.reasons]
    return [*dict.fromkeys(f"{g.name}: {g.advice}" for g in gates if leads(g.advice))]
