"""The page of the coverage study: every number on it is computed from the tables beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from reweigh.trust.gates.support import MATERIAL
from reweigh_studies.coverage.faults_page import faults, sparse
from reweigh_studies.coverage.goals import (
    ERRORS,
    HIGH,
    LOW,
    Goal,
    goals,
    pick,
    within,
)
from reweigh_studies.coverage.markdown import listed, percent, table
from reweigh_studies.coverage.measures import BOOTSTRAPS, MAIN
from reweigh_studies.coverage.published import Study
from reweigh_studies.coverage.study import PARTS, cells_of
from reweigh_studies.coverage.tables import DEFAULT, Row
from reweigh_studies.coverage.worlds import GROUPS

MOST_MISSES = 12
SCOPE = """\
The results are for these estimators, on rows in memory, in worlds like these: no episode is cut
off, and a hidden stretch is a few steps long. Elsewhere the verdict is more cautious: cut-off
beside ended episodes are amber or red, SSD-IS is never green, a long hidden stretch has the limits
of running products, and from sums (streams, databases, moments) there is no default interval if the
returns vary more than the states explain, or if that is unknown. How often these gates detect
faults is shown [below](#which-faults-are-noticed). The other estimators (trajectory-wise,
cross-fitted, split) have the same gates, and were not measured.
"""
UNSEEN = """\
- **Episodes selected by their return.** If bad outcomes are missing from the log, every value is
  too high. In large logs a test may detect by chance that ratios no longer average to 1; no test is
  made for it. Find out how the log was collected.
- **A propensity that belongs to another action.** Ratios still average to 1.
- **Duplicated episodes.** They look like more data: intervals get too narrow, and tests that count
  episodes raise false alarms. `reweigh check` counts episodes that are equal row by row, but cannot
  detect near-copies.
- **Symmetric rounding of propensities**, or errors that cancel within a state.
- **An event that is not in the log.** If all logged rows of an action that the target prefers
  earned nothing because the event is too rare, no variance shows what is missing.
- **A change within the log that leaves the mean return as it was.** Drift compares means:
  `modelwin-10`, where the behavior earns 0, can halve its rewards unnoticed.
- **A confounder** that affected both the logged actions and the rewards and is in no column.
- **A world that has changed since the log ended.** Drift can be detected only within the log.
"""


def page(study: Study) -> str:
    """The whole page."""
    held = goals(study.coverage, study.best)
    there = {row["world"] for row in study.coverage}
    counts = {(row["world"], row["n"]): row["replicates"] for row in study.usual}
    replicates, fewest = max(counts.values()), min(counts.values())
    spread, widest = (math.sqrt(0.95 * 0.05 / count) for count in (replicates, fewest))
    error = f"{100 * spread:.1f}"
    if fewest < replicates:
        error += f" (of {fewest:,}: {100 * widest:.1f})"
    parts = [
        "# When is the value reliable?\n",
        f"Simulated logs of {len(there)} worlds with known true values, at "
        f"{listed(study.sizes)} episodes, up to {replicates:,} logs each: how often a 95 % "
        "interval covers the true value, how good the verdicts are, and which faults the "
        "gates detect. With that many logs a coverage of 95 % has a Monte-Carlo error of "
        f"{error} percentage points. `make study` runs it all again; [what is in the "
        "tables](#the-tables). How much an estimate should remember has [a study of its "
        "own](memory.md).\n",
    ]
    missing = _missing(study)
    if missing:
        parts.append(f"**Not finished:** {'; '.join(missing)}.\n")
    parts += [f"{remark}\n" for remark in study.remarks]
    parts += ["## What the study is held to\n", _goals(held), SCOPE]
    parts += ["## Which estimator, which interval\n", _intervals(study)]
    parts += ["## What a verdict is worth\n", _verdicts(study), "![](green.svg)\n"]
    parts += ["## Which faults are noticed\n", faults(study)]
    parts += ["## Right propensities in sparse logs\n", sparse(study)]
    parts += ["## The best of many\n", _best(study)]
    parts += ["## What no test here can see\n", UNSEEN]
    parts += ["## The worlds\n", _worlds(study)]
    parts += ["## The tables\n", TABLES]
    return "\n".join(parts)


def _missing(study: Study) -> list[str]:
    """What the parts of the study still lack, each as a phrase."""
    words = {
        "coverage": "worlds and sizes",
        "jackknife": "worlds and sizes with the jackknife of estimators other than MIS",
        "bootstrap": "worlds and sizes with bootstraps",
        "faults": "worlds and sizes with faults",
        "best": "sizes of the best of many",
    }
    found = []
    for name, cells in cells_of().items():
        counts = study.logs(name)
        whole = sum(count >= PARTS[name] for count in counts.values())
        if whole < len(cells):
            line = f"{whole:,} of {len(cells):,} {words[name]} have {PARTS[name]:,} logs"
            if whole < len(counts):
                line += f", {len(counts) - whole:,} fewer (at least {min(counts.values()):,})"
            if len(counts) < len(cells):
                line += f", {len(cells) - len(counts):,} none"
            found.append(line)
    return found


def _goals(held: Sequence[Goal]) -> str:
    text = table(
        ("goal", "found", "met"),
        ((goal.text, goal.found, "yes" if goal.met else "**no**") for goal in held),
    )
    text += (
        f"\nA goal is missed where coverage is outside by more than {ERRORS} Monte-Carlo "
        "errors (of a share exactly at the limit), in cells (a world at a size, by one "
        "estimator) with at least 50 replicates of the color. Of cells exactly at a limit "
        "one in 44 is missed by chance.\n"
    )
    for goal in held:
        if goal.misses:
            text += f"\nMissed: *{goal.text}*\n\n"
            text += "".join(f"- {miss}\n" for miss in goal.misses[:MOST_MISSES])
            left = len(goal.misses) - MOST_MISSES
            text += f"- … and {left} more (`coverage.csv`)\n" if left > 0 else ""
    return text


def _summary(rows: Sequence[Row]) -> str:
    """The median coverage over worlds, and in how many it is within the band. A world in which the
    estimator always refuses has no coverage."""
    rows = [row for row in rows if row["coverage"] is not None]
    if not rows:
        return ""
    inside = [row for row in rows if within(row["coverage"], row["replicates"], LOW, HIGH)]
    return f"{percent(median(row['coverage'] for row in rows))} ({len(inside)}/{len(rows)})"


def _by(rows: list[Row], key: str, label: str, columns: Mapping[str, dict[str, Any]]) -> str:
    """A line for every value of `key`, a column for every choice of rows."""
    named = dict.fromkeys(row[key] for row in rows)
    return table(
        (label, *columns),
        (
            (
                f"`{name}`",
                *(_summary(pick(rows, **{key: name}, **some)) for some in columns.values()),
            )
            for name in named
        ),
    )


def _by_size(study: Study, rows: list[Row], key: str, label: str) -> str:
    return _by(rows, key, label, {f"n = {n:,}": {"n": n} for n in study.sizes})


def _by_method(rows: list[Row]) -> str:
    """Estimators and methods, at the largest size that has all of them."""
    drawn = pick(rows, method=BOOTSTRAPS[0]) or rows
    n = max((row["n"] for row in drawn), default=0)
    methods = dict.fromkeys(row["method"] for row in pick(rows, n=n, estimator=MAIN))
    return _by(
        [row for row in pick(rows, n=n) if row["method"] in methods],
        "estimator",
        f"n = {n:,}",
        {f"`{method}`": {"method": method} for method in methods},
    )


def _intervals(study: Study) -> str:
    well = pick(study.coverage, group="well")
    parts = [
        "Median coverage over the well-overlapped worlds, and in how many of them it is "
        f"within {LOW:.0%} to {HIGH:.0%} (give or take {ERRORS} Monte-Carlo errors), any "
        f"verdict; the default interval (`{DEFAULT}`). `behavior` uses the plain mean of the "
        "logged returns as an estimate of the target's value:\n",
        _by_size(study, pick(well, method=DEFAULT), "estimator", "estimator"),
        "![](coverage.svg)\n",
        f"The methods, for `{MAIN}` and for `wis`, and at one size for all estimators (bootstraps "
        "were run in ten of the worlds, of which fewer are well-overlapped):\n",
        _by_size(study, pick(well, estimator=MAIN), "method", f"{MAIN}, method"),
        _by_size(study, pick(well, estimator="wis"), "method", "wis, method"),
        _by_method(well),
        f"Mean reported error over the actual spread of the estimates (`{DEFAULT}`; 1 is "
        "right), median over the well-overlapped worlds:\n",
        _errors(study, pick(well, method=DEFAULT)),
        "By kind of world, the default estimator and interval, any verdict:\n",
        _by_size(study, pick(study.usual, estimator=MAIN), "group", "kind"),
        "".join(f"- `{group}`: {text}\n" for group, text in GROUPS.items()),
    ]
    return "\n".join(parts)


def _errors(study: Study, rows: list[Row]) -> str:
    def ratio(name: str, n: int) -> str:
        found = [row["se_over_sd"] for row in pick(rows, estimator=name, n=n)]
        known = [value for value in found if value is not None]
        return f"{median(known):.2f}" if known else ""

    named = dict.fromkeys(row["estimator"] for row in rows)
    return table(
        ("estimator", *(f"n = {n:,}" for n in study.sizes)),
        ((f"`{name}`", *(ratio(name, n) for n in study.sizes)) for name in named),
    )


def _pooled(rows: Sequence[Row], color: str) -> str:
    """Coverage over all replicates of a color, and the worst cell with enough of them."""
    many = sum(row[f"{color}_replicates"] or 0 for row in rows)
    if not many:
        return "none"
    hits = sum((row[f"{color}_replicates"] or 0) * (row[f"coverage_{color}"] or 0) for row in rows)
    return f"{percent(hits / many)} of {many:,}"


def _verdicts(study: Study) -> str:
    named = [
        name
        for name in dict.fromkeys(r["estimator"] for r in study.usual)
        if name in _judged(study)
    ]

    def share(rows: Sequence[Row], what: str) -> str:
        known = [row[what] for row in rows if row[what] is not None]
        return percent(sum(known) / len(known), 0) if known else ""

    rows = []
    for name in named:
        mine = pick(study.usual, estimator=name)
        shares = (share(mine, what) for what in ("green", "amber", "red", "refused"))
        rows.append((f"`{name}`", *shares, _pooled(mine, "green"), _pooled(mine, "amber")))
    head = ("estimator", "green", "amber", "red", "refused", "coverage, green", "coverage, amber")
    limits = "; ".join(f"{name}: {limit}" for name, limit in study.limits.items())
    changed = "; ".join(
        f"*{name}* ({before}; now {now})" for name, (before, now) in study.changed_limits.items()
    )
    newer = ", ".join(dict.fromkeys(f"*{n.partition(',')[0]}*" for n in study.newer_gates))
    return (
        "Over all worlds and sizes, and coverage of the default interval within a color:\n\n"
        + table(head, rows)
        + (
            f"\nThe limits of these verdicts: {limits}. "
            + (f"Changed since: {changed}. " if changed else "")
            + (
                f"Newer than these verdicts, with their faults in the tests: {newer}; how verdicts "
                "fare with them is in [the study of verdicts](verdicts.md) and, on features, in "
                "[that of continuous states](continuous.md). "
                if newer
                else ""
            )
            + "`bins.csv` has the coverage by the value of "
            "every gate, for the worlds used to set limits and for the others. Two limits do "
            "not come from the setting half: a checking world without overlap had amber "
            "results, so the placebo got a red limit (a round number that was not tuned; "
            "outside of this study red also needs a placebo that is off by "
            f"{percent(MATERIAL, 0)} of its known value), and a checking world with a rare "
            "action showed that a model needs an effective size too (the limit of mis). Such "
            "a world also showed that `mdr` needs a gate of unseen actions, whose limits "
            "come from the setting half. Because of these three the checking half is not "
            "entirely independent.\n"
        )
    )


def _judged(study: Study) -> set[str]:
    return {row["estimator"] for row in study.usual if row["green"] is not None}


def _best(study: Study) -> str:
    if not study.best:
        return "Not run yet.\n"
    words = {
        "plain": "its own 95 % interval, as if it were the only one",
        "corrected": "the simultaneous interval of `rw.compare`",
        "held out": "chosen on half of the episodes, interval from the other half",
    }
    rows = [
        (words[row["interval"]], f"{row['n']:,}",
         f"{percent(row['coverage'])} ± {percent(row['mc_error'])}", f"{row['mean_width']:.3f}")
        for row in study.best
    ]  # fmt: skip
    return (
        "Fifty policies with exactly the same value, on one log; the one with the highest "
        "estimate is reported:\n\n" + table(("interval", "n", "coverage", "mean width"), rows)
    )


def _worlds(study: Study) -> str:
    largest = study.sizes[-1]
    rows = []
    for world in study.worlds:
        mine = pick(study.usual, world=world["world"])
        if not mine:
            continue
        green = {row["n"]: row["green"] for row in pick(mine, estimator=MAIN)}
        shares = [percent(green.get(n), 0) for n in study.sizes]
        logged = pick(mine, estimator="behavior", n=largest)
        plain = percent(logged[0]["coverage"], 0) if logged else ""
        rows.append(
            (world["world"], world["group"], world["half"], f"{world['v_target']:.3f}",
             f"{world['v_behavior']:.3f}", *shares, plain)
        )  # fmt: skip
    head = ("world", "kind", "half", "v_π", "v_μ", *(f"green, n = {n:,}" for n in study.sizes),
            f"logged mean covers v_π, n = {largest:,}")  # fmt: skip
    return (
        "v_π is the target's value, v_μ the behavior's; green is the share of green verdicts "
        f"on `{MAIN}`. If v_π and v_μ are close, even the plain mean of the logged returns "
        "covers v_π, so half of the random worlds have a target that is clearly better.\n\n"
        + table(head, rows)
    )


TABLES = """\
- [`coverage.csv`](coverage.csv): by world, n, estimator and interval: coverage with its Monte-Carlo
  error, on which side the truth was missed, mean width, mean reported error over the spread of the
  estimates, bias over the spread, refusals, shares of the verdicts, coverage within green and amber
- [`gates.csv`](gates.csv): by gate, fault, world, n and estimator: how often amber and red; of
  estimators other than `mis`, `dm` and `wis` the verdict, and the gates that these three lack
- [`sparse.csv`](sparse.csv): by setting and fault: how often the gate *propensities* is red in logs
  with few rows per step and state
- [`best_of_many.csv`](best_of_many.csv): the best of 50 equal policies
- [`bins.csv`](bins.csv): coverage of the default interval by the value of each gate
- [`worlds.csv`](worlds.csv): the worlds with all their parameters
- [`study.json`](study.json): the seed and the limits, common to all rows

`studies/scripts/trust.py` makes tables, charts and this page from the cells in `build/study`; its
options run a part or a small version of the study.
"""
