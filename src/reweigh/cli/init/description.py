"""A proposal in words: as a configuration, on the terminal, and as JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from rich.table import Table

from reweigh.cli.init.look import Look
from reweigh.cli.init.proposal import ROLES, Choice, Proposal
from reweigh.cli.terminal import Terminal, cell
from reweigh.cli.toml import Line, toml_text

MANY = ("state", "next_state")  # roles that several columns may share


@dataclass(frozen=True)
class Description:
    """What is proposed from a look at the files, for the configuration `output`; `tidy` is the
    copy that was written."""

    proposal: Proposal
    look: Look
    paths: list[Path]
    output: Path
    tidy: Path | None

    def configuration(self) -> str:
        """The TOML file."""
        proposal, look = self.proposal, self.look
        files = self.paths if self.tidy is None else [self.tidy]
        lines = [
            Line(comment=f"Proposed by reweigh init from {look.first.name}."),
            Line(),
            Line("log", [self._from_folder(path) for path in files]),
            *(line for role in ROLES for line in self._role_lines(role)),
            *(Line(key, value) for key, value in proposal.settings.items()),
        ]
        if look.csv.delimiter != "," and self.tidy is None:
            lines.append(Line("delimiter", look.csv.delimiter))
        if look.csv.decimal != "." and self.tidy is None:
            lines.append(Line("decimal", look.csv.decimal))
        if any("short_episodes" in text for text in proposal.missing):
            why = "or truncated: why short episodes end"
            lines.append(Line("short_episodes", "terminal", why, off=True))
        if any("round or grid" in text for text in proposal.missing):
            how = "round = [10.0]  to tenths; or grid = ['60,90,120'], by edges"
            lines.append(Line(comment=how))
        if "target_prob" not in proposal.roles:
            lines.append(Line("target", "policy.csv", "state, action, prob", off=True))
        wrong = [repair.wrong for repair in proposal.repairs] if self.tidy is None else []
        if wrong:
            wrong.append(f"a copy that is right: {self._tidy_command}")
        comments = (*wrong, *proposal.missing, *proposal.doubts)
        return toml_text([*lines, *(Line(comment=text) for text in comments)])

    def _role_lines(self, role: str) -> list[Line]:
        choice, undecided = self.proposal.roles.get(role), self.proposal.open.get(role)
        if choice is not None:
            value = list(choice.columns) if role in MANY else choice.columns[0]
            return [Line(role, value, choice.why)]
        if undecided is None:
            return []
        # every candidate can be had by removing the sign before it
        several = ", or list several" if role in MANY else ""
        return [
            Line(comment=f"{role}: several columns may be it; choose one{several}"),
            *(Line(role, name, off=True) for name in undecided.columns),
            *([Line(role, list(undecided.columns), off=True)] if role in MANY else []),
        ]

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
        terminal.table(self._table())
        terminal.say("")
        if terminal.quiet:
            for role, choice in proposal.open.items():
                terminal.warn([f"? undecided: {role}: {_names(choice)}"])
        terminal.warn(remarks)
        if proposal.repairs and self.tidy is None:
            terminal.warn(f"! {repair.wrong}" for repair in proposal.repairs)
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
            policy = " --write-policy policy.csv   (then change its shares)"
            target = " --target policy.csv"
        terminal.say(
            f"Written: {self.output}. Look at it, then:",
            f"  reweigh check {config}{policy}",
            f"  reweigh evaluate {config}{target} --report report.html",
        )

    def _file_line(self) -> str:
        look = self.look
        rows = f"{look.rows:,} rows" if look.whole else f"the first {look.rows:,} rows"
        files = "" if look.files == 1 else f" (the first of {look.files:,} files)"
        written = ""
        if look.kind == "csv" and (look.csv.delimiter, look.csv.decimal) != (",", "."):
            written = f", delimiter {look.csv.delimiter!r}, decimal sign {look.csv.decimal!r}"
        return f"{look.first.name}{files}: {rows}, {len(look.columns)} columns{written}\n"

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("role", no_wrap=True)
        table.add_column("column", overflow="fold")
        table.add_column("why", overflow="fold")
        for role in ROLES:
            choice, undecided = self.proposal.roles.get(role), self.proposal.open.get(role)
            if choice is not None:
                table.add_row(role, cell(_names(choice)), cell(choice.why))
            elif undecided is not None:
                choose = "choose one, or several" if role in MANY else "choose one"
                why = f"undecided ({undecided.why}): {_names(undecided)}; {choose}"
                table.add_row(role, "?", cell(why))
            elif role in ROLES[:6]:
                table.add_row(role, "-", "not found")
        return table

    def to_dict(self) -> dict[str, Any]:
        proposal, look = self.proposal, self.look
        chosen = {role: proposal.roles[role] for role in ROLES if role in proposal.roles}
        return {
            "config": str(self.output),
            "rows": look.rows,
            "whole": look.whole,
            "roles": {
                role: {"columns": list(c.columns), "why": c.why, "guess": c.guess}
                for role, c in chosen.items()
            },
            "undecided": {r: list(proposal.open[r].columns) for r in ROLES if r in proposal.open},
            "missing": proposal.missing,
            "doubts": proposal.doubts,
            "unused": list(proposal.unused),
            "settings": proposal.settings,
            "repairs": {repair.column: repair.wrong for repair in proposal.repairs},
            "tidy": None if self.tidy is None else str(self.tidy),
        }


def _names(choice: Choice) -> str:
    return ", ".join(choice.columns)
