"""Worlds from the tables of Gymnasium's toy-text environments: Taxi, Frozen Lake, Cliff Walking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from reweigh.errors import UsageError
from reweigh.worlds.world import Floats

Outcome = tuple[float, int, float, bool]  # probability, next state, reward, whether it ends there
ToyText = Mapping[int, Mapping[int, Sequence[Outcome]]]  # table[state][action]: its outcomes


def toy_text_tables(table: ToyText) -> tuple[Floats, Floats]:
    """P(s'|s,a) and r(s,a,s') of a toy-text table, (S+1,A,S+1): state S is where episodes end.

    Toy-text says of a transition whether it ends the episode, TabularMDP of a state. So all
    transitions that end lead to one more state, the only terminal one.
    """
    S, A = len(table), len(table[0])
    end = S
    rows = [
        (s, a, end if ends else int(after), probability, reward)
        for s in range(S)
        for a in range(A)
        for probability, after, reward, ends in table[s][a]
        if probability > 0
    ]
    place = tuple(np.array([row[:3] for row in rows], dtype=np.int64).T)
    p, pay = np.array([row[3:] for row in rows], dtype=float).T
    P, r = np.zeros((2, S + 1, A, S + 1))
    np.add.at(P, place, p)  # outcomes that lead to the same state add up
    r[place] = pay
    if (r[place] != pay).any():
        s, a, after = (int(index[r[place] != pay][0]) for index in place)
        raise UsageError(
            f"state {s}, action {a}: two outcomes lead to "
            f"{'the end' if after == end else f'state {after}'} with different rewards; a table of "
            "rewards r(s,a,s') cannot hold both"
        )
    P[end, :, end] = 1
    return P, r


def toy_text_module(name: str) -> Any:
    """A module of gymnasium.envs.toy_text, or a word on what to install."""
    try:
        return import_module(f"gymnasium.envs.toy_text.{name}")
    except ImportError as error:
        raise UsageError(
            f"the world {name} needs the package gymnasium: pip install 'reweigh[worlds]', or "
            "pip install gymnasium"
        ) from error
