"""How often gates are amber or red: on clean logs, and with each fault; means over the worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reweigh.trust.gates import LIMITS
from reweigh_studies.coverage.cells import CLEAN
from reweigh_studies.coverage.faults import FAULTS
from reweigh_studies.coverage.goals import pick
from reweigh_studies.coverage.measures import MAIN
from reweigh_studies.coverage.tables import Row

GATES = tuple(dict.fromkeys(name.partition(",")[0] for name in LIMITS))
# Gates that report a known fact instead of testing it: they detect no fault of a log.
NO_TESTS = {
    "estimated propensities": "where the propensities came from: it is amber wherever they were "
    "estimated, as in the worlds of that kind",
    "interval": "that there is none",
    "episodes": "how many there are",
}


@dataclass(frozen=True)
class Alarms:
    """Of a gate: how often it is amber or red, and how often red, mean over the worlds; None where
    nothing was run."""

    either: float | None
    red: float | None


@dataclass(frozen=True)
class Power:
    """A gate of an estimator against a fault, by n: on logs that have it, and on clean logs of the
    same worlds, so many. `unknown` is the share of faulty logs on which it cannot be computed."""

    gate: str
    estimator: str
    clean: dict[int, Alarms]
    fault: str
    faulty: dict[int, Alarms]
    worlds: int
    unknown: float

    @property
    def loudness(self) -> tuple[float, ...]:
        """How much more often it is amber or red, and red, than on clean logs, to a tenth: at the
        largest size, and where that is the same, at the next one."""
        each: list[float] = []
        for n in sorted(self.faulty, reverse=True):
            a, b = self.faulty[n], self.clean[n]
            for one, other in ((a.either, b.either), (a.red, b.red)):
                each.append(0.0 if one is None or other is None else round(one - other, 1))
        return tuple(each)


def in_faulty_worlds(gates: Sequence[Row]) -> list[Row]:
    """The rows of worlds into whose logs faults were put."""
    faulty = {row["world"] for row in gates if row["fault"] != CLEAN}
    return [row for row in gates if row["world"] in faulty]


def mean(found: Sequence[float | None]) -> float | None:
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def alarms(rows: Sequence[Row]) -> Alarms:
    return Alarms(mean([row["amber"] + row["red"] for row in rows]), mean([r["red"] for r in rows]))


def tellers(gates: Sequence[Row]) -> dict[str, str]:
    """By gate the estimator it is reported for: the main one, or the first that has the gate on
    clean logs and on faulty ones."""
    found = {}
    for name in GATES:
        rows = pick(gates, gate=name)
        both = [
            {row["estimator"] for row in rows if (row["fault"] == CLEAN) == clean}
            for clean in (True, False)
        ]
        known = [row["estimator"] for row in rows if row["estimator"] in both[0] & both[1]]
        if known:
            found[name] = MAIN if MAIN in known else known[0]
    return found


def powers(gates: Sequence[Row], sizes: Sequence[int]) -> list[Power]:
    """Every gate that tests something, with the fault that it is loudest for."""
    rows = in_faulty_worlds(gates)
    found = []
    for gate, estimator in tellers(rows).items():
        if gate not in NO_TESTS:
            mine = pick(rows, gate=gate, estimator=estimator)
            faults = [name for name in FAULTS if name != CLEAN and pick(mine, fault=name)]
            each = [_power(mine, fault, sizes) for fault in faults]
            known = [power for power in each if power.unknown < 1] or each
            found.append(max(known, key=lambda power: power.loudness))
    return found


def _power(rows: Sequence[Row], fault: str, sizes: Sequence[int]) -> Power:
    faulty = pick(rows, fault=fault)
    worlds = {row["world"] for row in faulty}
    clean = [row for row in pick(rows, fault=CLEAN) if row["world"] in worlds]
    return Power(
        rows[0]["gate"],
        rows[0]["estimator"],
        {n: alarms(pick(clean, n=n)) for n in sizes},
        fault,
        {n: alarms(pick(faulty, n=n)) for n in sizes},
        len(worlds),
        mean([row["unknown"] for row in faulty]) or 0.0,
    )
