"""The study of continuous states: its cells, tables and page.

Half of the tasks of each kind set rules (none yet), the other half reports."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from reweigh.errors import RefusedError
from reweigh.evaluation.evaluate import evaluate_in_study
from reweigh.evaluation.result import Estimate
from reweigh.paper.cells import CellResult, Row
from reweigh.system.files import parse_object
from reweigh_studies.by_world.study import Study
from reweigh_studies.continuous.tasks import TASKS, Task
from reweigh_studies.coverage.goals import pick, read_csv
from reweigh_studies.coverage.markdown import percent, table
from reweigh_studies.coverage.measures import LEVEL, LEVELS, VALUE, column, number
from reweigh_studies.coverage.tables import columns_of

STUDY = 1  # version of the measurements
SIZES = (125, 500, 2000)
CONTENDERS = ("wis", "mis-clusters", "fqe", "mdr-features")
REFERENCE = "fqe"
LOW, HIGH, COLOR, OWN, BEHAVIOR, SPREAD = "low", "high", "level", "own", "behavior", "spread"
LOG, SECONDS = "log", "seconds"
TABLE, PAGE = "continuous.csv", "continuous.md"
NAMES = (
    "world", "group", "half", "horizon", "n", "replicates", "estimator", "v_target", "mc_truth",
    "rmse", "bias", "relative", "coverage", "coverage_without_spread", "green", "amber", "red",
    "behavior_off", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class ContinuousCell:
    """n episodes of a task."""

    world: str
    n: int

    @property
    def of(self) -> Task:
        return TASKS[self.world]

    @property
    def estimators(self) -> tuple[str, ...]:
        return CONTENDERS

    @property
    def name(self) -> str:
        return f"{self.world}-n{self.n}"

    @property
    def suffix(self) -> str:
        return ".json.gz"

    @property
    def cost(self) -> float:
        return float(self.of.horizon * self.n)

    def describe(self) -> dict[str, Any]:
        return {"study": STUDY, "task": self.of.describe(), "n": self.n, "level": LEVEL}

    def replicate(self, estimators: Sequence[str], sequence: np.random.SeedSequence) -> Row:
        """All columns of one log."""
        log, target = self.of.log(self.n, np.random.default_rng(sequence))
        found: dict[str, Any] = {}
        for name in CONTENDERS:
            began = time.process_time()
            [result] = evaluate_in_study(log, target, [name])
            if not isinstance(result, Estimate):
                found[column(name, VALUE)] = result
                continue
            found[column(name, VALUE)] = result.value
            found[column(name, COLOR)] = float(LEVELS.index(result.verdict.level))
            try:
                low, high = result.interval(LEVEL) or (np.nan, np.nan)
                found |= {column(name, LOW): low, column(name, HIGH): high}
            except RefusedError:
                pass
            gates = {gate.name: gate.value for gate in result.verdict.gates}
            error, spread = result.standard_error, gates.get("spread of choices")
            if error is not None and spread is not None:
                found[column(name, OWN)] = error / np.hypot(1.0, spread)
                found[column(name, BEHAVIOR)] = gates.get("behavior value")
            found[column(name, SECONDS)] = time.process_time() - began
        return {name: number(value) for name, value in found.items()}


CONTINUOUS: Study[ContinuousCell] = Study(
    cast(Any, TASKS), SIZES, ContinuousCell, 100, (("linear", "sepsis"), (125,), 2)
)


# ---- tables ------------------------------------------------------------------------------------


def rows_of(cell: ContinuousCell, result: CellResult) -> list[dict[str, Any]]:
    """A row for every contender."""
    columns, (truth, mc) = columns_of(result), cell.of.truth()
    nothing = np.full(result.replicates, np.nan)

    def of(name: str, what: str) -> Any:
        return columns.get(column(name, what), nothing)

    def rmse(name: str) -> float:
        return float(np.sqrt(np.nanmean((of(name, VALUE) - truth) ** 2)))

    rows = []
    for name in CONTENDERS:
        value, own, color = of(name, VALUE), of(name, OWN), of(name, COLOR)
        low, high = of(name, LOW), of(name, HIGH)
        there = np.isfinite(low)
        covered = np.mean((low <= truth) & (truth <= high), where=there) if there.any() else np.nan
        alone = np.abs(value - truth) <= 1.96 * own
        shares = [float(np.mean(color == k)) for k in range(len(LEVELS))]
        rows.append({
            "world": cell.world, "group": cell.of.kind, "half": CONTINUOUS.half_of(cell.world),
            "horizon": cell.of.horizon, "n": cell.n, "replicates": result.replicates,
            "estimator": name, "v_target": truth, "mc_truth": mc, "rmse": rmse(name),
            "bias": float(np.nanmean(value) - truth), "relative": rmse(name) / rmse(REFERENCE),
            "coverage": float(covered),
            "coverage_without_spread": float(np.mean(alone)) if np.isfinite(own).any() else np.nan,
            "green": shares[0], "amber": shares[1], "red": shares[2],
            "behavior_off": float(np.nanmedian(of(name, BEHAVIOR)))
            if np.isfinite(of(name, BEHAVIOR)).any() else np.nan,
            "seconds": float(np.nanmean(of(name, SECONDS))),
        })  # fmt: skip
    return rows


def tables(results: Mapping[ContinuousCell, CellResult], to: Path) -> None:
    from reweigh_studies.coverage.tables import write_csv

    every = (row for cell, of in results.items() for row in rows_of(cell, of))
    write_csv(to / TABLE, NAMES, every)


# ---- the page ----------------------------------------------------------------------------------


def page(folder: Path) -> str:
    rows = read_csv(folder / TABLE)
    about = parse_object((folder / "continuous.json").read_bytes(), "continuous.json")
    sizes = sorted({row["n"] for row in rows})
    ran = {(row["world"], row["n"]): row["replicates"] for row in rows}
    hours = sum(row["replicates"] * row["seconds"] for row in rows) / 3600
    lacking = [c.name for c in CONTINUOUS.whole.cells if (c.world, c.n) not in ran]
    logs = f"{min(ran.values())}" + (
        "" if len(set(ran.values())) == 1 else f" to {max(ran.values())}"
    )
    parts = [
        "# Continuous states\n",
        f"Ten simulated tasks with continuous states and known propensities. This is a first small "
        f"part of the study: {len(ran)} of its {len(CONTINUOUS.whole.cells)} cells (a task at a "
        f"size), {logs} logs each instead of {CONTINUOUS.replicates}, {hours:.2g} CPU hours. Such "
        "few logs show no coverage: no rule was set by them, and no verdict on features is green. "
        "`make study-continuous` goes on where it ended.\n",
        *(f"{remark}\n" for remark in about["remarks"]),
        "Not in the study yet: other packages' fitted Q evaluation (d3rlpy), LunarLander, "
        "continuous actions. `auto` takes `mdr-features` on these logs. Acrobot, CartPole, "
        "Mountain Car and Pendulum are written for this study, with noise; truths are means of "
        "40,000 episodes.\n",
        "## Errors, relative to fitted Q evaluation\n",
        "Root mean squared error over that of `fqe` on the same logs; below 1 is better.\n",
        *(_errors(rows, n) for n in sizes),
        "## Coverage and verdicts\n",
        "Shares of all logs whose 95 % interval holds the truth, whatever the verdict; the same "
        "for the error of the episodes alone, without the spread of choices; and how many errors "
        "the method's answer for the behavior is off (median).\n",
        *(_coverage(rows, n) for n in sizes),
        "## Not run\n",
        f"{', '.join(lacking) if lacking else 'Everything was run'}.\n",
        "## The table\n",
        "[`continuous.csv`](continuous.csv) has a row for every task, size and estimator; "
        "[`continuous.json`](continuous.json) the seed and the gates in force.\n",
    ]
    return "\n".join(parts)


def _errors(rows: Sequence[dict[str, Any]], n: int) -> str:
    mine = pick(rows, n=n)
    tasks = list(dict.fromkeys(row["world"] for row in mine))

    def cells(world: str) -> Iterable[str]:
        first = pick(mine, world=world)[0]
        yield from (world, first["half"], f"{first['v_target']:.4g}")
        yield from (
            f"{pick(mine, world=world, estimator=e)[0]['relative']:.2f}" for e in CONTENDERS
        )

    every = [[row["relative"] for row in pick(mine, estimator=e)] for e in CONTENDERS]
    means = [f"**{np.exp(np.mean(np.log(values))):.2f}**" for values in every]
    heads = ("task", "half", "truth", *CONTENDERS)
    body = [*(tuple(cells(world)) for world in tasks), ("geometric mean", "", "", *means)]
    return f"### n = {n:,}\n\n{table(heads, body)}"


def _coverage(rows: Sequence[dict[str, Any]], n: int) -> str:
    body = []
    for name in CONTENDERS:
        mine = pick(rows, n=n, estimator=name)
        alone = [row["coverage_without_spread"] for row in mine]
        off = [row["behavior_off"] for row in mine]
        body.append((
            name,
            percent(float(np.nanmean([row["coverage"] for row in mine]))),
            "–" if not np.isfinite(alone).any() else percent(float(np.nanmean(alone))),
            *(percent(float(np.mean([row[color] for row in mine]))) for color in LEVELS),
            "–" if not np.isfinite(off).any() else f"{np.nanmedian(off):.1f}",
            f"{np.mean([row['seconds'] for row in mine]):.2g}",
        ))  # fmt: skip
    heads = ("estimator", "coverage", "without the spread", *LEVELS, "behavior off", "CPU s a log")
    return f"### n = {n:,}\n\n{table(heads, body)}"
