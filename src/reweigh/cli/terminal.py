"""What a command says, and to whom: tables and sentences, the answer alone, or JSON.

Without an option a reader gets everything on the standard output, and progress on a terminal. With
--quiet only the answer is left, in a line or two; warnings go to the standard error, and there is
no progress. With --json (quiet or not) there is one JSON object, which holds the warnings too.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli import progress
from reweigh.cli.messages import for_terminal

if TYPE_CHECKING:
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print the answer alone, and warnings to the standard error."
    ),
]
QuietFiles = Annotated[  # of commands whose answer is what they write
    bool,
    typer.Option("--quiet", "-q", help="Print nothing but warnings, to the standard error."),
]


@dataclass(frozen=True)
class Voice:
    """Speaks as the options of the command ask."""

    quiet: bool = False
    as_json: bool = False

    @property
    def silent(self) -> bool:
        """Whether nobody reads along."""
        return self.quiet or self.as_json

    def say(self, text: str) -> None:
        """A line for the reader."""
        if not self.silent:
            print(for_terminal(text))

    def table(self, table: Table) -> None:
        from reweigh.cli.tables import print_table

        if not self.silent:
            print_table(table)

    def answer(self, text: str) -> None:
        """What --quiet leaves of all that is said."""
        if self.quiet and not self.as_json:
            print(for_terminal(text))

    def warn(self, text: str) -> None:
        """A line that must not get lost; JSON holds it in a place of its own."""
        if not self.as_json:
            print(for_terminal(text), file=sys.stderr if self.quiet else sys.stdout)

    def working(self, text: str) -> AbstractContextManager[None]:
        return progress.working(text, silent=self.silent)

    def at_work(self, data: Any, text: str) -> AbstractContextManager[Any]:
        return progress.at_work(data, text, silent=self.silent)
