"""Logs in any row order: every row names its next_state, so it makes its cell by itself.

What holds an episode together is checked by what must balance. With one hash per (episode, step,
state), the sum over the rows that go on, of where they lead, must equal the sum over the rows from
step 1 on, of where they are; and no episode begins twice. That notices a missing or double row, a
row after the end, and a next_state that is not the next row's state, but not which row it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import Fault, InputError
from reweigh.kernels.groups import group_by
from reweigh.log import checks
from reweigh.log.identity import identity_of
from reweigh.log.log import EpisodeLog
from reweigh.log.rules import NULL_NEXT_STATE
from reweigh.log.states import (
    END,
    HIDDEN,
    UNKNOWN,
    Labels,
    describe_abstraction,
    label_array,
    label_text,
    unite,
)
from reweigh.log.steps import Steps
from reweigh.policy.base import Policy
from reweigh.sums.cells import one_step_cells
from reweigh.sums.diagnostic_tables import VERSIONS
from reweigh.sums.engines.arrays import ratios
from reweigh.sums.engines.base import Request
from reweigh.sums.engines.stream_chunks import ChunkReader, ChunkSource, Findings, id_keys
from reweigh.sums.engines.stream_rows import Opened, RowSource
from reweigh.sums.engines.stream_sums import MIX, Words, gather
from reweigh.sums.moments import About, Moments
from reweigh.sums.scanned_log import Reading
from reweigh.sums.transitions import StartMoments

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NO_ORDER = (
    "the rows of an episode do not stand together in this log; sort it by episode and step, or "
    "read it with engine='duckdb'"
)
UNORDERED_FIX = (
    "set terminated or truncated in the last row of every episode, sort the rows by episode and "
    "step, or read them with engine='duckdb', which sorts"
)


@dataclass(frozen=True, eq=False)
class LooseSteps(Steps):
    """Rows by step, which belong to episodes in no order: each says to which, and what follows."""

    of_row: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    following: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    cut_early: Mask = field(default_factory=lambda: np.zeros(0, bool))

    @cached_property
    def episode_index(self) -> Ints:
        return self.of_row

    def first_episodes(self) -> Ints:
        return self.of_row[self.rows(0)]

    @cached_property
    def next_state(self) -> npt.NDArray[np.int32]:
        return self.following


@dataclass
class Balance:
    """What must come out even, by the step t from which rows go on to t + 1.

    `sums` has four lines over the steps `seen`: the rows of t that go on, those that stand at
    t + 1, and the sums of their hashes.
    """

    horizon: int
    seen: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    sums: Words = field(default_factory=lambda: np.zeros((4, 0), np.uint64))

    def add(self, keys: Words, step: Ints, state: Words, following: Words, last: Mask) -> None:
        on, here = ~last, step > 0
        leads = _hashes(keys[on], step[on], following[on])
        stands = _hashes(keys[here], step[here] - 1, state[here])
        parts = [self.seen, step[on], step[here] - 1]
        self.seen, place = np.unique(np.concatenate(parts), return_inverse=True)
        held, goes_on, there = np.split(place, np.cumsum([len(part) for part in parts])[:-1])
        sums = np.zeros((4, len(self.seen)), np.uint64)
        sums[:, held] = self.sums
        for line, where in ((0, goes_on), (1, there)):
            sums[line] += np.bincount(where, minlength=len(self.seen)).astype(np.uint64)
        np.add.at(sums[2], goes_on, leads)
        np.add.at(sums[3], there, stands)
        self.sums = sums

    def faults(self) -> list[Fault]:
        """From the last step of the horizon on, an episode may end without a flag: none of its rows
        is used. Where some end so and others do not, the sums cannot tell a gap from an end."""
        goes_on, there = self.sums[:2].astype(np.int64)
        free = (self.seen >= self.horizon - 1) & (there < goes_on)
        fix = "correct the rows; engine='duckdb' sorts the log and names them"
        off = np.flatnonzero((goes_on != there) & ~free)
        if len(off):
            i, t = int(off[0]), int(self.seen[off[0]])
            rule = (
                f"every row that does not end its episode needs the row of the next step: "
                f"{goes_on[i]:,} rows of step {t} go on, and {there[i]:,} rows stand "
                f"at step {t + 1}"
            )
            return [Fault("missing-step", rule, fix)]
        if np.any((self.sums[2] != self.sums[3]) & ~free):
            rule = "next_state must equal the state of the episode's row at the next step"
            return [Fault("next-state", rule, fix)]
        unknown = np.flatnonzero(free & (there > 0))
        if len(unknown):
            i, t = int(unknown[0]), int(self.seen[unknown[0]])
            rule = (
                "to be streamed, the rows of an episode must stand together, or say where it ends, "
                f"beyond the horizon {self.horizon} too: of {goes_on[i]:,} rows of step {t} "
                f"without such a flag, {there[i]:,} go on"
            )
            return [Fault("row-order", rule, UNORDERED_FIX)]
        return []


def _hashes(keys: Words, step: Ints, state: Words) -> Words:
    one, two, three, four = (np.uint64(constant) for constant in MIX)
    h = keys * one + step.astype(np.uint64) * two + state * three
    h = (h ^ (h >> np.uint64(29))) * four
    return np.asarray(h ^ (h >> np.uint64(32)))


def may_be_loose(reading: Reading, kinds: frozenset[str]) -> str:
    """Why rows in any order cannot be read; empty if they can."""
    if reading.columns.next_state is None:
        return "rows in any order need a next_state column"
    if "trajectories" in kinds:
        return "running products need the order"
    if kinds - {"transitions", "model"} - VERSIONS.keys():
        return "tables from outside of the package need the order"
    if reading.hidden:
        return "hidden states need the order"
    if reading.short_episodes != "error":
        return "short episodes without a flag are only found in order"
    return ""


def scan_loosely(
    opened: Opened,
    rows: RowSource,
    reading: Reading,
    horizon: int,
    visit: Callable[[EpisodeLog], None],
) -> Findings:
    """Check every row by itself and all of them by what must balance; `visit` sees the batches."""
    found, balance, first = Findings(), Balance(horizon), 0
    for table in rows.batches():
        source = ChunkSource(opened, table, first)
        first += table.num_rows
        found.rows = first
        reader = ChunkReader(
            table,
            source,  # type: ignore[arg-type]
            reading.columns,
            reading.hidden,
            reading.continuous_actions,
            reading.abstraction,
        )
        log = _read_batch(reader, source, reading, horizon, found, balance)
        if log is None:
            gather(found.faults, reader.faults.found)
        elif not found.faults:
            try:
                visit(log)
            except InputError as error:
                if not error.faults:
                    raise
                found.target_error = found.target_error or str(error).split(":", 1)[0]
                gather(found.target_faults, error.faults)
    if not found.faults:
        if found.seen.repeated() is not None:
            rule = "an episode has one row per step: an id has two rows at step 0"
            fix = "remove the duplicate; if an id was used for two episodes, make the ids distinct"
            found.faults.append(Fault("duplicate-step", rule, fix))
        found.faults += balance.faults()
    return found


def _read_batch(
    reader: ChunkReader,
    source: ChunkSource,
    reading: Reading,
    horizon: int,
    found: Findings,
    balance: Balance,
) -> EpisodeLog | None:
    """A batch with its rows by step; None if a rule is broken."""
    columns, faults = reader.columns, reader.faults
    episode, episodes = reader.ids("episode", columns.episode)
    step = reader.steps().astype(np.int64)
    state, states = reader.states(columns.state)
    assert columns.next_state is not None
    codes, labels = reader.states(columns.next_state, null_allowed=True)
    joint = unite(states, labels)
    following = np.append(joint.translate(labels), HIDDEN)[codes]
    action, actions = reader.actions()
    reward = reader.rewards()
    behavior = reader.probability("behavior_prob")
    reader.probability("target_prob")
    ended, cut = reader.truths(columns.terminated), reader.truths(columns.truncated)
    last = ended | cut
    checks.null_values(
        faults,
        columns.next_state[0],
        (following < 0) & ~last & (step >= 0) & (step < horizon - 1) & reader.flags_known,
        fix=f"{NULL_NEXT_STATE.fix}; at the end of an episode, set terminated or truncated",
    )
    if faults.found:
        return None
    found.own.update(reader.own.values)
    keys = id_keys(reader.table.column(columns.episode))
    hashes = np.append(_label_hashes(joint), np.uint64(0))
    balance.add(keys, step, hashes[state], hashes[following], last)
    found.seen.add(keys[step == 0])
    found.longest = max(found.longest, int(step.max()) + 1)
    order = np.argsort(np.where(step < horizon, step, horizon), kind="stable")
    order = order[: int(np.sum(step < horizon))]
    after = np.where(ended, END, np.where(following < 0, UNKNOWN, following))
    alive = np.bincount(step[order], minlength=horizon)
    steps = LooseSteps(
        offsets=np.concatenate([[0], np.cumsum(alive)]).astype(np.int64),
        state=state[order].astype(np.int32),
        action=action[order] if actions is None else action[order].astype(np.int32),
        reward=reward[order],
        behavior_prob=None if behavior is None else behavior[order],
        ending=np.zeros(0, np.int32),
        truncated=np.zeros(0, bool),
        episode=label_array(episodes.values),
        source_rows=order,
        of_row=episode[order].astype(np.int64),
        following=after[order].astype(np.int32),
        cut_early=(cut & ~ended & (step < horizon - 1))[order],
    )
    found.identity += identity_of(steps)
    return EpisodeLog(
        steps=steps,
        states=joint,
        actions=actions,
        discount=reading.discount,
        columns=columns,
        source=source,
        abstraction=describe_abstraction(reading.abstraction),
    )


def _label_hashes(labels: Labels) -> Words:
    texts = [repr(label_text(value)).encode("utf-8", "surrogatepass") for value in labels.values]
    hashed = [hashlib.md5(text, usedforsecurity=False).digest()[:8] for text in texts]
    return np.array([int.from_bytes(h, "big") for h in hashed], np.uint64)


def loose_sums(log: EpisodeLog, target: Policy, request: Request, about: About) -> Moments:
    """The sums of a batch, row by row."""
    pi, rho = ratios(log, target, request.max_ratio)
    steps = log.steps
    assert isinstance(steps, LooseSteps)
    block = steps.blocks(request.blocks)
    first = steps.rows(0)
    groups = group_by([block[steps.episode_index[first]], steps.state[first]])
    zeros = np.zeros(len(groups))
    start = StartMoments(groups.keys[0], groups.keys[1], groups.count(), zeros, zeros.copy())
    made: dict[str, Any] = {}
    if "transitions" in request.kinds:
        made["transitions"] = one_step_cells(steps, block, pi, rho, None, HIDDEN)
    if "model" in request.kinds:
        action = None if log.continuous_actions else steps.action
        made["model"] = one_step_cells(steps, block, pi, rho, action, HIDDEN)
        made["start_model"] = start
    return Moments(
        about=about,
        states=log.states,
        actions=log.actions,
        start=start,
        left_out=dict.fromkeys(sorted(request.kinds & VERSIONS.keys()), NO_ORDER),
        truncated=int(steps.cut_early.sum()),
        rewards=log.reward_range,
        **made,
    )
