"""reweigh evaluate: what would the target have earned?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import reweigh as rw
from reweigh.cli.command import command
from reweigh.cli.inputs import Inputs, estimators_named, read_inputs
from reweigh.cli.options import (
    IntervalOptions,
    Json,
    Ledger,
    LogOptions,
    LogOrMoments,
    MaxRatio,
    Quiet,
    ReportOptions,
    TargetOptions,
    check_choice,
)
from reweigh.cli.terminal import Terminal, for_terminal, noted, printable, typed_command
from reweigh.errors import RefusedError, UsageError
from reweigh.system.process import each, stage

if TYPE_CHECKING:
    from reweigh.decide.certificate import Certificate
    from reweigh.evaluation.result import Estimate, Interval, Refusal
    from reweigh.evaluation.sensitivity import Sensitivity


@command(target=TargetOptions, intervals=IntervalOptions, report=ReportOptions, log=LogOptions)
def evaluate(
    log: LogOptions,
    target: TargetOptions,
    intervals: IntervalOptions,
    report: ReportOptions,
    paths: LogOrMoments = None,
    estimators: Annotated[
        str,
        typer.Option(
            help="Names with commas between them, all, or auto (chosen without a look at "
            "rewards): is, wis, trajectory-is, trajectory-wis, "
            "dm, dm-renorm, ssd-is, ssd-is-plugin, ssd-is-selfnorm, mis, mis-plain, mis-state, "
            "mis-pooled, dr, dr-split, dr-crossfit, wdr, wdr-split, wdr-crossfit, mdr, "
            "mdr-crossfit."
        ),
    ] = "mis",
    max_ratio: MaxRatio = None,
    cut: Annotated[
        str,
        typer.Option(
            "--cut-episodes",
            help="What estimators that need whole episodes do with cut-off ones: refuse or drop.",
        ),
    ] = "refuse",
    strict: Annotated[
        bool, typer.Option("--strict", help="Take warnings and red verdicts for refusals (exit 4).")
    ] = False,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="How far the number moves with clipped ratios, without the heaviest episodes, "
            "with fewer steps, coarser or finer states.",
        ),
    ] = False,
    ledger: Ledger = None,
    show_sql: Annotated[
        bool, typer.Option("--show-sql", help="Print the queries of the engine, and stop.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Estimate what the target policy would have earned.

    Example: reweigh evaluate log.parquet --target policy.csv --estimators mis,wis --report out.html

    With --quiet one line per estimator is left: its name, value, interval and verdict.

    Example: reweigh evaluate --config reweigh.toml --quiet
    """
    terminal = Terminal(quiet, as_json)
    recipes = estimators_named(estimators, max_ratio, auto=True)
    if show_sql and "auto" in recipes:
        raise UsageError("--show-sql needs the estimators by name, not auto")
    intervals.check()
    report.check()
    check_choice("--cut-episodes", cut, "refuse", "drop")
    with noted() as warnings:
        with terminal.working("reading"):
            rows_needed = cut != "refuse" or intervals.reward_range is not None
            inputs = read_inputs(paths, log, target, for_logs_only=rows_needed)
        if show_sql:
            print(printable(_sql_of(inputs, recipes)))
            return
        if ledger is not None and not isinstance(inputs.data, rw.EpisodeLog):
            raise UsageError("--ledger knows logs in memory by their rows: use --engine arrays")
        with terminal.at_work(inputs.data, "evaluating") as data:
            outcome = _evaluated(replace(inputs, data=data), recipes, cut, intervals, sensitivity)
    outcome.warnings += warnings
    if ledger is not None:
        outcome.count_trials(ledger, inputs)
    if report.report is not None:
        _write_report(outcome, inputs, report, terminal)
    if as_json:
        terminal.json(outcome.to_dict(inputs, report))
    else:
        _print(outcome, inputs, intervals, terminal)
        if report.report is not None:
            terminal.say(f"report: {report.report}")
    outcome.refuse(strict)


@dataclass
class Outcome:
    """What was found out: the results, judged with the intervals that were asked for, and these
    intervals, None where there is none; why not, where one was refused; the seed, None where
    nothing was drawn; the certificate, if a range was declared; the sensitivity by estimator; the
    sentence on estimators that disagree; and the pairs of target and estimator that were tried on
    the log, where a ledger counts them."""

    results: list[Estimate | Refusal]
    intervals: list[Interval | None]
    refused: dict[str, RefusedError]
    seed: int | None
    certificate: Certificate | RefusedError | None
    sensitivities: dict[str, Sensitivity]
    disagreement: str | None
    warnings: list[str]
    tried: int | None = None

    @property
    def answered(self) -> list[Estimate]:
        return [result for result in self.results if isinstance(result, rw.Estimate)]

    @property
    def noticed(self) -> list[str]:
        """Warnings of the log as a whole."""
        return [*self.warnings, *([self.disagreement] if self.disagreement else [])]

    def count_trials(self, ledger: Path, inputs: Inputs) -> None:
        """Write down what was tried on this log, and take over how much that is by now."""
        from reweigh.decide.ledger import noted as noted_in_ledger
        from reweigh.decide.ledger import trial

        trials = [trial(inputs.policy, result.recipe) for result in self.results]
        with noted() as remarked:
            tally = noted_in_ledger(ledger, inputs.data.episodes_digest(), trials)
        self.warnings += [*remarked, *tally.says_alone(len(trials))]
        self.tried = tally.tried

    def to_dict(self, inputs: Inputs, report: ReportOptions) -> dict[str, Any]:
        """All of it as plain values."""
        from reweigh.cli.tables import most_episodes

        answered, certificate = self.answered, self.certificate
        if isinstance(certificate, RefusedError):
            certified: dict[str, Any] | None = {"refused": _code_and_reason(certificate)}
        else:
            certified = None if certificate is None else certificate.to_dict()
        return {
            "estimates": [self._entry(k) for k in range(len(self.results))],
            "behavior_value": most_episodes(answered).behavior_value if answered else None,
            "log": inputs.about,
            "seed": self.seed,
            # without a ledger: one target, so a pair for each
            "tried": len(self.results) if self.tried is None else self.tried,
            "certificate": certified,
            "disagreement": self.disagreement,
            "warnings": self.warnings,
            "report": None if report.report is None else str(report.report),
            "version": rw.__version__,
        }

    def _entry(self, k: int) -> dict[str, Any]:
        name, interval = self.results[k].estimator, self.intervals[k]
        entry = self.results[k].to_dict()
        entry["interval"] = None if interval is None else interval.to_dict()
        if name in self.refused:
            entry["interval_refused"] = _code_and_reason(self.refused[name])
        if name in self.sensitivities:
            entry["sensitivity"] = self.sensitivities[name].to_dict()
        return entry

    def refuse(self, strict: bool) -> None:
        """RefusedError where nothing was answered, and with `strict` where something is wrong."""
        from reweigh.cli.tables import remarks

        answered = self.answered
        if not answered:
            lines = ["no estimator gave an answer", *remarks(self.results)]
            raise RefusedError("refused", "\n  ".join(lines))
        if strict and any(result.verdict.level == "red" for result in answered):
            raise RefusedError("red", "a verdict is red, and --strict takes it for a refusal")
        if strict and (self.noticed or any(result.warnings for result in answered)):
            raise RefusedError("strict", "there are warnings, and --strict takes them for refusals")


def _code_and_reason(error: RefusedError) -> dict[str, str]:
    return {"code": error.code, "reason": error.reason}


def _evaluated(
    inputs: Inputs, recipes: list[Any], cut: Any, options: IntervalOptions, sensitivity: bool
) -> Outcome:
    """Estimates, intervals, verdicts and, where it is wanted, sensitivity."""
    data, policy = inputs.data, inputs.policy
    if options.reward_range is not None:  # it is checked row by row
        LogOptions.require_rows(data, "--reward-range")
    stages = 4 if sensitivity else 3
    with stage(0, stages):
        results = _once(rw.evaluate_all(data, policy, recipes, truncated=cut))
    with stage(1, stages):
        seed, found, refused = _intervals(results, options, data)
        results = [
            replace(result, no_interval=refused[result.estimator].reason)
            if isinstance(result, rw.Estimate) and result.estimator in refused
            else result
            for result in results
        ]
        certificate = _certificate(options, data, policy)
    answered = [result for result in results if isinstance(result, rw.Estimate)]
    with stage(2, stages):
        each("checks", answered, lambda result: result.verdict)
    with stage(3, stages):
        sensitivities = _sensitivities(answered) if sensitivity else {}
    apart = None
    if len(answered) > 1:
        from reweigh.decide.disagreement import disagreement

        apart = disagreement(results)
    return Outcome(results, found, refused, seed, certificate, sensitivities, apart, [])


def _once(results: list[Estimate | Refusal]) -> list[Estimate | Refusal]:
    """What auto chose may also have been named: it stands once, with auto's reason."""
    by_name: dict[str, Estimate | Refusal] = {}
    for result in results:
        if result.estimator not in by_name or getattr(result, "chosen", None) is not None:
            by_name[result.estimator] = result
    return list(by_name.values())


def _intervals(
    results: Sequence[Estimate | Refusal], options: IntervalOptions, log: Any
) -> tuple[int | None, list[Interval | None], dict[str, RefusedError]]:
    """The seed, the intervals that were asked for, and why there is none, by estimator."""
    refused: dict[str, RefusedError] = {}
    seed, asked = options.seed, dict[str, Any]()
    if options.resampled:
        from reweigh.evaluation.resampling import new_seed

        seed = new_seed() if seed is None else seed
        asked = {"replicates": options.resamples, "seed": seed}
    if options.reward_range is not None:
        from reweigh.decide.certificate import value_range

        asked["value_range"] = value_range(log, options.reward_range)

    def interval_of(result: Estimate | Refusal) -> Interval | None:
        if isinstance(result, rw.Refusal):
            return None
        try:
            if options.one_sided is None:
                return result.interval(options.level, options.interval, **asked)
            side: Any = options.one_sided
            return result.bound(side, options.level, options.interval, **asked)
        except RefusedError as error:
            refused[result.estimator] = error
            return None

    return seed, each("intervals", results, interval_of), refused


def _certificate(
    options: IntervalOptions, log: Any, policy: Any
) -> Certificate | RefusedError | None:
    if options.reward_range is None:
        return None
    side: Any = options.one_sided or "both"
    try:
        return rw.certify(log, policy, options.reward_range, options.level, side=side)
    except RefusedError as error:
        return error


def _sensitivities(results: Sequence[Estimate]) -> dict[str, Sensitivity]:
    """By estimator; refused where the rows are not in memory."""
    try:
        changes = each("other choices", results, lambda result: result.sensitivity())
    except RefusedError as error:
        if error.code != "needs-log":
            raise
        raise UsageError("--sensitivity needs the log in memory: use --engine arrays") from error
    return {one.estimator: one for one in changes}


def _sql_of(inputs: Inputs, recipes: list[Any]) -> str:
    from reweigh.evaluation.scans import scanned_sql
    from reweigh.sums.read import ScannedLog

    if not isinstance(inputs.data, ScannedLog):
        raise UsageError("--show-sql needs an engine with SQL: --engine duckdb or spark://…")
    return scanned_sql(inputs.data, inputs.policy, recipes)


def _print(outcome: Outcome, inputs: Inputs, options: IntervalOptions, terminal: Terminal) -> None:
    """The table, the answer in lines, what to know about it, and what was asked for beside it."""
    from reweigh.cli import tables

    results, answered, certificate = outcome.results, outcome.answered, outcome.certificate
    terminal.table(tables.estimates_table(results, None, outcome.intervals, options.heading))
    terminal.answer(*map(tables.answer_line, results, outcome.intervals))
    if answered:
        on_log = "" if outcome.tried is None else f"; {outcome.tried} tried on this log"
        terminal.say(tables.summary(answered) + on_log)
    terminal.say(*tables.gain_lines(answered))
    terminal.say(*(f"auto chose {r.chosen}" for r in answered if r.chosen is not None))
    if inputs.behavior != "logged":
        terminal.say(
            f"behaviour probabilities: {inputs.behavior}; the errors take them for the truth"
        )
    terminal.warn(f"! {text}" for text in outcome.noticed)
    if answered:
        terminal.warn(tables.remarks(results))
        if any(interval is not None for interval in outcome.intervals):  # else each says why not
            if outcome.seed is not None:
                drawn = " (drawn)" if options.seed is None else ""
                terminal.say(
                    f"intervals: {options.interval} of {options.resamples:,} resampled logs, "
                    f"seed {outcome.seed}{drawn}"
                )
            elif options.interval != "auto":
                terminal.say(f"intervals: {options.interval}")
        if isinstance(certificate, RefusedError):
            terminal.warn([f"no certificate: {certificate.reason}"])
    for changes in outcome.sensitivities.values():
        tables.print_sensitivity(changes, terminal)
    if certificate is not None and not isinstance(certificate, RefusedError):
        terminal.say(f"\n{certificate}")
        terminal.answer("certificate: " + certificate.rows()[0][1])


def _write_report(
    outcome: Outcome, inputs: Inputs, report: ReportOptions, terminal: Terminal
) -> None:
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
            intervals=outcome.intervals,
            log=inputs.data if isinstance(inputs.data, rw.EpisodeLog) else None,
            target=inputs.policy,
            words=for_terminal,
            about=inputs.about,
            command=typed_command(),
            remarks=outcome.noticed,
            certificate=certified,
        )
