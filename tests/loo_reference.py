"""Leave-one-out MDR, slowly and in fractions, row by row from its definition.

As `reference.py`: nothing is shared with the library. Every mean that leaves a row out is computed
again over the other rows; only d_t(s) of the error comes from the reference of MIS.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from reference import END, HORIZON, ONE, START, UNKNOWN, ZERO, Log, Recursion, State


@dataclass(frozen=True)
class Move:
    """From (t, s) to the next observed state: its ratio, reward, and both together (z)."""

    episode: int
    t: int
    s: State
    t_next: int
    s_next: State
    a: object
    rho: Fraction
    pi: Fraction
    y: Fraction
    z: Fraction


def moves_of(log: Log) -> list[Move]:
    """A stretch of hidden states is one move."""
    found = []
    for i, e in enumerate(log.episodes):
        begins = [t for t, row in enumerate(e.rows) if t == 0 or row.state is not None]
        for t, stop in zip(begins, [*begins[1:], len(e.rows)], strict=True):
            rho, y, z = ONE, ZERO, ZERO
            for j, row in enumerate(e.rows[t:stop]):
                rho *= row.rho
                y += log.discount**j * row.reward
                z += log.discount**j * rho * row.reward
            row, state = e.rows[t], e.rows[t].state
            after = e.after(stop - 1, log.horizon)
            if after is None:
                after = HORIZON if stop == log.horizon else UNKNOWN
            start = START if state is None else state
            found.append(Move(i, t, start, stop, after, row.action, rho, row.pi, y, z))
    return found


@dataclass(frozen=True)
class Answer:
    value: Fraction
    psi: list[Fraction]
    square: Fraction


def leave_one_out(log: Log, *, by_action: bool = True) -> Answer:
    """`by_action`: with the means of the actions; else with that of the cell alone."""
    moves, n = moves_of(log), len(log.episodes)
    d = Recursion(log).d
    V: dict[tuple[int, State], Fraction] = {}
    psi = [ZERO] * n
    terms: dict[tuple[int, State], Fraction] = {}
    for t in reversed(range(log.horizon)):
        here = [m for m in moves if m.t == t]
        ahead = {id(m): _ahead(log, V, m) for m in here}
        known = [m for m in here if ahead[id(m)] is not None]
        rewards = {id(m): (m.y, m.z) for m in here}
        going = {id(m): (ahead[id(m)], m.rho * ahead[id(m)]) for m in known}  # type: ignore
        prior = [_prior(here, rewards), _prior(known, going)]
        by_edge: dict[object, list[Fraction]] = {}
        for m in known:
            key = (m.s, m.a, m.t_next, m.s_next) if by_action else m
            by_edge.setdefault(key, []).append(m.y + ahead[id(m)])  # type: ignore
        means = [sum(ys, ZERO) / len(ys) for ys in by_edge.values()]
        V[t, None] = _within(sum(prior, ZERO), means)
        for s in {m.s for m in here}:
            phi = [
                {id(m): _phi(m, [o for o in rows if o.s == s], y, M, by_action)
                 for m in rows if m.s == s}
                for rows, y, M in ((here, rewards, prior[0]), (known, going, prior[1]))
            ]  # fmt: skip
            mean = [sum(p.values(), ZERO) / len(p) if p else M
                    for p, M in zip(phi, prior, strict=True)]  # fmt: skip
            V[t, s] = _within(sum(mean, ZERO), means)
            weight = log.discount**t * n * d[t].get(s, ZERO)
            for m in (m for m in here if m.s == s):
                term = sum(
                    (weight * (p[id(m)] - mu) / len(p)
                     for p, mu in zip(phi, mean, strict=True) if id(m) in p), ZERO
                )  # fmt: skip
                psi[m.episode] += term
                terms[t, s] = terms.get((t, s), ZERO) + term**2
    first = [V[0, START if e.rows[0].state is None else e.rows[0].state] for e in log.episodes]
    value = sum(first, ZERO) / n
    spread = sum(((v - value) ** 2 for v in first), ZERO)
    square = (spread + sum(terms.values(), ZERO)) / n**2
    return Answer(value, [p + v - value for p, v in zip(psi, first, strict=True)], square)


def _within(value: Fraction, means: list[Fraction]) -> Fraction:
    return min(max(value, min(means)), max(means)) if means else value


def _ahead(log: Log, V: dict[tuple[int, State], Fraction], m: Move) -> Fraction | None:
    """γ^{t'-t} V, None where the next state is not known."""
    if m.t_next >= log.horizon or m.s_next == END:
        return ZERO
    if m.s_next == UNKNOWN:
        return None
    value = V[m.t_next, m.s_next] if (m.t_next, m.s_next) in V else V.get((m.t_next, None), ZERO)
    return log.discount ** (m.t_next - m.t) * value


def _prior(rows: list[Move], y: dict[int, tuple[Fraction, Fraction]]) -> Fraction:
    total = sum((m.rho for m in rows), ZERO)
    return sum((y[id(m)][1] for m in rows), ZERO) / total if total else ZERO


def _phi(
    m: Move, rows: list[Move], y: dict[int, tuple[Fraction, Fraction]], M: Fraction, actions: bool
) -> Fraction:
    others = [o for o in rows if o is not m]
    b = (sum((y[id(o)][1] for o in others), ZERO) + M) / (sum((o.rho for o in others), ZERO) + 1)
    if not actions:
        return b + y[id(m)][1] - m.rho * b

    def mean_of(a: object) -> Fraction:
        of = [o for o in others if o.a == a]
        return (sum((y[id(o)][0] for o in of), ZERO) + b) / (len(of) + 1)

    pi = {o.a: o.pi for o in rows}
    expected = sum((p * mean_of(a) for a, p in pi.items()), ZERO)
    expected += (1 - sum(pi.values(), ZERO)) * b
    return expected + m.rho * (y[id(m)][0] - mean_of(m.a))
