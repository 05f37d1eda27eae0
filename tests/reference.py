"""Slow, exact reference estimators, written from the paper in fractions.

Nothing here is shared with the library, so that the two cannot agree on a shared mistake. The clock
is t = 0..H-1; an episode that terminated early sits in END with reward 0 and ratio 1. A quantity
that does not exist (0/0, or a step that no mass reaches) raises ZeroDivisionError.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

State: TypeAlias = Hashable
Normalize: TypeAlias = Literal["none", "simplex", "state"]
Reward: TypeAlias = Literal["logged", "averaged", "pooled"]
Unseen: TypeAlias = Literal["zero", "renorm"]
Key: TypeAlias = tuple[int, State, Hashable]  # t, s, a
Masses: TypeAlias = list[dict[State, Fraction]]  # [t][s]
Columns: TypeAlias = list[list[tuple[Fraction, Fraction]]]  # by column and episode: p, r
ZERO, ONE = Fraction(0), Fraction(1)

HIDDEN = "?"  # what a model (DM, or the Q of DR and MDR) calls a hidden state
START, END = ("START",), ("END",)  # a hidden start; after termination
UNKNOWN, HORIZON = ("UNKNOWN",), ("HORIZON",)  # after a truncated episode's last row; at H


@dataclass(frozen=True)
class Row:
    state: State  # None: hidden
    action: Hashable
    reward: Fraction
    mu: Fraction
    pi: Fraction

    @property
    def rho(self) -> Fraction:
        return Fraction(self.pi) / self.mu


@dataclass(frozen=True)
class Episode:
    rows: tuple[Row, ...]
    end: str  # "complete" (H rows), "terminated" or "truncated"
    next_state: State = None  # the state after the last row, where known

    def after(self, t: int, horizon: int) -> State:
        """The state after row t. An episode of H rows is complete, whatever its flag says."""
        if t + 1 < len(self.rows):
            return self.rows[t + 1].state
        if self.end == "terminated" and t + 1 < horizon:
            return END
        if self.next_state is not None:
            return self.next_state
        return HORIZON if t + 1 == horizon else UNKNOWN


@dataclass(frozen=True)
class Log:
    episodes: tuple[Episode, ...]
    horizon: int
    discount: Fraction = ONE

    def __post_init__(self) -> None:
        for e in self.episodes:
            if e.end not in ("complete", "terminated", "truncated"):
                raise ValueError(f"unknown end {e.end!r}")
            if not (self.horizon if e.end == "complete" else 1) <= len(e.rows) <= self.horizon:
                raise ValueError("an episode has 1 to H rows, a complete one H")

    @property
    def truncated(self) -> bool:
        return any(e.end == "truncated" and len(e.rows) < self.horizon for e in self.episodes)

    @property
    def hidden(self) -> bool:
        return any(row.state is None for e in self.episodes for row in e.rows)

    def map_rows(self, f: Callable[[Episode, int, Row], Row]) -> Log:
        """The log with every row t of every episode e replaced by f(e, t, row)."""
        episodes = (
            replace(e, rows=tuple(f(e, t, row) for t, row in enumerate(e.rows)))
            for e in self.episodes
        )
        return replace(self, episodes=tuple(episodes))


def _sum(xs: Iterable[Fraction]) -> Fraction:
    return sum(xs, ZERO)


def _mean(xs: Sequence[Fraction]) -> Fraction:
    return _sum(xs) / len(xs)


def _cov(xs: Sequence[Fraction], ys: Sequence[Fraction]) -> Fraction:
    """Population covariance."""
    x_bar, y_bar = _mean(xs), _mean(ys)
    return _mean([(x - x_bar) * (y - y_bar) for x, y in zip(xs, ys, strict=True)])


def _se2(terms: Sequence[Fraction]) -> Fraction:
    return _cov(terms, terms) / len(terms)


def _cell_variance(a: Sequence[Fraction], known: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    """Var(a)/N + Var(b)/M + 2 Cov(a, b)/N: a over N rows, (a, b) over the M with a known next."""
    if not known:
        return _cov(a, a) / len(a)
    ak, bk = [x for x, _ in known], [y for _, y in known]
    return _cov(a, a) / len(a) + _cov(bk, bk) / len(bk) + 2 * _cov(ak, bk) / len(a)


# --- Trajectory weights: IS, WIS -------------------------------------------------------------


def _steps(log: Log) -> Columns:
    """By step and episode, rho_{0:t} and gamma^t r_t; after END the product stays and r is 0."""
    if log.truncated:
        raise ValueError("trajectory weights are not defined on truncated episodes")
    columns: Columns = [[] for _ in range(log.horizon)]
    for e in log.episodes:
        product = ONE
        for t in range(log.horizon):
            alive = t < len(e.rows)
            product *= e.rows[t].rho if alive else ONE
            columns[t].append((product, log.discount**t * e.rows[t].reward if alive else ZERO))
    return columns


def _whole(log: Log) -> Columns:
    """The one column of rho_{0:H-1} and the return, by episode."""
    by_episode = zip(*_steps(log), strict=True)
    return [[(steps[-1][0], _sum(r for _, r in steps)) for steps in by_episode]]


def _is_terms(columns: Columns) -> list[Fraction]:
    """By episode, the sum of p r over the columns."""
    return [_sum(p * r for p, r in pairs) for pairs in zip(*columns, strict=True)]


def _wis(columns: Columns) -> Fraction:
    """The sum over the columns of v = sum_i p r / sum_i p."""
    return _sum(_sum(p * r for p, r in pairs) / _sum(p for p, _ in pairs) for pairs in columns)


def _wis_terms(columns: Columns) -> list[Fraction]:
    """Delta method: by episode, the sum of p (r - v) / mean(p) over the columns."""
    psi = [ZERO] * len(columns[0])
    for pairs in columns:
        v, p_bar = _wis([pairs]), _mean([p for p, _ in pairs])
        psi = [x + p * (r - v) / p_bar for x, (p, r) in zip(psi, pairs, strict=True)]
    return psi


def stepwise_is(log: Log) -> Fraction:
    """The paper's IS: (1/n) sum_i sum_t gamma^t rho_{0:t} r_t."""
    return _mean(_is_terms(_steps(log)))


def stepwise_wis(log: Log) -> Fraction:
    """The paper's WIS: sum_t gamma^t sum_i rho_{0:t} r_t / sum_i rho_{0:t}."""
    return _wis(_steps(log))


def trajectory_is(log: Log) -> Fraction:
    return _mean(_is_terms(_whole(log)))


def trajectory_wis(log: Log) -> Fraction:
    return _wis(_whole(log))


def se2_is(log: Log) -> Fraction:
    return _se2(_is_terms(_steps(log)))


def se2_wis(log: Log) -> Fraction:
    return _se2(_wis_terms(_steps(log)))


def se2_trajectory_is(log: Log) -> Fraction:
    return _se2(_is_terms(_whole(log)))


def se2_trajectory_wis(log: Log) -> Fraction:
    return _se2(_wis_terms(_whole(log)))


# --- MIS -------------------------------------------------------------------------------------


def _averaged(log: Log, reward: Reward) -> Log:
    """Each reward replaced by the mean of its (t, s, a) cell, or pooled of its (s, a) cell."""
    if reward == "logged":
        return log
    if log.hidden:
        raise ValueError("averaged rewards need every state observed")
    cells: dict[Hashable, list[Fraction]] = defaultdict(list)

    def cell(t: int, row: Row) -> list[Fraction]:
        return cells[None if reward == "pooled" else t, row.state, row.action]

    for e in log.episodes:
        for t, row in enumerate(e.rows):
            cell(t, row).append(Fraction(row.reward))
    return log.map_rows(lambda e, t, row: replace(row, reward=_mean(cell(t, row))))


def _algorithm_1(log: Log, simplex: bool) -> Fraction:
    """Algorithm 1: (1/n) sum_i sum_t gamma^t w_t(s_t) rho_t r_t. Not for truncated logs.

    At a hidden step the weight is the last observed state's, times the ratios since.
    """
    n, value = len(log.episodes), ZERO
    weight = [ONE] * n
    for t in range(log.horizon):
        states = [e.rows[t].state if t < len(e.rows) else END for e in log.episodes]
        if t > 0:
            d_pi: dict[State, Fraction] = defaultdict(Fraction)
            d_mu: dict[State, Fraction] = defaultdict(Fraction)
            for i, s in enumerate(states):
                d_pi[s] += weight[i] / n
                d_mu[s] += ONE / n
            total = _sum(d_pi.values()) if simplex and None not in states else ONE
            for i, s in enumerate(states):
                if s is not None:
                    weight[i] = d_pi[s] / total / d_mu[s]
        for i, e in enumerate(log.episodes):
            if t < len(e.rows):
                weight[i] *= e.rows[t].rho
                value += log.discount**t * weight[i] * e.rows[t].reward / n
    return value


@dataclass(frozen=True)
class Jump:
    """One step (t, s) -> (t + length, after), long where the states between are hidden."""

    t: int
    state: State
    length: int
    after: State
    rho: Fraction  # the product of ratios
    z: Fraction  # sum_j rho_{t:t+j} gamma^j r_{t+j}


def _jumps(log: Log, e: Episode) -> list[Jump]:
    seen = [t for t, row in enumerate(e.rows) if t == 0 or row.state is not None]
    jumps = []
    for t, stop in zip(seen, [*seen[1:], len(e.rows)], strict=True):
        rho, z = ONE, ZERO
        for j, row in enumerate(e.rows[t:stop]):
            rho *= row.rho
            z += rho * log.discount**j * row.reward
        state = START if e.rows[t].state is None else e.rows[t].state
        jumps.append(Jump(t, state, stop - t, e.after(stop - 1, log.horizon), rho, z))
    return jumps


@dataclass(frozen=True)
class Cell:
    """The jumps from one (t, s), or pooled from one s; the known ones count for P."""

    jumps: list[Jump]
    known: list[Jump]
    by_ratio: bool  # per-state normalization: divide by the sum of ratios, not by the count

    def divisor(self, jumps: list[Jump]) -> Fraction:
        return _sum(j.rho for j in jumps) if self.by_ratio else Fraction(len(jumps))

    def reward(self) -> Fraction:
        divisor = self.divisor(self.jumps)
        return _sum(j.z for j in self.jumps) / divisor if divisor else ZERO

    def moves(self) -> list[tuple[Jump, Fraction]]:
        """Known jumps with their share of P; none where a divisor is 0: such mass is lost."""
        divisor = self.divisor(self.known) if self.divisor(self.jumps) else ZERO
        return [(j, j.rho / divisor) for j in self.known] if divisor else []

    def variance(self, weight: Fraction, worth: dict[Jump, Fraction]) -> Fraction:
        """Of a = weight z and b = rho worth(jump); per state both centered and over rhobar."""
        if not self.divisor(self.jumps):
            return ZERO
        r = self.reward() if self.by_ratio else ZERO
        mean = _sum(p * worth[j] for j, p in self.moves()) if self.by_ratio else ZERO
        scale = weight * len(self.jumps) / self.divisor(self.jumps)  # weight / rhobar, or weight
        a = {j: scale * (j.z - j.rho * r) for j in self.jumps}
        known = [(a[j], len(self.known) * p * (worth[j] - mean)) for j, p in self.moves()]
        return _cell_variance([a[j] for j in self.jumps], known)


class Recursion:
    """MIS in the cell form: masses d[t][s], and the worth u[t][s] of one more unit at (t, s)."""

    def __init__(self, log: Log, normalize: Normalize = "simplex", pooled: bool = False) -> None:
        if pooled and log.hidden:
            raise ValueError("pooling over time needs observed states")
        self.log, self.normalize, self.pooled = log, normalize, pooled
        self.starts = [_jumps(log, e)[0].state for e in log.episodes]
        jumps = [jump for e in log.episodes for jump in _jumps(log, e)]
        # Pooled, the transitions of step H-1 count only where every one of them is known.
        last_step = not pooled or all(j.after != HORIZON for j in jumps)
        self.cells: dict[tuple[int | None, State], Cell] = {}
        for t, s in {self.key(j.t, j.state): None for j in jumps}:
            rows = [j for j in jumps if self.key(j.t, j.state) == (t, s)]
            known = [j for j in rows if j.after != UNKNOWN]
            known = [j for j in known if last_step or j.t < log.horizon - 1]
            self.cells[t, s] = Cell(rows, known, normalize == "state")
        self.d: Masses = [defaultdict(Fraction) for _ in range(log.horizon + 1)]
        self.u: Masses = [{} for _ in range(log.horizon)]
        self.c: dict[int, Fraction] = {}  # the masses divided by, at the steps normalized
        self._forward({t for j in jumps for t in range(j.t + 1, j.t + j.length)})
        self._backward()

    def key(self, t: int, s: State) -> tuple[int | None, State]:
        return (None if self.pooled else t, s)

    def _forward(self, in_flight: set[int]) -> None:
        """d_{t+1}(s') = sum_s P_t(s'|s) d_t(s); simplex: over its sum, where none is in flight."""
        flying: dict[int, list[Fraction]] = defaultdict(list)
        for s in self.starts:
            self.d[0][s] += ONE / len(self.starts)
        for t in range(self.log.horizon):
            if self.normalize == "simplex" and t > 0 and t not in in_flight:
                self.c[t] = _sum(self.d[t].values())
                self.d[t] = {s: mass / self.c[t] for s, mass in self.d[t].items()}
            present = flying[t]
            for s, mass in self.d[t].items():
                cell = self.cells.get(self.key(t, s))
                if s == END:
                    self.d[t + 1][END] += mass
                    present.append(mass)
                elif cell and cell.divisor(cell.jumps):
                    present.append(mass)
                    for j, p in cell.moves():
                        self.d[t + j.length][j.after] += mass * p
                        for between in range(t + 1, t + j.length):
                            flying[between].append(mass * p)
            divided = self.normalize == "state" or t in self.c
            if not (any(present) if divided else present):
                raise ZeroDivisionError(f"no mass at step {t}")

    def _backward(self) -> None:
        """u_t(s) = r_t(s) + sum_s' P_t(s'|s) gamma (u_{t+1}(s') - <d_{t+1}, u_{t+1}>) / c_{t+1}."""
        for t in reversed(range(self.log.horizon)):
            for s in self.d[t]:
                self.u[t][s] = self.later(t, 1, END) if s == END else ZERO
                if cell := self.cells.get(self.key(t, s)):
                    later = (p * self.later(t, j.length, j.after) for j, p in cell.moves())
                    self.u[t][s] = cell.reward() + _sum(later)

    def later(self, t: int, length: int, s: State) -> Fraction:
        """The worth, seen from t, of a unit of mass that arrives at (t + length, s)."""
        to = t + length
        if to == self.log.horizon:
            return ZERO
        worth = self.u[to].get(s, ZERO)
        if to in self.c:  # it is yet to be divided by c
            worth -= _sum(mass * self.u[to][x] for x, mass in self.d[to].items())
            worth /= self.c[to]
        return self.log.discount**length * worth

    def _visits(self, key: tuple[int | None, State]) -> list[tuple[int, Fraction]]:
        """The steps at which a cell is used, with gamma^t d_t(s)."""
        steps = range(self.log.horizon) if key[0] is None else [key[0]]
        return [(t, self.log.discount**t * self.d[t].get(key[1], ZERO)) for t in steps]

    def value(self) -> Fraction:
        """sum_t gamma^t <d_t, r_t>."""
        uses = [(cell, mass) for key, cell in self.cells.items() for _, mass in self._visits(key)]
        return _sum(mass * cell.reward() for cell, mass in uses)

    def se2(self, start: Sequence[Fraction] | None = None) -> Fraction:
        """Var[u_0(s_0) + g(s_0)]/n plus the cells' variances; worth is d V', pooled it is U."""
        g = start or [ZERO] * len(self.starts)
        total = _se2([self.u[0][s] + g[i] for i, s in enumerate(self.starts)])
        for key, cell in self.cells.items():
            uses = [(t, mass) for t, mass in self._visits(key) if mass]
            worth = {
                j: _sum(mass * self.later(t, j.length, j.after) for t, mass in uses)
                for j in cell.known
            }
            total += cell.variance(_sum(mass for _, mass in uses), worth)
        return total


def mis(
    log: Log, normalize: Normalize = "simplex", pooled: bool = False, reward: Reward = "logged"
) -> Fraction:
    """MIS: Algorithm 1 as printed where that is possible, else the cell form."""
    log = _averaged(log, reward)
    if pooled or log.truncated or normalize == "state":
        return Recursion(log, normalize, pooled).value()
    return _algorithm_1(log, normalize == "simplex")


def se2_mis(
    log: Log, normalize: Normalize = "simplex", pooled: bool = False, reward: Reward = "logged"
) -> Fraction:
    """Plug-in squared standard error, from the logged rewards whatever `reward` says."""
    _averaged(log, reward)
    return Recursion(log, normalize, pooled).se2()


def behavior_value(log: Log) -> Fraction:
    """Plain MIS with every ratio 1: the mean return where nothing is truncated."""
    return mis(log.map_rows(lambda e, t, row: replace(row, pi=row.mu)), "none")


# --- DM --------------------------------------------------------------------------------------


def _seen(state: State) -> State:
    return HIDDEN if state is None else state


@dataclass(frozen=True)
class Arm:
    """What the log shows of one (t, s, a); `known` has the rows whose next state is known."""

    pi: Fraction
    rewards: list[Fraction]
    known: list[tuple[Fraction, State]]  # reward, next state


def _model(log: Log, unseen: Unseen) -> dict[Key, Arm]:
    """By (t, s, a); renorm: pi over its sum over the actions seen, 0 where that sum is 0."""
    rows: dict[Key, list[tuple[Row, State]]] = defaultdict(list)
    for e in log.episodes:
        for t, row in enumerate(e.rows):
            key = (t, _seen(row.state), row.action)
            rows[key].append((row, _seen(e.after(t, log.horizon))))
    pi = {key: _mean([Fraction(row.pi) for row, _ in group]) for key, group in rows.items()}
    arms = {}
    for key, group in rows.items():
        known = [(Fraction(row.reward), after) for row, after in group if after != UNKNOWN]
        total = _sum(p for other, p in pi.items() if other[:2] == key[:2])
        share = pi[key] / total if unseen == "renorm" and total else pi[key]
        arms[key] = Arm(share, [Fraction(row.reward) for row, _ in group], known)
    return arms


def _dm_masses(log: Log, unseen: Unseen) -> list[tuple[int, Arm, Fraction]]:
    """t, arm and gamma^t d_t(s) pi(a|s); d_{t+1}(s') = sum_{s,a} d_t(s) pi(a|s) P(s'|t,s,a)."""
    model, masses = _model(log, unseen), []
    d: Masses = [defaultdict(Fraction) for _ in range(log.horizon + 1)]
    for e in log.episodes:
        d[0][_seen(e.rows[0].state)] += ONE / len(log.episodes)
    for t in range(log.horizon):
        present = [d[t][END]] if END in d[t] else []
        if END in d[t]:
            d[t + 1][END] = d[t][END]
        for (step, s, _), arm in model.items():
            if step == t and s in d[t]:
                present.append(d[t][s] * arm.pi)
                masses.append((t, arm, log.discount**t * d[t][s] * arm.pi))
                for _, after in arm.known:
                    d[t + 1][after] += d[t][s] * arm.pi / len(arm.known)
        if not (present if unseen == "zero" else any(present)):
            raise ZeroDivisionError(f"no mass at step {t}")
    return masses


def dm_q(log: Log, unseen: Unseen = "zero") -> tuple[dict[Any, Fraction], dict[Any, Fraction]]:
    """Q[t,s,a] = r + gamma sum_s' P(s'|t,s,a) V_{t+1}(s') and V[t,s] = sum_a pi(a|s) Q[t,s,a]."""
    q: dict[Any, Fraction] = {}
    v: dict[Any, Fraction] = defaultdict(Fraction)
    arms = _model(log, unseen)
    for t, s, a in sorted(arms, key=lambda key: -key[0]):
        arm = arms[t, s, a]
        later = [log.discount * v.get((t + 1, after), ZERO) for _, after in arm.known]
        q[t, s, a] = _mean(arm.rewards) + (_mean(later) if later else ZERO)
        v[t, s] += arm.pi * q[t, s, a]
    return q, dict(v)


def dm(log: Log, unseen: Unseen = "zero") -> Fraction:
    """sum_t gamma^t sum_{s,a} d_t(s) pi(a|s) r(t,s,a)."""
    return _sum(mass * _mean(arm.rewards) for _, arm, mass in _dm_masses(log, unseen))


def se2_dm(log: Log, unseen: Unseen = "zero") -> Fraction:
    """Var[V_0(s_0)]/n + sum gamma^2t d_t(s)^2 pi(a|s)^2 Var(r + gamma V_{t+1}(s'))/n_t(s,a)."""
    _, v = dm_q(log, unseen)
    total = _se2([v[0, _seen(e.rows[0].state)] for e in log.episodes])
    for t, arm, mass in _dm_masses(log, unseen):
        known = [(r, log.discount * v.get((t + 1, after), ZERO)) for r, after in arm.known]
        total += mass**2 * _cell_variance(arm.rewards, known)
    return total


# --- Control variates: DR, WDR, MDR ----------------------------------------------------------


def _shaped(log: Log, q_log: Log) -> tuple[Log, list[Fraction]]:
    """The log with y = r - Q_t(s,a) + gamma V_{t+1}(s') for r, and g(s_0) = V_0(s_0)."""
    q, v = dm_q(q_log)

    def shape(e: Episode, t: int, row: Row) -> Row:
        after = _seen(e.after(t, log.horizon))
        if after == UNKNOWN:
            raise ValueError("a shaped reward needs the state after a truncated row")
        f = log.discount * v.get((t + 1, after), ZERO)
        return replace(row, reward=row.reward + f - q.get((t, _seen(row.state), row.action), ZERO))

    return log.map_rows(shape), [v.get((0, _seen(e.rows[0].state)), ZERO) for e in log.episodes]


def dr(log: Log, q_log: Log, normalize: bool = False) -> Fraction:
    """DR, or WDR if normalized: step-wise IS or WIS on the shaped rewards, plus the mean of g."""
    shaped, g = _shaped(log, q_log)
    return _mean(g) + (stepwise_wis(shaped) if normalize else stepwise_is(shaped))


def se2_dr(log: Log, q_log: Log, normalize: bool = False) -> Fraction:
    shaped, g = _shaped(log, q_log)
    terms = _wis_terms(_steps(shaped)) if normalize else _is_terms(_steps(shaped))
    return _se2([x + y for x, y in zip(g, terms, strict=True)])


def mdr(log: Log, q_log: Log, normalize: Normalize = "simplex") -> Fraction:
    """MIS on the shaped rewards, plus the mean of g over the summing episodes."""
    shaped, g = _shaped(log, q_log)
    return _mean(g) + mis(shaped, normalize)


def se2_mdr(log: Log, q_log: Log, normalize: Normalize = "simplex") -> Fraction:
    """The start's variance is that of u_0(s_0) + g(s_0) jointly."""
    shaped, g = _shaped(log, q_log)
    return Recursion(shaped, normalize).se2(g)


# --- SSD-IS ----------------------------------------------------------------------------------

DIGITS = 10**60  # what a power of a matrix is rounded to
Matrix: TypeAlias = list[list[Fraction]]


def ssd_is(log: Log, use: Literal["ratio", "plugin", "selfnorm"]) -> Fraction:
    """SSD-IS without early ends. d is the pooled operator's eigenvector next to the eigenvalue 1,
    c(s) the rows of s before the last step, and w(s) = d(s) n (H-1)/c(s), 0 where c(s) is 0."""
    rows = [
        (log.discount**t, t, _seen(row.state), row.rho, row.reward)
        for e in log.episodes
        for t, row in enumerate(e.rows)
    ]
    d, count = _stationary(log)
    if use == "plugin":
        visits: dict[tuple[int, State], int] = defaultdict(int)
        for _, t, s, _, _ in rows:
            visits[t, s] += 1
        return _sum(g * d[s] * rho * r / visits[t, s] for g, t, s, rho, r in rows if s in count)
    n, moves = len(log.episodes), len(log.episodes) * (log.horizon - 1)
    w = {s: d[s] * moves / c for s, c in count.items()}
    earned = _sum(g * w.get(s, ZERO) * rho * r for g, _, s, rho, r in rows)
    if use == "ratio":
        return earned / n
    # once over all rows (Liu et al. 2018): a weighted mean reward, times the length of an episode
    mass = _sum(g * w.get(s, ZERO) * rho for g, _, s, rho, _ in rows)
    return _sum(log.discount**t for t in range(log.horizon)) * earned / mass


def _stationary(log: Log) -> tuple[dict[State, Fraction], dict[State, int]]:
    """d, to some fifty digits, and c. ZeroDivisionError where there is no one such vector."""
    count: dict[State, int] = defaultdict(int)
    moved: dict[tuple[State, State], Fraction] = defaultdict(Fraction)
    for e in log.episodes:
        for t in range(log.horizon - 1):
            s, after = _seen(e.rows[t].state), _seen(e.after(t, log.horizon))
            count[s] += 1
            moved[s, after] += e.rows[t].rho
    states = sorted(count, key=str)  # a state that only the last step shows is left out
    # (P - 1)⁻¹ to the power 2^k: what is left is the eigenvalue closest to 1. The shift is a little
    # off 1, which may be an eigenvalue.
    shift = ONE + Fraction(1, 10**30)
    P = [[moved[s, x] / count[s] for s in states] for x in states]
    power = _inverse(
        [[p - shift * (i == j) for j, p in enumerate(line)] for i, line in enumerate(P)]
    )
    for _ in range(40):
        largest = max(abs(x) for line in power for x in line)
        scaled = [[Fraction(round(x / largest * DIGITS), DIGITS) for x in line] for line in power]
        power = [
            [_sum(a * b for a, b in zip(line, column, strict=True)) for column in _turned(scaled)]
            for line in scaled
        ]
    columns = _turned(power)
    top = max(columns, key=lambda column: max(map(abs, column)))
    at = max(range(len(top)), key=lambda i: abs(top[i]))
    small = abs(top[at]) / 10**20
    if abs(_sum(p * x for p, x in zip(P[at], top, strict=True))) < abs(top[at]) / 10**10:
        raise ZeroDivisionError("the eigenvalue closest to 1 is 0: nothing stays")
    for column in columns:  # of rank one, or no vector alone
        if any(abs(x - y * column[at] / top[at]) > small for x, y in zip(column, top, strict=True)):
            raise ZeroDivisionError("no eigenvalue alone is closest to 1")
    total = _sum(top)
    if abs(total) < small:
        raise ZeroDivisionError("the eigenvector sums to 0")
    return {s: x / total for s, x in zip(states, top, strict=True)}, dict(count)


def _turned(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def _inverse(matrix: Matrix) -> Matrix:
    """Gauss and Jordan."""
    size = len(matrix)
    lines = [[*line, *(Fraction(i == j) for j in range(size))] for i, line in enumerate(matrix)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(lines[k][i]))
        lines[i], lines[pivot] = lines[pivot], [*lines[i]]
        lines[i] = [x / lines[i][i] for x in lines[i]]
        for k in range(size):
            if k != i:
                lines[k] = [x - lines[k][i] * y for x, y in zip(lines[k], lines[i], strict=True)]
    return [line[size:] for line in lines]
