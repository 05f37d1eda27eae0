"""read_log: from a file or a table to a checked EpisodeLog."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.errors import Fault, Place, input_error, must_be, nearest
from reweigh.logs import checks
from reweigh.logs.arrays import check_options
from reweigh.logs.columns import Columns, Names, columns_of
from reweigh.logs.csvfile import CsvFormat, truth
from reweigh.logs.log import EpisodeLog
from reweigh.logs.sources import FileSource, TableSource, open_source
from reweigh.logs.states import (
    END,
    HIDDEN,
    UNKNOWN,
    AnyAbstraction,
    Codes,
    Labels,
    apply_abstraction,
    combine,
    describe_abstraction,
    encode_arrow,
    unite,
)
from reweigh.logs.steps import Steps, extend_offsets, time_major_order

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
) -> EpisodeLog:
    """Read and check a log with one row per step.

    `data` is a CSV (plain or gzip) or Parquet file, a list of files, a directory, a pattern, or
    a pandas, polars or pyarrow table. Each role names its column. A null state is refused, or
    hidden with `hidden="allow"`. Episodes shorter than the horizon need the columns `terminated`
    or `truncated`, or `short_episodes`. `abstraction` makes states of the state columns.
    `behavior_prob=None` reads a log without propensities (see `fit_behavior`).
    """
    check_options(hidden, discount)
    if horizon is not None and (not isinstance(horizon, int) or horizon < 1):
        raise must_be("horizon", "a whole number from 1 on", horizon)
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
    source = open_source(data, CsvFormat(delimiter, decimal))
    table = _read_roles(source, columns, abstraction is not None, continuous_actions)
    reader = _Reader(table, source, columns, hidden == "allow", continuous_actions, abstraction)
    return reader.log(horizon, float(discount), short_episodes)


def _read_roles(
    source: TableSource | FileSource, columns: Columns, numeric_states: bool, continuous: bool
) -> pa.Table:
    known = source.names
    missing = [(role, name) for role, name in columns.by_role() if name not in known]
    if missing:
        listed = ", ".join(map(repr, known))
        faults = [
            Fault(
                "missing-column",
                f"there is no column {name!r} for the role {role}{nearest(name, known)} "
                f"(columns: {listed})",
                _missing_fix(role),
            )
            for role, name in missing
        ]
        raise input_error(source.describe(), faults)
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


@dataclass
class _Reader:
    """Carries one table through the checks; nothing of it outlives `log()`."""

    table: pa.Table
    source: TableSource | FileSource
    columns: Columns
    allow_hidden: bool
    continuous: bool
    abstraction: AnyAbstraction | None

    def __post_init__(self) -> None:
        self.faults = checks.Faults(self._place, self.table.num_rows)

    def _place(self, row: int) -> Place:
        """File, line, episode and step of a row."""
        step = checks.value_of(self.table.column(self.columns.step), row)
        return replace(
            self.source.place(row),
            episode=checks.value_of(self.table.column(self.columns.episode), row),
            step=step if isinstance(step, int) else None,
        )

    def log(self, horizon: int | None, discount: float, short: ShortEpisodes) -> EpisodeLog:
        faults, columns = self.faults, self.columns
        episode, episodes = self._ids("episode", columns.episode)
        step = self._steps()
        state, states = self._states(columns.state)
        following: tuple[Codes, Labels] | None = None
        if columns.next_state is not None:
            next_codes, next_labels = self._states(columns.next_state, null_allowed=True)
            joint = unite(states, next_labels)
            translate = np.append(joint.translate(next_labels), HIDDEN)
            following = translate[next_codes], joint
            states = joint
        action, actions = self._actions()
        reward = self._numbers("reward", columns.reward)
        behavior = self._probability("behavior_prob")
        self._probability("target_prob")
        ended = self._truths(columns.terminated)
        cut = self._truths(columns.truncated)

        known = (episode >= 0) & (step >= 0)
        fine = checks.episode_steps(faults, columns.step, episode, step, known)
        length = np.bincount(episode[fine], minlength=len(episodes))
        for name, flags in ((columns.terminated, ended), (columns.truncated, cut)):
            if name is not None:
                checks.rows_after_end(faults, name, flags, episode, step, len(episodes), known)
        if following is not None:
            self._check_next(state, following, episode, step, fine)

        notes = []
        if horizon is None:
            horizon = int(length.max()) if len(length) else 1
        beyond = int(np.sum(step[fine] >= horizon))
        if beyond:
            notes.append(f"cut at the horizon {horizon}: {beyond:,} later rows are not used")
        last = fine & (step == np.minimum(length[episode], horizon) - 1)
        self._check_short(last & (step < horizon - 1), ended, cut, short)
        faults.raise_if_any(self.source.describe())

        rows = np.flatnonzero(step < horizon)
        order, offsets, ranked = time_major_order(episode[rows], step[rows], len(episodes))
        order = rows[order]
        offsets = extend_offsets(offsets, horizon)
        ending, is_cut = self._endings(
            last, episode, step, horizon, ended, cut, short, state, following
        )
        return EpisodeLog(
            steps=Steps(
                offsets=offsets,
                state=state[order].astype(np.int32),
                action=action[order] if actions is None else action[order].astype(np.int32),
                reward=reward[order],
                behavior_prob=None if behavior is None else behavior[order],
                ending=ending[ranked].astype(np.int32),
                truncated=is_cut[ranked],
                episode=np.array(episodes.values)[ranked],
                source_row=order,
            ),
            states=states,
            actions=actions,
            discount=discount,
            columns=columns,
            source=self.source,
            abstraction=describe_abstraction(self.abstraction),
            notes=tuple(notes),
        )

    # the columns, one by one

    def _ids(self, role: str, name: str) -> tuple[Codes, Labels]:
        column = self.table.column(name)
        if not _is_label(column.type):
            self._wrong_type(role, name, column.type)
            return np.full(len(column), HIDDEN, np.int64), Labels(())
        codes, labels = encode_arrow(column)
        checks.null_values(self.faults, name, codes < 0)
        return codes, labels

    def _wrong_type(self, role: str, name: str, kind: pa.DataType) -> None:
        fix = "write it as integers or text"
        if pa.types.is_floating(kind):
            fix += " (an integer column with a missing value may have become float)"
        self.faults.add("type", f"column {name!r} ({role}) holds {kind}", fix)

    def _steps(self) -> npt.NDArray[np.int64]:
        name = self.columns.step
        column = self.table.column(name)
        if pa.types.is_integer(column.type):
            checks.null_values(self.faults, name, _nulls(column))
            values = np.asarray(column.fill_null(-1).to_numpy(), np.int64)
            self.faults.rows(
                "step-start",
                name,
                (values < 0) & ~_nulls(column),
                lambda row: int(values[row]),
                "steps count 0, 1, 2, …",
                "number the steps of each episode from 0",
            )
            return values
        if pa.types.is_dictionary(column.type):
            words = pc.cast(column, pa.string())
            bad = pc.invert(pc.match_substring_regex(words, "^(0|[1-9][0-9]*)$")).fill_null(True)
            self.faults.rows(
                "not-a-step",
                name,
                bad.to_numpy(),
                lambda row: words[row].as_py(),
                "a step is a whole number 0, 1, 2, …",
                "number the steps of each episode from 0",
            )
        else:
            self._wrong_type("step", name, column.type)
        return np.full(len(column), -1, np.int64)

    def _states(self, names: tuple[str, ...], null_allowed: bool = False) -> tuple[Codes, Labels]:
        parts = [self.table.column(name) for name in names]
        if self.abstraction is not None:
            return self._abstract(names, parts, null_allowed)
        encoded = []
        for name, column in zip(names, parts, strict=True):
            if pa.types.is_floating(column.type):
                values = checks.numbers(column, name)
                checks.unlikely_states(self.faults, name, values)
                encoded.append((np.full(len(column), HIDDEN, np.int64), Labels(())))
                continue
            if not _is_label(column.type):
                self._wrong_type("state", name, column.type)
                encoded.append((np.full(len(column), HIDDEN, np.int64), Labels(())))
                continue
            codes, labels = encode_arrow(column)
            if not (self.allow_hidden or null_allowed):
                self._null_state(name, codes < 0)
            encoded.append((codes, labels))
        return combine(encoded) if len(encoded) > 1 else encoded[0]

    def _abstract(
        self, names: tuple[str, ...], parts: list[pa.ChunkedArray], null_allowed: bool
    ) -> tuple[Codes, Labels]:
        assert self.abstraction is not None
        shown = ~np.logical_or.reduce([_nulls(column) for column in parts])
        arrays = []
        for name, column in zip(names, parts, strict=True):
            if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
                values = checks.numbers(column, name)
                bad = shown & ~np.isfinite(values)
                self.faults.rows(
                    "not-finite",
                    name,
                    bad,
                    partial(_cell, values),
                    f"{name!r} must be a finite number",
                    "write the real number, or leave the episode out",
                )
                shown &= ~bad
            else:
                values = column.to_numpy(zero_copy_only=False)
            arrays.append(values)
            if not (self.allow_hidden or null_allowed):
                self._null_state(name, _nulls(column))
        chosen = np.stack([values[shown] for values in arrays], axis=1)
        codes = np.full(len(shown), HIDDEN, np.int64)
        if len(chosen) == 0:
            return codes, Labels(())
        made = apply_abstraction(self.abstraction, chosen)
        encoded = [encode_arrow(pa.array(column)) for column in made]
        codes[shown], labels = combine(encoded) if len(encoded) > 1 else encoded[0]
        return codes, labels

    def _null_state(self, name: str, nulls: Mask) -> None:
        fix = 'fill in the state, or pass hidden="allow" if it could not be observed'
        checks.null_values(self.faults, name, nulls, fix)

    def _actions(self) -> tuple[npt.NDArray[Any], Labels | None]:
        name = self.columns.action
        column = self.table.column(name)
        if self.continuous:
            return self._numbers("action", name), None
        if pa.types.is_floating(column.type):
            self.faults.add(
                "float-action",
                f"column {name!r} holds floats",
                "write integers or text; for continuous actions with logged densities pass "
                "continuous_actions=True",
            )
            return np.zeros(len(column), np.int64), Labels(())
        return self._ids("action", name)

    def _numbers(self, role: str, name: str) -> npt.NDArray[np.float64]:
        column = self.table.column(name)
        kind = column.type
        if not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        ):
            if pa.types.is_string(kind) or pa.types.is_large_string(kind):
                checks.not_numbers(self.faults, name, column)
            else:
                self.faults.add(
                    "type", f"column {name!r} ({role}) holds {kind}", "write the column as numbers"
                )
            return np.full(len(column), np.nan)
        values = checks.numbers(column, name)
        checks.finite(self.faults, name, values, _nulls(column))
        return values

    def _probability(self, role: str) -> npt.NDArray[np.float64] | None:
        name = getattr(self.columns, role)
        if name is None:
            return None
        values = self._numbers(role, name)
        checks.probabilities(
            self.faults,
            name,
            values,
            np.isfinite(values),
            zero_allowed=role == "target_prob",
            density=self.continuous,
        )
        return values

    def _truths(self, name: str | None) -> Mask:
        if name is None:
            return np.zeros(self.table.num_rows, bool)
        column = self.table.column(name)
        values = truth(column)
        if values is None:
            self.faults.add(
                "type", f"column {name!r} must hold true/false or 1/0", "write truth values"
            )
            return np.zeros(len(column), bool)
        checks.null_values(self.faults, name, _nulls(column))
        return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), bool)

    # across rows

    def _check_next(
        self,
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
        assert self.columns.next_state is not None
        name = self.columns.next_state[0]
        checks.next_states_agree(
            self.faults, name, state, codes, after, lambda code: labels.values[code]
        )
        if not self.allow_hidden:
            missing = fine & (codes < 0) & (after >= 0)
            checks.null_values(self.faults, name, missing, "write the state of the next row")

    def _check_short(self, last: Mask, ended: Mask, cut: Mask, short: ShortEpisodes) -> None:
        """The last row of a short episode must say why it is the last."""
        if short != "error":
            return
        fix = (
            "name a terminated or truncated column, or pass short_episodes='terminal' or "
            "'truncated'"
        )
        present = [n for n in ("terminated", "truncated", "done") if n in self.source.names]
        if present and self.columns.terminated is None and self.columns.truncated is None:
            fix += f" (the log has a column {present[0]!r})"
        self.faults.rows(
            "short-episode",
            self.columns.step,
            last & ~ended & ~cut,
            lambda row: checks.value_of(self.table.column(self.columns.step), row),
            "an episode ends before the horizon and nothing says whether it ended or was cut off",
            fix,
        )

    def _endings(
        self,
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


def _cell(values: npt.NDArray[np.float64], row: int) -> float:
    return float(values[row])


def _is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    )


def _nulls(column: pa.ChunkedArray) -> Mask:
    if column.null_count == 0:
        return np.zeros(len(column), bool)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
