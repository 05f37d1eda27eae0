"""The rows of a log in memory: time-major, episodes ordered from the longest to the shortest.

The rows of step t are one slice, and row k of it is episode k's: nothing needs look-ups.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from reweigh import kernels
from reweigh.kernels import FOLD, LARGE, MARKS, MIX, SPREAD
from reweigh.log.states import END, HIDDEN, label_text
from reweigh.system.files import digest_of

if TYPE_CHECKING:
    from reweigh.log.large_arrays import BorrowedArrays, Pairs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]  # numbers of rows: int32 where they fit
LAZY_COLUMNS = ("state", "action", "reward", "behavior_prob")
OF_EPISODES = ("start_value", "began", "cluster", "weight")
PART, IN_CACHE = 1 << 20, 1 << 16  # rows that are processed together
SIDE_BY_SIDE = 1 << 13  # episodes: a line of the cache for each of them stays in it

NUMBER = "^(0|-?[1-9][0-9]{0,17})$"  # a text that is an integer's


@dataclass(frozen=True, eq=False)
class Steps:
    """Row arrays of N rows, and arrays per episode (n of them).

    offsets        (H+1,) rows of step t are offsets[t]:offsets[t+1]
    state          (N,) code, HIDDEN where null
    action         (N,) code, or the number itself when actions are continuous
    reward         (N,) the reward (a control variate replaces it by the shaped reward)
    behavior_prob  (N,) μ(a|s) of the logged action, None if it was not logged
    ending         (n,) the state after the last row: END, UNKNOWN, HIDDEN or a state code
    truncated      (n,) True where the episode was cut off before the horizon
    episode        (n,) ids
    source_rows    (N,) row of the source that each row came from, None if it is the same
    start_value    (n,) g(s_0) of a control variate, None without one
    began          (n,) whole numbers that grow with the first row's time, None without times
    cluster, weight  (n,) the cluster's id, the sampling weight; features (N, k); None without
    """

    offsets: Ints
    state: npt.NDArray[np.int32]
    action: npt.NDArray[Any]
    reward: Floats
    behavior_prob: Floats | None
    ending: npt.NDArray[np.int32]
    truncated: npt.NDArray[np.bool_]
    episode: npt.NDArray[Any]
    source_rows: Rows | None
    start_value: Floats | None = None
    began: Ints | None = None
    cluster: npt.NDArray[Any] | None = None
    weight: Floats | None = None
    features: Floats | None = None

    pairs: ClassVar[Pairs | None] = None  # the rows as codes of (state, action)
    borrowed: ClassVar[BorrowedArrays | None] = (
        None  # the user's arrays, where columns are read there
    )

    @property
    def horizon(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_episodes(self) -> int:
        return len(self.episode)

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1])

    @property
    def has_propensities(self) -> bool:
        """Whether the actions' probabilities were logged (this may read them)."""
        return self.behavior_prob is not None

    def always_probability_one(self) -> bool:
        """Whether every action is logged with the probability 1."""
        mu = self.behavior_prob
        return mu is not None and mu[0] == 1.0 and bool(np.all(mu == 1.0))

    def first_states(self) -> npt.NDArray[np.int32]:
        """(n,) code of the episodes' first states."""
        return self.state[: self.n_episodes]

    def rows(self, t: int) -> slice:
        """The rows of step t; row k of them belongs to episode k."""
        return slice(int(self.offsets[t]), int(self.offsets[t + 1]))

    @cached_property
    def lengths(self) -> Ints:
        """(n,) rows per episode, decreasing."""
        return lengths_of(self.offsets, self.n_episodes)

    @cached_property
    def source_row(self) -> Rows:
        """(N,) row of the source that each row came from."""
        return np.arange(self.n_rows) if self.source_rows is None else self.source_rows

    @cached_property
    def step(self) -> Ints:
        """(N,) step of each row."""
        return np.repeat(np.arange(self.horizon), np.diff(self.offsets))

    @cached_property
    def episode_index(self) -> Ints:
        """(N,) episode (0..n-1) of each row."""
        return np.arange(self.n_rows) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

    @cached_property
    def next_state(self) -> npt.NDArray[np.int32]:
        """(N,) code after each row: the next row's state, or the episode's ending."""
        following = np.empty(self.n_rows, np.int32)
        for t in range(self.horizon):
            rows = self.rows(t)
            after = self.rows(t + 1) if t + 1 < self.horizon else slice(rows.stop, rows.stop)
            going_on = after.stop - after.start
            following[rows.start : rows.start + going_on] = self.state[after]
            following[rows.start + going_on : rows.stop] = self.ending[
                going_on : rows.stop - rows.start
            ]
        return following

    @cached_property
    def episode_hash(self) -> Ints:
        """(n,) first 8 hex digits of the MD5 of the id's or cluster's text: blocks and folds."""
        md5 = partial(hashlib.md5, usedforsecurity=False)
        ids = self.episode if self.cluster is None else self.cluster
        whole = b"".join([md5(_id_text(e)).digest() for e in ids.tolist()])
        return np.frombuffer(whole, ">u4")[::4].astype(np.int64)

    def blocks(self, count: int) -> Ints:
        """(n,) block of each episode: its hash modulo the number of blocks."""
        if count == 1:
            return np.zeros(self.n_episodes, np.int64)
        return self.episode_hash % count

    @property
    def relative_weight(self) -> Floats | None:
        return None if self.weight is None else self.weight / self.weight.mean()

    @property
    def has_hidden(self) -> bool:
        return bool(np.any(self.state == HIDDEN))

    def unknown_before_horizon(self) -> int:
        """Episodes whose next state is not known although steps are missing."""
        ending = self.ending[self.n_complete :]
        return int(np.sum((ending != END) & (ending < 0)))

    @property
    def n_complete(self) -> int:
        """Episodes with a row at the last step, the first ones."""
        return int(self.offsets[-1] - self.offsets[-2])

    @property
    def ends_early(self) -> bool:
        """Whether an episode ended before the horizon."""
        return bool(np.any(self.ending[self.n_complete :] == END))

    def select(self, keep: npt.NDArray[np.bool_]) -> Steps:
        return self.repeated(np.asarray(keep, np.int64))

    def repeated(self, counts: Ints) -> Steps:
        """The steps of a log in which episode i occurs counts[i] times, 0 being not at all. The
        horizon stays, and copies share their id: they belong to the same block and fold."""
        episodes = np.repeat(np.arange(self.n_episodes), counts)
        rows = np.repeat(np.arange(self.n_rows), counts[self.episode_index])
        # the first episodes are those alive at a step, before and after
        alive = np.concatenate([[0], np.cumsum(counts)])[np.diff(self.offsets)]
        steps = replace(
            self,
            features=None if self.features is None else self.features[rows],
            offsets=np.concatenate([[0], np.cumsum(alive)]).astype(np.int64),
            state=self.state[rows],
            action=self.action[rows],
            reward=self.reward[rows],
            behavior_prob=None if self.behavior_prob is None else self.behavior_prob[rows],
            ending=self.ending[episodes],
            truncated=self.truncated[episodes],
            episode=self.episode[episodes],
            source_rows=self.source_row[rows],
            **{k: v[episodes] for k in OF_EPISODES if (v := getattr(self, k)) is not None},
        )
        if "episode_hash" in vars(self):  # hashing ids is slow: keep the hashes
            vars(steps)["episode_hash"] = self.episode_hash[episodes]
        return steps

    @cached_property
    def digest(self) -> str:
        """A name for these episodes, for any order of the rows, format, and reading of states."""
        total = hashlib.sha256()
        for array in (self.offsets, self.reward, self.behavior_prob):
            if array is not None:
                total.update(np.ascontiguousarray(array).data)
        ids = b"\0".join(_id_text(e) for e in self.episode.tolist())
        return digest_of(total.digest(), ids)


class LazySteps(Steps):
    """Steps with `pairs` or `borrowed` for some columns; `dataclasses.replace` computes them."""

    @classmethod
    def of(cls, **columns: Any) -> Steps:
        steps = object.__new__(cls)
        vars(steps).update(columns)
        return steps

    @property
    def _held(self) -> Pairs | BorrowedArrays | None:
        return self.pairs or self.borrowed

    def __getattr__(self, name: str) -> Any:
        """A column that is not there yet."""
        held = self._held if name in LAZY_COLUMNS else None
        if held is None:
            raise AttributeError(name)
        missing = name == "behavior_prob" and name not in held.names
        vars(self)[name] = column = None if missing else held.column(name)
        return column

    @property
    def has_propensities(self) -> bool:
        held = self._held
        return super().has_propensities if held is None else "behavior_prob" in held.names

    def always_probability_one(self) -> bool:
        held = self._held
        if held is None or not self.has_propensities:
            return super().always_probability_one()
        return held.always_probability_one()

    def first_states(self) -> npt.NDArray[np.int32]:
        if self.pairs is None:
            return super().first_states()
        return self.pairs.state(slice(0, self.n_episodes))


def _id_text(episode: object) -> bytes:
    if type(episode) is int:
        return b"%d" % episode
    return str(label_text(episode)).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class TimeMajor:
    """The order of a log's rows in `Steps`: `order` (N,) are rows, `ranked` (n,) the codes of
    the episodes, the longest first."""

    order: Rows
    offsets: Ints
    ranked: Ints

    @property
    def lengths(self) -> Ints:
        """(n,) rows per episode, in the order of `ranked`."""
        return lengths_of(self.offsets, len(self.ranked))

    @cached_property
    def last_rows(self) -> Rows:
        """(n,) each episode's last row, in the order of `ranked`."""
        last: Rows = self.order[self.offsets[self.lengths - 1] + np.arange(len(self.ranked))]
        return last

    @property
    def first_rows(self) -> Rows:
        """(n,) each episode's first row, in the order of `ranked`."""
        return self.order[: int(self.offsets[1])]

    @property
    def longest(self) -> int:
        """The steps of the longest episode."""
        return len(self.offsets) - 1

    def next_rows(self, count: int) -> Rows:
        """(count,) the row after each row of the source, -1 after an episode's last one."""
        after = np.full(count, -1, self.order.dtype)
        for t in range(self.longest - 1):
            next_rows = self.order[self.offsets[t + 1] : self.offsets[t + 2]]
            first = self.offsets[t]
            after[self.order[first : first + len(next_rows)]] = next_rows
        return after

    def until(self, horizon: int, episode: Rows, step: Rows) -> TimeMajor:
        """The same for the first steps alone, or with steps that no episode reaches."""
        if horizon < self.longest:
            rows = self.order[: self.offsets[horizon]]
            shorter = time_major(episode[rows], step[rows], int(self.ranked.max()) + 1)
            assert shorter is not None
            return replace(shorter, order=rows[shorter.order])
        missing = np.full(horizon - self.longest, self.offsets[-1])
        return replace(self, offsets=np.concatenate([self.offsets, missing]).astype(np.int64))


def in_order(values: npt.NDArray[Any], rows: TimeMajor | None) -> npt.NDArray[Any]:
    """values[rows.order], empty without rows. In parts, so that NumPy does not copy `order` in 64
    bits; where steps are wide, some episodes after the other, whose rows are then in the cache."""
    if rows is None:
        return values[:0]
    order, taken, ends = rows.order, np.empty(len(rows.order), values.dtype), rows.offsets.tolist()
    alive, size = np.diff(rows.offsets), SIDE_BY_SIDE
    wide = int(np.count_nonzero(alive > size))  # the first steps, for the numbers alive fall
    parts = [(ends[t] + k, min(ends[t] + k + size, ends[t + 1])) for k in range(0, ends[1], size)
             for t in range(np.count_nonzero(alive[:wide] > k))]  # fmt: skip
    parts += [(k, min(k + IN_CACHE, ends[-1])) for k in range(ends[wide], ends[-1], IN_CACHE)]
    for low, high in parts:
        taken[low:high] = values[order[low:high]]
    return taken


def lengths_of(offsets: Ints, episodes: int) -> Ints:
    """(episodes,) their steps, the longest first: alive_{L-1} - alive_L of them have L."""
    count = -np.diff(np.diff(offsets), prepend=episodes, append=0)  # with 0, 1, …, H steps
    return np.repeat(np.arange(len(offsets))[::-1], count[::-1])


def time_major(episode: Rows, step: Rows, n_episodes: int) -> TimeMajor | None:
    """The order of the rows; None unless each episode that has rows has one for each of its steps
    0, 1, 2, …

    Ties of length go by code, not by the order of the rows. A row's place is known: its step's
    slice, at its episode's rank. All rows are in order if every place is taken.
    """
    if len(episode) == 0 or episode.min() < 0 or step.min() < 0:
        return None
    lengths = np.zeros(n_episodes, np.int64)
    for row in range(0, len(episode), PART):
        lengths += np.bincount(episode[row : row + PART], minlength=n_episodes)
    longest = int(lengths.max())
    if step.max() >= longest:
        return None
    ranked = np.argsort(-lengths, kind="stable")
    rank = np.empty(n_episodes, np.int64)
    rank[ranked] = np.arange(n_episodes)
    alive = n_episodes - np.cumsum(np.bincount(lengths, minlength=longest))[:longest]
    offsets = np.concatenate([[0], np.cumsum(alive)]).astype(np.int64)
    order = np.full(len(step), -1, np.int32 if len(step) < 2**31 else np.int64)
    for row in range(0, len(episode), IN_CACHE):
        t, k = step[row : row + IN_CACHE], rank[episode[row : row + IN_CACHE]]
        if np.any(k >= alive[t]):
            return None
        order[offsets[t] + k] = np.arange(row, row + len(t))
    return TimeMajor(order, offsets, ranked[: alive[0]]) if order.min() >= 0 else None


# ---- the identity of a log ------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """The identity of a log: episodes and sums of marks, the same on every engine and in
    every order; those of parts of a log add up to those of the log.

    Marks are made by multiplications and floors alone, which every engine rounds alike, and sums
    are whole numbers: SQL, kernels and NumPy compute the same digits (`sums/engines/sql_rows.py`
    and `kernels/rows.py` are twins):

        [x] = x - floor(x),  f(x) = [c(x) · SPREAD],  c(x) = x, or x / 2^30, x / 2^60 if large
        d   = [(f(y) + 1) · (f(μ) + t + 2) · SPREAD]
        mark of a row       floor([d² · MIX] · 2^24)
        mark of an episode  floor([g² · MIX] · 2^24),  g = [(f(id) + 1) · (d_0 + 2) · SPREAD]

    Squares, because sums linear in y are the same for every log with the same Σy. The id of an
    episode is its number, or 64 bits of the MD5 of its text; "7" is 7. Two logs of one shape with
    the same ids, and with one reward and one μ throughout, have the same marks.
    """

    episodes: int = 0
    row_marks: int = 0
    episode_marks: int = 0

    def __add__(self, other: Identity) -> Identity:
        return Identity(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def digest(self) -> str:
        """A name for the episodes, however their states are read: what must not be added twice."""
        return digest_of(repr((self.episodes, self.row_marks, self.episode_marks)))


def identity_of(steps: Steps) -> Identity:
    """Of the rows of a log in memory, or of a part of one."""
    y, mu, offsets = steps.reward, steps.behavior_prob, steps.offsets
    total = 0
    if mu is not None and steps.n_rows >= kernels.COMPILED_FROM:
        total = kernels.kernel("rows.row_marks")(offsets, y, mu)
    else:
        for low in range(0, steps.n_rows, IN_CACHE):
            part = slice(low, low + IN_CACHE)
            ends = np.clip(offsets, low, part.stop)
            t = np.repeat(np.arange(steps.horizon), ends[1:] - ends[:-1])
            total += int(marks(base(y[part], None if mu is None else mu[part], t)).sum())
    first = steps.rows(0)
    ids = numbers_of(steps.episode)[: int(offsets[1])]
    d = base(y[first], None if mu is None else mu[first], 0.0)
    g = fraction((folded(ids) + 1.0) * (d + 2.0) * SPREAD)
    return Identity(len(ids), total, int(marks(g).sum()))


def base(y: Floats, mu: Floats | None, t: Any) -> Floats:
    """d = [(f(y) + 1) · (f(μ) + t + 2) · SPREAD]; μ = 0 where there is none."""
    of_mu = 0.0 if mu is None else folded(mu)
    return fraction((folded(y) + 1.0) * (of_mu + (t + 2.0)) * SPREAD)


def marks(d: Floats) -> npt.NDArray[np.int64]:
    """floor([d² · MIX] · 2^24)"""
    return (fraction(d * d * MIX) * MARKS).astype(np.int64)


def folded(x: Floats) -> Floats:
    """f(x) = [c(x) · SPREAD]; 0 from 2^80 on."""
    for _ in range(2):
        large = np.abs(x) >= LARGE
        if large.any():
            x = np.where(large, x * FOLD, x)
    return fraction(np.where(np.abs(x) < LARGE, x, 0.0) * SPREAD)


def fraction(x: Floats) -> Floats:
    return x - np.floor(x)


def numbers_of(ids: npt.NDArray[Any]) -> Floats:
    """(n,) ids as numbers, those of 64 bits as signed ones; a text that is none by its MD5."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64).astype(np.float64)
    return np.array([float(key_of(str(label_text(value)))) for value in ids.tolist()], np.float64)


def key_of(text: str) -> int:
    """An id's text as an integer of 64 bits: itself where it is one, or else from its MD5."""
    if re.fullmatch(NUMBER, text):
        return int(text)
    digest = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
