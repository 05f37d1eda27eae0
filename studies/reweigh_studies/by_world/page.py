"""Parts of a page that studies of worlds share: what was not run, coverage goals, their table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from reweigh_studies.by_world.study import Study
from reweigh_studies.coverage.goals import ERRORS, Goal, within
from reweigh_studies.coverage.markdown import percent, table
from reweigh_studies.coverage.tables import Row

NOTHING = "no cell with enough logs"
ENOUGH = 10  # logs of a color before their coverage is judged


def missing(study: Study[Any], cells: Iterable[Row]) -> list[tuple[str, int]]:
    """The cells of the design that `cells`, one row each, lack."""
    there = {(row["world"], row["n"]) for row in cells}
    return [key for c in study.whole.cells if (key := (c.world, c.n)) not in there]


def not_run(study: Study[Any], cells: Sequence[Row]) -> str:
    """What the design costs, which cells have fewer logs, and which none."""
    design, wanted = len(study.whole.cells), study.replicates
    measured = {(row["world"], row["n"]): row["seconds"] for row in cells}
    ran = sum(row["replicates"] * row["seconds"] for row in cells) / 3600
    lacking = [row for row in cells if row["replicates"] < wanted]
    text = (
        f"**The full design** has {wanted:,} logs in each of {design} cells (a world at a "
        f"size). The {len(measured)} cells here took {ran:.2g} CPU hours; with {wanted:,} logs "
        f"each, at the measured seconds of a log, they would take "
        f"{sum(measured.values()) * wanted / 3600:.1f}."
    )
    by_size: dict[int, list[str]] = {}
    for world, n in missing(study, cells):
        by_size.setdefault(n, []).append(world)
    more, unknown = 0.0, 0
    for world, n in missing(study, cells):
        known = [(m, s) for (w, m), s in measured.items() if w == world]
        unknown += not known
        # what a log costs however few its episodes makes each of these too much
        more += min((s * max(n / m, 1) for m, s in known), default=0.0) * wanted / 3600
    if by_size:
        text += (
            f" The others would add at most {more:.1f}, if time grows as the episodes do"
            + (f" (without {unknown} cells of worlds that were not run at all)" if unknown else "")
            + "."
        )
    text += "\n"
    if lacking:
        fewest = min(row["replicates"] for row in lacking)
        text += (
            f"\n**{len(lacking)} of the {len(measured)} cells have fewer logs than that**, at "
            f"least {fewest:,}: what is said of them is as rough as their Monte-Carlo errors.\n"
        )
    for n, worlds in sorted(by_size.items()):
        every = len(worlds) == len(study.worlds)
        named = "all worlds" if every else ", ".join(worlds)
        text += f"\n**Not run** at n = {n:,}: {named}.\n"
    return text


def covers(rows: Iterable[Row], low: float, high: float, text: str, color: str = "green") -> Goal:
    """A goal: of the intervals with this verdict, a share between `low` and `high` covers."""
    many, covered, error = f"{color}_replicates", f"coverage_{color}", f"mc_{color}"
    some = [row for row in rows if row[many]]
    judged = [row for row in some if row[many] >= ENOUGH]
    missed = [row for row in judged if not within(row[covered], row[many], low, high)]
    if not judged:
        return Goal(text, NOTHING, False)
    every = sum(row[many] for row in some)
    hits = sum(row[many] * row[covered] for row in some)
    return Goal(
        text,
        f"{len(judged) - len(missed)} of {len(judged)} cells; {percent(hits / every)} of all "
        f"{every:,} {color} intervals",
        not missed,
        tuple(
            f"{row['world']}, n = {row['n']:,}, {row['estimator']}: "
            f"{percent(row[covered])} ± {percent(row[error])} of {row[many]}"
            for row in missed
        ),
    )


def goals_table(held: Sequence[Goal], remark: str) -> str:
    """The goals and their results, the remark, and what missed them."""
    text = table(
        ("goal", "found", "met"),
        (
            (
                goal.text,
                goal.found,
                "yes" if goal.met else "?" if goal.found == NOTHING else "**no**",
            )
            for goal in held
        ),
    )
    text += (
        f"\n{remark}Coverage misses its goal where it is outside by more than {ERRORS} Monte-Carlo "
        f"errors (of a share exactly at the limit), in cells with at least {ENOUGH} logs of that "
        "color; with as few a miss has to be large to be seen.\n"
    )
    for goal in held:
        if goal.misses:
            text += f"\nMissed: *{goal.text}*\n\n"
            text += "".join(f"- {miss}\n" for miss in goal.misses)
    return text
