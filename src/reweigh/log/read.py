"""read_log: from a file or a table to a checked EpisodeLog."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import Fault, UsageError, check_horizon, input_error, must_be, nearest
from reweigh.log import checks
from reweigh.log.arrays import check_options
from reweigh.log.columns import Columns, Names, columns_of
from reweigh.log.csv_files import CsvFormat, refuse_elsewhere
from reweigh.log.log import EpisodeLog
from reweigh.log.roles import RoleReader
from reweigh.log.sources import FileSource, TableSource, open_source
from reweigh.log.states import (
    END,
    HIDDEN,
    UNKNOWN,
    AnyAbstraction,
    Codes,
    Labels,
    describe_abstraction,
    label_array,
    unite,
)
from reweigh.log.steps import Steps, extend_offsets, time_major_order
from reweigh.sums.engines.choose import check_table, find_engine, in_memory, is_ibis_table
from reweigh.sums.scanned_log import Reading, ScannedLog
from reweigh.system.memory import require_steps
from reweigh.system.progress import tell

TEXT_ROLES = ("episode", "step", "state", "next_state", "action", "terminated", "truncated")
ShortEpisodes = Literal["error", "terminal", "truncated"]
Mask = npt.NDArray[np.bool_]


def read_log(
    data: Any,
    *,
    episode: str = "episode",
    step: str = "step",
    state: Names = "state",
    action: str = "action",
    reward: str = "reward",
    behavior_prob: str | None = "behavior_prob",
    next_state: Names | None = None,
    target_prob: str | None = None,
    terminated: str | None = None,
    truncated: str | None = None,
    horizon: int | None = None,
    discount: float = 1.0,
    short_episodes: ShortEpisodes = "error",
    hidden: Literal["error", "allow"] = "error",
    continuous_actions: bool = False,
    abstraction: AnyAbstraction | None = None,
    delimiter: str = ",",
    decimal: str = ".",
    engine: str = "auto",
    table: str | None = None,
) -> EpisodeLog | ScannedLog:
    """Read and check a log with one row per step.

    `data` is a CSV (plain or gzip), Parquet or Arrow file, a list of files, a directory, a pattern,
    or a pandas, polars, pyarrow, Ibis or DuckDB table. Each role names its column. A null state
    is refused, or hidden with `hidden="allow"`. Episodes shorter than the horizon need the columns
    `terminated` or `truncated`, or `short_episodes`. `abstraction` makes states of the state
    columns.
    `behavior_prob=None` reads a log without propensities (see `fit_behavior`).

    `engine` is where the rows are read: "arrays" (into memory, now), "stream" (from files in little
    memory, whenever sums are asked for), "duckdb", "spark://host:port", "sc://host:port" (there),
    or "auto": by what the log is and how large. `table` names a table of a DuckDB database or of
    Spark (then `data` is None); an Ibis table may be given itself.
    """
    check_options(hidden, discount)
    horizon = None if horizon is None else check_horizon(horizon)
    if short_episodes not in ("error", "terminal", "truncated"):
        raise must_be("short_episodes", '"error", "terminal" or "truncated"', short_episodes)
    columns = columns_of(
        episode=episode,
        step=step,
        state=state,
        action=action,
        reward=reward,
        behavior_prob=behavior_prob,
        next_state=next_state,
        target_prob=target_prob,
        terminated=terminated,
        truncated=truncated,
    )
    csv = CsvFormat(delimiter, decimal)
    check_table(engine, data, table)
    data = in_memory(data)
    source = data if table is not None or is_ibis_table(data) else open_source(data, csv)
    is_csv = isinstance(source, FileSource) and source.kind == "csv"
    if not is_csv:
        usual = CsvFormat()
        refuse_elsewhere(
            source.describe() if isinstance(source, FileSource | TableSource) else "a table",
            delimiter=None if delimiter == usual.delimiter else delimiter,
            decimal=None if decimal == usual.decimal else decimal,
        )
    scanner = find_engine(engine, source, getattr(source, "paths", None))
    if scanner is not None:
        reading = Reading(
            columns=columns,
            horizon=horizon,
            discount=float(discount),
            short_episodes=short_episodes,
            hidden=hidden == "allow",
            continuous_actions=continuous_actions,
            abstraction=abstraction,
            csv=csv,
            table=table,
        )
        return ScannedLog(source, reading, scanner)
    if table is not None or is_ibis_table(data):
        raise UsageError(
            "a table of a database is read by an engine: give engine='duckdb' or 'spark://…'"
        )
    tell(0.0)
    rows = _read_roles(source, columns, abstraction is not None, continuous_actions)
    tell(0.2)
    reader = RoleReader(
        rows,
        source,
        columns,
        hidden == "allow",
        continuous_actions,
        abstraction,
        decimal if is_csv else None,
    )
    return _assemble(reader, horizon, float(discount), short_episodes)


def _read_roles(
    source: TableSource | FileSource, columns: Columns, numeric_states: bool, continuous: bool
) -> pa.Table:
    known = source.names
    missing = [(role, name) for role, name in columns.by_role() if name not in known]
    if missing:
        faults = [
            Fault(
                "missing-column",
                f"there is no column {name!r} for the role {role}{nearest(name, known)}",
                _missing_fix(role),
            )
            for role, name in missing
        ]
        listed = ", ".join(map(repr, known))
        raise input_error(f"{source.describe()} with the columns {listed}", faults)
    texts = [
        name
        for role, name in columns.by_role()
        if role in TEXT_ROLES
        and not (continuous and role == "action")
        and not (numeric_states and role in ("state", "next_state"))
    ]
    table = source.read([name for _, name in columns.by_role()], texts)
    if table.num_rows == 0:
        raise input_error(
            source.describe(), [Fault("no-episodes", "there are no rows", "give a log with rows")]
        )
    return table


def _missing_fix(role: str) -> str:
    if role == "behavior_prob":
        return (
            "name the column with behavior_prob=…, or pass behavior_prob=None and estimate it "
            "with fit_behavior(log)"
        )
    return f"name the column with {role}=…"


def _assemble(
    reader: RoleReader, horizon: int | None, discount: float, short: ShortEpisodes
) -> EpisodeLog:
    """Check what spans rows, and bring the rows into their order."""
    faults, columns = reader.faults, reader.columns
    episode, episodes = reader.ids("episode", columns.episode)
    step = reader.steps()
    tell(0.4)
    state, states = reader.states(columns.state)
    following: tuple[Codes, Labels] | None = None
    if columns.next_state is not None:
        next_codes, next_labels = reader.states(columns.next_state, null_allowed=True)
        joint = unite(states, next_labels)
        translate = np.append(joint.translate(next_labels), HIDDEN)
        following = translate[next_codes], joint
        states = joint
    action, actions = reader.actions()
    tell(0.6)
    reward = reader.numbers(columns.reward)
    checks.rewards(reader.faults, columns.reward, reward)
    behavior = reader.probability("behavior_prob")
    reader.probability("target_prob")
    ended = reader.truths(columns.terminated)
    cut = reader.truths(columns.truncated)
    tell(0.7)

    known = (episode >= 0) & (step >= 0)
    fine = checks.episode_steps(faults, columns.step, episode, step, known)
    # the last place is that of the rows without an id
    length = np.append(np.bincount(episode[fine], minlength=len(episodes)), 0)
    for name, flags in ((columns.terminated, ended), (columns.truncated, cut)):
        if name is not None:
            checks.rows_after_end(faults, name, flags, episode, step, len(episodes), known)
    if following is not None:
        _check_next(reader, state, following, episode, step, fine)

    notes = []
    if horizon is None:
        horizon = max(int(length.max()), 1)
    beyond = int(np.sum(step[fine] >= horizon))
    if beyond:
        notes.append(f"cut at the horizon {horizon}: {beyond:,} later rows are not used")
    last = fine & (step == np.minimum(length[episode], horizon) - 1)
    _check_short(reader, last & (step < horizon - 1), ended, cut, short)
    faults.raise_if_any(reader.source.describe())

    require_steps(horizon)
    tell(0.85)
    rows = np.flatnonzero(step < horizon)
    order, offsets, ranked = time_major_order(episode[rows], step[rows], len(episodes))
    order = rows[order]
    offsets = extend_offsets(offsets, horizon)
    ending, is_cut = _endings(last, episode, step, horizon, ended, cut, short, state, following)
    return EpisodeLog(
        steps=Steps(
            offsets=offsets,
            state=state[order].astype(np.int32),
            action=action[order] if actions is None else action[order].astype(np.int32),
            reward=reward[order],
            behavior_prob=None if behavior is None else behavior[order],
            ending=ending[ranked].astype(np.int32),
            truncated=is_cut[ranked],
            episode=label_array(episodes.values)[ranked],
            source_rows=order,
        ),
        states=states,
        actions=actions,
        discount=discount,
        columns=columns,
        source=reader.source,
        abstraction=describe_abstraction(reader.abstraction),
        notes=tuple(notes),
    )


def _check_next(
    reader: RoleReader,
    state: Codes,
    following: tuple[Codes, Labels],
    episode: Codes,
    step: Codes,
    fine: Mask,
) -> None:
    rows = np.flatnonzero(fine)
    order = rows[np.lexsort((step[rows], episode[rows]))]
    after = np.full(len(state), -1, np.int64)
    same = episode[order[1:]] == episode[order[:-1]]
    after[order[:-1][same]] = order[1:][same]
    codes, labels = following
    assert reader.columns.next_state is not None
    name = reader.columns.next_state[0]
    checks.next_states_agree(
        reader.faults, name, state, codes, after, lambda code: labels.values[code]
    )
    if not reader.allow_hidden:
        missing = fine & (codes < 0) & (after >= 0)
        checks.null_values(reader.faults, name, missing, "write the state of the next row")


def _check_short(
    reader: RoleReader, last: Mask, ended: Mask, cut: Mask, short: ShortEpisodes
) -> None:
    """The last row of a short episode must say why it is the last."""
    if short != "error":
        return
    fix = "name a terminated or truncated column, or pass short_episodes='terminal' or 'truncated'"
    present = [n for n in ("terminated", "truncated", "done") if n in reader.source.names]
    unused = [n for n in present if n not in (reader.columns.terminated, reader.columns.truncated)]
    if unused:
        fix += f" (not used yet: the log has a column {', '.join(map(repr, unused))})"
    reader.faults.rows(
        "short-episode",
        reader.columns.step,
        last & ~ended & ~cut & reader.flags_known,
        lambda row: checks.value_of(reader.table.column(reader.columns.step), row),
        "an episode ends before the horizon and nothing says whether it ended or was cut off",
        fix,
    )


def _endings(
    last: Mask,
    episode: Codes,
    step: Codes,
    horizon: int,
    ended: Mask,
    cut: Mask,
    short: ShortEpisodes,
    state: Codes,
    following: tuple[Codes, Labels] | None,
) -> tuple[Codes, Mask]:
    """What follows each episode's last row, and which episodes were cut off."""
    rows = np.flatnonzero(last)
    e = episode[rows]
    before = step[rows] < horizon - 1
    known = np.full(len(rows), HIDDEN, np.int64) if following is None else following[0][rows]
    # An episode cut at a given horizon goes on in the log: its next row is known.
    beyond = np.flatnonzero(step == horizon)
    at_horizon = np.full(int(episode.max()) + 1, HIDDEN, np.int64)
    at_horizon[episode[beyond]] = state[beyond]
    known = np.where(~before & (at_horizon[e] >= 0), at_horizon[e], known)
    over = ended[rows] | (before & ~cut[rows] & (short == "terminal"))
    after = np.where(over, END, np.where(known < 0, UNKNOWN, known))
    ending = np.empty(len(rows), np.int64)
    ending[e] = after
    is_cut = np.zeros(len(rows), bool)
    is_cut[e] = before & ~over
    return ending, is_cut
