"""The page of the study of memory: every number on it follows from the tables beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh.system.files import parse_object
from reweigh_studies.by_world.page import ENOUGH as ENOUGH_LOGS
from reweigh_studies.by_world.page import NOTHING, covers, goals_table, not_run
from reweigh_studies.by_world.study import HALVES
from reweigh_studies.coverage.goals import ERRORS, HIGH, LOW, Goal, pick, read_csv
from reweigh_studies.coverage.markdown import listed, percent, table
from reweigh_studies.coverage.tables import Row
from reweigh_studies.memory.cells import MIS, WIS, name_of
from reweigh_studies.memory.rule import CLOSE, ENOUGH, OF_BEST, OF_MIS, TIED, Tried, taken_of
from reweigh_studies.memory.study import MEMORY
from reweigh_studies.memory.tables import AUTO
from reweigh_studies.memory.worlds import KINDS, MARKOV, WORLDS, half_of

TABLE, RULE_TABLE, ABOUT, PAGE = "memory.csv", "memory_rule.csv", "memory.json", "memory.md"
JUDGED = (MIS, name_of(0), AUTO, WIS)
LEAST_GREEN = 0.90
WHY_THIS_SIZE = (
    "it was not set on the setting half, where 20 to 50 do about as well. With 20, some Markov "
    "logs with heavy weights, of worlds outside of this study, look as if they were not Markov; "
    "with 50, a log of 200 episodes bears only short memories. The second was seen first in a "
    "world of the reporting half (delayed-4), so that its numbers at n = 200 are better than "
    "those of a world never looked at."
)
MOST_COLUMNS = 17  # a longer memory has a column only as the whole episode


@dataclass(frozen=True)
class MemoryStudy:
    """The tables, read back. `about` has the seed, the limits of the rule and those of the gates
    in force."""

    rows: list[Row]
    pairs: list[Tried]
    about: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> MemoryStudy:
        return cls(
            read_csv(folder / TABLE),
            [Tried(**row) for row in read_csv(folder / RULE_TABLE)],
            parse_object((folder / ABOUT).read_bytes(), f"{str(folder / ABOUT)!r}"),
        )

    @property
    def cells(self) -> list[Row]:
        """One row of every cell: that of the choice."""
        return pick(self.rows, estimator=AUTO)

    @property
    def sizes(self) -> list[int]:
        return sorted({row["n"] for row in self.cells})

    def of(self, cell: Row, **wanted: Any) -> list[Row]:
        return pick(self.rows, world=cell["world"], n=cell["n"], **wanted)


def page(study: MemoryStudy) -> str:
    rule = study.about["rule"]
    logs = [row["replicates"] for row in study.cells]
    count = f"{min(logs):,}" if min(logs) == max(logs) else f"{min(logs):,} to {max(logs):,}"
    worlds = len({row["world"] for row in study.cells})
    parts = [
        "# How much should an estimate remember?\n",
        f'`mis(memory=k)` multiplies the ratios of the last k steps, and `memory="auto"` chooses '
        f"k. Here it is measured in {worlds} simulated worlds with known true values, at "
        f"{listed(study.sizes)} episodes, {count} logs each. Most of these worlds show less than "
        "their state. Of the memories that leave at least "
        f"{rule['least']:g} effective episodes, the shortest is taken that differs from no longer "
        f"one beyond chance (p ≤ {rule['alike']:g}).\n",
        "`make study-memory` runs it again and goes on where it was ended.\n",
        *(f"{remark}\n" for remark in study.about["remarks"]),
        not_run(MEMORY, study.cells),
        "## What the study is held to\n",
        goals_table(
            goals(study), "An error meets its goal only where it is within the limit itself. "
        ),
        "## How the two limits were set\n",
        _rule(study),
        "## Root mean squared errors\n",
        "Of each estimator, relative to the best fixed memory of that world and size (± is a "
        "Monte-Carlo error). The best is the best in these very logs, so `auto` can at most tie "
        "with it.\n",
        *(_errors(study, n) for n in study.sizes),
        "## Coverage and verdicts\n",
        "Coverage of the default 95 % interval, whatever the verdict; the share of green verdicts, "
        f"with the gates of the time ({', '.join(study.about['gates'])}); and coverage in the "
        f"green ones, where there are at least {ENOUGH_LOGS}.\n",
        *(_colors(study, n) for n in study.sizes),
        "## Which memory was chosen\n",
        _chosen(study),
        "## The worlds\n",
        _worlds(study),
        "## The tables\n",
        TABLES,
    ]
    return "\n".join(parts)


TABLES = """\
- [`memory.csv`](memory.csv): by world, n and estimator (every memory, `auto`, `mis`, `wis`): root
  mean squared error, bias, the error relative to the best fixed memory and to `mis`, how often the
  memory was chosen, coverage, shares of the verdicts, coverage when green, CPU seconds of a log
- [`memory_rule.csv`](memory_rule.csv): all pairs of limits on the setting half
- [`memory.json`](memory.json): the seed, the limits of the rule and those of the gates
"""


# ---- goals -------------------------------------------------------------------------------------


def goals(study: MemoryStudy) -> list[Goal]:
    """Those of the issue, for the worlds on which limits were set and for the others."""
    found = []
    for half in HALVES:
        cells = pick(study.cells, half=half)
        found += [
            _at_most(
                cells, "relative", OF_BEST, f"the error of `auto` is at most {OF_BEST} times that "
                f"of the best fixed memory ({half} worlds)",
            ),
            _at_most(
                pick(cells, group=MARKOV), "of_mis", OF_MIS, "where the state is Markov, it is at "
                f"most {OF_MIS} times that of `mis` ({half} worlds)",
            ),
            covers(
                cells, LOW, HIGH, f"if `auto` is green, {LOW:.0%} to {HIGH:.0%} of its intervals "
                f"cover ({half} worlds)",
            ),
        ]  # fmt: skip
    rows = pick(study.rows, half="reporting", estimator=JUDGED)
    text = (
        f"no green intervals cover less than {LEAST_GREEN:.0%}, of {', '.join(JUDGED)} "
        "(reporting worlds)"
    )
    return [*found, covers(rows, LEAST_GREEN, 1.0, text)]


def _at_most(rows: Iterable[Row], what: str, most: float, text: str) -> Goal:
    known = [row for row in rows if row[what] is not None]
    over = [row for row in known if row[what] > most]
    missed = [row for row in over if row[what] - ERRORS * row[f"mc_{what}"] > most]
    if not known:
        return Goal(text, NOTHING, False)
    worst = max(row[what] for row in known)
    return Goal(
        text,
        f"{len(known) - len(over)} of {len(known)} cells, the largest {worst:.2f}; "
        f"{len(missed)} beyond Monte-Carlo error",
        not over,
        tuple(
            f"{row['world']}, n = {row['n']:,}: {row[what]:.2f} ± {row[f'mc_{what}']:.2f}"
            for row in sorted(over, key=lambda row: -row[what])
        ),
    )


# ---- tables ------------------------------------------------------------------------------------


def _rule(study: MemoryStudy) -> str:
    rule = study.about["rule"]
    text = (
        f"The least effective size, {rule['least']:g}, is that of the gate *history*; "
        f"{WHY_THIS_SIZE} The limit of p is set on the setting half alone. In a cell, a pair of "
        f"limits scores its error relative to {OF_BEST} times that of the best fixed memory; where "
        f"the state is Markov also relative to {OF_MIS} times that of `mis`, and the larger "
        "counts. A score of 1 is just within the goals. Kept are the limits whose worst cell is "
        f"within {TIED:g} of the smallest, and of these those whose mean error (the geometric mean "
        f"of its ratio to the best fixed memory) is within {CLOSE:g} of the smallest. Taken is the "
        "most cautious of them, the largest p. Intervals play no part.\n\n"
    )
    if not study.pairs:
        return text + f"No cell of that half has {ENOUGH} logs yet.\n"
    best = taken_of(study.pairs, rule["least"])
    text += table(
        ("p at most", "least effective size", "worst score", "in", "mean ratio"),
        (
            (f"{p.alike:g}", f"{p.least:g}", f"{p.score:.2f}", p.worst, f"{p.relative:.3f}")
            for p in study.pairs
        ),
    )
    same = best.alike == rule["alike"]
    status = "which is in force" if same else f"while {rule['alike']:g} is in force"
    return text + f"\nThe rule takes p ≤ {best.alike:g}, {status}.\n"


def _ratio(row: Row | None, what: str = "relative", *, error: bool = False) -> str:
    if row is None or row[what] is None:
        return ""
    return f"{row[what]:.2f}" + (f" ± {row[f'mc_{what}']:.2f}" if error else "")


def _errors(study: MemoryStudy, n: int) -> str:
    cells = pick(study.cells, n=n)
    memories = sorted(
        {
            row["memory"]
            for row in pick(study.rows, n=n)
            if row["memory"] is not None and row["memory"] <= min(MOST_COLUMNS, row["horizon"] - 2)
        }
    )
    rows = []
    for cell in cells:
        by_memory = {row["memory"]: row for row in study.of(cell) if row["memory"] is not None}
        longest = by_memory.get(cell["horizon"] - 1)
        [mis], [best] = study.of(cell, estimator=MIS), [
            row for row in by_memory.values() if row["relative"] == 1
        ][:1]  # fmt: skip
        rows.append(
            (cell["world"], cell["half"], cell["replicates"], f"{best['rmse']:.3g}",
             _ratio(cell, error=True), _ratio(mis),
             *(_ratio(by_memory.get(k) if k < cell["horizon"] - 1 else None) for k in memories),
             _ratio(longest))
        )  # fmt: skip
    head = ("world", "half", "logs", "error of the best", "`auto`", "`mis`",
            *(f"k = {k}" for k in memories), "k = H - 1 (`wis`)")  # fmt: skip
    return f"n = {n:,}\n\n{table(head, rows)}"


def _colors(study: MemoryStudy, n: int) -> str:
    rows = []
    for cell in pick(study.cells, n=n):
        by_name = {row["estimator"]: row for row in study.of(cell, estimator=JUDGED)}
        row = [cell["world"], cell["half"]]
        row += [percent(by_name[name]["coverage"], 0) for name in JUDGED]
        row += [percent(by_name[name]["green"], 0) for name in JUDGED]
        for name in JUDGED:
            of = by_name[name]
            many = of["green_replicates"] >= ENOUGH_LOGS
            row.append(
                f"{percent(of['coverage_green'], 0)} ± {percent(of['mc_green'], 0)}" if many else ""
            )
        rows.append(row)
    head = ["world", "half"]
    head += [
        f"{what}, `{name}`" for what in ("covers", "green", "covers if green") for name in JUDGED
    ]
    return f"n = {n:,}\n\n{table(head, rows)}"


def _chosen(study: MemoryStudy) -> str:
    worlds = dict.fromkeys(row["world"] for row in study.cells)

    def value_text(world: str, n: int) -> str:
        rows = pick(study.rows, world=world, n=n)
        taken = [row for row in rows if row["memory"] is not None and row["chosen"]]
        taken.sort(key=lambda row: row["memory"])
        return ", ".join(f"{row['memory']}: {percent(row['chosen'], 0)}" for row in taken)

    return table(
        ("world", *(f"n = {n:,}" for n in study.sizes)),
        ((world, *(value_text(world, n) for n in study.sizes)) for world in worlds),
    )


def _worlds(study: MemoryStudy) -> str:
    values = {row["world"]: (row["horizon"], row["v_target"]) for row in study.cells}
    rows = []
    for name, world in WORLDS.items():
        horizon, value = values.get(name, (None, None))
        row = (name, world.group, half_of(name), horizon or "", "" if value is None else value)
        rows.append((*row[:4], f"{value:.3f}" if value is not None else "not run"))
    kinds = "".join(f"- {kind}: {text}\n" for kind, text in KINDS.items())
    return (
        "Within a kind, worlds belong to the half on which limits were set and to the one that is "
        "reported by turns, in the order of this list, which was written before any result.\n\n"
        + table(("world", "kind", "half", "H", "v_π"), rows)
        + f"\n{kinds}"
    )
