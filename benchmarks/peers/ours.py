"""The same tasks of reweigh: from a user's arrays to the value, alone or with its error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

MODELS = ("dm", "dr", "wdr")  # they need the target's probabilities of all actions


def tasks(data: dict[str, Any]) -> dict[str, Callable[[], tuple[float, float]]]:
    import reweigh as rw

    horizon = data["rewards"].shape[1]
    arrays = data["states"], data["actions"], data["rewards"], data["mu"]
    ragged = bool(np.any(data["lengths"] < horizon))
    shape: dict[str, Any] = {"lengths": data["lengths"]} if ragged else {}
    if ragged:
        # An episode of H steps may have ended with the last of them: what follows is not known.
        arrays = np.ascontiguousarray(data["states"][:, :horizon]), *arrays[1:]

    def given(column: bool) -> tuple[Any, Any]:
        log = rw.log_from_arrays(*arrays, data["pi"] if column else None, **shape)
        return log, rw.ColumnPolicy("target_prob") if column else rw.TablePolicy(data["table"])

    def alone(recipe: Any, column: bool) -> tuple[float, float]:
        [value] = rw.point_values(*given(column), [recipe])
        return float(value), float("nan")

    def value(recipe: Any, column: bool) -> tuple[float, float]:
        estimate = rw.evaluate(*given(column), recipe)
        error = estimate.standard_error
        return float(estimate.value), float("nan") if error is None else float(error)

    names = ("is", "wis", "trajectory-is", "trajectory-wis", "mis")
    found = {name: partial(value, rw.estimator(name), True) for name in names}
    found["mis, target as a table"] = partial(value, rw.mis(), False)
    found["mis, value alone"] = partial(alone, rw.mis(), True)
    found["mis, value alone, target as a table"] = partial(alone, rw.mis(), False)
    if "q" in data:
        found["dm"] = partial(value, rw.dm(), False)
        found |= {
            name: partial(value, recipe(data["q"]), False)
            for name, recipe in (("dr", rw.dr), ("wdr", rw.wdr))
        }
    return found
