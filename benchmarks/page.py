"""All benchmarks, as docs/benchmarks.json and docs/benchmarks.md: what was asked, what was found.

    python benchmarks/page.py                           in memory, and 10 million rows from files
    python benchmarks/page.py --stream-rows 250000000   as the page shows it
    python benchmarks/page.py --billion                 a billion rows from files, and only these
    python benchmarks/page.py --memory                  in memory, and only there
    python benchmarks/page.py --files --stream-rows …   from files, and only there

Each script runs in a process of its own and prints JSON; what is compared is measured inside one of
them, side by side.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from arrays_engine import ACTIONS, HORIZON, REPEATS, SIZES, STATES, measure
from stream import GENERAL

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
BILLION = 1_000_000_000  # rows
PEAK = "arrays to value and error, peak"  # as in kernels.py
SAME_BYTES = "core / read of the same bytes"
COLUMNS, PAIRS = "sizes", "sizes, propensities of a table"
IN_PLACE = "arrays to value and error, in place / copied"


def run(script: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", str(HERE / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return found


def judged(kernels: dict[str, Any], stream: dict[str, Any]) -> list[tuple[str, ...]]:
    """(what, target, found, met), for everything that has a target."""
    bootstrap = kernels["bootstrap at 1,000,000"]
    wanted: list[tuple[str, float, dict[str, Any], str]] = []
    for key, target, sizes in (
        (SAME_BYTES, 2.5, ("1,000,000", "10,000,000")),
        ("value and error / core", 4.0, ("100,000", "1,000,000", "10,000,000")),
        ("whole answer / value and error", 8.0, ("1,000,000", "10,000,000")),
    ):
        for n in sizes:
            if key not in kernels[COLUMNS][n]:  # measured before there was such a line
                continue
            wanted.append((f"{key}, {n} rows", target, kernels[COLUMNS][n], key))
            of_table = kernels[PAIRS][n]
            wanted.append((f"{key}, {n} rows as pairs", target, of_table, key))
    wanted += [
        (f"bootstrap / {what}", 1 / 3, bootstrap, f"1000 replicates / {what}")
        for what in ("re-runs on drawn episodes", "re-runs of the core")
    ]
    for task, table in kernels["growth, per transition"].items():
        wanted += [
            (f"{task}, per transition: {at} / H = S = 100", 3.0 if "fill" in at else 2.0, table, at)
            for at in table
        ]
    wanted += [
        (f"bytes per transition beyond the arrays, {how}", 12.0, kernels[key], PEAK)
        for how, key in (
            ("read in place", "memory, arrays read in place"),
            ("as pairs", "memory, propensities of a table"),
            ("copied", "memory at 1,000,000, bytes per transition"),
        )
    ]
    files = f"{stream['rows']:,} rows"
    wanted += [
        (f"stream / pyarrow's read, {files}", 2.5, stream, "ratio"),
        (f"stream / pyarrow's read at its cheapest, {files}", 2.5, stream, "ratio_lean"),
        (f"stream, peak memory in GiB, {files}", 0.5, stream, "peak_gib"),
    ]
    return [
        (what, f"{target:.3g}", f"{table[key]:.3g}", "yes" if table[key] <= target else "**no**")
        for what, target, table, key in wanted
    ]


def billion(found: dict[str, Any]) -> list[str]:
    """The lines about the largest log, once it has been measured."""
    if "billion" not in found:
        return []
    whole = found["billion"]
    stream = whole["stream"]
    [(name, told)] = stream["estimates"].items()
    return [
        "",
        f"{whole['rows']:,} rows ({whole['files_gib']:.0f} GiB of files), `{name}` with its error "
        f"and the sums of its gates: {told['value']:.5f} ± {told['standard_error']:.5f} from "
        f"{stream['episodes']:,} episodes in {stream['cpu']:.0f} seconds of CPU time "
        f"({stream['wall']:.0f} by the clock) and {stream['peak_gib']:.2f} GiB, one run, with the "
        f"loading of the kernels. That is {whole['ratio']:.2f} times pyarrow's read of the same "
        f"columns, {whole['ratio_lean']:.2f} times its cheapest (`make bench-billion`).",
    ]


def page(found: dict[str, Any]) -> str:
    kernels, stream = found["kernels"], found["stream"]
    columns, pairs = (kernels[key]["100,000"][SAME_BYTES] for key in (COLUMNS, PAIRS))
    machine, rows = kernels["machine"], stream["rows"]
    lines = [
        "# Benchmarks",
        "",
        "Ratios of CPU time, measured side by side: minimum over interleaved repetitions in one "
        "process (files: each task in a process of its own). A shared machine with "
        f"{machine['cores']} cores, Python {machine['python']}, NumPy {machine['numpy']}, Numba "
        f"{machine['numba']}. Made by `make bench`; all numbers are in "
        "[benchmarks.json](benchmarks.json). Between runs ratios move by about a tenth. Other "
        "libraries on the same data: [benchmarks-peers.md](benchmarks-peers.md).",
        "",
        "## Against our targets",
        "",
        f"S = {STATES}, A = {ACTIONS}, H = {HORIZON} unless said otherwise; *core* is the forward "
        "pass of MIS over the rows, *read* a vectorized sum over the same bytes; the target for "
        "their ratio holds from a million rows on; at 100,000 the ratio is "
        f"{columns:.3g}, as pairs {pairs:.3g}. Where "
        "propensities are a function of (state, action), as a table's are, rows are held *as "
        "pairs*: a code of two bytes and the reward, which is also fewer bytes to read; else as "
        "columns. Memory is the peak from the arrays to value and error. Read *in place* "
        "(`copy=False`), rewards and probabilities stay where they are: that takes "
        f"{kernels['in place at 1,000,000'][IN_PLACE]:.2f} times as long from arrays to value and "
        "error, and is for arrays whose copy would not fit.",
        "",
        "| what | target, at most | found | met |",
        "|---|---:|---:|---|",
        *("| " + " | ".join(row) + " |" for row in judged(kernels, stream)),
        "",
        "## From files",
        "",
        f"Estimates with their errors from {rows:,} rows in Parquet files: CPU time per row, as a "
        "multiple of pyarrow's cheapest read of the same columns, and the peak of a process that "
        f"does it once (`mis` again and again: {stream['stream']['peak_gib_again']:.2f}). The "
        "general path, which any log can take whose episodes stand together, for the sums alone, "
        f"from {GENERAL:,} rows.",
        "",
        "| estimators | ns per row | / read | peak GiB | general, ns per row | its peak GiB |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {', '.join(cost['estimators'])} | {cost['ns_per_row']:.0f} | "
            f"{cost['per_read']:.2f} | {cost['peak_gib']:.2f} | "
            f"{cost['general_ns_per_row']:.0f} | {cost['general_peak_gib']:.2f} |"
            for cost in stream["costs"].values()
        ),
        *billion(found),
        "",
        "## The in-memory engine, task by task",
        "",
        f"CPU time as a multiple of one stable sort of as many 64-bit keys, minimum of {REPEATS} "
        "repetitions; peak memory beyond the input.",
        "",
        "| rows | task | time / sort | bytes per row |",
        "|---:|---|---:|---:|",
    ]
    for size, tasks in found["arrays"].items():
        lines += [
            f"| {size} | {name} | {ratio:.2f} | {memory:.0f} |" for name, ratio, memory in tasks
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream-rows", type=int, default=10_000_000)
    parser.add_argument("--folder", help="where the log for the streaming engine is, or goes")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--billion", action="store_true", help="measure only the largest log")
    only.add_argument("--memory", action="store_true", help="measure only what is in memory")
    only.add_argument("--files", action="store_true", help="measure only what is in files")
    given = parser.parse_args()
    where = ("--folder", given.folder) if given.folder else ()
    kept = DOCS / "benchmarks.json"
    found = json.loads(kept.read_text(encoding="utf-8"))
    if given.billion:
        found["billion"] = run("stream.py", "--rows", str(BILLION), "--repeats", "1", *where)
    if not (given.billion or given.files):
        found["kernels"] = run("kernels.py")
        found["arrays"] = {f"{rows:,}": measure(rows) for rows in SIZES}
    if not (given.billion or given.memory):
        found["stream"] = run("stream.py", "--rows", str(given.stream_rows), *where)
    kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (DOCS / "benchmarks.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
