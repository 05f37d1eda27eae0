"""What sums are of, by name: sums of the same episodes must not be added twice.

The name is made of which rows these are (`log/identity.py`) and of how often the log shows each
state at each step. Both are whole numbers on which all engines agree, whatever the order of the
rows, their format and their division into files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from reweigh.kernels.groups import group_by
from reweigh.log.identity import Identity
from reweigh.log.states import label_text
from reweigh.system.files import digest_of

if TYPE_CHECKING:
    from reweigh.sums.moments import Moments


def named(moments: Moments, identity: Identity) -> Moments:
    """The sums of one log with the name of what they are of."""
    source = digest_of(identity.digest(), _visits(moments))
    return replace(moments, about=replace(moments.about, sources=(source,)))


def _visits(moments: Moments) -> bytes:
    """Rows by block, step and state, the states in the order of their texts."""
    cells = moments.model if moments.model is not None else moments.transitions
    if cells is None:
        block, s, n = moments.start.block, moments.start.s, moments.start.n
        t = np.zeros(len(s), np.int64)
    else:
        block, t, s, n = cells.block, cells.t, cells.s, cells.n
    # cells of one state stand together: add up the runs before anything is sorted
    changes = (block[1:] != block[:-1]) | (t[1:] != t[:-1]) | (s[1:] != s[:-1])
    begins = np.flatnonzero(np.concatenate([[True], changes]))[: len(s)]
    block, t, s = block[begins], t[begins], s[begins]
    n = np.add.reduceat(n, begins) if len(begins) else n
    used, place = np.unique(s, return_inverse=True)
    labels = moments.states.values
    texts = [
        f"\0{code}" if code < 0 or labels[code] is None else str(label_text(labels[code]))
        for code in used.tolist()
    ]
    rank = np.argsort(np.argsort(np.array(texts, object), kind="stable"), kind="stable")
    groups = group_by([block, t, rank[place]])
    table = np.stack([*groups.keys, groups.sum(n)]).astype(np.int64)
    return "\0\0".join(sorted(texts)).encode("utf-8", "surrogatepass") + table.tobytes()
