"""Results to report on: small worlds, and logs that lack something."""

from __future__ import annotations

from typing import Any

import numpy as np

import reweigh as rw
from reweigh.worlds import random_mdp

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    '"><svg onload=alert(4)>',
    "' onmouseover='alert(5)",
    "&lt;b&gt; & <!-- -->",
    "{{ 7 * 7 }}{% if 1 %}",
    "\u2028line\u2029 \u202eright to left",
    "javascript:alert(6)",
    "__proto__",
)


def world(horizon: int = 6, states: int = 4, actions: int = 3, seed: int = 5) -> Any:
    return random_mdp(np.random.default_rng(seed), states, actions, horizon, reward_sd=0.5)


def sampled(
    names: tuple[str, ...] = ("mis", "wis", "dm", "is"), n: int = 400, **size: int
) -> tuple[rw.EpisodeLog, Any, list[rw.Estimate | rw.Refusal]]:
    """A log, its target, and estimates."""
    made = world(**size)
    log = made.simulate(n, 1)
    return log, made.target, rw.evaluate_all(log, made.target, list(names))


def without_overlap() -> tuple[rw.EpisodeLog, Any, list[rw.Estimate | rw.Refusal]]:
    """A target that only takes an action which the log never shows."""
    rng = np.random.default_rng(0)
    n, horizon = 50, 3
    states, actions = rng.integers(0, 2, (n, horizon + 1)), rng.integers(0, 2, (n, horizon))
    log = rw.log_from_arrays(states, actions, rng.random((n, horizon)), np.full((n, horizon), 0.5))
    target = rw.TablePolicy({s: {0: 0.0, 1: 0.0, 7: 1.0} for s in range(2)}, name="elsewhere")
    return log, target, rw.evaluate_all(log, target, ["mis", "wis"])


def hostile() -> tuple[rw.EpisodeLog, Any, list[rw.Estimate | rw.Refusal]]:
    """States, actions, columns and a policy whose names attack the page."""
    import pyarrow as pa

    rng = np.random.default_rng(2)
    n, horizon = 120, 4
    rows = n * horizon
    action = rng.integers(0, 2, rows)
    table = pa.table(
        {
            "episode": np.repeat(np.arange(n), horizon),
            "step": np.tile(np.arange(horizon), n),
            "<b>state</b>": [HOSTILE[k] for k in rng.integers(0, len(HOSTILE), rows)],
            "action": [HOSTILE[k] for k in action],
            "reward": rng.random(rows),
            "behavior_prob": np.full(rows, 0.5),
        }
    )
    log = rw.read_log(table, state="<b>state</b>")
    entries = {s: {HOSTILE[0]: 0.3, HOSTILE[1]: 0.6, HOSTILE[2]: 0.1} for s in HOSTILE}
    target = rw.TablePolicy(entries, name="<script>alert('policy')</script>")
    return log, target, rw.evaluate_all(log, target, ["mis", "dm"])


def compared_policies(holdout: float | None = None) -> rw.Comparison:
    """Three policies under two estimators: one better, one a little, one the behavior's own."""
    made = world(horizon=5, states=3, seed=8)
    log = made.simulate(500, 3)

    def mixed(share: float) -> Any:
        return rw.TablePolicy(share * made.target_array + (1 - share) * made.behavior_array)

    targets = {"new rules": mixed(1.0), "half way": mixed(0.5), "as before": mixed(0.0)}
    return rw.compare(log, targets, ["mis", "wis"], holdout=holdout, seed=1)


def many_policies() -> rw.Comparison:
    """45 policies, more than a chart shows, with long names and names that attack the page."""
    rng = np.random.default_rng(4)
    n, horizon = 300, 3
    states, actions = rng.integers(0, 2, (n, horizon + 1)), rng.integers(0, 2, (n, horizon))
    log = rw.log_from_arrays(states, actions, rng.random((n, horizon)), np.full((n, horizon), 0.5))
    long = "guideline_committee_proposal_of_the_cardiology_department_revision_"
    names = [*HOSTILE, *(f"{long}{k}" for k in range(45 - len(HOSTILE)))]
    targets = {
        name: rw.TablePolicy({s: {0: 0.3 + 0.01 * k, 1: 0.7 - 0.01 * k} for s in range(2)})
        for k, name in enumerate(names)
    }
    return rw.compare(log, targets, ["mis"], seed=1)


def no_policy() -> rw.Comparison:
    """Two policies, both of which are refused."""
    log, target, _ = without_overlap()
    return rw.compare(log, {"elsewhere": target, "there too": target}, ["mis"], seed=1)
