"""What the gates of the assumptions say: where they hold, where not, and what to do then."""

from __future__ import annotations

WORDS = {
    "propensities": {
        "text": "the ratios of each state average to 1",
        "bad": "the ratios do not average to 1 within states",
        "advice": "check that the propensities are those of the logged actions (not swapped, not "
        "logarithms, not rounded), and that the target's actions are in the log",
    },
    "history": {
        "text": "what came before a state adds nothing",
        "bad": "what came before a state still predicts what follows it",
        "advice": "the state leaves something out: add what came before to it (the previous state "
        "or action), or use wis, which needs no state",
    },
    "drift": {
        "text": "both halves of the log, by id, earned the same",
        "bad": "the two halves of the log, by id, earned differently",
        "most": "strongest",
        "advice": "evaluate recent episodes alone, or each period apart",
    },
}
