"""docs/reference/gates.md: the table of gates, from what they declare.

python scripts/gates.py          check that the page says what the gates declare
python scripts/gates.py --write  write it
"""

from __future__ import annotations

import sys
from pathlib import Path

from reweigh.testing.gates import table_row
from reweigh.trust.gates import GATES

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "gates.md"
BEFORE = """# Gates

A verdict is the worst of its gates (checks). Each gate answers one question about the estimators
that it applies to, and is amber or red beyond its limits, which differ for some kinds of
estimators. *Sums* are the tables that it reads beyond the estimate itself; without them it is not
checked, and the verdict says so. *Fault* is what it should notice: a name from [the
study](../trust/README.md), which reports how often each gate fires. `scripts/gates.py` writes
this table.

| gate | question | estimators | limits | sums | fault | |
|---|---|---|---|---|---|---|
"""
AFTER = """
## In code

Other packages add gates: see *Add a gate* in `CONTRIBUTING.md`.

::: reweigh.trust.gates.GateResult

::: reweigh.trust.gates.Gate

::: reweigh.trust.gates.Limit

::: reweigh.trust.gates.limits_by

::: reweigh.trust.gates.Context

::: reweigh.testing.check_gate
"""


def page() -> str:
    return BEFORE + "".join(f"{table_row(gate)}\n" for gate in GATES) + AFTER


def main() -> int:
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.name}: not what the gates declare; run scripts/gates.py --write")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
