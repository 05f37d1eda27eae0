"""The options that commands share, each declared once: of the log, the target, the intervals and
the report as groups, and single ones as types; and their values: a log with its target, or moments,
and estimators."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

import reweigh as rw
from reweigh.errors import UsageError

READING, TARGET, INTERVALS, REPORT = (
    "How to read the log", "The target policy", "Intervals", "The report",
)  # fmt: skip
OR_TABLE = "Omit it with a --table of Spark."  # of the argument LOG
RESAMPLED = ("percentile", "bootstrap-t")
# Marks a parameter (in its Annotated type) whose file or folder the command writes. Every other
# path of a command is one that it reads.
WRITES = "writes"


def _option(help: str, panel: str | None = READING, *flags: str) -> Any:
    """An option; `flags` name it otherwise, or without its --no-… twin."""
    return typer.Option(*flags, help=help, rich_help_panel=panel)


def _files(help: str) -> Any:
    return typer.Argument(metavar="LOG…", help=help)


LogFiles = Annotated[list[Path] | None, _files(f"Files of the log. {OR_TABLE}")]
LogOrMoments = Annotated[
    list[Path] | None, _files(f"Files of the log, or one file of moments. {OR_TABLE}")
]
PilotOrMoments = Annotated[
    list[Path] | None, _files(f"Files of a pilot log, or one file of moments. {OR_TABLE}")
]
LogInMemory = Annotated[list[Path] | None, _files("Files of the log.")]
Config = Annotated[
    Path | None,
    _option(
        "TOML file with options, as `reweigh init` writes it; options on the command line "
        "take precedence."
    ),
]
MEMORY = (
    "How many steps mis remembers: 0 trusts the state, the horizon less 1 is wis; auto takes the "
    "fewest that give what more of them give."
)
Memory = Annotated[str | None, _option(MEMORY, None)]
MaxMemory = Annotated[
    str | None,
    _option(
        "Memory that the command may take, such as 4GB: what would need more is refused before it "
        "starts. (default: three quarters of the machine's)",
        None,
    ),
]
MaxRatio = Annotated[float | None, _option("Clip the ratios π/μ at this number.", None)]
Ledger = Annotated[
    Path | None,
    _option("File that records how many policies were tried on this log.", None),
    WRITES,
]
ParquetFile = Annotated[Path, _option("Parquet file to write.", None, "-o", "--output"), WRITES]
Overwrite = Annotated[bool, _option("Replace the file if it exists.", None, "--overwrite")]
Json = Annotated[bool, _option("Print JSON.", None, "--json")]
Quiet = Annotated[
    bool,
    _option("Print only the result, and warnings to the standard error.", None, "--quiet", "-q"),
]
ShowAll = Annotated[bool, _option("Show every estimator's row, not five at most.", None, "--all")]
Explain = Annotated[
    bool, _option("Show every reason, p-values and what was not checked.", None, "--explain")
]
QuietFiles = Annotated[  # of commands whose result is a file
    bool, _option("Print only warnings, to the standard error.", None, "--quiet", "-q")
]


def refuse_existing(
    *paths: Path | None, overwrite: bool = False, way: str = "ask to overwrite it"
) -> None:
    """UsageError before any work: an existing file stays, unless overwriting is requested."""
    for path in paths:
        if path is not None and path.exists() and not overwrite:
            raise UsageError(f"{str(path)!r} exists; give another name or {way}")


def split_names(given: list[str] | None) -> list[str] | None:
    """The names in options with commas between them."""
    return [name.strip() for text in given or () for name in text.split(",")] or None


def check_choice(flag: str, value: str, *choices: str) -> None:
    if value not in choices:
        raise UsageError(f"{flag} must be {' or '.join(choices)}; got {value!r}")


@dataclass(frozen=True)
class LogOptions:
    """Every option of `read_log`, under the same name."""

    episode: Annotated[str, _option("Column of the episode id.")] = "episode"
    step: Annotated[str | None, _option("Column of the step (0, 1, 2, …). (default: step)")] = None
    time: Annotated[
        str | None,
        _option("Column of timestamps, dates or numbers that orders an episode's steps."),
    ] = None
    bandit: Annotated[
        bool,
        _option(
            "Every row is an episode of its own, of one step: no step column is needed.",
            READING,
            "--bandit",
        ),
    ] = False
    state: Annotated[
        list[str] | None, _option("Column of the state; repeat it for several. (default: state)")
    ] = None
    action: Annotated[str, _option("Column of the action.")] = "action"
    reward: Annotated[str, _option("Column of the reward.")] = "reward"
    behavior_prob: Annotated[
        str | None,
        _option(
            "Column of the behavior policy's probability of the logged action. (default: "
            "behavior_prob)"
        ),
    ] = None
    next_state: Annotated[list[str] | None, _option("Column of the next state.")] = None
    cluster: Annotated[
        str | None,
        _option("Column of what several episodes share (site, patient): errors are by cluster."),
    ] = None
    weight: Annotated[str | None, _option("Column of the episode's sampling weight.")] = None
    features: Annotated[
        list[str] | None,
        _option("Columns of numbers (map_bp,heart_rate) in place of a state, or beside --state."),
    ] = None
    terminated: Annotated[str | None, _option("Column that is true where an episode ended.")] = None
    truncated: Annotated[
        str | None, _option("Column that is true where an episode was cut off.")
    ] = None
    horizon: Annotated[int | None, _option("Number of steps. (default: the longest episode)")] = (
        None
    )
    discount: Annotated[float, _option("Discount per step, in (0, 1].")] = 1.0
    short_episodes: Annotated[
        str, _option("How to treat a short episode without a flag: error, terminal or truncated.")
    ] = "error"
    hidden: Annotated[str, _option("How to treat a null state: error or allow.")] = "error"
    continuous_actions: Annotated[
        bool, _option("Actions are continuous, with densities.", READING, "--continuous-actions")
    ] = False
    round: Annotated[
        list[float] | None,
        _option(
            "Bin the state: multiply by this and round (0.1: to tens). Once, or once per column."
        ),
    ] = None
    grid: Annotated[
        list[str] | None,
        _option(
            "Bin the state: count the edges at or below it (60,90,120). Once per state column."
        ),
    ] = None
    bins: Annotated[
        list[int] | None,
        _option(
            "Make states: put every float state column into this many bins of about as many rows "
            "each, or each its own number; 0 leaves it as it is."
        ),
    ] = None
    delimiter: Annotated[str, _option("Delimiter of a CSV file.")] = ","
    decimal: Annotated[str, _option("Decimal sign of a CSV file.")] = "."
    engine: Annotated[
        str,
        _option(
            "Where to read the rows: arrays (into memory), stream (files, with little "
            "memory), duckdb, spark://host:port, sc://host:port, or auto."
        ),
    ] = "auto"
    table: Annotated[
        str | None,
        _option("Table of the DuckDB database given as LOG, or of Spark (without LOG)."),
    ] = None
    fit_behavior: Annotated[
        bool,
        _option(
            "Estimate the behavior policy's probabilities: from counts per state, with --features "
            "alone by logistic regression on the other folds.",
            READING,
            "--fit-behavior",
        ),
    ] = False
    smoothing: Annotated[float, _option("Pseudo-counts per action for --fit-behavior.")] = 0.0

    def read(self, paths: list[Path] | None, target_prob: str | None = None) -> Any:
        """The log, read and checked; without files it is a table of Spark."""
        self.check_source(paths)
        if self.smoothing and not self.fit_behavior:
            raise UsageError("--smoothing needs --fit-behavior")
        if self.behavior_prob is not None and self.fit_behavior:
            raise UsageError("give --behavior-prob or --fit-behavior, not both")
        translated = ("round", "grid", "bins", "fit_behavior", "smoothing")
        same = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in translated}
        same |= {
            "state": self.state or None,
            "features": split_names(self.features),
            "next_state": self.next_state or None,
            "behavior_prob": None if self.fit_behavior else self.behavior_prob or "behavior_prob",
        }
        files: Any = [str(path) for path in paths or []]
        source = (files[0] if len(files) == 1 else files) if files else None
        log: Any = rw.read_log(
            source, target_prob=target_prob, abstraction=self._abstraction(), **same
        )
        if self.fit_behavior:
            self.require_rows(log, "--fit-behavior")
            return log.with_behavior(rw.fit_behavior(log, smoothing=self.smoothing))
        return log

    @staticmethod
    def require_rows(log: Any, option: str) -> None:
        if not isinstance(log, rw.EpisodeLog):
            raise UsageError(f"{option} needs the log in memory: use --engine arrays")

    def check_source(self, paths: list[Path] | None) -> None:
        """There must be a log: files, or a table of Spark."""
        from reweigh.sums.read import is_spark

        if paths or (self.table is not None and is_spark(self.engine)):
            return
        if self.table is None:
            raise UsageError(
                "there is no LOG: give its files, or name a table of Spark (--engine "
                "spark://… --table NAME)"
            )
        raise UsageError(
            f"--table {self.table} needs a database: give a DuckDB database as LOG (--engine "
            "duckdb), or use Spark (--engine spark://… or sc://…)"
        )

    def _abstraction(self) -> Any:
        if sum(map(bool, (self.round, self.grid, self.bins))) > 1:
            raise UsageError("give --round, --grid or --bins, one of them")
        if self.bins:
            return rw.Quantiles(self.bins[0] if len(self.bins) == 1 else self.bins)
        if self.round:
            return rw.Rounding(self.round[0] if len(self.round) == 1 else self.round)
        try:
            edges = [[float(edge) for edge in text.split(",")] for text in self.grid or ()]
        except ValueError as error:
            raise UsageError(f"--grid needs comma-separated numbers: {error}") from error
        return rw.Grid(edges) if edges else None


@dataclass(frozen=True)
class TargetOptions:
    """Where the target policy comes from."""

    target: Annotated[
        Path | None,
        _option(
            "Policy file: a table with the columns state, action, prob (step), a rule (.rule, "
            ".txt) or a scikit-learn classifier (.skops).",
            TARGET,
        ),
    ] = None
    target_prob: Annotated[
        str | None,
        _option(("Column with the target policy's probability of the logged action."), TARGET),
    ] = None
    rule: Annotated[
        str | None,
        _option('The target as a rule: "if bp < 65: drug=0.9, none=0.1; else: none=1".', TARGET),
    ] = None

    def read(self, log: LogOptions) -> Any:
        """The policy; the columns of its file may carry the log's names for them."""
        from reweigh.policy import policy_from

        if sum(given is not None for given in (self.target, self.target_prob, self.rule)) != 1:
            raise UsageError(
                "name the target policy: --target FILE, --target-prob COLUMN or --rule TEXT "
                "(one of them)"
            )
        if self.target_prob is not None:
            return rw.ColumnPolicy(self.target_prob)
        if self.rule is not None:
            return rw.RulePolicy(self.rule)
        return policy_from(self.target, log.state or ["state"], log.action)


@dataclass(frozen=True)
class IntervalOptions:
    """How sure the number is: which interval, at what level, from which replicates."""

    level: Annotated[float, _option("Level of the intervals, between 0 and 1.", INTERVALS)] = 0.95
    interval: Annotated[
        str,
        _option(
            "Interval method: auto, analytic, cluster (influence of episodes), jackknife "
            "(blocks of episodes), percentile or bootstrap-t (resampled episodes).",
            INTERVALS,
        ),
    ] = "auto"
    one_sided: Annotated[
        str | None, _option("A one-sided bound only: lower or upper.", INTERVALS)
    ] = None
    replicates: Annotated[
        int | None,
        _option(
            ("Number of resampled logs, at least 20/(1 - level) less 1. (default: 1999)"), INTERVALS
        ),
    ] = None
    seed: Annotated[
        int | None,
        _option("Seed of the resampling. (default: drawn, and printed)", INTERVALS),
    ] = None
    reward_range: Annotated[
        tuple[float, float] | None,
        _option(
            "Smallest and largest reward that can occur. Intervals stay within this range, how "
            "far an event that was never seen could move the value is said, and with the log in "
            "memory bounds valid for any number of episodes are shown too.",
            INTERVALS,
        ),
    ] = None

    def check(self) -> None:
        """What is wrong whatever the log is."""
        from reweigh.trust.intervals import IntervalRequest, check_replicates, method_named

        method_named(self.interval)
        if self.one_sided is not None:
            check_choice("--one-sided", self.one_sided, "lower", "upper")
        IntervalRequest(self.level, self.one_sided or "both")  # type: ignore[arg-type]
        for name, value in (("--replicates", self.replicates), ("--seed", self.seed)):
            if value is not None and not self.resampled:
                raise UsageError(f"{name} needs --interval percentile or bootstrap-t")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must be a whole number of at least 0; got {self.seed}")
        if self.resampled:
            check_replicates(self.resamples, self.level)
        if self.reward_range is not None:
            from reweigh.evaluation.inputs import check_range

            check_range(self.reward_range)

    @property
    def resampled(self) -> bool:
        return self.interval in RESAMPLED

    @property
    def resamples(self) -> int:
        from reweigh.trust.intervals import REPLICATES

        return REPLICATES if self.replicates is None else self.replicates

    @property
    def heading(self) -> str:
        what = "interval" if self.one_sided is None else f"{self.one_sided} bound"
        return f"{100 * self.level:.10g} % {what}"


@dataclass(frozen=True)
class ReportOptions:
    """Where the report goes."""

    report: Annotated[
        Path | None,
        _option("Write a self-contained report to this HTML file.", REPORT),
        WRITES,
    ] = None
    overwrite: Annotated[
        bool, _option("Replace the report if it exists.", REPORT, "--overwrite")
    ] = False
    title: Annotated[str | None, _option("Title of the report.", REPORT)] = None
    unit: Annotated[str, _option('What the value is per, such as "per patient".', REPORT)] = (
        "per episode"
    )

    @property
    def path(self) -> str | None:
        return None if self.report is None else str(self.report)

    def check(self) -> None:
        from reweigh.show.text import check_unit

        if self.report is None and self.overwrite:
            raise UsageError("--overwrite needs --report")
        if self.report is None and self.title is not None:
            raise UsageError("--title needs --report")
        check_unit(self.unit)
        refuse_existing(self.report, overwrite=self.overwrite, way="pass --overwrite")
