"""--report: the results as one HTML file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli.files import WRITES
from reweigh.cli.messages import for_terminal
from reweigh.cli.terminal import Voice
from reweigh.errors import UsageError

if TYPE_CHECKING:
    from reweigh.cli.inputs import Given
    from reweigh.cli.intervals import Told
    from reweigh.decide.comparison_result import Comparison
    from reweigh.evaluation.result import Estimate, Refusal

PANEL = "The report"


@dataclass(frozen=True)
class ReportOptions:
    """Where the report goes."""

    report: Annotated[
        Path | None,
        typer.Option(
            help="Write a report to this HTML file, which needs nothing else.",
            rich_help_panel=PANEL,
        ),
        WRITES,
    ] = None
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the report if it exists.", rich_help_panel=PANEL),
    ] = False

    def check(self) -> None:
        """Before any work: a file that is there stays, unless asked otherwise."""
        if self.report is None:
            if self.overwrite:
                raise UsageError("--overwrite belongs to --report")
        elif self.report.exists() and not self.overwrite:
            raise UsageError(f"{str(self.report)!r} exists; give another name or pass --overwrite")

    def write(
        self,
        results: Sequence[Estimate | Refusal],
        given: Given,
        sure: Told,
        remarks: list[str],
        voice: Voice,
    ) -> None:
        """Write it, if one was asked for."""
        if self.report is None:
            return
        from reweigh.errors import RefusedError
        from reweigh.evaluation.report import write_report
        from reweigh.log.log import EpisodeLog

        certificate = sure.certificate
        if isinstance(certificate, RefusedError):
            told: str | None = f"none: {certificate.reason}"
        else:
            told = None if certificate is None else " ".join(str(certificate).split())
        data: Any = given.data
        with voice.working("writing the report"):
            write_report(
                results,
                self.report,
                overwrite=self.overwrite,
                intervals=sure.intervals,
                log=data if isinstance(data, EpisodeLog) else None,
                target=given.policy,
                words=for_terminal,
                about=given.about,
                command=command(),
                remarks=remarks,
                certificate=told,
            )

    def write_comparison(
        self, found: Comparison, log: Any, remarks: list[str], voice: Voice
    ) -> None:
        """The same for a comparison."""
        if self.report is None:
            return
        from reweigh.decide.comparison_report import write_comparison

        with voice.working("writing the report"):
            write_comparison(
                found,
                self.report,
                overwrite=self.overwrite,
                words=for_terminal,
                log=log,
                command=command(),
                remarks=remarks,
            )


def command() -> str | None:
    """The command line as it was typed; None where another program called."""
    name, *arguments = sys.argv
    return shlex.join(["reweigh", *arguments]) if Path(name).stem == "reweigh" else None
