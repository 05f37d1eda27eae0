"""Columns that all rows of an episode share: the cluster and the sampling weight, with their
rules."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reweigh.log.rules import LARGEST_REWARD, Range, Rule
from reweigh.log.states import Codes, label_array

if TYPE_CHECKING:
    from reweigh.log.roles import RoleReader

Array = npt.NDArray[Any]
WEIGHTS = Range(0.0, LARGEST_REWARD, above=True)

TWO_CLUSTERS = Rule(
    "two-clusters",
    "episode",
    ("cluster",),
    "all rows of an episode must have the same {column}",
    "write the cluster of the episode in each of its rows; if an id was used for two episodes, "
    "make the ids distinct",
    lambda value, first: value != first,
)
TWO_WEIGHTS = Rule(
    "two-weights",
    "episode",
    ("weight",),
    TWO_CLUSTERS.sentence,
    "write the sampling weight of the episode in each of its rows",
    TWO_CLUSTERS.broken,
)
WEIGHT_RANGE = Rule(
    "weight-range",
    "row",
    ("weight",),
    f"{{column}} must be above 0 and at most {LARGEST_REWARD:g}",
    "write how many episodes this one stands for (1 over the probability that it was kept), or "
    "leave it out if it stands for none",
    lambda weight, finite: finite & WEIGHTS.outside(weight),
)
CONTRACT = (TWO_CLUSTERS, TWO_WEIGHTS, WEIGHT_RANGE)


def of_episodes(reader: RoleReader, episode: Codes, count: int) -> dict[str, Array]:
    """By role (count,) what each episode has; `episode` (N,) is the code of each row."""
    columns, values_by_role = reader.columns, {}
    if columns.cluster is not None:
        codes, labels = reader.ids("cluster", columns.cluster)
        code = _shared(reader, TWO_CLUSTERS, columns.cluster, codes, codes >= 0, episode, count)
        known = label_array(labels.values or (None,))
        values_by_role["cluster"] = known[code]
    if columns.weight is not None:
        weight = reader.numbers("weight", columns.weight)
        finite = np.isfinite(weight)
        bad = WEIGHT_RANGE.broken(weight, finite)
        reader.faults.rows(WEIGHT_RANGE, columns.weight, bad, weight)
        values_by_role["weight"] = _shared(
            reader, TWO_WEIGHTS, columns.weight, weight, finite & ~bad, episode, count
        )
    return values_by_role


def _shared(
    reader: RoleReader,
    rule: Rule,
    name: str,
    values: Array,
    fine: npt.NDArray[np.bool_],
    episode: Codes,
    count: int,
) -> Array:
    """(count,) the value in the first row of each episode, of the rows whose value is `fine`."""
    rows = np.flatnonzero(fine & (episode >= 0))
    first_row = np.full(count, -1)
    first_row[episode[rows[::-1]]] = rows[::-1]  # of two assignments the last one stays
    bad = rows[rule.broken(values[rows], values[first_row[episode[rows]]])]
    shown = partial(reader.value, name)

    def note(row: int) -> str:
        return f" (its first row has {shown(int(first_row[episode[row]]))!r})"

    reader.faults.rows(rule, name, bad, shown, note=note)
    value_of_episode: Array = values[first_row]
    return value_of_episode
