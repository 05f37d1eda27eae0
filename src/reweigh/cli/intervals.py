"""Options of the intervals: which one, at what level, from which replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli.terminal import Voice
from reweigh.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from reweigh.decide.certificate import Certificate
    from reweigh.evaluation.result import Estimate, Interval, Refusal

PANEL = "Intervals"


def _option(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=PANEL)


@dataclass(frozen=True)
class IntervalOptions:
    """How sure the number is to be told."""

    level: Annotated[float, _option("Level of the intervals, between 0 and 1.")] = 0.95
    interval: Annotated[
        str,
        _option(
            "How: auto, analytic, cluster (influence of episodes), jackknife (blocks of "
            "episodes), percentile or bootstrap-t (resampling episodes)."
        ),
    ] = "auto"
    one_sided: Annotated[str | None, _option("Only a bound from one side: lower or upper.")] = None
    replicates: Annotated[
        int | None, _option("Resampled logs, at least 20/(1 - level) less 1. (default: 1999)")
    ] = None
    seed: Annotated[
        int | None, _option("Seed of the resampling; without it one is drawn and printed.")
    ] = None
    reward_range: Annotated[
        tuple[float, float] | None,
        _option(
            "Two numbers between which every reward that can occur lies. Intervals keep within "
            "it, and bounds that hold for every number of episodes are shown too."
        ),
    ] = None

    def check(self) -> None:
        """What is wrong whatever the log is."""
        from reweigh.decide.certificate import check_range
        from reweigh.trust.intervals import Asked, check_method, check_replicates

        resampled = check_method(self.interval) in ("percentile", "bootstrap-t")
        if self.one_sided not in (None, "lower", "upper"):
            raise UsageError(f"--one-sided takes lower or upper; got {self.one_sided!r}")
        Asked(self.level, self.one_sided or "both")  # type: ignore[arg-type]
        for name, given in (("--replicates", self.replicates), ("--seed", self.seed)):
            if given is not None and not resampled:
                raise UsageError(f"{name} belongs to --interval percentile or bootstrap-t")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed takes a whole number from 0 on; got {self.seed}")
        if resampled:
            check_replicates(self.resamples, self.level)
        if self.reward_range is not None:
            check_range(self.reward_range)

    @property
    def resamples(self) -> int:
        from reweigh.evaluation.resampling import REPLICATES

        return REPLICATES if self.replicates is None else self.replicates

    @property
    def heading(self) -> str:
        what = "interval" if self.one_sided is None else f"{self.one_sided} bound"
        return f"{100 * self.level:.10g} % {what}"


@dataclass(frozen=True)
class Told:
    """The results, judged with the intervals that were asked for, and these intervals, None where
    there is none; why not, where one was refused; the seed, None where nothing was drawn; and the
    certificate, if a range was declared."""

    results: list[Estimate | Refusal]
    intervals: list[Interval | None]
    refused: dict[str, RefusedError]
    seed: int | None
    certificate: Certificate | RefusedError | None

    def entries(self) -> list[dict[str, Any]]:
        """The results as plain values."""
        found = []
        for result, interval in zip(self.results, self.intervals, strict=True):
            entry = result.to_dict()
            entry["interval"] = None if interval is None else interval.to_dict()
            if result.estimator in self.refused:
                error = self.refused[result.estimator]
                entry["interval_refused"] = {"code": error.code, "reason": error.reason}
            found.append(entry)
        return found

    def certificate_entry(self) -> dict[str, Any] | None:
        if isinstance(self.certificate, RefusedError):
            error = self.certificate
            return {"refused": {"code": error.code, "reason": error.reason}}
        return None if self.certificate is None else self.certificate.to_dict()

    def speak(self, options: IntervalOptions, voice: Voice) -> None:
        """What stands below the table."""
        some = any(
            interval is not None for interval in self.intervals
        )  # else each tells its reason
        if some and self.seed is not None:
            drawn = " (drawn)" if options.seed is None else ""
            voice.say(
                f"intervals: {options.interval} of {options.resamples:,} resampled logs, "
                f"seed {self.seed}{drawn}"
            )
        elif some and options.interval != "auto":
            voice.say(f"intervals: {options.interval}")
        if isinstance(self.certificate, RefusedError):
            voice.warn(f"no certificate: {self.certificate.reason}")


def told(
    results: Sequence[Estimate | Refusal], options: IntervalOptions, log: Any, policy: Any
) -> Told:
    """The intervals that were asked for, and the certificate."""
    from reweigh.decide.certificate import certify, value_range
    from reweigh.evaluation.resampling import new_seed
    from reweigh.evaluation.result import Refusal
    from reweigh.system.progress import each

    within = None
    if options.reward_range is not None:
        within = value_range(log, options.reward_range)
    resampled = options.interval in ("percentile", "bootstrap-t")
    seed = (new_seed() if options.seed is None else options.seed) if resampled else None
    refused: dict[str, RefusedError] = {}

    def interval_of(result: Estimate | Refusal) -> Interval | None:
        if isinstance(result, Refusal):
            return None
        asked: dict[str, Any] = {"replicates": options.resamples, "seed": seed}
        given = options.level, options.interval
        try:
            if options.one_sided is None:
                return result.interval(*given, **asked, value_range=within)
            side: Any = options.one_sided
            return result.bound(side, *given, **asked, value_range=within)
        except RefusedError as error:
            refused[result.estimator] = error
            return None

    def judged(result: Estimate | Refusal) -> Estimate | Refusal:
        error = refused.get(result.estimator)
        if error is None or isinstance(result, Refusal):
            return result
        return replace(result, no_interval=error.reason)

    found = each("intervals", results, interval_of)
    certificate: Certificate | RefusedError | None = None
    if options.reward_range is not None:
        side: Any = options.one_sided or "both"
        try:
            certificate = certify(log, policy, options.reward_range, options.level, side=side)
        except RefusedError as error:
            certificate = error
    return Told([judged(result) for result in results], found, refused, seed, certificate)


def refuse_without_rows(options: IntervalOptions, data: Any) -> None:
    """A declared range is checked row by row."""
    from reweigh.log.log import EpisodeLog

    if options.reward_range is not None and not isinstance(data, EpisodeLog):
        raise UsageError("--reward-range needs the log in memory: use --engine arrays")
