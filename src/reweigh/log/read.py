"""From the columns of a file or a table to a checked EpisodeLog in memory, and back to a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from reweigh.system.process import report_share, require_steps

if TYPE_CHECKING:
    from reweigh.log.parquet_files import ParquetRows

TEXT_ROLES = (
    "episode", "step", "state", "next_state", "action", "terminated", "truncated", "time",
    "cluster",
)  # fmt: skip
Mask = npt.NDArray[np.bool_]
MOST_LABELS = 5


def read_roles(
    source: TableSource | FileSource, columns: Columns, abstraction: Any, continuous: bool
) -> pa.Table | ParquetRows:
    """The columns that have a role, all of which must be there."""
    known, named = source.names, columns.by_role()
    missing = [missing_column(role, name, known) for role, name in named if name not in known]
    if missing:
        listed = ", ".join(map(repr, known))
        raise input_error(f"{source.describe()} with the columns {listed}", missing)
    ids = list(id_columns(columns, abstraction, continuous))
    read = source.open_rows if isinstance(source, FileSource) else source.read
    rows: pa.Table | ParquetRows = read([name for _, name in named], ids)
    if rows.num_rows == 0:
        raise input_error(source.describe(), [column_fault(rules.NO_ROWS, None)])
    return rows


def id_columns(columns: Columns, abstraction: Any, continuous: bool) -> dict[str, str]:
    """The columns that a CSV must give as texts, never as floats, with their roles."""
    as_numbers = {columns.action} if continuous else set()
    if abstraction is not None:
        from reweigh.log.abstractions import read_as_numbers

        for names in (columns.state, columns.next_state or ()):
            numeric = read_as_numbers(abstraction, len(columns.state))
            as_numbers |= {name for name, chosen in zip(names, numeric, strict=False) if chosen}
    named = columns.by_role()
    return {name: role for role, name in named if role in TEXT_ROLES and name not in as_numbers}


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
    report_share(0.1)
    episode, episodes = reader.ids("episode", columns.episode)
    step = reader.steps(episode)
    # None: some rule of an episode's rows is broken, and nothing needs to be put in order
    rows = time_major(episode, step, len(episodes))
    report_share(0.4)
    reader.find_bins(episode, episodes)
    state, states = reader.states(columns.state)
    following = None
    if columns.next_state is not None:
        next_codes, next_labels = reader.states(columns.next_state, null_allowed=True)
        joint = unite(states, next_labels)
        states, following = joint, np.append(joint.translate(next_labels), HIDDEN)[next_codes]
    used = None
    if rows is not None:
        used = rows.until(min(horizon or rows.longest, rows.longest), episode, step)
    action, actions = reader.actions()
    action = in_order(action, used)
    report_share(0.6)
    reward, behavior = in_order(reader.numbers("reward", columns.reward), used), None
    if columns.behavior_prob is not None:
        behavior = in_order(reader.numbers("behavior_prob", columns.behavior_prob), used)
    if columns.target_prob is not None:
        reader.numbers("target_prob", columns.target_prob)
    ended, cut = reader.truths(columns.terminated), reader.truths(columns.truncated)
    shared: dict[str, Any] = {}  # what all rows of an episode share
    if columns.cluster is not None or columns.weight is not None:
        from reweigh.log.of_episodes import of_episodes

        shared = of_episodes(reader, episode, len(episodes))
    features, feature_names = _features(reader)
    report_share(0.8)

    linked = _Linked(episode, len(episodes), step, state, following, states, ended, cut)
    _check_episodes(reader, linked, rows, horizon, short)
    reader.faults.raise_if_any(reader.source.describe())
    assert rows is not None  # or a fault was raised
    assert used is not None
    require_steps(horizon := horizon or rows.longest)
    last = used.last_rows
    before = step[last] < horizon - 1
    used = used.until(horizon, episode, step)
    known = np.full(len(last), HIDDEN) if following is None else following[last]
    if horizon < rows.longest:
        known = _after_horizon(rows, used, horizon, state, known)
    abstraction, bins = described(reader.abstraction, columns.state)
    over = ended[last] | (before & ~cut[last] & (short == "terminal"))
    ending = np.where(over, END, np.where(known < 0, UNKNOWN, known))
    return EpisodeLog(
        steps=Steps(
            offsets=used.offsets,
            state=in_order(state, used).astype(np.int32, copy=False),
            action=action if actions is None else action.astype(np.int32, copy=False),
            reward=reward,
            behavior_prob=behavior,
            ending=ending.astype(np.int32),
            truncated=before & ~over,
            episode=label_array(episodes.values)[used.ranked],
            source_rows=used.order,
            began=reader.began(used.first_rows),
            features=None if features is None else features[used.order],
            **{role: values[used.ranked] for role, values in shared.items()},
        ),
        states=states,
        actions=actions,
        discount=discount,
        columns=columns,
        source=reader.source,
        abstraction=abstraction,
        notes=(*_cut_note(horizon, len(episode) - len(used.order)), *bins),
        feature_names=feature_names,
    )


def described(abstraction: Any, names: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """An abstraction of these state columns as text, and what readers should know of its bins."""
    if abstraction is None:
        return None, ()
    from reweigh.log.abstractions import bin_notes, describe_abstraction

    return describe_abstraction(abstraction), bin_notes(abstraction, names)


def _features(reader: RoleReader) -> tuple[npt.NDArray[Any] | None, tuple[str, ...]]:
    """The feature columns and their names; None where the log names none."""
    if reader.columns.features is None:
        return None, ()
    from reweigh.log.features import read_features

    return read_features(reader)


def _cut_note(horizon: int, beyond: int) -> tuple[str, ...]:
    """The remark on so many rows beyond the horizon, if there are any."""
    if not beyond:
        return ()
    return (f"cut at the horizon {horizon}: {beyond:,} later rows are not used",)


def _after_horizon(
    rows: TimeMajor, used: TimeMajor, horizon: int, state: Codes, known: Codes
) -> Codes:
    """An episode cut at a given horizon continues in the log: its next row is known."""
    later = slice(*rows.offsets[horizon : horizon + 2])
    at_horizon = np.full(int(rows.ranked.max()) + 1, HIDDEN)
    at_horizon[rows.ranked[: later.stop - later.start]] = state[rows.order[later]]
    at_horizon = at_horizon[used.ranked]
    return np.where(at_horizon >= 0, at_horizon, known)


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
    if rows is None:  # other faults are searched in the episodes whose steps are right
        fine = _check_steps(faults, columns.clock, c.episode, c.step)
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
    """No row may follow the row where the episode ended."""
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
    """The last row of a short episode must say whether it ended or was cut off."""
    columns = reader.columns
    flags_known = np.broadcast_to(reader.flags_known, len(ended))[rows]
    unexplained = rules.SHORT_EPISODE.broken(flags_known, ended[rows], cut[rows])
    reader.faults.rows(
        rules.SHORT_EPISODE,
        columns.clock,
        rows[unexplained],
        lambda row: reader.value(columns.clock, row),
        fix=rules.short_episode_fix(reader.source.names, columns.terminated, columns.truncated),
    )


if TYPE_CHECKING:
    from reweigh.log.log import EpisodeLog


def log_table(log: EpisodeLog) -> pa.Table:
    """One row per step, episode by episode; the columns carry the names of their roles."""
    steps = log.steps
    order = np.lexsort((steps.step, steps.episode_index))
    columns: dict[str, Any] = {
        "episode": pa.array(steps.episode[steps.episode_index][order]),
        "step": pa.array(steps.step[order]),
    }
    if log.columns.state:
        columns |= label_columns("state", log.states, steps.state[order])
    if steps.features is not None:
        columns |= dict(zip(log.feature_names, steps.features[order].T, strict=True))
    if log.actions is not None:
        columns |= label_columns("action", log.actions, steps.action[order])
    pi, of = log.columns.target_prob, steps.episode_index
    by_row = {
        "action": steps.action if log.actions is None else None,
        "reward": steps.reward,
        "behavior_prob": steps.behavior_prob,
        "target_prob": None if pi is None else log.column(pi),
        "cluster": None if steps.cluster is None else steps.cluster[of],
        "weight": None if steps.weight is None else steps.weight[of],
    }
    columns |= {name: pa.array(v[order]) for name, v in by_row.items() if v is not None}
    following = np.where(steps.next_state < 0, HIDDEN, steps.next_state)
    if np.any(steps.ending >= 0):
        columns |= label_columns("next_state", log.states, following[order])
    last = steps.step == steps.lengths[of] - 1
    flags = {"terminated": steps.ending == END, "truncated": steps.truncated}
    columns |= {name: pa.array((last & f[of])[order]) for name, f in flags.items() if np.any(f)}
    return pa.table(columns)


def label_columns(role: str, labels: Labels, codes: npt.NDArray[Any]) -> dict[str, pa.Array]:
    """A column of labels (null where hidden), or one per part of a state of several columns."""
    width = next((len(v) for v in labels.values if isinstance(v, tuple)), 0)
    index = pa.array(codes, mask=codes < 0)

    def column(values: list[Any]) -> pa.Array:
        # a label is its text: where numbers and texts meet, all are written as texts
        if len({type(v) for v in values if v is not None}) > 1:
            values = [None if v is None else str(v) for v in values]
        return pa.array(label_array(values)).take(index)

    if not width:
        return {role: column(list(labels.values))}
    parts = [[None if v is None else v[j] for v in labels.values] for j in range(width)]  # type: ignore[index]
    return {f"{role}_{j}": column(part) for j, part in enumerate(parts)}


def log_description(
    source: str,
    columns: Columns,
    abstraction: str | None,
    states: Labels,
    actions: Labels | None,
    *,
    visited: int,
    horizon: int,
    discount: float,
    episodes: int,
    rows: int,
    hidden_rows: int,
    terminated_early: int,
    truncated: int,
    reward_range: Sequence[float],
    behavior_range: Sequence[float] | None,
    total_return: float,
    behavior_source: str = "logged",
    beyond: int = 0,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The description of a log as plain values, the same on every engine; with remarks for readers
    of the numbers. `visited` states occur in rows; `beyond` rows are past the horizon."""
    remarks = {
        **dict.fromkeys(_cut_note(horizon, beyond), True),
        f"{visited:,} states for {rows:,} rows: most occur once; bin them "
        "(abstraction=Rounding or Grid)": 2 * visited > rows,
        f"mean_return counts only the logged rewards of the {truncated:,} cut-off "
        f"episode{'s' if truncated != 1 else ''}": truncated > 0,
    }
    return {
        "source": source,
        "episodes": episodes,
        "rows": rows,
        "horizon": horizon,
        "discount": discount,
        "states": len(states),
        "state_examples": _examples(states),
        "state_columns": list(columns.state),
        **({} if columns.features is None else {"features": list(columns.features)}),
        "abstraction": abstraction,
        "actions": None if actions is None else len(actions),
        "action_examples": None if actions is None else _examples(actions),
        "continuous_actions": actions is None,
        "hidden_rows": hidden_rows,
        "terminated_early": terminated_early,
        "truncated": truncated,
        "reward_range": list(reward_range),
        "behavior_prob_range": None if behavior_range is None else list(behavior_range),
        "behavior_prob_from": None if behavior_range is None else behavior_source,
        "mean_return": total_return / episodes,
        "notes": [*notes, *(remark for remark, holds in remarks.items() if holds)],
    }


def _examples(labels: Labels) -> list[str]:
    """How the first labels are spelled."""
    return [labels.name(code) for code in range(min(MOST_LABELS, len(labels)))]
