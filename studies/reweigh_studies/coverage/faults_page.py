"""Of the coverage study's page: which faults are noticed, and by which gates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reweigh_studies.coverage.cells import CLEAN
from reweigh_studies.coverage.goals import pick
from reweigh_studies.coverage.markdown import listed, percent, table
from reweigh_studies.coverage.measures import MAIN, SUMS
from reweigh_studies.coverage.power import (
    NO_TESTS,
    Alarms,
    alarms,
    in_faulty_worlds,
    mean,
    powers,
)
from reweigh_studies.coverage.published import Study
from reweigh_studies.coverage.tables import VERDICT, Row

FAULT_WORDS = {
    "clean": "nothing (false alarms)",
    "propensities-low": "all propensities 10 % too low",
    "propensities-noisy": "propensities 10 % off, up or down by (state, action)",
    "swapped": "target and behavior swapped",
    "logarithms": "logarithms for probabilities",
    "rows-shuffled": "rows of an episode in another order",
    "states-shuffled": "states of other episodes",
    "coarse": "part of the state left out",
    "drift": "rewards halved in the second half",
    "duplicates": "one in five episodes twice",
    "selection": "the fifth with the lowest returns left out",
    "action-missing": "no episode begins with the target's favorite action",
    "states-lost": "one in five states not shown",
    "cut-off": "one in five episodes cut off, beside others that end",
    "fate": "shared random luck in all rewards of an episode",
    "states-renamed": "states renamed from the middle of an episode on",
    "outlier": "one reward in another unit, a thousand times the largest",
}
LEAST = 0.02  # share of logs: a gate that reacts less often does not count as detecting


def faults(study: Study) -> str:
    """Both tables: faults with the gate that is loudest, gates with the fault that it is for."""
    rows = in_faulty_worlds(study.gates)
    if not rows:
        return "Not run yet.\n"
    return "\n".join([_by_fault(pick(rows, estimator=MAIN), study.sizes), _by_gate(study)])


def _by_fault(rows: Sequence[Row], sizes: Sequence[int]) -> str:
    last = sizes[-1]
    made = []
    for fault in (name for name in FAULT_WORDS if pick(rows, fault=name)):
        mine = pick(rows, fault=fault)
        verdict = {n: alarms(pick(mine, gate=VERDICT, n=n)) for n in sizes}
        covers = mean([row["coverage"] for row in pick(mine, gate=VERDICT, n=last)])
        by_gate = {
            gate: alarms(pick(mine, gate=gate, n=last)).either or 0.0
            for gate in dict.fromkeys(row["gate"] for row in mine)
            if gate != VERDICT
        }
        first = max(by_gate, key=lambda gate: by_gate[gate])
        said = f"{first} ({percent(by_gate[first], 0)})" if by_gate[first] > LEAST else "none"
        made.append(
            (
                FAULT_WORDS[fault],
                len({row["world"] for row in mine}),
                *(percent(verdict[n].either, 0) for n in sizes),
                percent(verdict[last].red, 0),
                said,
                percent(covers, 0),
            )
        )
    head = ("fault", "worlds", *(f"n = {n:,}" for n in sizes), f"red, n = {last:,}",
            f"strongest gate, n = {last:,}", f"covers the truth, n = {last:,}")  # fmt: skip
    return (
        f"How often the verdict on `{MAIN}` is amber or red, mean over the worlds that have "
        "a fault. Small logs are amber because of their size alone. The last column is how "
        "often the interval still covers the true value without the fault: if it is far "
        "below 95 % and no gate reacts, the fault is harmful and undetected; if it is near "
        "95 %, the fault does not harm this estimator.\n\n"
        + table(head, made)
        + "\n![](faults.svg)\n"
    )


def _by_gate(study: Study) -> str:
    sizes, last = study.sizes, study.sizes[-1]
    found = powers(study.gates, sizes)
    made = [
        (
            power.gate,
            f"`{power.estimator}`",
            _line(power.clean, sizes),
            FAULT_WORDS[power.fault],
            power.worlds,
            _line(power.faulty, sizes),
            f"{percent(power.clean[last].red, 0)}, {percent(power.faulty[last].red, 0)}",
        )
        for power in found
    ]
    by_size = f"n = {listed(sizes)}"
    head = ("gate", "of", f"clean logs, {by_size}", "the fault it reacts to most", "worlds",
            f"with it, {by_size}", f"red, n = {last:,}: clean, with it")  # fmt: skip
    text = (
        "Every gate separately: how often it is amber or red, in percent, with the fault "
        "that it reacts to most (its power), and on clean logs of the same worlds (false "
        "alarms). The strongest is the one that adds the most to these, in the largest logs "
        f"in which faults differ. A gate is reported for `{MAIN}`, or for the first "
        f"estimator that has it. `{SUMS}` is `{MAIN}` if only the sums of the log are "
        "available, as from a stream or a database; `mis-pooled` and `ssd-is` were used in "
        "worlds that are the same at every step, because in others they are themselves the "
        "fault.\n\n" + table(head, made)
    )
    text += "\nNo fault is made for gates that tell what is known: "
    text += "; ".join(f"*{name}* ({what})" for name, what in NO_TESTS.items()) + ".\n"
    if any(power.gate == "stationarity" for power in found):
        text += (
            "\n*stationarity* is never green, and its false alarms are not listed: the world "
            "used for `ssd-is` does not start in its long-run distribution, so the "
            "assumption does not hold in clean logs either.\n"
        )
    return text


def sparse(study: Study) -> str:
    """How often the test of propensities is red where most (step, state) have few rows."""
    clean = pick(study.sparse, fault=CLEAN)
    if not clean:
        return "Not run yet.\n"
    faults = [name for name in FAULT_WORDS if name != CLEAN and pick(study.sparse, fault=name)]
    made = []
    for row in clean:
        mine = {f: pick(study.sparse, setting=row["setting"], fault=f) for f in faults}
        shares = [percent(rows[0]["red"], 0) if rows else "refused" for rows in mine.values()]
        made.append((row["setting"], f"{percent(row['red'])} of {row['logs']:,}", *shares))
    logs = sum(row["logs"] for row in clean)
    red = sum(row["red"] * row["logs"] for row in clean) / logs
    error = math.sqrt(red * (1 - red) / logs)
    worst = max(clean, key=lambda row: row["red"])
    head = ("setting", "clean", *(FAULT_WORDS[name] for name in faults))
    return (
        "How often the gate *propensities* is red (p < 0.01) in logs with mostly one to five "
        f"rows per step and state. On {logs:,} clean logs of {len(clean)} settings it is red "
        f"in {percent(red)} (Monte-Carlo error {percent(error)}), and in the worst setting "
        f"in {percent(worst['red'])}. `studies/scripts/propensity_alarms.py` runs it "
        "again.\n\n" + table(head, made)
    )


def _line(by_size: dict[int, Alarms], sizes: Sequence[int]) -> str:
    return ", ".join("–" if (a := by_size[n].either) is None else f"{100 * a:.0f}" for n in sizes)
