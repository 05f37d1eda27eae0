"""What single options ask for: a memory, clipped ratios, other choices, groups, SQL, a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reweigh as rw
from reweigh.cli.inputs import Inputs
from reweigh.cli.options import IntervalOptions, ReportOptions
from reweigh.cli.terminal import Terminal, cell, collect_warnings, for_terminal, typed_command
from reweigh.errors import RefusedError, UsageError
from reweigh.evaluation.result import GAMMAS
from reweigh.evaluation.sensitivity import Sensitivity
from reweigh.show.text import answer_line
from reweigh.system import rounded
from reweigh.system.process import each

if TYPE_CHECKING:
    from reweigh.cli.evaluate import Outcome
    from reweigh.evaluation.groups import Groups
    from reweigh.show.confounding import Confounding


def with_settings(
    recipes: Sequence[rw.Recipe | str], memory: str | None, max_ratio: float | None
) -> list[rw.Recipe | str]:
    """With a memory, and with ratios up to a limit."""
    if memory is not None:
        recipes = with_memory(recipes, memory)
    return list(recipes) if max_ratio is None else clipped(recipes, max_ratio)


def with_memory(recipes: Sequence[rw.Recipe | str], memory: str) -> list[rw.Recipe | str]:
    """With this memory in mis; estimators with running products may stand beside it."""
    k: Any = int(memory) if memory.isdecimal() else memory
    remembering = rw.mis(memory=k)
    if "auto" in recipes:
        raise UsageError("--memory belongs to mis, not to auto: give --estimators mis")
    named = [recipe for recipe in recipes if isinstance(recipe, rw.Recipe)]
    others = [r.name for r in named if r.name != "mis" and (r.control or not r.uses_trajectories)]
    if others:
        raise UsageError(
            f"--memory is for mis, and {others[0]} takes none: a window of steps has no value or "
            "state of its own that it could use. Leave it out, or evaluate it by itself"
        )
    if all(recipe.name != "mis" for recipe in named):
        raise UsageError(f"--memory is for mis, and {named[0].name} multiplies all ratios anyway")
    return [remembering if r.name == "mis" else r for r in named]


def clipped(recipes: Sequence[rw.Recipe | str], max_ratio: float) -> list[rw.Recipe | str]:
    """With ratios of at most this number, where an estimator has ratios."""
    if "auto" in recipes:
        raise UsageError("--max-ratio needs a named estimator, not auto")
    without = [r.name for r in recipes if isinstance(r, rw.Recipe) and not r.weights.uses_ratios]
    if len(without) == len(recipes):
        raise UsageError(f"--max-ratio clips ratios, and {', '.join(without)} uses none")
    return [
        replace(r, max_ratio=max_ratio) if isinstance(r, rw.Recipe) and r.name not in without else r
        for r in recipes
    ]


def sensitivities_of(results: Sequence[rw.Estimate]) -> dict[str, Sensitivity]:
    """By estimator; refused where the rows are not in memory."""
    try:
        changes = each("other choices", results, lambda result: result.sensitivity())
    except RefusedError as error:
        if error.code != "needs-log":
            raise
        raise UsageError("--sensitivity needs the log in memory: use --engine arrays") from error
    return {one.estimator: one for one in changes}


def print_sensitivity(changes: Sensitivity, terminal: Terminal) -> None:
    """By how much the number moves when a choice behind it is changed; --quiet leaves the largest
    change."""
    first = f"{changes.estimator}, if …"
    rows = [
        (cell(what), "refused" if value.startswith("none:") else value, moved)
        for what, value, moved in changes.rows()
    ]
    terminal.say("")
    terminal.table((first, "value", "moves by"), rows, left=[first], wrapped=first)
    if changes.untried:
        terminal.say(changes.untried)
    terminal.warn(
        f"{changes.estimator}: {change.change}: no value: {change.why}"
        for change in changes.changes
        if change.value is None
    )
    most = changes.largest
    if most is not None and most.moved is not None:
        moved = rounded(most.moved, changes.standard_error)
        terminal.answer(f"{changes.estimator} moves most by {moved}: {most.change}")


def bounds_of(main: rw.Estimate, gammas: str | None) -> Confounding | RefusedError:
    """The bounds if the log is confounded, or why there are none."""
    if gammas is None:
        factors: tuple[float, ...] = GAMMAS
    else:
        try:
            factors = tuple(float(part) for part in gammas.split(","))
        except ValueError as error:
            raise UsageError(f"--gammas takes numbers such as 1.5,2,3, not {gammas!r}") from error
    try:
        return main.confounding(factors)
    except RefusedError as error:
        return error


def print_bounds(bounds: Confounding | RefusedError, terminal: Terminal) -> None:
    """The bounds by how wrong the log may be; --quiet leaves the sentence."""
    if isinstance(bounds, RefusedError):
        terminal.warn([f"no bounds for confounding: {bounds.reason}"])
        return
    terminal.say("", "If hidden causes change the odds of the logged actions by a factor up to Γ:")
    terminal.table(("Γ", "at least", "at most"), bounds.rows(), left=[])
    terminal.say(bounds.sentence, *bounds.notes)
    terminal.answer(bounds.sentence)


def count_trials(outcome: Outcome, ledger: Path, inputs: Inputs) -> None:
    """Write down what was tried on this log, and take over how much that is by now."""
    from reweigh.decide import ledger as ledgers

    trials = [ledgers.trial(inputs.policy, result.recipe) for result in outcome.requested]
    with collect_warnings() as warnings:
        tally = ledgers.noted(ledger, inputs.data.episodes_digest(), trials)
    outcome.warnings += [*warnings, *tally.separate_warnings(len(trials))]
    outcome.tried = tally.tried


def print_groups(groups: Groups, terminal: Terminal) -> None:
    """A row per group of episodes; --quiet leaves its name, value, interval and verdict."""
    from reweigh.evaluation.groups import COLUMNS

    terminal.say("", f"By {groups.column}, {groups.whole.estimator}:")
    terminal.table(COLUMNS, groups.cells(), left=["group"])
    terminal.say(*groups.lines())
    terminal.answer(*(answer_line(group.record) for group in groups))


def certificate_of(
    options: IntervalOptions, log: Any, policy: Any
) -> rw.Certificate | RefusedError:
    """The bounds for any number of episodes, with the declared range of rewards."""
    assert options.reward_range is not None
    side: Any = options.one_sided or "both"
    try:
        return rw.certify(log, policy, options.reward_range, options.level, side=side)
    except RefusedError as error:
        return error


def sql_of(inputs: Inputs, recipes: list[Any]) -> str:
    """The SQL that the estimators would run."""
    from reweigh.evaluation.scans import scanned_sql
    from reweigh.sums.read import ScannedLog

    if not isinstance(inputs.data, ScannedLog):
        raise UsageError("--show-sql needs an engine with SQL: --engine duckdb or spark://…")
    return scanned_sql(inputs.data, inputs.policy, recipes)


def write_outcome(
    outcome: Outcome, inputs: Inputs, report: ReportOptions, terminal: Terminal
) -> None:
    """Write the report of an evaluation."""
    from reweigh.evaluation.report import write_report

    certificate = outcome.certificate
    if isinstance(certificate, RefusedError):
        certified: str | None = f"none: {certificate.reason}"
    else:
        certified = None if certificate is None else " ".join(str(certificate).split())
    with terminal.working("writing the report"):
        write_report(
            outcome.results,
            str(report.report),
            overwrite=report.overwrite,
            title=report.title,
            unit=report.unit,
            intervals=[e.interval for e in outcome.records],
            log=inputs.data if isinstance(inputs.data, rw.EpisodeLog) else None,
            target=inputs.policy,
            words=for_terminal,
            about=inputs.about,
            command=typed_command(),
            remarks=outcome.general_warnings,
            certificate=certified,
            groups=None if outcome.groups is None else outcome.groups.table(),
        )
