"""reweigh compare: which of several targets is better, than the behavior and than each other?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import reweigh as rw
from reweigh.cli import options
from reweigh.cli.command import command
from reweigh.cli.inputs import estimators_named
from reweigh.cli.terminal import (
    Terminal,
    collect_warnings,
    for_terminal,
    screen_width,
    typed_command,
)
from reweigh.errors import RefusedError, UsageError
from reweigh.show.record import PER_EPISODE
from reweigh.show.text import by_text
from reweigh.system import number, rounded
from reweigh.system.process import each, stage

if TYPE_CHECKING:
    from reweigh.decide.contenders import Contender

Targets = Annotated[
    list[Path] | None,
    typer.Option(help="Policy file; repeat it for several.", rich_help_panel=options.TARGET),
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        help="A target as a rule, as for evaluate; repeat it for several.",
        rich_help_panel=options.TARGET,
    ),
]
Holdout = Annotated[
    float | None,
    typer.Option(
        help=(
            "Share of the episodes to set aside: the best target is chosen on the others "
            "and reported on these."
        )
    ),
]
CutEpisodes = Annotated[
    str,
    typer.Option(
        "--cut-episodes",
        help=(
            "What to do with cut-off episodes: refuse (for estimators that need complete "
            "ones) or drop (for all estimators)."
        ),
    ),
]
WIDEST = 100  # characters of a table where there is no terminal


@command(report=options.ReportOptions, log=options.LogOptions)
def compare(
    log: options.LogOptions,
    report: options.ReportOptions,
    paths: options.LogInMemory = None,
    target: Targets = None,
    target_prob: Annotated[
        str | None,
        typer.Option(
            help="Column with a target's probability of the logged action.",
            rich_help_panel=options.TARGET,
        ),
    ] = None,
    rule: Rules = None,
    estimators: Annotated[
        str | None,
        typer.Option(
            help=(
                "Estimators, comma-separated; the first one ranks. auto, the default, chooses one "
                "for all targets, by a rule that never looks at the size of errors."
            )
        ),
    ] = None,
    memory: options.Memory = None,
    max_ratio: options.MaxRatio = None,
    level: Annotated[
        float, typer.Option(help=("Level of the intervals; they hold simultaneously."))
    ] = 0.95,
    holdout: Holdout = None,
    cut: CutEpisodes = "refuse",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help=("Treat a red verdict of the best target as a refusal (exit 4).")
        ),
    ] = False,
    explain: options.Explain = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the critical values. (default: drawn, and printed)")
    ] = None,
    ledger: options.Ledger = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare target policies with the logged policy and with each other, on one log.

    Example: reweigh compare log.parquet --target a.csv --target b.csv --report out.html

    With --quiet one line is left: the best target, with its value, interval and verdict.
    """
    recipes = estimators_named(estimators, max_ratio, memory, ["auto"])
    options.check_choice("--cut-episodes", cut, "refuse", "drop")
    report.check()
    policies = _policies(target or [], target_prob, rule or [], log)
    terminal = Terminal(quiet, as_json)
    with collect_warnings() as warnings:
        with terminal.working("reading"):
            data = replace(log, engine=_in_memory(log.engine)).read(paths, target_prob)
        settings = {"truncated": cut, "level": level, "holdout": holdout, "seed": seed}
        comparison = _compared(data, policies, recipes, settings, terminal)
    warnings = [text for text in warnings if text not in comparison.warnings]
    if ledger is not None:
        comparison, more = _in_ledger(comparison, ledger, data, policies, holdout)
        warnings += more
    if report.path is not None:
        _write_report(comparison, report, data, warnings, terminal)
    if as_json:
        extra = {"general_warnings": warnings, "version": rw.__version__, "report": report.path}
        terminal.json(comparison.to_dict() | extra)
    else:
        _print(comparison, warnings, terminal, report.unit, explain)
        terminal.say(*([] if report.path is None else [f"report: {report.path}"]))
    _refuse(comparison, strict)


def _compared(
    log: Any, policies: dict[str, Any], recipes: list[Any], settings: Any, terminal: Terminal
) -> rw.Comparison:
    """The comparison, with the verdict of each contender, which is made when it is first needed
    and takes its time."""

    def verdict(contender: Contender | None) -> Any:
        result = None if contender is None else contender.result
        return result.verdict if isinstance(result, rw.Estimate) else None

    with terminal.working("comparing"):
        with stage(0, 2):
            comparison = rw.compare(log, policies, recipes, **settings)
        with stage(1, 2):
            each("checks", (*comparison.answered, comparison.held_out), verdict)
    return comparison


def _write_report(
    comparison: rw.Comparison,
    report: options.ReportOptions,
    log: Any,
    remarks: list[str],
    terminal: Terminal,
) -> None:
    from reweigh.decide.report import write_comparison

    with terminal.working("writing the report"):
        write_comparison(
            comparison,
            str(report.path),
            overwrite=report.overwrite,
            words=for_terminal,
            log=log,
            command=typed_command(),
            remarks=remarks,
            title=report.title,
            unit=report.unit,
        )


def _in_ledger(
    comparison: rw.Comparison,
    ledger: Path,
    log: Any,
    policies: dict[str, Any],
    holdout: float | None,
) -> tuple[rw.Comparison, list[str]]:
    """The comparison, with all trials on this log; and the warnings about it."""
    from reweigh.decide import ledger as ledgers

    trials = [ledgers.trial(policies[c.target], c.result.recipe) for c in comparison.contenders]
    share = ledgers.WHOLE if holdout is None else holdout
    with collect_warnings() as warnings:
        tally = ledgers.noted(ledger, log.episodes_digest(), trials, share)
    return replace(comparison, tried=tally.tried), [
        *warnings,
        *tally.simultaneous_warnings(len(trials), share),
    ]


def _refuse(comparison: rw.Comparison, strict: bool) -> None:
    """RefusedError if no target has an estimate, and with `strict` if the basis of a decision is
    red or refused."""
    if not comparison.answered:
        raise RefusedError("refused", "no target has an estimate")
    results = [c.result for c in comparison.reported]
    answers = [result for result in results if isinstance(result, rw.Estimate)]
    if strict and not answers:
        raise RefusedError(
            "refused", ("no target has an estimate, and --strict treats that as a refusal")
        )
    if strict and any(result.verdict.level == "red" for result in answers):
        which = "the verdict of the best is" if len(results) == 1 else "a verdict is"
        raise RefusedError("red", f"{which} red, and --strict treats that as a refusal")


def _in_memory(engine: str) -> str:
    if engine not in ("auto", "arrays"):
        raise UsageError(f"compare needs the log in memory (--engine arrays); got {engine!r}")
    return "arrays"


def _policies(
    files: list[Path], column: str | None, rules: list[str], log: options.LogOptions
) -> dict[str, Any]:
    """The targets by name: a file's is its own, without the ending where that is enough; rules are
    numbered."""
    names = [path.stem for path in files]
    named = {
        (name if names.count(name) == 1 else str(path)): options.TargetOptions(path, None).read(log)
        for name, path in zip(names, files, strict=True)
    }
    if len(named) < len(files):
        raise UsageError("a policy file is given twice")
    if column is not None:
        named[column] = options.TargetOptions(None, column).read(log)
    for place, rule in enumerate(rules, 1):
        name = "rule" if len(rules) == 1 else f"rule {place}"
        named[name if name not in named else f"--rule {place}"] = rw.RulePolicy(rule)
    if not named:
        raise UsageError(
            "name the policies to compare: --target FILE or --rule TEXT (once per policy), or "
            "--target-prob COLUMN"
        )
    return named


def _print(
    comparison: rw.Comparison,
    warnings: Sequence[str],
    terminal: Terminal,
    unit: str,
    explain: bool,
) -> None:
    print_answer(comparison, warnings, terminal, unit=unit, explain=explain)
    if not terminal.quiet:
        terminal.say(
            f"{comparison.n_episodes:,} episodes; today's policy earned "
            f"{number(comparison.behavior_value)}; {comparison.tried} tried on this log"
        )
    terminal.say(*(() if comparison.auto is None else comparison.auto.lines()))
    terminal.answer(best_line(comparison))
    if terminal.quiet:
        terminal.warn(comparison_warnings(comparison, warnings))


def print_answer(
    comparison: rw.Comparison,
    warnings: Sequence[str],
    terminal: Terminal,
    *,
    unit: str = PER_EPISODE,
    explain: bool = False,
) -> None:
    """The best policy in one sentence, the table, the differences, and the reasons, three at most
    unless all are to be explained."""
    if terminal.silent:
        return
    from reweigh.decide.contenders import best_sentence, reasons_and_help

    terminal.say(best_sentence(comparison, unit), "")
    print_comparison(comparison, terminal)
    terminal.say(*comparison_remarks(comparison), "")
    if explain:
        terminal.warn(comparison_warnings(comparison, warnings))
        terminal.say(*filter(None, [reasons_and_help(comparison)[1]]))
    else:
        terminal.say(*comparison.reasons_below("--explain shows them"))
        terminal.warn(f"! {text}" for text in (*comparison.warnings, *warnings))


def print_comparison(comparison: rw.Comparison, terminal: Terminal) -> None:
    """One row per target and estimator. Where that is too wide for the terminal, the only estimator
    stands in the heading, and the interval of a gain below it."""
    columns, rows = comparison.table()
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    if sum(widths) + 2 * len(widths) > (screen_width() or WIDEST):
        rows = [(*row[:4], row[4].replace(" [", "\n["), *row[5:]) for row in rows]
        if len({row[1] for row in rows}) == 1:
            columns = (columns[0], f"{rows[0][1]} value", *columns[3:])
            rows = [(row[0], *row[2:]) for row in rows]
    terminal.table(columns, rows, left=("target", "estimator"))


def best_line(comparison: rw.Comparison) -> str:
    """The best target in a line; with a holdout, by the episodes that did not choose it."""
    best = comparison.best
    if best is None:
        return "no target has an estimate"
    reported = best if comparison.held_out is None else comparison.held_out
    if not isinstance(reported.result, rw.Estimate):
        return f"best: {best.target}, refused on the episodes set aside"
    value = reported.result.value_text(reported.result.standard_error)
    return f"best: {best.target} {value} {reported.around} {reported.result.verdict.level}" + (
        f", probability {best.chance}" if reported.trusted else ""
    )


def comparison_warnings(comparison: rw.Comparison, warnings: Sequence[str] = ()) -> list[str]:
    refused = [(c.name, c.result) for c in comparison.contenders]
    reasons = by_text((name, r.error.reason) for name, r in refused if isinstance(r, rw.Refusal))
    lines = [f"{'; '.join(names)} refused: {reason}" for reason, names in reasons.items()]
    lines += [f"warning: {text}" for text in (*comparison.warnings, *warnings)]
    return lines + comparison.remarks()


def comparison_remarks(comparison: rw.Comparison) -> list[str]:
    lines = [""]
    if any(c.interval is not None and c.trusted for c in comparison.contenders):
        lines.append(
            "The intervals hold for all rows at once, so also for the one that looks best."
        )
    trusted = comparison.trusted_pairs
    for d in comparison.pairs:
        around = f"{rounded(d.value, d.standard_error)} {d.interval}"
        if d not in trusted:
            around = "not reliable"
        elif d.interval.low <= 0 <= d.interval.high:
            around += ", no clear difference"
        lines.append(f"{d.first} - {d.second}: {around}")
    last = comparison.held_out
    if last is not None:
        lines.append(
            f"chosen: {comparison.chosen}; on {comparison.n_held_out:,} episodes set aside:"
        )
        if isinstance(last.result, rw.Refusal):
            lines.append(f"  refused: {last.result.error.reason}")
        else:
            value = last.result.value_text(last.result.standard_error)
            more = last.over_behavior is not None and last.trusted
            gain = f"{last.gained} more than today's policy, " * more
            lines.append(f"  {value} {last.around}, {gain}verdict {last.result.verdict.level}")
    return [*lines, f"seed {comparison.seed}"]
