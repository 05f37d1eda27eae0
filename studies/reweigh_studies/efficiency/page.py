"""The page of the study of efficiency: every number on it follows from the table beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.system.files import parse_object
from reweigh_studies.by_world.page import ENOUGH as ENOUGH_LOGS
from reweigh_studies.by_world.page import NOTHING, covers, goals_table, not_run
from reweigh_studies.by_world.study import HALVES
from reweigh_studies.coverage.goals import ERRORS, HIGH, LOW, Goal, pick, read_csv
from reweigh_studies.coverage.markdown import listed, percent, table
from reweigh_studies.coverage.measures import BEHAVIOR
from reweigh_studies.coverage.tables import Row
from reweigh_studies.efficiency.cells import AUTO, CONTENDERS, STANDARD
from reweigh_studies.efficiency.study import EFFICIENCY
from reweigh_studies.efficiency.worlds import KINDS, SIZES, WORLDS, half_of

TABLE, ABOUT = "efficiency.csv", "efficiency.json"
OF_BEST, NINE_OF_TEN, OF_BOUND, MOST_BIAS = 1.10, 1.30, 1.05, 0.5
RULED = (AUTO, "mdr-loo", "mis-hajek", "mis")  # whose coverage has a table


@dataclass(frozen=True)
class EfficiencyStudy:
    """The table, read back. `about` has the seed, the rule and the limits of the gates."""

    rows: list[Row]
    about: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> EfficiencyStudy:
        about = parse_object((folder / ABOUT).read_bytes(), f"{str(folder / ABOUT)!r}")
        return cls(read_csv(folder / TABLE), about)

    @property
    def cells(self) -> list[Row]:
        """One row of every cell: that of `auto`."""
        return pick(self.rows, estimator=AUTO)

    @property
    def sizes(self) -> list[int]:
        return sorted({row["n"] for row in self.cells})

    def of(self, cell: Row, name: str) -> Row:
        [row] = pick(self.rows, world=cell["world"], n=cell["n"], estimator=name)
        return row


def page(study: EfficiencyStudy) -> str:
    logs = [row["replicates"] for row in study.cells]
    count = f"{min(logs):,}" if min(logs) == max(logs) else f"{min(logs):,} to {max(logs):,}"
    worlds = len({row["world"] for row in study.cells})
    parts = [
        "# How close to the least possible error?\n",
        "What `reweigh evaluate` does by default (`auto`), against "
        f"eight estimators and the plain mean of the logged returns, in {worlds} simulated worlds "
        f"with known true values, at {listed(study.sizes)} episodes, {count} logs each.\n",
        "`make study-efficiency` runs it again and goes on where it was ended.\n",
        *(f"{remark}\n" for remark in study.about["remarks"]),
        not_run(EFFICIENCY, study.cells),
        "## What the study is held to\n",
        goals_table(goals(study), "Ratios of errors are judged as they are. "),
        "## The rule\n",
        RULE.format(**study.about["rule"]),
        "## In short\n",
        "Geometric means over the cells of each half: the root mean squared error over that of the "
        "best of the eight estimators in the cell (of those that answer in at least 95 % of its "
        "logs), and over the Cramér–Rao bound, where theory has it. An estimator that refuses is "
        "judged by the logs in which it answers.\n",
        _short(study),
        "## By kind of world\n",
        "The same ratio to the best, of each kind of world, both halves together.\n",
        _kinds(study),
        "## Root mean squared errors\n",
        "Relative to the best of the eight. `auto` can be below 1, because it chooses log by log. "
        "The last columns are the error of `auto` over the bound, and what it chose.\n",
        *(_errors(study, n) for n in study.sizes),
        "## Bias, coverage and verdicts\n",
        f"Of `{'`, `'.join(RULED)}`: bias in standard deviations of the estimate; coverage of the "
        "default 95 % interval, whatever the verdict; the share of green verdicts, with the gates "
        f"of the time ({', '.join(study.about['gates'])}); and coverage in the green ones, where "
        f"there are at least {ENOUGH_LOGS}.\n",
        *(_colors(study, n) for n in study.sizes),
        "## The worlds\n",
        _worlds(study),
        "## The table\n",
        TABLES,
    ]
    return "\n".join(parts)


RULE = """\
`auto` takes `wis` where more than {rare:.0%} of the target's mass is on (step, state) pairs seen
fewer than 10 times and running products keep {enough:g} effective episodes; else the memory that
`mis(memory="auto")` takes, if a memory of 0 differs from it with p ≤ {contradicted:g}; and without
one `mdr-loo` where none of its gates {gates} is red, otherwise `mis-hajek`
([the rule in words](../choosing.md#estimatorauto)). It was set on the setting half alone, at
n = 200 and 1,000, and was in `evaluation/auto.py` before the reporting half was run.
"""
TABLES = """\
- [`efficiency.csv`](efficiency.csv): by world, n and estimator: root mean squared error, the same
  relative to the best, to `mis` and to the Cramér–Rao bound, bias, how often `auto` chose it (of
  `auto`: another memory), coverage, verdicts, coverage when green, CPU seconds of a log
- [`efficiency.json`](efficiency.json): the seed, the rule and the limits of the gates
"""


# ---- goals -------------------------------------------------------------------------------------


def mean_ratio(rows: Iterable[Row], what: str) -> float | None:
    """The geometric mean; None of nothing."""
    logs = [math.log(row[what]) for row in rows if row[what]]
    return math.exp(sum(logs) / len(logs)) if logs else None


def goals(study: EfficiencyStudy) -> list[Goal]:
    """Those of the default, for the worlds on which its rule was set and for the others."""
    found = []
    for half in HALVES:
        cells = pick(study.cells, half=half)
        found += [
            _mean(cells, half),
            _nine_of_ten(cells, half),
            _bound(pick(cells, n=SIZES[-1]), half),
            covers(
                cells, LOW, HIGH, f"if `auto` is green, {LOW:.0%} to {HIGH:.0%} of its intervals "
                f"cover ({half} worlds)",
            ),
            _unbiased(cells, half),
        ]  # fmt: skip
    return found


def _mean(cells: Sequence[Row], half: str) -> Goal:
    text = (
        f"the error of `auto` is at most {OF_BEST:.2f} times that of the best, in geometric mean "
        f"({half} worlds)"
    )
    value = mean_ratio(cells, "relative")
    if value is None:
        return Goal(text, NOTHING, False)
    return Goal(text, f"{value:.3f} in {len(cells)} cells", value <= OF_BEST)


def _nine_of_ten(cells: Sequence[Row], half: str) -> Goal:
    text = f"it is at most {NINE_OF_TEN} in nine of ten cells ({half} worlds)"
    known = [row for row in cells if row["relative"] is not None]
    over = [row for row in known if row["relative"] > NINE_OF_TEN]
    if not known:
        return Goal(text, NOTHING, False)
    return Goal(
        text,
        f"{len(known) - len(over)} of {len(known)}",
        10 * len(over) <= len(known),
        tuple(
            f"{row['world']}, n = {row['n']:,}: {row['relative']:.2f} ± {row['mc_relative']:.2f}"
            for row in sorted(over, key=lambda row: -row["relative"])
        ),
    )


def _bound(cells: Sequence[Row], half: str) -> Goal:
    text = f"at n = {SIZES[-1]:,} it is within 5 % of Cramér–Rao, in the median ({half} worlds)"
    known = [row["of_bound"] for row in cells if row["of_bound"]]
    if not known:
        return Goal(text, NOTHING, False)
    middle = float(np.median(known))
    return Goal(text, f"{middle:.3f} in {len(known)} cells", middle <= OF_BOUND)


def _unbiased(cells: Sequence[Row], half: str) -> Goal:
    text = (
        f"no cell that is mostly green has a bias of more than {MOST_BIAS} standard deviations "
        f"({half} worlds)"
    )
    green = [row for row in cells if row["green"] >= 0.5 and row["bias_over_sd"] is not None]
    if not green:
        return Goal(text, NOTHING, False)
    over = [row for row in green if abs(row["bias_over_sd"]) > MOST_BIAS]
    return Goal(
        text,
        f"{len(green) - len(over)} of {len(green)} cells",
        not any(
            abs(row["bias_over_sd"]) - ERRORS * row["mc_bias_over_sd"] > MOST_BIAS for row in over
        ),
        tuple(
            f"{row['world']}, n = {row['n']:,}: {row['bias_over_sd']:+.2f} ± "
            f"{row['mc_bias_over_sd']:.2f}"
            for row in over
        ),
    )


# ---- tables ------------------------------------------------------------------------------------


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _short(study: EfficiencyStudy) -> str:
    rows = []
    for name in CONTENDERS:
        row: list[object] = ["the logged mean" if name == BEHAVIOR else f"`{name}`"]
        for what in ("relative", "of_bound"):
            for half in HALVES:
                for n in study.sizes:
                    some = pick(study.rows, estimator=name, half=half, n=n)
                    row.append(_ratio(mean_ratio(some, what)))
        rows.append(row)
    head = ["estimator"]
    for what in ("best", "bound"):
        head += [f"of {what}, {half}, n = {n:,}" for half in HALVES for n in study.sizes]
    return table(head, rows)


def _kinds(study: EfficiencyStudy) -> str:
    rows = []
    for kind in KINDS:
        for n in study.sizes:
            some = pick(study.rows, group=kind, n=n)
            ratios = (_ratio(mean_ratio(pick(some, estimator=e), "relative")) for e in CONTENDERS)
            rows.append((kind, f"{n:,}", *ratios))
    return table(("kind", "n", *(f"`{name}`" for name in CONTENDERS)), rows)


def _errors(study: EfficiencyStudy, n: int) -> str:
    rows = []
    for cell in pick(study.cells, n=n):
        ratios = (_ratio(study.of(cell, name)["relative"]) for name in CONTENDERS)
        chosen = {name: study.of(cell, name)["chosen"] for name in (*STANDARD, AUTO)}
        chosen["another memory"] = chosen.pop(AUTO)
        taken = ", ".join(
            f"{name} {percent(share, 0)}"
            for name, share in sorted(chosen.items(), key=lambda pair: -(pair[1] or 0))
            if share
        )
        rows.append(
            (cell["world"], cell["half"], cell["replicates"], *ratios, _ratio(cell["of_bound"]),
             taken)
        )  # fmt: skip
    head = ("world", "half", "logs", *(f"`{name}`" for name in CONTENDERS), "of the bound",
            "`auto` chose")  # fmt: skip
    return f"n = {n:,}\n\n{table(head, rows)}"


def _colors(study: EfficiencyStudy, n: int) -> str:
    rows = []
    for cell in pick(study.cells, n=n):
        of = [study.of(cell, name) for name in RULED]
        row = [cell["world"], cell["half"]]
        row += ["" if one["bias_over_sd"] is None else f"{one['bias_over_sd']:+.2f}" for one in of]
        row += [percent(one["coverage"], 0) for one in of]
        row += [percent(one["green"], 0) for one in of]
        for one in of:
            many = one["green_replicates"] >= ENOUGH_LOGS
            row.append(
                f"{percent(one['coverage_green'], 0)} ± {percent(one['mc_green'], 0)}"
                if many
                else ""
            )
        rows.append(row)
    head = ["world", "half"]
    for what in ("bias/sd", "covers", "green", "covers if green"):
        head += [f"{what}, `{name}`" for name in RULED]
    return f"n = {n:,}\n\n{table(head, rows)}"


def _worlds(study: EfficiencyStudy) -> str:
    values = {row["world"]: row for row in study.cells}
    rows = []
    for name, world in WORLDS.items():
        row = values.get(name)
        named = (name, world.group, half_of(name))
        rows.append(
            (*named, "", "not run", "")
            if row is None
            else (*named, row["horizon"], f"{row['v_target']:.4g}", f"{row['v_behavior']:.4g}")
        )
    kinds = "".join(f"- {kind}: {text}\n" for kind, text in KINDS.items())
    return (
        "Within a kind, worlds belong to the half on which the rule was set and to the one that is "
        "reported by turns, in the order of this list, which was written before any result.\n\n"
        + table(("world", "kind", "half", "H", "v_π", "v_μ"), rows)
        + f"\n{kinds}"
    )
