"""Check the paper's statements on known worlds, and write docs/paper/theory.csv.

One row per measured statement: key, statement, measured, error, expected, holds. `error` is the
Monte-Carlo standard error of `measured`, 0 where it is exact; `holds` is yes, partly or no. The
result is the same for the same options, up to rounding.

    python theory_checks.py
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
from reweigh_studies import theorems
from reweigh_studies.fictitious import (
    covariance_bound,
    fictitious,
    propagation,
    variance_parts,
)
from reweigh_studies.theorems import tilted_world
from scipy.stats import binom
from theory_statements import STATEMENTS

from reweigh import theory
from reweigh.system.files import write_atomically
from reweigh.worlds import ModelFail, ModelWin, TabularMDP, TimeVarying, random_mdp

OUTPUT = Path(__file__).parents[2] / "docs" / "paper" / "theory.csv"
DELTAS = (-0.5, 0.0, 0.25, 0.5, 0.8, 0.999)
ROUNDING = 1e-11


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    statement: str
    measured: float
    error: float
    expected: float
    holds: str


def row(key: str, measured: float, error: float, expected: float, holds: bool | str) -> Row:
    if isinstance(holds, bool | np.bool_):
        holds = "yes" if holds else "no"
    return Row(key, STATEMENTS[key], float(measured), float(error), float(expected), holds)


def equal(key: str, measured: float, expected: float, within: float = ROUNDING) -> Row:
    """An exact number that should be another, within a stated distance."""
    return row(key, measured, 0, expected, abs(measured - expected) <= within)


def at_most(key: str, measured: float, limit: float, error: float = 0.0) -> Row:
    """A number that should not be above a limit."""
    return row(key, measured, error, limit, measured <= limit + 4 * error + ROUNDING)


def near(key: str, found: theorems.Mean, expected: float, slack: float) -> Row:
    """A drawn number that should be another, within four errors and a slack."""
    holds = abs(found.value - expected) <= 4 * found.error + slack
    return row(key, found.value, found.error, expected, holds)


@cache
def cases() -> list[tuple[TabularMDP, theory.Quantities, theorems.Logs]]:
    """Five tiny worlds, with all their logs of two to four episodes."""
    tiny = [
        (random_mdp(3, 2, 2, 2), 3),
        (random_mdp(5, 3, 2, 2), 2),
        (random_mdp(7, 2, 2, 3, overlap=0.2), 2),
        (random_mdp(6, 3, 2, 3, terminal=1), 2),
        (random_mdp(9, 2, 2, 2, discount=0.5), 4),
    ]
    return [(m, theory.quantities(m), theorems.every_log(m, n)) for m, n in tiny]


def fictitious_rows() -> Iterator[Row]:
    bias, d_bias, parts, lowest, diagonal, approximation = [], [], [], [], [], []
    for world, q, logs in cases():
        high = q.horizon * q.reward_max
        clipped = theorems.replicates(world, logs, v_max=high).clipped
        error = logs.mean((clipped - q.value) ** 2).value
        d_m = q.d_mu[:-1][q.d_pi[:-1] > 0].min()
        for delta in DELTAS:
            found = fictitious(world, q, logs, delta)
            bias.append(abs(logs.mean(found.values).value - q.value))
            mean = np.einsum("trs,r->ts", found.marginals, logs.probability)
            d_bias.append(np.abs(mean - q.d_pi).max())
            variance = logs.mean((found.values - q.value) ** 2).value
            expected = logs.mean(variance_parts(world, q, logs, found).sum(axis=1)).value
            parts.append(abs(variance / expected - 1))
            covariance = np.array([logs.covariance(d) for d in found.marginals])
            own = np.diagonal(covariance, axis1=1, axis2=2)
            bound = covariance_bound(world, q, logs.n, delta, own)
            lowest.append(np.linalg.eigvalsh(bound - covariance).min())
            wide = np.diagonal(bound, axis1=1, axis2=2)
            diagonal.append(theorems.divided(own, wide)[1:].max())
            if delta > 0:
                rest = math.exp(-(delta**2) * logs.n * d_m / 2)
                rest *= 3 * q.horizon * world.n_states * high**2
                approximation.append(error / (variance + rest))
    yield at_most("lemma-approximation", max(approximation), 1)
    yield equal("lemma-unbiased-value", max(bias), 0)
    yield equal("lemma-unbiased-marginals", max(d_bias), 0)
    yield equal("lemma-variance", max(parts), 0)
    yield at_most("lemma-covariance", -min(lowest), 0)
    yield at_most("corollary-variance", max(diagonal), 1)


def bias_rows() -> Iterator[Row]:
    plain, same, visited, cut, worse, lost, unseen = [], [], [], [], [], [], []
    for world, q, logs in cases():
        found = theorems.replicates(world, logs)
        plain.append(abs(logs.mean(found.plain).value - q.value))
        large = fictitious(world, q, logs, 1 - 1 / (logs.n * q.d_mu[:-1].max()))
        same.append(np.abs(large.values - found.plain).max())
        cut.append(logs.mean(found.clipped).value - q.value)
        worse.append((np.abs(found.clipped - q.value) - np.abs(found.plain - q.value)).max())
        d = theorems.forward(world, logs, theorems.importance_steps(world, logs)).marginals
        lost.append(abs(logs.mean(1 - d[-1].sum(axis=1)).value))
        unseen.append(logs.mean((logs.visits[-2] == 0) @ q.d_pi[-2]).value)
        more = theorems.drawn_logs(world, 20, 2_000, 3)
        part = fictitious(world, q, more, 0.5)
        differences = np.abs(part.values - theorems.replicates(world, more).plain)
        visited.append(differences[part.real > 0].max())
    yield equal("fictitious-is-mis-where-visited", max(visited), 0)
    yield equal("fictitious-is-mis", max(same), 0)
    yield equal("mis-plain-unbiased", max(plain), 0)
    yield equal("sketch-bias", max(lost), max(unseen))
    yield at_most("clipping", max(worse), 0)
    yield at_most("clipping-bias", max(cut), 0)
    P = np.zeros((3, 2, 3))
    P[0, 0, 2] = P[0, 1, 1] = P[1, :, 1] = P[2, :, 2] = 1
    r = np.zeros((2, 3, 2, 3))
    r[1, 1] = 1
    still = [1.0, 0.0]
    two = TabularMDP([1, 0, 0], P, r, [[0.1, 0.9], still, still], [[0.9, 0.1], still, still])
    logs = theorems.every_log(two, 800)
    found = theorems.replicates(two, logs)
    # E[v̂] - v ≈ -E[ρ² (y - v)]/n
    first_order = -(0.1 * 9**2 * (1 - 0.9) + 0.9 * (1 / 9) ** 2 * (0 - 0.9))
    bias = 800 * (logs.mean(found.simplex).value - found.value)
    yield equal("simplex-bias", bias, first_order, 0.05)


def chernoff_rows() -> Iterator[Row]:
    worst = -math.inf
    delta = np.linspace(0.02, 0.98, 49)
    for n in (5, 20, 100, 1000):
        for p in (0.01, 0.1, 0.3, 0.6, 0.9):
            above = binom.logsf(np.floor((1 + delta) * p * n + 1e-9), n, p)
            below = binom.logcdf(np.ceil((1 - delta) * p * n - 1e-9) - 1, n, p)
            upper = (delta - (1 + delta) * np.log1p(delta)) * n * p
            lower = (-delta - (1 - delta) * np.log1p(-delta)) * n * p
            worst = max(worst, (above - upper).max(), (below - lower).max())
    yield at_most("lemma-chernoff", math.exp(worst), 1)


def propagation_rows() -> Iterator[Row]:
    ratio, R = 0.0, 20_000
    for seed in range(4):
        world = random_mdp(seed, 3, 2, 6, concentration=10, overlap=0.8)
        q, n, delta = theory.quantities(world), 400, 0.2
        limit = propagation(q, n, delta)
        if not limit.holds:
            raise AssertionError(f"the condition fails in world {seed}")
        logs = theorems.drawn_logs(world, n, R, seed)
        d = fictitious(world, q, logs, delta).marginals
        own = np.array([np.diag(logs.covariance(x)) for x in d])[:-1]
        ratio = max(ratio, float((own / limit.bound).max()))
    error = ratio * math.sqrt(2 / R)
    yield at_most("theorem-propagation", ratio, 1, error)
    yield row("theorem-propagation-tight", ratio, error, 1, "partly")
    P = np.zeros((2, 2, 2))
    P[:, 0, 1] = P[:, 1, 0] = 1
    pi, mu = [[0.5, 0.5]] * 2, [[0.02, 0.98]] * 2
    rare = TabularMDP([1, 0], P, np.ones((2, 2, 2)), pi, mu, horizon=2)
    logs, q = theorems.every_log(rare, 3), theory.quantities(rare)
    d = fictitious(rare, q, logs, 0.0).marginals[1]
    yield at_most("sketch-propagation", 3 * logs.covariance(d)[1, 1], 4 * q.d_pi[1, 1])
    world, n = random_mdp(2, 3, 2, 4, concentration=8), 400
    q, logs = theory.quantities(world), theorems.drawn_logs(world, n, R, 1)
    clipped = theorems.replicates(world, logs, v_max=q.horizon * q.reward_max).clipped
    other = (fictitious(world, q, logs, 0.9).values - q.value) ** 2
    # paired: E[(P v̂ - v)²]/E[(ṽ - v)²] - 1 is the mean of the difference over a near constant
    gap = logs.mean(((clipped - q.value) ** 2 - other) / logs.mean(other).value)
    yield at_most("lemma-approximation-close", 1 + gap.value, 1, gap.error)


def bound_rows(replicates: int) -> Iterator[Row]:
    ratios: dict[str, list[tuple[float, float]]] = {"theorem-bound": [], "corollary-bound": []}
    for world in theorems.mixing_worlds():
        q = theory.quantities(world)
        for n in (250, 1_000, 4_000, 16_000, 64_000):
            bounds = theory.theorem_bound(q, n), theory.corollary_bound(q, n)
            if not bounds[0].holds:
                continue
            logs = theorems.drawn_logs(world, n, replicates, n)
            found = logs.mean((theorems.replicates(world, logs).clipped - q.value) ** 2)
            for key, bound in zip(ratios, bounds, strict=True):
                ratios[key].append((found.value / bound.value, found.error / bound.value))
    for key, pairs in ratios.items():
        measured, error = max(pairs)
        where = f" over {len(pairs)} pairs of a world and an n that its conditions allow."
        found_row = at_most(key, measured, 1, error)
        yield replace(found_row, statement=found_row.statement + where)


def asymptotic_rows(replicates: int) -> Iterator[Row]:
    early, later = [], []
    for name, world in theorems.random_worlds().items():
        q = theory.quantities(world)
        excess = {}
        for n in (100, 1_000, 10_000):
            logs = theorems.drawn_logs(world, n, replicates, n)
            same = fictitious(world, q, logs, np.nextafter(1, 0))
            parts = variance_parts(world, q, logs, same).sum(axis=1)
            excess[n] = logs.mean(n * parts / q.leading)
        early.append(excess[100])
        later.append(excess[1_000])
        found = theorems.replicates(world, logs)  # of the last, largest n
        scaled = {
            "asymptotic-mis-plain": (found.plain, q.leading),
            "asymptotic-mis": (found.simplex, q.leading_simplex),
            "asymptotic-dm": (found.dm, q.cramer_rao),
        }
        rows = [
            near(key, logs.mean(n * (values - q.value) ** 2 / limit), 1, 0.02)
            for key, (values, limit) in scaled.items()
        ]
        for one in [*rows, near("excess-mis-plain", excess[1_000], 1, 0.02)]:
            where = f"{one.statement}, in the random world {name}."
            yield replace(one, key=f"{one.key}-{name}", statement=where)
    # sums before the ratio: in a world of one step the excess is 0
    over, under = (sum(x.value - 1 for x in each) for each in (early, later))
    noise = [math.hypot(*(x.error for x in each)) for each in (early, later)]
    fall = over / under
    error = fall * math.hypot(noise[0] / over, noise[1] / under)
    slower = fall - 4 * error < math.sqrt(10)  # the fall of n^(-1/2) is not ruled out
    yield row("excess-rate", fall, error, 10, abs(fall - 10) <= 4 * error and not slower)


def growth(world: Callable[[int], TabularMDP], quantity: str, H: int = 400) -> float:
    """The exponent k of quantity ~ H^k, between H and 2H."""
    short, long = (getattr(theory.quantities(world(h)), quantity) for h in (H, 2 * H))
    return math.log2(long / short)


def late(H: int, **options: float) -> TabularMDP:
    """The remark's example: R_max/2 at each step of the second half, R_max = 1."""
    return tilted_world(np.where(np.arange(H) >= H // 2, 0.5, 0.0), **options)


def time_varying(H: int) -> TabularMDP:
    return TimeVarying(H, 0).tabular()


def horizon_rows() -> Iterator[Row]:
    ones, simplex = np.ones, "leading_simplex"
    worlds: dict[str, tuple[Callable[[int], TabularMDP], str, float]] = {
        "fixed-ratios": (lambda H: tilted_world(ones(H)), "leading", 3),
        "on-policy": (lambda H: tilted_world(ones(H), 0.0, fate=1.0), "leading", 2),
        "near-policy": (lambda H: tilted_world(ones(H), 0.5 / math.sqrt(H)), "leading", 2),
        "nearer-policy": (lambda H: tilted_world(ones(H), 0.5 / H, fate=1.0), "leading", 2),
        "constant-value": (lambda H: tilted_world(np.eye(H)[-1]), "leading", 1),
        "cubic-leading": (lambda H: late(H, reward_sd=0.5), "leading", 3),
        "cubic-cramer-rao": (lambda H: late(H, reward_sd=0.5, fate=0.5), "cramer_rao", 2),
        "cubic-simplex": (late, simplex, 1),
        "time-varying": (time_varying, simplex, 3),
        "model-win": (ModelWin, simplex, 1),
        "model-fail": (lambda H: ModelFail(H).checkpoints(), simplex, 1),
    }
    exponents = {key: (growth(w, name), power) for key, (w, name, power) in worlds.items()}
    exponents["time-varying-relative"] = (exponents["time-varying"][0] / 2 - 1, 1.5)
    for key, (found, power) in exponents.items():
        one = equal(f"growth-{key}", found, power, 0.05)
        where = ": the exponent of its growth with H, between H = 400 and 800."
        yield replace(one, statement=one.statement + where)


def cramer_rao_rows() -> Iterator[Row]:
    found = [theory.quantities(world) for world in theorems.random_worlds().values()]
    share = [
        q.cramer_rao / (q.tau_a * q.tau_s * q.horizon * (q.horizon * q.reward_max**2 + q.noise**2))
        for q in found
    ]
    sums = [abs((q.cramer_rao + q.gap) / q.leading - 1) for q in found]
    yield equal("leading-is-cramer-rao-plus-gap", max(sums), 0)
    missed = max(q.cramer_rao_parts[0] / q.leading for q in found)
    yield equal("cramer-rao-display", missed, 0)
    yield at_most("cramer-rao-quadratic", max(share), 1)
    H, spread = 64, 0.6**2
    q, noisy = theory.quantities(late(H)), theory.quantities(late(H, reward_sd=0.05))
    yield equal("cubic-closed-form", q.leading / (H**3 * spread), 1 / 24, 0.002)
    enough = q.gap_parts[1:] >= H**2 / 16 * spread - ROUNDING
    yield row("cubic-every-step", enough.mean(), 0, 1, "partly")
    yield row("factor-of-h", noisy.leading / noisy.cramer_rao / H, 0, 1, "partly")


def remark_rows() -> Iterator[Row]:
    ratio = []
    for seed in range(6):
        world = random_mdp(seed, 3, 2, 1 + 3 * seed, reward_sd=0.5)
        mu = world.behavior_array
        q = theory.quantities(
            TabularMDP(world.initial, world.transition, world.reward, mu, mu, world.reward_sd)
        )
        v_max = max(float(q.V.max()), q.reward_max)
        ratio.append(q.leading / (3 * v_max**2 + q.horizon * q.noise**2))
    yield at_most("on-policy-bound", max(ratio), 1)
    P = np.array([[[0.99, 0.01]], [[0.0, 1.0]]])
    r = np.zeros((2, 1, 2))
    r[0, 0, 1] = 1
    q = theory.quantities(TabularMDP([1, 0], P, r, [[1]] * 2, [[1]] * 2, horizon=1))
    yield at_most("on-policy-bound-rare-reward", q.leading / (3 * float(q.V.max()) ** 2), 1)
    S, A, H = 5, 5, 6
    rng = np.random.default_rng(S)
    P, r = np.full((S, A, S), 1 / S), rng.random((S, A, S))
    pi, mu = np.eye(A)[rng.integers(0, A, (H, S))], np.full((S, A), 1 / A)
    q = theory.quantities(TabularMDP(np.full(S, 1 / S), P, r, pi, mu))
    yield at_most("finite-actions", q.leading / (H**3 * S * A * q.reward_max**2), 1)


def example_rows() -> Iterator[Row]:
    ratios = np.array([0.4, 1.6])
    E, V, H = float(np.log(ratios).mean()), float(np.log(ratios).var()), 50
    second = float(np.mean(ratios**2))
    q = theory.quantities(tilted_world(np.eye(H)[-1]))
    k = np.arange(H + 1)
    p, total = binom.pmf(k, H, 0.5), k * math.log(1.6) + (H - k) * math.log(0.4)
    variance = math.log(q.is_variance)
    lognormal = math.log(math.expm1(H * V))
    close = np.array([0.97, 1.03])
    growing = math.log(np.mean(close**2)) / float(np.log(close).var())
    yield equal("example-product", variance, math.log(second**H - 1), 1e-9)
    yield equal("example-mean", float(p @ total), -H * E, 1e-9)
    yield equal("example-spread", float(p @ (total - H * E) ** 2), H * V, 1e-9)
    yield equal("example-variance", variance, lognormal, 0.05)
    yield equal("example-lognormal", variance, lognormal + 2 * H * E + H * V, 0.05)
    yield equal("example-near-one", growing, 1, 0.002)
    yield equal("example-mis", q.leading, H * (second - 1), 1e-9)


def framework_rows() -> Iterator[Row]:
    unequal, bias, given, skewed, mean_f = [], [], [], [], []
    for world, q, logs in cases()[:3]:
        H, S, A = world.horizon, world.n_states, world.n_actions
        Q = np.random.default_rng(0).normal(size=(H, S, A))
        V = np.zeros((H + 1, S))
        V[:H] = np.sum(world.target_array * Q, axis=2)
        f = V[1:, None, None, :] - Q[..., None]
        p, path = theorems.every_trajectory(world)
        step = np.arange(H)
        s, a, x = np.moveaxis(path, 2, 0)
        y, rho = (world.reward + f)[step, s, a, x], theorems.action_ratio(world)[step, s, a]
        w = theorems.divided(q.d_pi, q.d_mu)
        difference = p @ (w[step, s] * rho * y) - p @ (np.cumprod(rho, axis=1) * y)
        unequal.append(np.abs(difference).max())
        shaped = logs.rewards + np.einsum("trsax,tsax->trsa", logs.moves, f)
        mdr = theorems.replicates(world, replace(logs, rewards=shaped)).plain
        bias.append(abs(logs.mean(mdr + logs.visits[0] @ V[0] / logs.n).value - q.value))
        steps = theorems.importance_steps(world, logs)
        share = logs.visits / logs.n
        d = theorems.forward(world, logs, steps).marginals
        conditional = np.einsum("trs,r->ts", d, logs.probability) / q.d_mu
        given.append(np.abs(conditional - w).max())
        wrong = w[:, None] + 3 * (share - q.d_mu[:, None])
        value = np.einsum("trs,trs,trs->r", wrong[:-1], share[:-1], steps.reward)
        skewed.append(abs(logs.mean(value).value - q.value))
        joint = q.d_pi[:-1, :, None, None] * world.target_array[..., None] * world.transition
        true = q.V[1:, None, None, :] - q.Q[..., None]
        mean_f.append(np.abs(np.sum(joint * true, axis=(1, 2, 3))).max())
    yield equal("lemma-frameworks", max(unequal), 0)
    yield equal("framework-unbiased", max(bias), 0)
    yield equal("framework-weights", max(given), 0)
    yield row("framework-unconditional", max(skewed), 0, 0, "partly")
    yield equal("framework-control", max(mean_f), 0)


QUICK: dict[str, Callable[[], Iterator[Row]]] = {
    "fictitious estimator": fictitious_rows,
    "bias": bias_rows,
    "Chernoff": chernoff_rows,
    "growth with the horizon": horizon_rows,
    "Cramér-Rao": cramer_rao_rows,
    "remarks": remark_rows,
    "Example 1": example_rows,
    "frameworks": framework_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--replicates", type=int, default=40_000, help="logs per world and n")
    options = parser.parse_args()
    checks = {
        **QUICK,
        "error propagation": propagation_rows,
        "bounds": lambda: bound_rows(options.replicates // 4),
        "asymptotics": lambda: asymptotic_rows(options.replicates),
    }
    rows: list[Row] = []
    for name, check in checks.items():
        clock = time.perf_counter()
        found = list(check())
        rows += found
        seconds = time.perf_counter() - clock
        print(f"{name}: {len(found)} rows in {seconds:.1f} s", file=sys.stderr, flush=True)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([field.name for field in fields(Row)])
    for one in rows:
        table.writerow([repr(x) if isinstance(x, float) else x for x in astuple(one)])

    def write(stream: BinaryIO) -> None:
        stream.write(text.getvalue().encode())

    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.output, write, overwrite=True)
    print(f"wrote {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
