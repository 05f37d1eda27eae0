"""The process in which tasks run, told what to do line by line on its input, in JSON.

    {"add": "…/site-packages"}              look for packages there too
    {"load": folder, "modules": ["ours"]}   the data, and the tasks of these modules on them;
        "episodes", "horizon"               only the first of them
    {"run": ["ours", "mis"]}                one task: its value and its own CPU time

It answers each with one line. Whatever a library prints goes to the error output.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Tasks = dict[str, dict[str, Callable[[], Any]]]


def load(order: dict[str, Any]) -> Tasks:
    arrays = {path.stem: np.load(path) for path in Path(order["load"]).glob("*.npy")}
    if "horizon" in order:
        arrays = cut(arrays, order["episodes"], order["horizon"])
    modules = {name: importlib.import_module(f"peers.{name}") for name in order["modules"]}
    return {name: module.tasks(arrays) for name, module in modules.items()}


def cut(arrays: dict[str, Any], n: int, horizon: int) -> dict[str, Any]:
    """The first steps of the first n episodes."""
    width = {"states": horizon + 1} | dict.fromkeys(("actions", "rewards", "mu", "pi"), horizon)
    short = {name: np.ascontiguousarray(arrays[name][:n, :steps]) for name, steps in width.items()}
    return {**arrays, **short, "lengths": np.minimum(arrays["lengths"][:n], horizon)}


def run(task: Callable[[], Any]) -> dict[str, Any]:
    """The value, its standard error if there is one, the CPU time, what was warned of."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.process_time()
        found = task()
        cpu = time.process_time() - start
    value, error = found if isinstance(found, tuple) else (found, None)
    said = sorted({warning.category.__name__ for warning in caught})
    return {"value": float(value), "error": error, "cpu": cpu, "said": said}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tasks: Tasks = {}
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "add" in order:
                sys.path.append(order["add"])
                answer: dict[str, Any] = {}
            elif "load" in order:
                tasks.clear()
                tasks = load(order)
                answer = {name: list(known) for name, known in tasks.items()}
            else:
                module, name = order["run"]
                answer = run(tasks[module][name])
        except Exception as fault:
            traceback.print_exc()
            answer = {"fault": f"{type(fault).__name__}: {str(fault).splitlines()[0][:200]}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
