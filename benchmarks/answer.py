"""What the parts of a whole answer cost: value and error, the sums of the gates, each gate.

Least CPU time of the repetitions, as multiples of value and error in the same process; each part
uses what the parts before it computed, as in `Estimate.verdict`. On a busy machine the sum of the
least times is steadier than the least time of the sum.

    python benchmarks/answer.py                  a million rows, columns and pairs
    python benchmarks/answer.py --rows 10000000
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import kernels
import numpy as np

import reweigh as rw
from reweigh.estimate import direct
from reweigh.trust.gates import all_gates


def parts(rows: int, repeats: int, *, table: bool) -> dict[str, float]:
    log = rw.log_from_arrays(*kernels.arrays(rows, table=table))
    ready = direct.Rows.of(log, kernels.COLUMN, None)
    least: dict[str, float] = {}

    def timed(name: str, run: Callable[[], object]) -> object:
        began = time.process_time()
        result = run()
        spent = time.process_time() - began
        least[name] = min(least.get(name, spent), spent)
        return result

    for _ in range(repeats):
        timed("value and error", lambda: direct.solve_rows(ready, rw.mis()))
        fresh = replace(log, _cache=dict(log._cache))
        estimate = timed("evaluate", partial(rw.evaluate, fresh, kernels.COLUMN, rw.mis()))
        assert isinstance(estimate, rw.Estimate)
        timed("interval", estimate.interval)
        context = timed("sums", estimate.context)
        for gate in all_gates():
            if gate.reads == "sums" and gate.concerns(context.traits):
                with np.errstate(all="ignore"):
                    timed(gate.name, partial(gate.measure, context))
    value = least.pop("value and error")
    found = {name: round(spent / value, 2) for name, spent in least.items()}
    return {"value and error, ms": round(1e3 * value, 2), "whole": sum(found.values()), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    warnings.simplefilter("ignore", rw.ReweighWarning)
    found = {
        name: parts(options.rows, options.repeats, table=table)
        for name, table in (("columns", False), ("pairs", True))
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
