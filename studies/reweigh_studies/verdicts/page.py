"""The page of the study of verdicts: every number on it follows from the tables beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh.system.files import parse_object
from reweigh_studies.by_world.page import ENOUGH, NOTHING, covers, goals_table, not_run
from reweigh_studies.by_world.study import HALVES
from reweigh_studies.coverage.goals import Goal, pick, read_csv
from reweigh_studies.coverage.markdown import listed, percent, table
from reweigh_studies.coverage.measures import LEVELS
from reweigh_studies.coverage.tables import Row
from reweigh_studies.verdicts.cells import ESTIMATORS
from reweigh_studies.verdicts.study import VERDICTS
from reweigh_studies.verdicts.worlds import CLEAN, KINDS, WORLDS, half_of

NAME = "verdicts"
TABLE, GATE_TABLE, ABOUT = f"{NAME}.csv", f"{NAME}_gates.csv", f"{NAME}.json"
MAIN = "mis"
LEAST, LEAST_GREEN = 0.90, 0.70
WHY = {  # what no test can see, as in docs/concepts/what-no-test-can-see.md
    "unseeable": "a hidden cause: the log agrees with its propensities in every state",
    "undeclared event": "an event that the log has not seen, or once, and no declared range of "
    "rewards; in the worlds named as unseen events it is declared",
    "sites": "what episodes of a site share is in no column; in the worlds named as sites, named "
    "it is",
}
UNSEEABLE = tuple(WHY)
WHY_SPLIT = (
    "`mdr` fits Q on one half and takes its error from the other; an event in the first half alone "
    "widens no error: `mdr-loo` uses every row for both"
)
WHY_RARE = (
    "the log never took the action that is worth more than all rewards in it, in a state of a few "
    "rows; with `reward_range` declared, rare actions reckon with its worth"
)
OFTEN = 0.05  # of the logs: a gate that fires less often is not listed


@dataclass(frozen=True)
class VerdictStudy:
    """The tables, read back."""

    rows: list[Row]
    gates: list[Row]
    about: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> VerdictStudy:
        return cls(
            read_csv(folder / TABLE),
            read_csv(folder / GATE_TABLE),
            parse_object((folder / ABOUT).read_bytes(), f"{str(folder / ABOUT)!r}"),
        )

    @property
    def cells(self) -> list[Row]:
        """One row of every cell."""
        return pick(self.rows, estimator=MAIN)

    @property
    def sizes(self) -> list[int]:
        return sorted({row["n"] for row in self.cells})


def page(study: VerdictStudy) -> str:
    logs = [row["replicates"] for row in study.cells]
    count = f"{min(logs):,}" if min(logs) == max(logs) else f"{min(logs):,} to {max(logs):,}"
    worlds = len({row["world"] for row in study.cells})
    parts = [
        "# Are green verdicts right, and right ones green?\n",
        f"Verdicts of {listed_names(ESTIMATORS)} in {worlds} simulated worlds that are hard on the "
        f"gates, at {listed(study.sizes)} episodes, {count} logs each. The true value is known: "
        "exactly where tables describe the world, else from 400,000 simulated episodes. Intervals "
        "are the default ones, of 95 %.\n",
        "`make study-verdicts` runs it again and goes on where it was ended.\n",
        *(f"{remark}\n" for remark in study.about["remarks"]),
        not_run(VERDICTS, study.cells),
        "## What the study is held to\n",
        goals_table(goals(study), ""),
        "## What remains green and wrong\n",
        _remaining(study),
        "## Verdicts by world\n",
        "Shares of the logs that are green, amber and red (the rest was refused), and how many of "
        f"the green and the amber intervals cover, where there are at least {ENOUGH}.\n",
        *(_colors(study, name) for name in ESTIMATORS),
        "## Which gates fired\n",
        f"The gates of `{MAIN}` that were amber or red in at least {OFTEN:.0%} of the logs, and in "
        "brackets in how many of them nothing else was.\n",
        _fired(study),
        "## The worlds\n",
        _worlds(study),
        "## The tables\n",
        TABLES,
    ]
    return "\n".join(parts)


TABLES = f"""\
- [`{TABLE}`]({TABLE}): by world, n and estimator: bias, spread and median standard error, coverage,
  shares of the verdicts and coverage in each, CPU seconds of a log
- [`{GATE_TABLE}`]({GATE_TABLE}): by world, n, estimator and gate: how often it was amber, red, and
  the only reason
- [`{ABOUT}`]({ABOUT}): the seed and the limits of the gates
"""


def listed_names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def goals(study: VerdictStudy) -> list[Goal]:
    """Those of the issue, for the worlds on which limits were set and for the others."""
    found = []
    kinds = tuple(kind for kind in KINDS if kind not in UNSEEABLE)
    for half in HALVES:
        rows = pick(study.rows, half=half, group=kinds)
        for color in LEVELS[:2]:
            text = f"no {color} intervals cover less than {LEAST:.0%} ({half} worlds)"
            found.append(covers(rows, LEAST, 1.0, text, color))
        found.append(_green(pick(study.rows, half=half, group=CLEAN, estimator=MAIN), half))
        found.append(_not_stricter(pick(study.rows, half=half, group=CLEAN), half))
    rows = pick(study.rows, group=UNSEEABLE)
    text = f"the same of green ones, where no test can see the fault ({', '.join(UNSEEABLE)})"
    return [*found, covers(rows, LEAST, 1.0, text)]


def _green(rows: list[Row], half: str) -> Goal:
    """Of clean cells at the largest size, the share of which most logs are green."""
    largest = pick(rows, n=max(VERDICTS.sizes))
    text = (
        f"at least {LEAST_GREEN:.0%} of the clean cells at n = {max(VERDICTS.sizes):,} are green "
        f"in most logs (`{MAIN}`, {half} worlds)"
    )
    if not largest:
        return Goal(text, NOTHING, False)
    most = [row for row in largest if row["green"] > 0.5]
    less = [row for row in largest if row["green"] <= 0.5]
    return Goal(
        text,
        f"{len(most)} of {len(largest)} cells",
        len(most) >= LEAST_GREEN * len(largest),
        tuple(f"{row['world']}: {percent(row['green'], 0)} green" for row in less),
    )


def _not_stricter(rows: list[Row], half: str) -> Goal:
    """Between one size and the next, green does not fall by more than chance."""
    text = f"in clean worlds no verdict is green less often with more episodes ({half} worlds)"
    fallen, pairs = [], 0
    for row in rows:
        for larger in pick(rows, world=row["world"], estimator=row["estimator"]):
            if larger["n"] <= row["n"]:
                continue
            pairs += 1
            p, q = row["green"], larger["green"]
            error = (p * (1 - p) / row["replicates"] + q * (1 - q) / larger["replicates"]) ** 0.5
            if p - q > 2 * error + 0.02:
                fallen.append(
                    f"{row['world']}, {row['estimator']}: {percent(p, 0)} at n = {row['n']:,}, "
                    f"{percent(q, 0)} at n = {larger['n']:,}"
                )
    found = f"{pairs - len(fallen)} of {pairs} pairs of sizes" if pairs else NOTHING
    return Goal(text, found, bool(pairs) and not fallen, tuple(fallen))


def _remaining(study: VerdictStudy) -> str:
    """The cells whose green intervals cover less than they should, with the reason."""
    rows = []
    for row in study.rows:
        many, covered = row["green_replicates"], row["coverage_green"]
        if many >= ENOUGH and covered < LEAST - 2 * math.sqrt(LEAST * (1 - LEAST) / many):
            name, kind = row["estimator"], row["group"]
            why = WHY.get(kind, "not known")
            if kind == "rare emergency":
                why = WHY_RARE
            elif name == "mdr" and kind not in WHY:
                why = WHY_SPLIT
            rows.append((row["world"], row["half"], f"{row['n']:,}", f"`{name}`",
                         _coverage(row, "green"), why))  # fmt: skip
    if not rows:
        return "Nothing, beyond Monte-Carlo error.\n"
    head = ("world", "half", "n", "estimator", "green ones cover", "why")
    return table(head, rows)


def _colors(study: VerdictStudy, name: str) -> str:
    rows = []
    for world in WORLDS:
        for row in pick(study.rows, world=world, estimator=name):
            shares = " / ".join(f"{100 * row[color]:.0f}" for color in LEVELS)
            rows.append(
                (world, row["half"], f"{row['n']:,}", row["replicates"], shares,
                 *(_coverage(row, color) for color in LEVELS[:2]))
            )  # fmt: skip
    head = ("world", "half", "n", "logs", "green / amber / red, %", "green ones cover",
            "amber ones cover")  # fmt: skip
    return f"### `{name}`\n\n{table(head, rows)}"


def _coverage(row: Row, color: str) -> str:
    many = row[f"{color}_replicates"]
    if many < ENOUGH:
        return ""
    return f"{percent(row[f'coverage_{color}'], 0)} ± {percent(row[f'mc_{color}'], 0)} of {many}"


def _fired(study: VerdictStudy) -> str:
    def value_text(world: str, n: int) -> str:
        rows = pick(study.gates, world=world, n=n, estimator=MAIN)
        often = [row for row in rows if row["amber"] + row["red"] >= OFTEN]
        often.sort(key=lambda row: -row["amber"] - row["red"])
        return ", ".join(
            f"{row['gate']} {100 * (row['amber'] + row['red']):.0f} ({100 * row['alone']:.0f})"
            for row in often
        )

    worlds = [name for name in WORLDS if pick(study.cells, world=name)]
    return table(
        ("world", *(f"n = {n:,}, %" for n in study.sizes)),
        ((world, *(value_text(world, n) for n in study.sizes)) for world in worlds),
    )


def _worlds(study: VerdictStudy) -> str:
    values = {row["world"]: (row["horizon"], row["v_target"]) for row in study.cells}
    rows = []
    for name, world in WORLDS.items():
        horizon, value = values.get(name, ("", None))
        text = "not run" if value is None else f"{value:.4g}"
        rows.append((name, world.group, half_of(name), horizon, text))
    kinds = "".join(f"- {kind}: {text}\n" for kind, text in KINDS.items())
    return (
        "Within a kind, worlds belong to the half on which limits were set and to the one that is "
        "reported by turns, in the order of this list.\n\n"
        + table(("world", "kind", "half", "H", "v_π"), rows)
        + f"\n{kinds}"
    )
