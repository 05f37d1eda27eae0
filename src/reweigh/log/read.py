"""From the columns of a file or a table to a checked EpisodeLog in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reweigh.errors import Fault, input_error, nearest
from reweigh.log import checks, rules
from reweigh.log.columns import Columns, ShortEpisodes
from reweigh.log.log import EpisodeLog
from reweigh.log.parquet_files import ParquetRows
from reweigh.log.roles import RoleReader
from reweigh.log.sources import FileSource, TableSource
from reweigh.log.states import (
    END,
    HIDDEN,
    UNKNOWN,
    Codes,
    Labels,
    describe_abstraction,
    label_array,
    unite,
)
from reweigh.log.steps import Steps, TimeMajor, in_order, time_major
from reweigh.system.process import require_steps, tell

TEXT_ROLES = ("episode", "step", "state", "next_state", "action", "terminated", "truncated")
Mask = npt.NDArray[np.bool_]


def read_roles(
    source: TableSource | FileSource, columns: Columns, numeric_states: bool, continuous: bool
) -> pa.Table | ParquetRows:
    """The columns that have a role, all of which must be there."""
    known = source.names
    missing = [(role, name) for role, name in columns.by_role() if name not in known]
    if missing:
        faults = [missing_column(role, name, known) for role, name in missing]
        listed = ", ".join(map(repr, known))
        raise input_error(f"{source.describe()} with the columns {listed}", faults)
    texts = [
        name
        for role, name in columns.by_role()
        if role in TEXT_ROLES
        and not (continuous and role == "action")
        and not (numeric_states and role in ("state", "next_state"))
    ]
    read = source.open_rows if isinstance(source, FileSource) else source.read
    rows = read([name for _, name in columns.by_role()], texts)
    if rows.num_rows == 0:
        raise input_error(source.describe(), [checks.column_fault(rules.NO_ROWS, None)])
    return rows


def missing_column(role: str, name: str, known: list[str]) -> Fault:
    return checks.column_fault(
        rules.MISSING_COLUMN,
        name,
        fix=rules.missing_column_fix(role),
        role=role,
        nearest=nearest(name, known),
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
    used = None
    if rows is not None:
        longest = len(rows.offsets) - 1
        horizon = horizon or longest
        used = rows.until(min(horizon, longest), episode, step)
    order = np.zeros(0, np.int32) if used is None else used.order
    action, actions = reader.actions()
    action = in_order(action, order)
    tell(0.6)
    reward = in_order(reader.rewards(), order)
    behavior = reader.probability("behavior_prob")
    behavior = None if behavior is None else in_order(behavior, order)
    reader.probability("target_prob")
    ended, cut = reader.truths(columns.terminated), reader.truths(columns.truncated)
    tell(0.8)

    last, before = _check_episodes(
        reader, episode, step, len(episodes), rows, used, horizon, (ended, cut),
        None if following is None else (state, following, states),
    )  # fmt: skip
    if short == "error":
        _check_short(reader, last[before], ended, cut)
    reader.faults.raise_if_any(reader.source.describe())
    assert rows is not None  # or a fault was raised
    assert used is not None
    assert horizon is not None
    require_steps(horizon)
    used = used.until(horizon, episode, step)

    known = np.full(len(last), HIDDEN) if following is None else following[last]
    if horizon < len(rows.offsets) - 1:
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
        abstraction=describe_abstraction(reader.abstraction),
        notes=(f"cut at the horizon {horizon}: {beyond:,} later rows are not used",) * bool(beyond),
    )


def _check_episodes(
    reader: RoleReader,
    episode: Codes,
    step: Codes,
    n_episodes: int,
    rows: TimeMajor | None,
    used: TimeMajor | None,
    horizon: int | None,
    flags: tuple[Mask, Mask],
    moves: tuple[Codes, Codes, Labels] | None,
) -> tuple[Codes, Mask]:
    """What is asked of an episode's rows. Returns the last row of each episode that is fine, and
    whether it stands before the last step."""
    columns, faults = reader.columns, reader.faults
    known = (episode >= 0) & (step >= 0) if rows is None else np.ones(len(step), bool)
    fine = known
    if rows is None or used is None:
        fine = checks.episode_steps(faults, columns.step, episode, step, known)
        # the last place is that of the rows without an id
        length = np.append(np.bincount(episode[fine], minlength=n_episodes), 0)
        horizon = max(int(length.max()), 1) if horizon is None else horizon
        last = np.flatnonzero(fine & (step == np.minimum(length[episode], horizon) - 1))
        sorted_rows = np.flatnonzero(fine)
        sorted_rows = sorted_rows[np.lexsort((step[sorted_rows], episode[sorted_rows]))]
        same = episode[sorted_rows[1:]] == episode[sorted_rows[:-1]]
        after = np.full(len(step), -1)
        after[sorted_rows[:-1][same]] = sorted_rows[1:][same]
    else:
        last = used.last_rows
        length = np.empty(n_episodes, np.int64)
        length[rows.ranked] = rows.lengths
        after = last if moves is None else rows.next_rows()
    for name, ended in zip((columns.terminated, columns.truncated), flags, strict=True):
        flagged = np.flatnonzero(ended)
        early = rows is None or np.any(step[flagged] < length[episode[flagged]] - 1)
        if name is not None and early:
            checks.rows_after_end(faults, name, ended, episode, step, n_episodes, known)
    if moves is not None:
        state, following, labels = moves
        assert columns.next_state is not None
        name = columns.next_state[0]
        checks.next_states_agree(
            faults, name, state, following, after, lambda code: labels.values[code]
        )
        if not reader.allow_hidden:
            missing = fine & rules.NULL_NEXT_STATE.broken(after >= 0, following < 0)
            checks.null_values(faults, name, missing, rules.NULL_NEXT_STATE)
    assert horizon is not None
    return last, step[last] < horizon - 1


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
