"""Options that several commands share: how to read a log, and what the target is."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reweigh.cli.files import WRITES, refuse_own_inputs
from reweigh.errors import ReweighError, UsageError

if TYPE_CHECKING:
    from reweigh.cli.config_lines import Taken

READING = "How to read the log"
TARGET = "The target policy"
OR_TABLE = "Left out for a --table of Spark."  # of the argument LOG


CONFIG = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with options, as `reweigh init` writes it; those given here win.",
        rich_help_panel=READING,
    ),
]

Ledger = Annotated[
    Path | None,
    typer.Option(help="File that keeps how many policies were tried on this log."),
    WRITES,
]


def _option(help: str, panel: str = READING, flag: str | None = None) -> Any:
    """An option; `flag` names one without its --no-… twin."""
    names = () if flag is None else (flag,)
    return typer.Option(*names, help=help, rich_help_panel=panel)


@dataclass(frozen=True)
class LogOptions:
    """Every option of `read_log`, under the same name."""

    episode: Annotated[str, _option("Column of the episode's id.")] = "episode"
    step: Annotated[str, _option("Column of the step (0, 1, 2, …).")] = "step"
    state: Annotated[
        list[str] | None, _option("Column of the state; repeat it for several. (default: state)")
    ] = None
    action: Annotated[str, _option("Column of the action.")] = "action"
    reward: Annotated[str, _option("Column of the reward.")] = "reward"
    behavior_prob: Annotated[
        str | None,
        _option(
            "Column of the behaviour's probability of the logged action. (default: behavior_prob)"
        ),
    ] = None
    next_state: Annotated[list[str] | None, _option("Column of the next state.")] = None
    terminated: Annotated[str | None, _option("Column that is true where an episode ended.")] = None
    truncated: Annotated[
        str | None, _option("Column that is true where an episode was cut off.")
    ] = None
    horizon: Annotated[int | None, _option("Number of steps. (default: the longest episode)")] = (
        None
    )
    discount: Annotated[float, _option("Discount per step, in (0, 1].")] = 1.0
    short_episodes: Annotated[
        str, _option("What a short episode without a flag is: error, terminal or truncated.")
    ] = "error"
    hidden: Annotated[str, _option("What a null state is: error or allow.")] = "error"
    continuous_actions: Annotated[
        bool, _option("Actions are numbers with densities.", flag="--continuous-actions")
    ] = False
    round: Annotated[
        list[float] | None,
        _option(
            "Make states: multiply the state columns by this and round. 0.1 rounds to tens, 10 to "
            "tenths. Once, or once per column."
        ),
    ] = None
    grid: Annotated[
        list[str] | None,
        _option(
            "Make states: the number of these edges at or below the value, such as 60,90,120. "
            "Once per state column."
        ),
    ] = None
    delimiter: Annotated[str, _option("Delimiter of a CSV file.")] = ","
    decimal: Annotated[str, _option("Decimal sign of a CSV file.")] = "."
    engine: Annotated[
        str,
        _option(
            "Where the rows are read: arrays (into memory), stream (files, in little memory), "
            "duckdb, spark://host:port, sc://host:port, or auto."
        ),
    ] = "auto"
    table: Annotated[
        str | None,
        _option("Table of the DuckDB database that is the LOG, or of Spark, without a LOG."),
    ] = None
    fit_behavior: Annotated[
        bool,
        _option(
            "Estimate the behaviour's probabilities by counts per state.", flag="--fit-behavior"
        ),
    ] = False
    smoothing: Annotated[
        float, _option("Pseudo-counts per action when estimating the behaviour.")
    ] = 0.0

    def read(self, paths: list[Path] | None, target_prob: str | None = None) -> Any:
        """The log, read and checked; without files it is a table of Spark."""
        import reweigh as rw

        self.check_source(paths)
        if self.smoothing and not self.fit_behavior:
            raise UsageError("--smoothing belongs to --fit-behavior")
        if self.behavior_prob is not None and self.fit_behavior:
            raise UsageError("give --behavior-prob or --fit-behavior, not both")
        same = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _TRANSLATED}
        files: Any = [str(path) for path in paths or []]
        log = rw.read_log(
            (files[0] if len(files) == 1 else files) if files else None,
            state=self.state or "state",
            next_state=self.next_state or None,
            behavior_prob=None if self.fit_behavior else self.behavior_prob or "behavior_prob",
            target_prob=target_prob,
            abstraction=self._abstraction(),
            **same,
        )
        if self.fit_behavior:
            if not isinstance(log, rw.EpisodeLog):
                raise UsageError("--fit-behavior needs the log in memory: use --engine arrays")
            return log.with_behavior(rw.fit_behavior(log, smoothing=self.smoothing))
        return log

    def check_source(self, paths: list[Path] | None) -> None:
        """There must be a log: files, or a table of Spark."""
        from reweigh.sums.engines.choose import is_spark

        if paths or (self.table is not None and is_spark(self.engine)):
            return
        if self.table is None:
            raise UsageError(
                "there is no LOG: give its files, or name a table of Spark (--engine spark://… "
                "--table NAME)"
            )
        raise UsageError(
            f"--table {self.table} needs to know where: give the DuckDB database as the LOG "
            "(--engine duckdb), or Spark (--engine spark://… or sc://…)"
        )

    def _abstraction(self) -> Any:
        import reweigh as rw

        if self.round and self.grid:
            raise UsageError("give --round or --grid, not both")
        if self.round:
            return rw.Rounding(self.round[0] if len(self.round) == 1 else self.round)
        if self.grid:
            try:
                edges = [[float(edge) for edge in text.split(",")] for text in self.grid]
            except ValueError as error:
                raise UsageError(
                    f"--grid takes numbers with commas between them: {error}"
                ) from error
            return rw.Grid(edges)
        return None


_TRANSLATED = (
    "state",
    "next_state",
    "behavior_prob",
    "round",
    "grid",
    "fit_behavior",
    "smoothing",
)


@dataclass(frozen=True)
class TargetOptions:
    """Where the target policy comes from."""

    target: Annotated[
        Path | None, _option("Policy file with the columns state, action, prob (step).", TARGET)
    ] = None
    target_prob: Annotated[
        str | None, _option("Column with the target's probability of the logged action.", TARGET)
    ] = None

    def read(self, log_options: LogOptions) -> Any:
        import reweigh as rw

        if (self.target is None) == (self.target_prob is None):
            raise UsageError(
                "say what the target policy is: --target FILE or --target-prob COLUMN (one of them)"
            )
        if self.target_prob is not None:
            return rw.ColumnPolicy(self.target_prob)
        assert self.target is not None
        names = log_options.state or ["state"]
        there = _columns(self.target)  # its columns may carry the log's names for them
        action = log_options.action if log_options.action in there else "action"
        if len(names) > 1:
            return rw.read_policy(self.target, state=names, action=action)
        state = names[0] if names[0] in there else "state"
        return rw.read_policy(self.target, state=state, action=action)


def _columns(path: Path) -> list[str]:
    from reweigh.log.csv_files import CsvFormat
    from reweigh.log.sources import open_source

    return open_source(str(path), CsvFormat()).names


@functools.cache
def _parameters(group: type) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def with_options(**groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameters of these names are groups of options.

    Typer reads signatures; this one spreads the fields of each group into the command's, and
    gathers them again when it is called. What was not given comes from the file of `--config`. A
    command that would write a file that it reads is refused before it reads any.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        spread = {name: _parameters(group) for name, group in groups.items()}

        @functools.wraps(command)
        def run(context: typer.Context, config: Path | None, **given: Any) -> None:
            taken: Taken | None = None
            if config is not None:
                from reweigh.cli.config import fill

                given, taken = fill(config, context, given, run.__annotations__)
            refuse_own_inputs(run.__annotations__, {**given, "config": config})
            made = {
                name: group(**{f.name: given.pop(f.name) for f in fields(group)})
                for name, group in groups.items()
            }
            try:
                command(**given, **made)
            except ReweighError as error:
                for note in taken.notes(error) if taken is not None else ():
                    error.add_note(note)
                raise

        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in own.items()
            if name not in groups
        ]
        for name in groups:
            parameters += spread[name]
        parameters += [
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            inspect.Parameter(
                "config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CONFIG
            ),
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate
