"""What tells one log from another: sums of marks, the same on every engine and in every order.

A mark is made of the numbers of a row by multiplications and floors alone, which every engine
rounds alike, and what is added up are whole numbers, so an engine in SQL, a kernel and NumPy arrive
at the same digits (`sums/engines/sql_rows.py` and `kernels/rows.py` are the twins):

    [x] = x - floor(x),    f(x) = [c(x) · SPREAD],    c(x) = x, or x / 2^30, x / 2^60 if it is large
    d   = [(f(y) + 1) · (f(μ) + t + 2) · SPREAD]
    mark of a row       floor([d² · MIX] · 2^24)
    mark of an episode  floor([g² · MIX] · 2^24),  g = [(f(id) + 1) · (d_0 + 2) · SPREAD]

Squares, because sums of what is linear in y would be those of any log with the same Σy. The id
of an episode is its number, or 64 bits of the MD5 of its text; "7" is 7. A log whose rewards are
all equal, μ too, and whose ids are those of another log of the same shape is taken for that log.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.kernels import choose
from reweigh.kernels.codes import FOLD, LARGE, MARKS, MIX, SPREAD
from reweigh.log.states import label_text
from reweigh.system.files import digest_of

if TYPE_CHECKING:
    from reweigh.log.steps import Steps

Floats = npt.NDArray[np.float64]

NUMBER = "^(0|-?[1-9][0-9]{0,17})$"  # a text that is an integer's
IN_CACHE = 1 << 15  # rows


@dataclass(frozen=True)
class Identity:
    """Episodes and sums of marks; those of parts of a log add up to those of the log."""

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
    if mu is not None and steps.n_rows >= choose.COMPILED_FROM:
        total = choose.kernel("rows.row_marks")(offsets, y, mu)
    else:
        for low in range(0, steps.n_rows, IN_CACHE):
            part = slice(low, low + IN_CACHE)
            ends = np.clip(offsets, low, part.stop)
            t = np.repeat(np.arange(steps.horizon), ends[1:] - ends[:-1])
            total += int(marks(base(y[part], None if mu is None else mu[part], t)).sum())
    first = steps.rows(0)
    ids = numbers_of(steps.episode)[steps.first_episodes()]
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
