"""Estimators on many logs at once, from their formulas: an independent way to their real spread.

Logs are arrays: states (R, n, H+1), actions, rewards and ratios (R, n, H), for worlds in which no
episode ends early. Nothing here is shared with the library but the worlds that make the episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh.worlds import TabularMDP

Floats = np.ndarray
CHUNK = 2000


@dataclass(frozen=True)
class Many:
    s: np.ndarray
    a: np.ndarray
    r: np.ndarray
    rho: np.ndarray
    pi: np.ndarray  # (H, S, A)
    half: np.ndarray  # (n,) which half of a split an episode is in

    @property
    def shape(self) -> tuple[int, int, int, int]:
        R, n, H = self.r.shape
        return R, n, H, self.pi.shape[1]

    def keep(self, half: int) -> Many:
        mine = self.half == half
        cut = (x[:, mine] for x in (self.s, self.a, self.r, self.rho))
        return Many(*cut, self.pi, self.half[mine])

    def summed(self, t: int, values: Floats | float, *keys: np.ndarray, sizes: tuple[int, ...]):
        """Σ over the episodes of each log by (state, *keys): (R, S, *sizes)."""
        R, n, _, S = self.shape
        index = np.arange(R)[:, None] * S + self.s[:, :, t]
        for key, size in zip(keys, sizes, strict=True):
            index = index * size + key
        weights = np.broadcast_to(values, (R, n)).ravel()
        made = np.bincount(index.ravel(), weights, R * S * int(np.prod(sizes)))
        return made.reshape(R, S, *sizes)


def simulated(
    world: TabularMDP, logs: int, n: int, half: np.ndarray, seed: int, blind: bool
) -> Many:
    rollout = world._rollout(logs * n, np.random.default_rng(seed))
    H = world.horizon
    s = rollout.states.reshape(logs, n, H + 1)
    pi = world.target_array
    if blind:
        s, pi = np.zeros_like(s), pi[:, :1]
    a, r, mu, target = (
        x.reshape(logs, n, H)
        for x in (rollout.actions, rollout.rewards, rollout.behavior_prob, rollout.target_prob)
    )
    return Many(s, a, r, target / mu, pi, half)


def safe(over: Floats, under: Floats) -> Floats:
    return np.divide(over, under, out=np.zeros_like(over), where=under != 0)


def mis(m: Many, mode: str, y: Floats | None = None) -> Floats:
    R, n, H, S = m.shape
    y = m.r if y is None else y
    d = m.summed(0, 1.0, sizes=()) / n
    v = np.zeros(R)
    for t in range(H):
        rho = m.rho[:, :, t]
        under = m.summed(t, rho if mode == "state" else 1.0, sizes=())
        v += np.sum(d * safe(m.summed(t, rho * y[:, :, t], sizes=()), under), axis=1)
        move = safe(m.summed(t, rho, m.s[:, :, t + 1], sizes=(S,)), under[:, :, None] + np.zeros(S))
        d = np.einsum("rs,rsx->rx", d, move)
        if mode == "simplex":
            d = d / d.sum(axis=1, keepdims=True)
    return v


def fitted(m: Many) -> tuple[Floats, Floats]:
    """Q (R, H, S, A) and V (R, H+1, S) of the model by counts; what is not seen is 0."""
    R, _, H, S = m.shape
    A = m.pi.shape[2]
    Q, V = np.zeros((R, H, S, A)), np.zeros((R, H + 1, S))
    for t in reversed(range(H)):
        count = m.summed(t, 1.0, m.a[:, :, t], sizes=(A,))
        reward = m.summed(t, m.r[:, :, t], m.a[:, :, t], sizes=(A,))
        ahead = m.summed(t, 1.0, m.a[:, :, t], m.s[:, :, t + 1], sizes=(A, S))
        Q[:, t] = safe(reward + np.einsum("rsax,rx->rsa", ahead, V[:, t + 1]), count)
        V[:, t] = np.einsum("sa,rsa->rs", m.pi[t], Q[:, t])
    return Q, V


def drawn_in(m: Many) -> tuple[Floats, Floats]:
    """Q and V for other episodes: b = (Σρy + M)/(Σρ + 1) with M = Σρy/Σρ of the step, and
    Q = (Σy + b)/(n + 1)."""
    R, _, H, S = m.shape
    A = m.pi.shape[2]
    at = np.arange(R)[:, None]
    Q, V = np.zeros((R, H, S, A)), np.zeros((R, H + 1, S))
    for t in reversed(range(H)):
        rho, y = m.rho[:, :, t], m.r[:, :, t] + V[at, t + 1, m.s[:, :, t + 1]]
        M = np.sum(rho * y, axis=1) / rho.sum(axis=1)
        b = (m.summed(t, rho * y, sizes=()) + M[:, None]) / (m.summed(t, rho, sizes=()) + 1)
        count = m.summed(t, 1.0, m.a[:, :, t], sizes=(A,))
        Q[:, t] = (m.summed(t, y, m.a[:, :, t], sizes=(A,)) + b[:, :, None]) / (count + 1)
        V[:, t] = np.einsum("sa,rsa->rs", m.pi[t], Q[:, t])
    return Q, V


def shaped(m: Many, Q: Floats, V: Floats) -> tuple[Floats, Floats]:
    """r - Q(s,a) + V(s') and V(s_0)."""
    R, _, H, _ = m.shape
    at = np.arange(R)[:, None]
    y = np.stack(
        [
            m.r[:, :, t] - Q[at, t, m.s[:, :, t], m.a[:, :, t]] + V[at, t + 1, m.s[:, :, t + 1]]
            for t in range(H)
        ],
        axis=2,
    )
    return y, V[at, 0, m.s[:, :, 0]].mean(axis=1)


def stepwise(m: Many, y: Floats, *, weighted: bool) -> Floats:
    w = np.cumprod(m.rho, axis=2)
    total = np.sum(w * y, axis=1) / (w.sum(axis=1) if weighted else w.shape[1])
    return total.sum(axis=1)


def all_values(m: Many) -> dict[str, Floats]:
    Q, V = fitted(m)
    y, start = shaped(m, Q, V)
    summing, fitting = m.keep(0), m.keep(1)
    y_half, start_half = shaped(summing, *drawn_in(fitting))
    return {
        "mis": mis(m, "simplex"),
        "mis-plain": mis(m, "none"),
        "mis-state": mis(m, "state"),
        "dm": start,
        "is": stepwise(m, m.r, weighted=False),
        "wis": stepwise(m, m.r, weighted=True),
        "dr": start + stepwise(m, y, weighted=False),
        "wdr": start + stepwise(m, y, weighted=True),
        "mdr": start_half + mis(summing, "simplex", y_half),
    }


def spread(
    world: TabularMDP, n: int, half: np.ndarray, *, logs: int = 16_000, blind: bool = False
) -> dict[str, tuple[float, float]]:
    """The standard deviation of every estimator over many logs, and its relative error."""
    chunk = CHUNK * 200 // n
    parts = [
        all_values(simulated(world, chunk, n, half, seed, blind)) for seed in range(logs // chunk)
    ]
    found = {}
    for name in parts[0]:
        values = np.concatenate([part[name] for part in parts])
        off = values - values.mean()
        kurtosis = np.mean(off**4) / np.mean(off**2) ** 2
        found[name] = float(values.std(ddof=1)), float(np.sqrt((kurtosis - 1) / (4 * len(values))))
    return found
