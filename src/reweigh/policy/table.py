"""A policy as a table: probability of each action in each state, at every step or per step."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from reweigh.errors import (
    KEPT_PLACES,
    Fault,
    InputWarning,
    Place,
    UsageError,
    check,
    input_error,
    must_be,
    nearest,
)
from reweigh.kernels import look_up, pick
from reweigh.log.log import EpisodeLog
from reweigh.log.rules import NEGATIVE_STEP, NULL, Faults, Rule
from reweigh.log.states import HIDDEN, Label, Labels, integer_rows, label_text, plain_label
from reweigh.policy import Floats, Scope
from reweigh.system.files import digest_of

Ints = npt.NDArray[np.int64]
EXACT, TOLERATED, TOLERATED_FLOAT32 = 1e-9, 1e-6, 1e-4
SMALL_TABLE = 1 << 12
POLICY_STEP = Rule(
    NEGATIVE_STEP.code,
    "row",
    ("step",),
    "the steps of a policy count 0, 1, 2, …",
    "number the steps from 0",
    NEGATIVE_STEP.broken,
)


@dataclass(frozen=True, eq=False)
class _Entries:
    """One entry per (step, state, action); `step` is None for a policy without steps."""

    step: Ints | None
    state: Ints  # codes of `states`
    action: Ints  # codes of `actions`
    prob: Floats
    states: Labels
    actions: Labels


class TablePolicy:
    """π(action|state) from a table.

    `table` is a mapping {state: {action: prob}} or {(state, action): prob}, a frame (pandas,
    polars, pyarrow) with the columns state, action, prob and, if it depends on the step, step; or
    an (S, A) or (H, S, A) array for states and actions 0, 1, 2, …. The state None is the hidden
    state. An action that a state's row does not list has probability 0.
    """

    scope: Scope = "state"

    def __init__(
        self,
        table: Any,
        *,
        state: str | Sequence[str] = "state",
        action: str = "action",
        prob: str = "prob",
        step: str = "step",
        name: str = "table",
    ) -> None:
        self.name = name
        self.files = (Path(table),) if isinstance(table, str | os.PathLike) else ()
        if isinstance(table, Mapping):
            entries, single = _from_mapping(table), False
        elif isinstance(table, np.ndarray | list | tuple):
            try:
                array = np.asarray(table)
            except ValueError as error:
                raise must_be("table", "rows of one length", table) from error
            entries, single = _from_array(array)
        else:
            names = (state,) if isinstance(state, str) else tuple(state)
            entries, single = _from_frame(table, names, action, prob, step)
        self._entries = _checked(entries, TOLERATED_FLOAT32 if single else TOLERATED)

    def __repr__(self) -> str:
        e = self._entries
        steps = "" if e.step is None else f", {int(e.step.max()) + 1} steps"
        return f"TablePolicy({len(e.states)} states, {len(e.actions)} actions{steps})"

    def probabilities(self, log: EpisodeLog) -> Floats:
        if log.actions is None:
            raise UsageError(
                "a table has no densities; for continuous actions give the target as a "
                "logged column (ColumnPolicy) or a function (FunctionPolicy)"
            )
        return self._look_up(log, log.actions, log.steps.action)

    def all_actions(self, log: EpisodeLog) -> Labels:
        return self._entries.actions

    def of_action(self, log: EpisodeLog, action: Label) -> Floats:
        return self._look_up(log, Labels((action,)), np.zeros(log.steps.n_rows, np.int32))

    def to_table(self) -> Any:
        """A pyarrow table with the columns state (one per part), action, prob and, if it has
        one, step: what `read_policy` reads."""
        import pyarrow as pa

        from reweigh.log.read import label_columns

        e = self._entries
        columns = {} if e.step is None else {"step": pa.array(e.step)}
        columns |= label_columns("state", e.states, e.state)
        columns |= label_columns("action", e.actions, e.action)
        return pa.table(columns | {"prob": pa.array(e.prob)})

    def fingerprint(self) -> str:
        """Of the positive entries only: leaving an action out and giving it 0 is the same."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        e = self._entries
        kept = e.prob > 0
        step = np.full(len(e.prob), -1) if e.step is None else e.step
        used = np.unique(e.action[kept])
        states, state_texts = _ranked(e.states.values)
        actions, action_texts = _ranked([e.actions.values[a] for a in used.tolist()])
        action = actions[np.searchsorted(used, e.action[kept])]
        rows = np.stack([step[kept], states[e.state[kept]], action])
        order = np.lexsort(rows[::-1])
        texts = repr(state_texts), repr(action_texts)
        return f"table:{digest_of(*texts, rows[:, order].tobytes(), e.prob[kept][order].tobytes())}"

    @property
    def has_steps(self) -> bool:
        return self._entries.step is not None

    def unlogged_actions(self, log: EpisodeLog) -> dict[str, float]:
        """Actions the policy takes in the log's states that are not in the log: how often."""
        if log.actions is None:
            return {}
        known = log.actions.code_of
        unlogged = [a for a in self._entries.actions.values if label_text(a) not in known]
        shares = {str(a): float(self.of_action(log, a).mean()) for a in unlogged}
        return {action: share for action, share in shares.items() if share > 0}

    def _look_up(self, log: EpisodeLog, actions: Labels, code: npt.NDArray[np.int32]) -> Floats:
        """(N,) probability of these actions (`code` (N,) of `actions`) in the rows: from the dense
        table, or searched for where there is none or it lacks a row that the log needs."""
        table, steps = self.dense(log, actions), log.steps
        if table is not None:
            prob = np.empty(steps.n_rows)
            find = pick("scan.look_up", steps.n_rows, look_up)
            find(steps.offsets, steps.state, code, table, prob)
            if not np.isnan(table).any() or not np.isnan(prob).any():
                return prob
        known_as = self._entries.actions.translate(actions)[code]
        step = steps.step if self.has_steps else None
        prob, known = self.find(log.states, steps.state, step, known_as)
        if not known.all():
            self._refuse_unknown(log, np.flatnonzero(~known))
        return prob

    def find(
        self, states: Labels, codes: npt.NDArray[Any], step: Ints | None, action: Ints
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """(N,) probabilities of these actions (codes of the table) in these states (codes of
        `states`), and whether the table contains the state."""
        e = self._entries
        state = self._states_of(states)[codes]
        rows = _row_key(e.step, e.state, len(e.states))
        wanted = _row_key(None if e.step is None else step, state, len(e.states))
        known = (state >= 0) & np.isin(wanted, rows)
        keys = rows * len(e.actions) + e.action
        order = np.argsort(keys)
        target = wanted * len(e.actions) + action
        at = np.minimum(np.searchsorted(keys[order], target), len(keys) - 1)
        hit = (keys[order][at] == target) & (action >= 0)
        return np.where(hit, e.prob[order][at], 0.0), known

    def _states_of(self, states: Labels) -> Ints:
        """The table's codes of these states, -1 where it lacks them; the last is the hidden state,
        which HIDDEN = -1 takes."""
        known = self._entries.states
        return np.append(known.translate(states), known.code_of.get(None, -1))

    def dense(self, log: EpisodeLog, actions: Labels) -> Floats | None:
        """(T, S + 1, A) π of these actions in the log's states, the last of which is the hidden
        one; T is 1 where the step does not matter. NaN where the policy has no row; None where the
        array would be larger than the log, or the policy ends before the log does."""
        e, steps = self._entries, log.steps
        known_steps = 1 if e.step is None else int(e.step.max()) + 1
        logged = (len(log.states) + 1) * len(actions)
        size = known_steps * max(logged, (len(e.states) + 1) * (len(e.actions) + 1))
        beyond = e.step is not None and known_steps < steps.horizon
        if beyond or size > max(steps.n_rows, SMALL_TABLE):
            return None
        # the last state and action are those that the policy does not know
        table = np.full((known_steps, len(e.states) + 1, len(e.actions) + 1), np.nan)
        at = 0 if e.step is None else e.step
        table[at, e.state] = 0.0
        table[at, e.state, e.action] = e.prob
        code = e.actions.translate(actions)
        return np.ascontiguousarray(table[:, self._states_of(log.states)][:, :, code])

    def _refuse_unknown(self, log: EpisodeLog, rows: Ints) -> NoReturn:
        steps = log.steps
        rows = rows[np.argsort(steps.source_row[rows], kind="stable")]
        codes, first = np.unique(steps.state[rows], return_index=True)
        first_row = dict(zip(codes.tolist(), rows[first].tolist(), strict=True))
        self.refuse_states(
            log.states, log.columns.state, first_row, lambda row: log.place(row, None, None)
        )

    def refuse_states(
        self,
        states: Labels,
        columns: Sequence[str],
        first_row: Mapping[int, Any],
        place: Callable[[Any], Place],
    ) -> NoReturn:
        """Refuse a log with states that the table lacks: their codes, in order, with the first row
        of each, which `place` names."""
        codes, hidden = list(first_row), HIDDEN in first_row
        fix = "add rows for these states to the policy"
        fix += nearest(states.name(codes[-1]), [str(v) for v in self._entries.states.values])
        if hidden:
            fix += "; the hidden state needs a row too (state None, an empty cell in a CSV)"
        places = tuple(
            replace(
                place(first_row[code]),
                column=", ".join(columns),
                value=None if code == HIDDEN else states.values[code],
            )
            for code in codes[:KEPT_PLACES]
        )
        what = "state and step" if self.has_steps else "state"
        rule = f"the policy {self.name!r} must cover every {what} of the log"
        total = len(states) + int(hidden)
        fault = Fault("unknown-state", rule, fix, places, len(codes), total, "states")
        raise input_error("the target policy", [fault])


def _ranked(labels: Sequence[Label]) -> tuple[Ints, list[str]]:
    """The place of each label in the order of their texts, and these in their order."""
    texts = [str(label_text(label)) for label in labels]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank, [texts[code] for code in order]


def _row_key(step: Ints | None, state: Ints, n_states: int) -> Ints:
    return state.astype(np.int64) if step is None else step * n_states + state


def _from_mapping(table: Mapping[Any, Any]) -> _Entries:
    flat: list[tuple[Any, Any, float]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat += [(key, action, prob) for action, prob in value.items()]
        elif isinstance(key, tuple) and len(key) == 2:
            flat.append((key[0], key[1], value))
        else:
            raise must_be(
                "table", "{state: {action: prob}} or {(state, action): prob}", {key: value}
            )
    check(flat, "table", "a table with at least one row", table)
    state, states = _encode([row[0] for row in flat])
    action, actions = _encode([row[1] for row in flat])
    try:
        prob = np.array([row[2] for row in flat], float)
    except (TypeError, ValueError) as error:
        raise must_be("table", "a table of numbers", flat[:5]) from error
    return _Entries(None, state, action, prob, states, actions)


def _encode(values: Sequence[Any]) -> tuple[Ints, Labels]:
    """Codes in the order of first appearance; None is a label here (the hidden state)."""
    first: dict[Any, Label] = {}
    for value in values:
        first.setdefault(label_text(value), plain_label(value))
    labels = Labels(tuple(first.values()))
    return np.array([labels.code_of[label_text(value)] for value in values], np.int64), labels


def _from_array(array: npt.NDArray[Any]) -> tuple[_Entries, bool]:
    check(
        array.ndim in (2, 3) and array.dtype.kind in "fiu" and 0 not in array.shape,
        "table",
        "an (S, A) or (H, S, A) array of probabilities",
        array.shape,
    )
    n_states, n_actions = array.shape[-2:]
    index = np.indices(array.shape).reshape(array.ndim, -1)
    entries = _Entries(
        index[0] if array.ndim == 3 else None,
        index[-2],
        index[-1],
        array.reshape(-1).astype(np.float64),
        Labels(tuple(range(n_states))),
        Labels(tuple(range(n_actions))),
    )
    return entries, array.dtype == np.float32


def _from_frame(
    table: Any, state: tuple[str, ...], action: str, prob: str, step: str
) -> tuple[_Entries, bool]:
    """The entries, and whether the probabilities have single precision."""
    import pyarrow as pa

    from reweigh.log.csv_files import CsvFormat
    from reweigh.log.roles import not_numbers, numbers
    from reweigh.log.sources import open_source
    from reweigh.log.states import combine, encode_arrow, is_label

    source = open_source(table, CsvFormat())
    needed = [*state, action, prob]
    fix = f"a policy needs the columns {', '.join(needed)} (and step)"
    missing = [
        Fault("missing-column", f"there is no column {name!r}{nearest(name, source.names)}", fix)
        for name in needed
        if name not in source.names
    ]
    if missing:
        listed = ", ".join(map(repr, source.names))
        raise input_error(f"the policy ({source.describe()}, with the columns {listed})", missing)
    by_step = [step] if step in source.names else []
    data = source.read([*needed, *by_step], [*state, action, *by_step])
    if data.num_rows == 0:
        raise input_error("the policy", [Fault("empty", "there are no rows", "give a table")])
    faults = Faults(source.place, data.num_rows)
    for name in (*state, action):
        kind = data.column(name).type
        if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
            faults.faults.append(
                Fault("type", f"column {name!r} contains {kind}", "write integers or text")
            )
    probs = data.column(prob)
    if is_label(probs.type) and not pa.types.is_integer(probs.type):
        not_numbers(faults, prob, probs)
    steps = _steps_of(faults, data.column(step), step) if by_step else None
    faults.raise_if_any("the policy")
    parts = [encode_arrow(data.column(name)) for name in state]
    codes, states = combine(parts)
    actions, action_labels = encode_arrow(data.column(action))
    faults.rows(NULL, action, actions < 0)
    faults.raise_if_any("the policy")
    if np.any(codes == HIDDEN):  # a null state is the hidden one
        states = Labels((*states.values, None))
        codes = np.where(codes == HIDDEN, len(states) - 1, codes)
    values = numbers(probs, prob)
    return _Entries(steps, codes, actions, values, states, action_labels), probs.type == "float"


def _steps_of(faults: Faults, column: Any, name: str) -> Ints | None:
    if not str(column.type).startswith(("int", "uint")) or column.null_count:
        rule = f"column {name!r} must contain whole numbers"
        faults.faults.append(Fault("type", rule, "write 0, 1, 2, …"))
        return None
    steps = integer_rows(column.chunks, len(column))[0].astype(np.int64)
    faults.rows(POLICY_STEP, name, POLICY_STEP.broken(steps), lambda row: int(steps[row]))
    return steps


def _checked(e: _Entries, tolerance: float) -> _Entries:
    """Probabilities in [0, 1], no entry twice, rows that sum to 1."""
    faults: list[Fault] = []

    def refuse_entries(code: str, rule: str, fix: str, entries: Ints) -> None:
        """Add a fault at these entries, if there are any."""
        places = []
        for i in entries[:KEPT_PLACES].tolist():
            state, action = e.states.values[e.state[i]], e.actions.values[e.action[i]]
            note = f" (state {state!r}, action {action!r})"
            step = None if e.step is None else int(e.step[i])
            places.append(Place(float(e.prob[i]), "prob", row=i + 1, step=step, note=note))
        if places:
            total = len(e.prob)
            faults.append(Fault(code, rule, fix, tuple(places), len(entries), total, "entries"))

    refuse_entries(
        "probability-range",
        "a probability of the policy must lie in [0, 1]",
        "correct the table",
        np.flatnonzero(~((e.prob >= 0) & (e.prob <= 1 + tolerance))),
    )
    row = _row_key(e.step, e.state, len(e.states))
    key = row * len(e.actions) + e.action
    order = np.argsort(key, kind="stable")
    refuse_entries(
        "duplicate-entry",
        "the policy must list each state and action once",
        "remove the duplicate",
        order[1:][key[order][1:] == key[order][:-1]],
    )
    if faults:
        raise input_error("the policy", faults)
    unique, first, inverse = np.unique(row, return_index=True, return_inverse=True)
    sums = np.bincount(inverse, weights=e.prob)
    off = np.abs(sums - 1)
    wrong = np.flatnonzero(off > tolerance)
    if len(wrong):
        places = tuple(
            Place(
                float(sums[k]),
                step=None if e.step is None else int(e.step[first[k]]),
                note=f" (sum of the row of state {e.states.values[e.state[first[k]]]!r})",
            )
            for k in wrong[:KEPT_PLACES].tolist()
        )
        rule = "the probabilities of a state must sum to 1 over its actions"
        fix = "list every action with its probability, or normalize the row"
        fault = Fault("row-sum", rule, fix, places, len(wrong), len(unique), "policy rows")
        raise input_error("the policy", [fault])
    if np.any(off > EXACT):
        warnings.warn(
            f"{int(np.sum(off > EXACT))} of {len(unique)} rows of the policy sum to 1 only within "
            f"{off.max():.1e}; they were normalized",
            InputWarning,
            stacklevel=4,
        )
        return replace(e, prob=e.prob / sums[inverse])
    return e
