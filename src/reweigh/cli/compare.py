"""reweigh compare: which of several targets is better, than the behaviour and than each other?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli.evaluate import chosen
from reweigh.cli.options import TARGET, Ledger, LogOptions, TargetOptions, with_options
from reweigh.cli.report import ReportOptions
from reweigh.cli.terminal import Json, Quiet, Voice
from reweigh.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from reweigh.decide.comparison_result import Comparison, Contender


@with_options(report=ReportOptions, log=LogOptions)
def compare(
    log: LogOptions,
    report: ReportOptions,
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="LOG…", help="Files of the log.")
    ] = None,
    target: Annotated[
        list[Path] | None,
        typer.Option(help="Policy file; repeat it for several.", rich_help_panel=TARGET),
    ] = None,
    target_prob: Annotated[
        str | None,
        typer.Option(
            help="Column with a target's probability of the logged action.", rich_help_panel=TARGET
        ),
    ] = None,
    estimators: Annotated[
        str,
        typer.Option(
            help="Names with commas between them; the first one ranks. auto is one for all "
            "targets, chosen without a look at rewards."
        ),
    ] = "mis",
    max_ratio: Annotated[
        float | None, typer.Option(help="Clip the ratios π/μ at this number.")
    ] = None,
    level: Annotated[float, typer.Option(help="Level of all intervals at once.")] = 0.95,
    holdout: Annotated[
        float | None,
        typer.Option(
            help="Share of the episodes to set aside: the best target is chosen on the others and "
            "reported on these."
        ),
    ] = None,
    cut: Annotated[
        str,
        typer.Option(
            "--cut-episodes",
            help="What to do with cut-off episodes: refuse (estimators that need whole ones do) or "
            "drop (for all estimators alike).",
        ),
    ] = "refuse",
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Take a red verdict of the best for a refusal (exit 4)."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the critical values. (default: drawn, and printed)")
    ] = None,
    ledger: Ledger = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare target policies with what was logged and with each other, on one log.

    Example: reweigh compare log.parquet --target a.csv --target b.csv --report out.html

    With --quiet one line is left: the best target, with its value, interval and verdict.
    """
    import reweigh as rw
    from reweigh.cli.tables import noted, print_json
    from reweigh.decide.ledger import WHOLE, trial
    from reweigh.decide.ledger import noted as noted_in_ledger
    from reweigh.evaluation.result import number
    from reweigh.system.progress import each, stage

    recipes = chosen(estimators, max_ratio, auto=True)
    if cut not in ("refuse", "drop"):
        raise UsageError(f"--cut-episodes takes refuse or drop; got {cut!r}")
    report.check()
    policies = _policies(target or [], target_prob, log)
    voice = Voice(quiet, as_json)
    with noted() as general:
        with voice.working("reading"):
            data = replace(log, engine=_in_memory(log.engine)).read(paths, target_prob)
        with voice.working("comparing"):
            drop: Any = cut
            with stage(0, 2):
                found = rw.compare(
                    data, policies, recipes, level=level, holdout=holdout, truncated=drop, seed=seed
                )
            with stage(1, 2):
                last = () if found.held_out is None else (found.held_out,)
                each("checks", (*found.answered, *last), _verdict)
    general = [text for text in general if text not in found.warnings]
    if ledger is not None:
        trials = [trial(policies[c.target], c.result.recipe) for c in found.contenders]
        share = WHOLE if holdout is None else holdout
        with noted() as remarked:
            tally = noted_in_ledger(ledger, data.episodes_digest(), trials, share)
        general += [*remarked, *tally.says(len(trials), share)]
        found = replace(found, tried=tally.tried)
    report.write_comparison(found, data, general, voice)
    if as_json:
        told = {"report": None if report.report is None else str(report.report)}
        print_json(
            found.to_dict() | {"general_warnings": general, "version": rw.__version__} | told
        )
    else:
        voice.say(
            f"{found.n_episodes:,} episodes; the behaviour's own value is "
            f"{number(found.behavior_value)}; {found.tried} tried on this log"
        )
        voice.table(comparison_table(found))
        for line in comparison_remarks(found):
            voice.say(line)
        for line in () if found.auto is None else found.auto.lines():
            voice.say(line)
        voice.answer(best_line(found))
        for line in comparison_warnings(found, general):
            voice.warn(line)
        if report.report is not None:
            voice.say(f"report: {report.report}")
    _refuse(found, strict)


def _refuse(found: Comparison, strict: bool) -> None:
    """RefusedError where nothing was answered, and with `strict` where what a decision would rest
    on is red, or is no answer."""
    from reweigh.evaluation.result import Estimate

    if not found.answered:
        raise RefusedError("refused", "nothing was answered")
    results = [c.result for c in found.reported]
    answers = [result for result in results if isinstance(result, Estimate)]
    if strict and not answers:
        raise RefusedError("refused", "nothing was answered, and --strict takes it for a refusal")
    if strict and any(result.verdict.level == "red" for result in answers):
        which = "the verdict of the best is" if len(found.reported) == 1 else "a verdict is"
        raise RefusedError("red", f"{which} red, and --strict takes it for a refusal")


def _in_memory(engine: str) -> str:
    if engine not in ("auto", "arrays"):
        raise UsageError(
            f"compare needs the log in memory, where --engine is arrays; got {engine!r}"
        )
    return "arrays"


def _policies(files: list[Path], column: str | None, log: LogOptions) -> dict[str, Any]:
    """The targets by name: a file's is its own, without the ending where that is enough."""
    names = [path.stem for path in files]
    named = {
        (name if names.count(name) == 1 else str(path)): TargetOptions(path, None).read(log)
        for name, path in zip(names, files, strict=True)
    }
    if len(named) < len(files):
        raise UsageError("a policy file was given twice")
    if column is not None:
        named[column] = TargetOptions(None, column).read(log)
    if not named:
        raise UsageError(
            "say what to compare: --target FILE, as often as there are policies, or "
            "--target-prob COLUMN"
        )
    return named


def comparison_table(found: Comparison) -> Table:
    from rich.table import Table

    level = f"{100 * found.level:.4g} %"
    table = Table(box=None, pad_edge=False)
    for name in ("target", "estimator"):
        table.add_column(name, overflow="fold")
    for name in ("value", f"{level} interval", "more than behaviour", "best", "verdict"):
        table.add_column(name, justify="right", overflow="fold")
    for row in found.rows():
        if len(row) == 3:
            table.add_row(row[0], row[1], "refused", *[""] * 4)
        else:
            table.add_row(*row)
    return table


def best_line(found: Comparison) -> str:
    """The best target in a line; with a holdout, by the episodes that did not choose it."""
    from reweigh.decide.comparison_result import chance
    from reweigh.evaluation.result import Estimate

    best = found.best
    if best is None:
        return "no target was answered"
    told = best if found.held_out is None else found.held_out
    if not isinstance(told.result, Estimate):
        return f"best: {best.target}, refused on the episodes set aside"
    value = told.result.value_text(told.result.standard_error)
    return (
        f"best: {best.target} {value} {told.around} "
        f"{told.result.verdict.level}, probability {chance(best)}"
    )


def comparison_warnings(found: Comparison, general: Sequence[str] = ()) -> list[str]:
    from reweigh.evaluation.result import Refusal

    by_reason: dict[str, list[str]] = {}
    for c in found.contenders:
        if isinstance(c.result, Refusal):
            by_reason.setdefault(c.result.error.reason, []).append(c.name)
    refused = [f"{'; '.join(names)} refused: {reason}" for reason, names in by_reason.items()]
    warned = [f"warning: {text}" for text in (*found.warnings, *general)]
    return refused + warned + found.remarks()


def comparison_remarks(found: Comparison) -> list[str]:
    from reweigh.evaluation.result import Refusal, rounded

    lines = [""]
    if any(c.interval is not None and c.trusted for c in found.contenders):
        lines.append(
            "Intervals hold for all rows at once, also for the one of them that looks best."
        )
    shown = found.trusted_pairs
    for d in found.pairs:
        around = f" {d.interval}" if d in shown else ", no interval to trust"
        if d in shown and d.interval.low <= 0 <= d.interval.high:
            around += ", not told apart"
        lines.append(f"{d.first} - {d.second}: {rounded(d.value, d.standard_error)}{around}")
    last = found.held_out
    if last is not None:
        lines.append(f"chosen: {found.chosen}; on {found.n_held_out:,} episodes set aside:")
        if isinstance(last.result, Refusal):
            lines.append(f"  refused: {last.result.error.reason}")
        else:
            value = last.result.value_text(last.result.standard_error)
            none = last.over_behavior is None
            gain = "" if none else f"{last.gained} more than the behaviour, "
            lines.append(f"  {value} {last.around}, {gain}verdict {last.result.verdict.level}")
    lines.append(f"seed {found.seed}")
    return lines


def _verdict(contender: Contender) -> Any:
    """A verdict is made when it is first asked for, which takes its time."""
    from reweigh.evaluation.result import Estimate

    return contender.result.verdict if isinstance(contender.result, Estimate) else None
