"""reweigh init: look at a log, propose the roles of its columns, write a configuration."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli import options
from reweigh.cli.command import command, comment_line, setting_line
from reweigh.cli.terminal import Terminal, cell
from reweigh.errors import InputError, UsageError

if TYPE_CHECKING:
    from reweigh.cli.init.columns import Sample
    from reweigh.cli.init.roles import Choice, Proposal

LONGEST_WORD = 28  # characters in a table
MANY = ("state", "next_state")  # roles that several columns may share


@command()
def init(
    paths: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Files of the log.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Configuration to write."), options.WRITES
    ] = Path("reweigh.toml"),
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the configuration (and the copy) if it exists."),
    ] = False,
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV file. (default: found out)")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Decimal sign of a CSV file. (default: found out)")
    ] = None,
    bandit: Annotated[
        bool,
        typer.Option(
            "--bandit", help="Every row is an episode of its own, of one step, as an ad shown once."
        ),
    ] = False,
    tidy: Annotated[
        Path | None,
        typer.Option(
            help="Write a copy of the log as Parquet in which steps count from 0, percentages are "
            "shares, dates are in ISO, and yes and no are true and false; the configuration is for "
            "the copy."
        ),
        options.WRITES,
    ] = None,
    as_json: options.Json = False,
    quiet: options.QuietFiles = False,
) -> None:
    """Look at a log, propose the roles of its columns, and write them down for --config.

    Example: reweigh init episodes.csv -o reweigh.toml

    Example: reweigh init export.csv --tidy log.parquet

    Timestamps become the time, which orders the rows of an episode; columns of measurements become
    the state, in bins; an id that is different in every row makes a log of single decisions.
    """
    from reweigh.cli.init.columns import sample_of, write_tidy
    from reweigh.cli.init.propose import propose
    from reweigh.sums.read import is_moments_file
    from reweigh.system.files import write_atomically

    options.refuse_existing(output, overwrite=overwrite)
    if tidy is not None and tidy.suffix != ".parquet":
        raise UsageError(f"--tidy writes Parquet: {str(tidy)!r} must end in .parquet")
    options.refuse_existing(tidy, overwrite=overwrite)
    if any(is_moments_file(path) for path in paths):
        raise UsageError("this is a file of moments, not a log; reweigh evaluate takes it")
    terminal = Terminal(quiet, as_json)
    with terminal.working("looking"):
        sample = sample_of(paths, delimiter, decimal)
        proposal = propose(sample, bandit=bandit)
    if tidy is not None:
        with terminal.working("writing the copy"):
            write_tidy(sample, paths, proposal.repairs, tidy, overwrite=overwrite)
    description = Description(proposal, sample, paths, output, tidy)
    try:
        content = description.configuration().encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"a name is no UTF-8, which TOML needs: {str(error.object)!r}") from error
    write_atomically(output, lambda stream: stream.write(content), overwrite=overwrite)
    if as_json:
        terminal.json(description.to_dict())
    else:
        description.print(terminal)


@dataclass(frozen=True)
class Description:
    """What is proposed from a look at the files, for the configuration `output`; `tidy` is the
    copy that was written."""

    proposal: Proposal
    sample: Sample
    paths: list[Path]
    output: Path
    tidy: Path | None

    @property
    def to_mend(self) -> list[str]:
        """What is wrong with the file that the configuration names."""
        return [] if self.tidy is not None else [repair.wrong for repair in self.proposal.repairs]

    @property
    def lacks_reasons(self) -> bool:
        """Whether episodes are short and nothing says why."""
        return any("short_episodes" in text for text in self.proposal.missing)

    def configuration(self) -> str:
        """The TOML file."""
        proposal, csv = self.proposal, self.sample.csv
        files = self.paths if self.tidy is None else [self.tidy]
        lines = [
            comment_line(f"Proposed by reweigh init from {self.sample.first.name}."),
            "",
            setting_line("log", [self._from_folder(path) for path in files]),
            *(line for answer in proposal.by_role() for line in _role_lines(*answer)),
            *(
                setting_line(key, value, self.edges if key == "bins" else "")
                for key, value in proposal.settings.items()
            ),
        ]
        short = setting_line(
            "short_episodes", "terminal", "or truncated: why short episodes end", off=True
        )
        target = setting_line("target", "policy.csv", "state, action, prob", off=True)
        written = (
            (self.tidy is None and csv.delimiter != ",", setting_line("delimiter", csv.delimiter)),
            (self.tidy is None and csv.decimal != ".", setting_line("decimal", csv.decimal)),
            (self.lacks_reasons, short),
            ("target_prob" not in proposal.roles, target),
        )
        lines += [line for wanted, line in written if wanted]
        copy = [f"a copy that is right: {self._tidy_command}"] if self.to_mend else []
        comments = (*self.to_mend, *copy, *proposal.missing, *proposal.doubts)
        return "".join(f"{line}\n" for line in [*lines, *map(comment_line, comments)])

    @property
    def edges(self) -> str:
        """The edges of the bins, of the rows that were looked at."""
        about = "edges" if self.sample.whole else "edges about"
        listed = "; ".join(f"{name} {edges}" for name, edges in self.proposal.bins.items())
        return f"{about}: {listed}; or give your own: grid = ['60,90,120']"

    def _from_folder(self, path: Path) -> str:
        """The path as seen from the folder of the configuration."""
        if path.is_absolute():
            return str(path)
        return Path(os.path.relpath(path, self.output.parent)).as_posix()

    @property
    def _tidy_command(self) -> str:
        """The command that writes a copy which is right."""
        files = " ".join(quote(str(path)) for path in self.paths)
        return f"reweigh init {files} --tidy log.parquet --overwrite"

    def print(self, terminal: Terminal) -> None:
        proposal = self.proposal
        remarks = [f"! {text}" for text in proposal.missing]
        remarks += [f"? {text}" for text in proposal.doubts]
        terminal.say(self._file_line())
        columns = ("role", "column", "why")
        rows = [_role_row(*answer) for answer in proposal.by_role()]
        terminal.table(columns, rows, left=columns)
        terminal.say("", *self._settings())
        if terminal.quiet:
            terminal.warn(f"? undecided: {r}: {_names(c)}" for r, c in proposal.open.items())
        terminal.warn(remarks)
        terminal.warn(f"! {text}" for text in self.to_mend)
        if self.to_mend:
            terminal.say(f"A copy that is right: {self._tidy_command}")
        elif proposal.repairs:
            mended = ", ".join(repr(repair.column) for repair in proposal.repairs)
            terminal.say(f"Put right in {self.tidy}: {mended}")
        if proposal.unused:
            terminal.say(f"not used: {', '.join(map(repr, proposal.unused))}")
        if proposal.unused or proposal.repairs or remarks:
            terminal.say("")
        config = f"--config {quote(str(self.output))}"
        policy, target = "", ""
        if "target_prob" not in proposal.roles:
            policy, target = " --write-policy policy.csv", " --target policy.csv"
        terminal.say(f"Written: {self.output}. {self._next_step}, then:")
        terminal.command(
            f"reweigh check {config}{policy}",
            f"reweigh evaluate {config}{target} --report report.html",
        )
        if policy:
            terminal.say("policy.csv will hold today's policy: change its probabilities.")

    @property
    def _next_step(self) -> str:
        """What to do before the commands below it run."""
        undecided = [*self.proposal.open, *["short_episodes"] * self.lacks_reasons]
        return f"Decide in it: {', '.join(undecided)}" if undecided else "Look at it"

    def _settings(self) -> list[str]:
        """What else is written down, in lines."""
        settings, lines = self.proposal.settings, []
        if settings.get("bandit"):
            lines.append("bandit: every row is an episode of one step")
        if self.proposal.bins:
            lines.append("bins, of about as many rows each (the state is the bin's number):")
            lines += [f"  {name}: split at {edges}" for name, edges in self.proposal.bins.items()]
        return [*lines, ""] if lines else []

    def _file_line(self) -> str:
        sample = self.sample
        rows = f"{sample.rows:,} rows" if sample.whole else f"the first {sample.rows:,} rows"
        files = "" if sample.files == 1 else f" (the first of {sample.files:,} files)"
        written = ""
        if sample.kind == "csv" and (sample.csv.delimiter, sample.csv.decimal) != (",", "."):
            written = f", delimiter {sample.csv.delimiter!r}, decimal sign {sample.csv.decimal!r}"
        return f"{sample.first.name}{files}: {rows}, {len(sample.columns)} columns{written}\n"

    def to_dict(self) -> dict[str, Any]:
        proposal, sample = self.proposal, self.sample
        answers = proposal.by_role()
        return {
            "config": str(self.output),
            "rows": sample.rows,
            "whole": sample.whole,
            "roles": {
                role: {"columns": list(c.columns), "why": c.why, "guess": c.guess}
                for role, c, _ in answers
                if c is not None
            },
            "undecided": {role: list(c.columns) for role, _, c in answers if c is not None},
            "missing": proposal.missing,
            "doubts": proposal.doubts,
            "unused": proposal.unused,
            "settings": proposal.settings,
            "bins": proposal.bins,
            "repairs": {repair.column: repair.wrong for repair in proposal.repairs},
            "tidy": None if self.tidy is None else str(self.tidy),
        }


def _role_lines(role: str, choice: Choice | None, undecided: Choice | None) -> list[str]:
    """A role in the configuration."""
    if choice is not None:
        value = list(choice.columns) if role in MANY else choice.columns[0]
        return [setting_line(role, value, choice.why)]
    if undecided is None:
        return []
    # every candidate can be had by removing the sign before it
    several = ", or list several" if role in MANY else ""
    return [
        comment_line(f"{role}: several columns may be it; choose one{several}"),
        *(setting_line(role, name, off=True) for name in undecided.columns),
        *([setting_line(role, list(undecided.columns), off=True)] if role in MANY else []),
    ]


def _role_row(role: str, choice: Choice | None, undecided: Choice | None) -> tuple[str, str, str]:
    """A role on the terminal."""
    if choice is not None:
        return role, cell(breakable(_names(choice))), cell(breakable(choice.why))
    if undecided is None:
        return role, "-", "not found"
    choose = "choose one, or several" if role in MANY else "choose one"
    why = f"undecided ({undecided.why}): {_names(undecided)}; {choose}"
    return role, "?", cell(breakable(why))


def breakable(text: str) -> str:
    """With a new line inside long names, behind a dot or a _: a column of a table is too narrow
    for them, and would break them anywhere."""

    def parts(word: str) -> str:
        lines = [""]
        for piece in re.split(r"(?<=[._])", word):
            if len(lines[-1]) + len(piece) > LONGEST_WORD:
                lines.append("")
            lines[-1] += piece
        return "\n".join(filter(None, lines))

    return " ".join(parts(w) if len(w) > LONGEST_WORD else w for w in text.split(" "))


def _names(choice: Choice) -> str:
    return ", ".join(choice.columns)
