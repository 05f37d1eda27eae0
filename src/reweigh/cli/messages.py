"""Text for the terminal: messages in the words of the command line, and nothing that it obeys."""

from __future__ import annotations

import re

# Messages are written for Python. On the command line the same things are called:
PHRASES = (
    (
        "pass behavior_prob=None and estimate it with fit_behavior(log)",
        "estimate it with --fit-behavior",
    ),
    ("estimate them with fit_behavior(log)", "estimate them with --fit-behavior"),
    ("truncated='drop'", "--cut-episodes drop"),
    ("continuous_actions=True", "--continuous-actions"),
    (
        "abstraction=Rounding(scale), Grid(edges) or any callable to read_log",
        "--round or --grid",
    ),
    ("short_episodes='terminal' or 'truncated'", "--short-episodes terminal or truncated"),
    ("ask to overwrite it", "pass --overwrite"),
    ("clip them (max_ratio)", "clip them (--max-ratio)"),
    ("half_width or difference", "--half-width or --difference"),
    ("or ask for a half_width", "or ask for a --half-width"),
    ("between 1 - level, which", "between 1 less the --level, which"),
    (" (log.drop_truncated())", ", in the log itself"),
    (": log.drop_truncated()", ", in the log itself"),
    ("certify() for a bound that holds", "evaluate --reward-range for a bound that holds"),
    ("set episodes aside (holdout)", "set episodes aside (--holdout)"),
    ("report on another (holdout)", "report on another (--holdout)"),
)
RENAMED = {
    "method": "--interval",
    "side": "--one-sided",
    "estimator": "--estimators",
    "scale": "--round",
    "edges": "--grid",
}
OPTION = re.compile(r"\b([a-z_]+)=(['\"])([^'\"]*)\2")
NUMBER = re.compile(r"\b(blocks|smoothing|horizon)=([0-9.]+)")
COLUMN = re.compile(r"\b([a-z_]+)=…")
PARAMETER = re.compile(r"the parameter '([a-z_]+)'")
CALL = re.compile(r"\b(mis|dm|wis|mdr|is_)\(\)")


def for_terminal(text: str) -> str:
    """A message in the command line's words."""
    for python, option in PHRASES:
        text = text.replace(python, option)
    text = OPTION.sub(lambda m: f"{_flag(m[1])} {m[3]}", text)
    text = NUMBER.sub(lambda m: f"{_flag(m[1])} {m[2]}", text)
    text = COLUMN.sub(lambda m: f"{_flag(m[1])} COLUMN", text)
    text = PARAMETER.sub(lambda m: f"the option {_flag(m[1])}", text)
    return printable(CALL.sub(r"\1", text))


def _flag(name: str) -> str:
    return RENAMED.get(name, "--" + name.replace("_", "-"))


def printable(text: str) -> str:
    """Names from the data may hold control characters; a terminal must not obey them."""
    return "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in text)
