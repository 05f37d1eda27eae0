"""From the columns of a file or a table to a checked EpisodeLog in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import Fault, input_error, nearest
from reweigh.log import rules
from reweigh.log.log import Columns, EpisodeLog, ShortEpisodes
from reweigh.log.roles import RoleReader
from reweigh.log.rules import Faults, Rule, column_fault
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import END, HIDDEN, UNKNOWN, Codes, Labels, label_array, unite
from reweigh.log.steps import Steps, TimeMajor, in_order, time_major
from reweigh.system.process import require_steps, tell

if TYPE_CHECKING:
    from reweigh.log.parquet_files import ParquetRows

TEXT_ROLES = ("episode", "step", "state", "next_state", "action", "terminated", "truncated")
Mask = npt.NDArray[np.bool_]


def read_roles(
    source: TableSource | FileSource, columns: Columns, numeric_states: bool, continuous: bool
) -> pa.Table | ParquetRows:
    """The columns that have a role, all of which must be there."""
    known, named = source.names, columns.by_role()
    missing = [missing_column(role, name, known) for role, name in named if name not in known]
    if missing:
        listed = ", ".join(map(repr, known))
        raise input_error(f"{source.describe()} with the columns {listed}", missing)
    as_numbers = ("action",) * continuous + ("state", "next_state") * numeric_states
    ids = [name for role, name in named if role in TEXT_ROLES and role not in as_numbers]
    read = source.open_rows if isinstance(source, FileSource) else source.read
    rows: pa.Table | ParquetRows = read([name for _, name in named], ids)
    if rows.num_rows == 0:
        raise input_error(source.describe(), [column_fault(rules.NO_ROWS, None)])
    return rows


def missing_column(role: str, name: str, known: list[str]) -> Fault:
    fix = rules.missing_column_fix(role)
    return column_fault(
        rules.MISSING_COLUMN, name, fix=fix, role=role, nearest=nearest(name, known)
    )


def assemble(
    reader: RoleReader, horizon: int | None, discount: float, short: ShortEpisodes
) -> EpisodeLog:
    """Read one column after the other, check what spans rows, and bring the rows into order."""
    columns = reader.columns
    tell(0.1)
    episode, episodes = reader.ids("episode", columns.episode)
    step = reader.steps()
    # None: some rule of an episode's rows is broken, and nothing needs to be put in order
    rows = time_major(episode, step, len(episodes))
    tell(0.4)
    state, states = reader.states(columns.state)
    following = None
    if columns.next_state is not None:
        next_codes, next_labels = reader.states(columns.next_state, null_allowed=True)
        joint = unite(states, next_labels)
        following = np.append(joint.translate(next_labels), HIDDEN)[next_codes]
        states = joint
    used, order = None, np.zeros(0, np.int32)
    if rows is not None:
        used = rows.until(min(horizon or rows.longest, rows.longest), episode, step)
        order = used.order
    action, actions = reader.actions()
    action = in_order(action, order)
    tell(0.6)
    reward, behavior = (
        None if values is None else in_order(values, order)
        for values in map(reader.numbers, ("reward", "behavior_prob"))
    )
    reader.numbers("target_prob")
    ended, cut = reader.truths(columns.terminated), reader.truths(columns.truncated)
    tell(0.8)

    linked = _Linked(episode, len(episodes), step, state, following, states, ended, cut)
    _check_episodes(reader, linked, rows, horizon, short)
    reader.faults.raise_if_any(reader.source.describe())
    assert rows is not None  # or a fault was raised
    assert used is not None
    assert reward is not None
    horizon = horizon or rows.longest
    require_steps(horizon)
    last = used.last_rows
    before = step[last] < horizon - 1
    used = used.until(horizon, episode, step)
    known = np.full(len(last), HIDDEN) if following is None else following[last]
    if horizon < rows.longest:
        # An episode cut at a given horizon goes on in the log: its next row is known.
        later = slice(*rows.offsets[horizon : horizon + 2])
        at_horizon = np.full(len(episodes), HIDDEN)
        at_horizon[rows.ranked[: later.stop - later.start]] = state[rows.order[later]]
        at_horizon = at_horizon[used.ranked]
        known = np.where(at_horizon >= 0, at_horizon, known)
    over = ended[last] | (before & ~cut[last] & (short == "terminal"))
    ending = np.where(over, END, np.where(known < 0, UNKNOWN, known))
    beyond = len(episode) - len(used.order)
    return EpisodeLog(
        steps=Steps(
            offsets=used.offsets,
            state=in_order(state, order).astype(np.int32, copy=False),
            action=action if actions is None else action.astype(np.int32, copy=False),
            reward=reward,
            behavior_prob=behavior,
            ending=ending.astype(np.int32),
            truncated=before & ~over,
            episode=label_array(episodes.values)[used.ranked],
            source_rows=used.order,
        ),
        states=states,
        actions=actions,
        discount=discount,
        columns=columns,
        source=reader.source,
        abstraction=reader.describe_abstraction(),
        notes=(f"cut at the horizon {horizon}: {beyond:,} later rows are not used",) * bool(beyond),
    )


@dataclass(frozen=True, eq=False)
class _Linked:
    """The columns by which rows hang together, as codes; `next_state` is None without one."""

    episode: Codes
    n_episodes: int
    step: Codes
    state: Codes
    next_state: Codes | None
    states: Labels
    ended: Mask
    cut: Mask


def _check_episodes(
    reader: RoleReader,
    c: _Linked,
    rows: TimeMajor | None,
    horizon: int | None,
    short: ShortEpisodes,
) -> None:
    """The rules of an episode's rows; `rows` is None where one of its steps is broken."""
    columns, faults, whole = reader.columns, reader.faults, rows is not None
    if rows is None:  # what else is wrong is looked for in the episodes whose steps are fine
        fine = _check_steps(faults, columns.step, c.episode, c.step)
        rows = time_major(c.episode[fine], c.step[fine], c.n_episodes)
        rows = None if rows is None else replace(rows, order=fine[rows.order])
    for name, flag in ((columns.terminated, c.ended), (columns.truncated, c.cut)):
        if name is None:
            continue
        # no row follows an end: all ends are last rows of their episodes
        if not (whole and rows is not None and np.sum(flag) == np.sum(flag[rows.last_rows])):
            _check_rows_after_end(faults, name, flag, c)
    if rows is None:
        return
    if c.next_state is not None:
        _check_next_states(reader, c, c.next_state, rows.next_rows(len(c.step)))
    if short == "error":
        horizon = horizon or rows.longest
        last = rows.until(min(horizon, rows.longest), c.episode, c.step).last_rows
        _check_short(reader, last[c.step[last] < horizon - 1], c.ended, c.cut)


def _check_steps(faults: Faults, name: str, episode: Codes, step: Codes) -> Codes:
    """Within an episode the steps are 0, 1, 2, …: no duplicate, no gap. Returns the rows of the
    episodes that are fine.

    An episode with a step that is not known already has its fault, and is not blamed for what
    follows from it.
    """
    known = (episode >= 0) & (step >= 0)
    fine = known & ~np.isin(episode, episode[~known])
    rows = np.flatnonzero(fine)
    order = rows[np.lexsort((step[rows], episode[rows]))]
    e, t = episode[order], step[order]
    first = np.ones(len(e), bool)
    first[1:] = e[1:] != e[:-1]
    row_before, before = np.zeros(len(episode), np.int64), np.zeros(len(t), t.dtype)
    row_before[order[1:]], before[1:] = order[:-1], t[:-1]
    notes: dict[Rule, Callable[[int], str]] = {
        rules.STEP_START: lambda row: "",
        rules.DUPLICATE_STEP: lambda row: f" (as in row {faults.place(int(row_before[row])).row})",
        rules.MISSING_STEP: lambda row: f" (step {int(step[row_before[row]]) + 1} is missing)",
    }
    wrong = np.zeros(len(e), bool)
    for rule, note in notes.items():
        bad = rule.broken(t, before, first)
        faults.rows(rule, name, order[bad], step, note=note)
        wrong |= bad
    return rows[~np.isin(episode[rows], e[wrong])]


def _check_rows_after_end(faults: Faults, column: str, ended: Mask, c: _Linked) -> None:
    """No row may follow the one that says the episode has ended."""
    known = np.flatnonzero((c.episode >= 0) & (c.step >= 0))
    flagged = known[ended[known]]
    first_end = np.full(c.n_episodes, np.iinfo(np.int64).max)
    np.minimum.at(first_end, c.episode[flagged], c.step[flagged])
    bad = rules.ROWS_AFTER_END.broken(c.step[known], first_end[c.episode[known]])
    faults.rows(
        rules.ROWS_AFTER_END,
        column,
        known[bad],
        c.step,
        note=lambda row: (
            f" (a row at this step; the episode ended at step {first_end[c.episode[row]]})"
        ),
    )


def _check_next_states(reader: RoleReader, c: _Linked, next_state: Codes, next_row: Codes) -> None:
    """next_state(t) must be state(t+1), where both are known; null only where it may be hidden."""
    assert reader.columns.next_state is not None
    column, labels = reader.columns.next_state[0], c.states.values
    goes_on = next_row >= 0
    after = np.where(goes_on, c.state[next_row], -1)
    both_known = (next_state >= 0) & (after >= 0)
    reader.faults.rows(
        rules.NEXT_STATE,
        column,
        rules.NEXT_STATE.broken(goes_on, both_known, next_state != after),
        lambda row: labels[next_state[row]],
        note=lambda row: f" (the next row's state is {labels[after[row]]!r})",
    )
    if not reader.allow_hidden:
        missing = rules.NULL_NEXT_STATE.broken(goes_on, next_state < 0)
        reader.faults.rows(rules.NULL_NEXT_STATE, column, missing)


def _check_short(reader: RoleReader, rows: Codes, ended: Mask, cut: Mask) -> None:
    """The last row of a short episode must say why it is the last."""
    columns = reader.columns
    flags_known = np.broadcast_to(reader.flags_known, len(ended))[rows]
    unexplained = rules.SHORT_EPISODE.broken(flags_known, ended[rows], cut[rows])
    reader.faults.rows(
        rules.SHORT_EPISODE,
        columns.step,
        rows[unexplained],
        lambda row: reader.value(columns.step, row),
        fix=rules.short_episode_fix(reader.source.names, columns.terminated, columns.truncated),
    )
