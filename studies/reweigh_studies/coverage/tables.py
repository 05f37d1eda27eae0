"""From cells to tidy tables: coverage, gates against faults, the best of many, values by bin.

Every share has a Monte-Carlo error: with k hits of m, sqrt((k + 1/2)(m - k + 1/2)/(m + 1)³), which
is about sqrt(p(1 - p)/m) and is not 0 where k is 0 or m.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from scipy import special

from reweigh.paper.cells import CellResult
from reweigh.system.files import write_atomically
from reweigh.trust.gates import LIMITS, Limit
from reweigh.trust.intervals import METHODS
from reweigh_studies.coverage.cells import BestCell, TrustCell
from reweigh_studies.coverage.measures import BEHAVIOR, GATE, LEVEL, LOG, VALUE, column
from reweigh_studies.coverage.verdicts import AMBER, GREEN, RED, gate_levels, verdicts
from reweigh_studies.coverage.worlds import WORLDS

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Row = dict[str, Any]
DEFAULT = "auto"  # what interval() gives without a method
VERDICT = "verdict"  # of all gates, where a gate is named
DIGITS = 5
COVERAGE = (
    "world", "group", "half", "n", "estimator", "method", "replicates", "v_target", "v_behavior",
    "coverage", "mc_error", "truth_below", "truth_above", "mean_width", "se_over_sd",
    "bias_over_sd", "refused", "no_interval", "green", "amber", "red", "green_replicates",
    "coverage_green", "mc_green", "amber_replicates", "coverage_amber", "mc_amber",
)  # fmt: skip
GATES = (
    "gate", "fault", "world", "group", "half", "n", "estimator", "replicates", "unknown", "amber",
    "red", "mc_error", "coverage", "mc_coverage",
)  # fmt: skip
BEST = (
    "n",
    "policies",
    "estimator",
    "interval",
    "replicates",
    "coverage",
    "mc_error",
    "mean_width",
)
BINS = (
    "gate", "estimator", "group", "half", "from", "to", "replicates", "hits", "coverage",
    "mc_error",
)  # fmt: skip


def columns_of(result: CellResult) -> dict[str, Floats]:
    """The columns as arrays, nan where there is no number."""
    return {
        name: np.array([math.nan if v is None else v for v in values], np.float64)
        for name, values in result.values.items()
    }


def mc_error(hits: float, of: int) -> float:
    return math.sqrt((hits + 0.5) * (of - hits + 0.5) / (of + 1) ** 3)


def share(hit: Bools) -> tuple[float | None, float | None]:
    """The share of the hits and its Monte-Carlo error; None of nothing."""
    if not len(hit):
        return None, None
    return float(hit.mean()), mc_error(float(hit.sum()), len(hit))


def estimators_of(columns: Mapping[str, Floats]) -> list[str]:
    ending = column("", VALUE)
    return sorted(name.removesuffix(ending) for name in columns if name.endswith(ending))


def coverage_rows(
    cell: TrustCell, result: CellResult, limits: Mapping[str, Limit] = LIMITS
) -> list[Row]:
    """One row per estimator and method."""
    columns = columns_of(result)
    found = []
    for name in estimators_of(columns):
        value = columns[column(name, VALUE)]
        judged = cell.measure.gates and name != BEHAVIOR
        level = verdicts(columns, name, cell.n, limits) if judged else None
        for method in METHODS:
            low = columns.get(column(name, method, "low"))
            if low is None and (method != cell.measure.methods[0] or np.any(np.isfinite(value))):
                continue  # not requested; one that always refused still has a row
            none = np.full(len(value), math.nan)
            low = none if low is None else low
            high, df = (columns.get(column(name, method, part), none) for part in ("high", "df"))
            found.append(
                _about(cell)
                | {"estimator": name, "method": method, "replicates": len(value)}
                | _coverage(cell, value, low, high, df)
                | _by_level(cell, low, high, level)
            )
    return found


def _about(cell: TrustCell) -> Row:
    world = cell.of
    return {"world": world.name, "group": world.group, "half": world.half, "n": cell.n}


def _covered(cell: TrustCell, low: Floats, high: Floats) -> Bools:
    truth, _ = cell.of.truth()
    covered: Bools = (low <= truth) & (truth <= high)
    return covered


def _coverage(cell: TrustCell, value: Floats, low: Floats, high: Floats, df: Floats) -> Row:
    truth, behavior = cell.of.truth()
    answered, there = np.isfinite(value), np.isfinite(low) & np.isfinite(high)
    coverage, error = share(_covered(cell, low, high)[there])
    spread = float(np.std(value[answered], ddof=1)) if answered.sum() > 1 else math.nan
    width = (high - low)[there]
    normal = special.ndtri(0.5 + LEVEL / 2)
    errors = width / 2 / np.where(df > 0, special.stdtrit(df, 0.5 + LEVEL / 2), normal)[there]
    return {
        "v_target": truth,
        "v_behavior": behavior,
        "coverage": coverage,
        "mc_error": error,
        "truth_below": share(truth < low[there])[0],
        "truth_above": share(truth > high[there])[0],
        "mean_width": _mean(width),
        "se_over_sd": _ratio(_mean(errors), spread),
        "bias_over_sd": _ratio(_mean(value[answered] - truth), spread),
        "refused": float(1 - answered.mean()),
        "no_interval": float((answered & ~there).mean()),
    }


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _ratio(over: float | None, under: float) -> float | None:
    return over / under if over is not None and under > 0 else None


def _by_level(
    cell: TrustCell, low: Floats, high: Floats, level: npt.NDArray[np.int64] | None
) -> Row:
    if level is None:
        return {}
    row: Row = {}
    covered, there = _covered(cell, low, high), np.isfinite(low)
    for name, code in (("green", GREEN), ("amber", AMBER), ("red", RED)):
        mine = (level == code) & there
        row[name] = float((level == code).mean())
        if code != RED:
            row[f"{name}_replicates"] = int(mine.sum())
            row[f"coverage_{name}"], row[f"mc_{name}"] = share(covered[mine])
    return row


def gate_rows(
    cell: TrustCell, result: CellResult, limits: Mapping[str, Limit] = LIMITS
) -> list[Row]:
    """How often each gate is amber or red, and the verdict as a whole, by estimator; of one that
    always refuses the verdict alone. With it, how often the default interval covers the true value
    without the fault."""
    columns, n = columns_of(result), cell.n
    found: list[Row] = []
    for name in estimators_of(columns):
        if name == BEHAVIOR:
            continue
        answered = bool(np.any(np.isfinite(columns[column(name, VALUE)])))
        levels = gate_levels(columns, name, n, limits) if answered else {}
        levels[VERDICT] = verdicts(columns, name, n, limits)
        low, high = (columns.get(column(name, DEFAULT, end)) for end in ("low", "high"))
        coverage: tuple[float | None, float | None] = None, None
        if low is not None and high is not None:
            coverage = share(_covered(cell, low, high)[np.isfinite(low)])
        for gate, level in levels.items():
            own = columns.get(column(name, GATE, gate), columns.get(column(LOG, GATE, gate)))
            unknown = 0.0 if own is None else float(np.isnan(own).mean())
            found.append(
                {"gate": gate, "fault": cell.fault}
                | _about(cell)
                | {
                    "estimator": name,
                    "replicates": len(level),
                    "unknown": unknown,
                    "amber": float((level == AMBER).mean()),
                    "red": float((level == RED).mean()),
                    "mc_error": mc_error(float((level >= AMBER).sum()), len(level)),
                    "coverage": coverage[0],
                    "mc_coverage": coverage[1],
                }
            )
    return found


def best_rows(cell: BestCell, result: CellResult) -> list[Row]:
    """Coverage of the best policy's value: its own interval, the corrected one, the held-out."""
    columns = columns_of(result)
    found = []
    for name in estimators_of(columns):
        for kind in ("plain", "corrected", "held out"):
            low, high = (columns[column(name, kind, end)] for end in ("low", "high"))
            coverage, error = share((low <= cell.truth) & (cell.truth <= high))
            found.append(
                {
                    "n": cell.n,
                    "policies": cell.policies,
                    "estimator": name,
                    "interval": kind,
                    "replicates": len(low),
                    "coverage": coverage,
                    "mc_error": error,
                    "mean_width": float((high - low).mean()),
                }
            )
    return found


# Coverage by the value of a gate, for setting limits

EDGES: dict[str, tuple[float, ...]] = {
    "support": (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "effective size": (10, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000),
    "marginal size": (10, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000),
    "marginal support": (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "rare states": (0.0, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2),
    "total mass": (0.03, 0.1, 0.2, 0.3, 0.5, 1.0),
    "heaviest episode": (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2),
    "Pareto k": (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 1.0),
    "propensities": (1e-4, 1e-3, 0.01, 0.05),
    "history": (1e-4, 1e-3, 0.01, 0.05),
    "policies": (1e-6, 1e-3, 0.01, 0.1),
    "fitted values": (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "unseen actions": (0.0, 0.1, 0.25, 0.5, 1.0, 2.0),
    "steadiness": (0.95, 0.99, 0.999, 0.9999),
    "drift": (1e-4, 1e-3, 0.01, 0.05),
    "placebo": (1.0, 2.0, 3.0, 4.0, 6.0),
}


def bin_counts(cell: TrustCell, result: CellResult) -> list[Row]:
    """By gate and bin of its value: replicates, and those whose default interval covers. With
    them, the cell and how many logs it has."""
    columns, about = columns_of(result), _about(cell)
    found = []
    for name in estimators_of(columns):
        low, high = (columns.get(column(name, DEFAULT, end)) for end in ("low", "high"))
        if name == BEHAVIOR or low is None or high is None:
            continue
        covered, there = _covered(cell, low, high), np.isfinite(low)
        levels = gate_levels(columns, name, cell.n)
        for gate, edges in EDGES.items():
            if gate not in levels:
                continue
            value = columns.get(column(name, GATE, gate), columns.get(column(LOG, GATE, gate)))
            if value is None:
                continue
            use = there & np.isfinite(value)
            bins = np.searchsorted(np.array(edges), value[use], side="left")
            of, hits = (
                np.bincount(bins, weights, len(edges) + 1) for weights in (None, covered[use])
            )
            ends = (-math.inf, *edges, math.inf)
            found += [
                about
                | {
                    "logs": len(covered),
                    "gate": gate,
                    "estimator": name,
                    "from": ends[k],
                    "to": ends[k + 1],
                    "replicates": int(of[k]),
                    "hits": int(hits[k]),
                }
                for k in np.flatnonzero(of)
            ]
    return found


def bin_rows(counts: Iterable[Row]) -> list[Row]:
    """The counts of all cells added up."""
    keys = ("gate", "estimator", "group", "half", "from", "to")
    total: dict[tuple[Any, ...], list[int]] = {}
    for row in counts:
        mine = total.setdefault(tuple(row[key] for key in keys), [0, 0])
        mine[0] += row["replicates"]
        mine[1] += row["hits"]
    return [
        dict(zip(keys, key, strict=True))
        | {"replicates": of, "hits": hits, "coverage": hits / of, "mc_error": mc_error(hits, of)}
        for key, (of, hits) in sorted(total.items())
    ]


def world_rows() -> list[Row]:
    """Every world of the study, with the values of both policies."""
    found = []
    for world in WORLDS.values():
        target, behavior = world.truth()
        row: Row = {"world": world.name, "group": world.group, "half": world.half}
        row |= {"horizon": world.horizon, "v_target": target, "v_behavior": behavior}
        found.append(row | {"description": _words(world.describe())})
    return found


def _words(described: dict[str, Any]) -> str:
    flat = {**described, **described.get("arguments", {})}
    left = ("name", "arguments")
    return " ".join(f"{k}={v}" for k, v in flat.items() if k not in left and v is not None)


WORLD_COLUMNS = ("world", "group", "half", "horizon", "v_target", "v_behavior", "description")


def write_csv(path: Path, names: Sequence[str], table: Iterable[Row]) -> None:
    """Numbers with as many digits as mean something."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="raise")
    writer.writeheader()
    for row in table:
        writer.writerow({name: _short(row.get(name)) for name in names})

    def write(stream: BinaryIO) -> None:
        stream.write(text.getvalue().encode())

    write_atomically(path, write, overwrite=True)


def _short(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value
