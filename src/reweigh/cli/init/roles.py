"""The roles of columns: the names that suggest each, what a column must hold to play it, and
what could put it right. A new role, or another usual name, is an entry of `ROLES`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.cli.init.columns import (
    Column,
    Repair,
    is_percent,
    percent_to_share,
    truth_to_number,
    yes_to_true,
)

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
OWN, KNOWN, PART = 3, 2, 1  # the role's own name, a usual name, a name that holds such a word
EARLY = "it is true before the last step of an episode: not taken"
BY_NAME = "by name"
LEAST = float(np.nextafter(0.0, 1.0))


@dataclass(frozen=True, eq=False)
class Order:
    """Episode and step of every row: after[i] is the row that follows row i, -1 for none."""

    episode: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]  # (episodes,)
    after: npt.NDArray[np.int64]

    @property
    def last(self) -> npt.NDArray[np.bool_]:
        """(N,) last rows of episodes."""
        return self.after < 0

    @property
    def short(self) -> npt.NDArray[np.bool_]:
        """(N,) last rows of episodes that are shorter than the longest."""
        shorter: npt.NDArray[np.bool_] = (self.length < self.length.max())[self.episode]
        return self.last & shorter


# --- the roles


def _no_probability(low: float, bounds: str) -> Callable[[Column, Order | None], str]:
    def unfit(c: Column, order: Order | None) -> str:
        if c.within(low, 1.0):
            return ""
        if not c.is_numeric or c.nulls:
            return f"its values are not all in {bounds}"
        smallest, largest = float(c.values.min()), float(c.values.max())
        logs = ": log-probabilities? write exp() of them" if largest <= 0 else ""
        return f"its values lie in [{smallest:g}, {largest:g}]{logs}"

    return unfit


def _needs(fits: Callable[[Column], bool], otherwise: str) -> Callable[[Column, Order | None], str]:
    return lambda c, order: "" if fits(c) else otherwise


def _no_flag(c: Column, order: Order | None) -> str:
    if c.nulls or not c.is_flag:
        return "it does not hold true/false or 1/0"
    early = order is not None and np.any((c.values == 1) & ~order.last)
    return EARLY if early else ""


def _share_of_percent(c: Column) -> Repair | None:
    """For percentages: texts with the sign, or numbers of which some are too large for shares that
    were written carelessly, in a column whose name speaks of probabilities or of percentages."""
    percent = {"percent", "pct", "percentage"} & set(words(c.name))
    named = bool(percent) or any(rating(role, c.name) for role in PROBABILITIES)
    large = c.within(0.0, 100.0) and c.values.max() > 2
    return percent_to_share(c.name) if is_percent(c) or (large and named) else None


@dataclass(frozen=True)
class Role:
    """What tells that a column plays a role.

    usual    names that it usually has
    inside   words that tell it inside a longer name; others: words that tell another role there
    unfit    why a column cannot play it, empty where it can; None: it is found in another way
    repair   what may make a column fit
    absent   what to say where there is none
    """

    usual: str
    inside: str
    others: str = ""
    unfit: Callable[[Column, Order | None], str] | None = None
    repair: Callable[[Column], Repair | None] = lambda column: None
    absent: str = ""


ROLES = {
    "episode": Role(
        "episode_id ep ep_id traj traj_id trajectory trajectory_id patient patient_id subject "
        "subject_id session session_id user user_id stay stay_id icustay icustay_id encounter "
        "encounter_id rollout run run_id case case_id ticket ticket_id ticket_no customer "
        "customer_id admission admission_id hadm_id conversation conversation_id game game_id "
        "journey impression impression_id request request_id decision_id auction auction_id id "
        "uuid guid row_id event_id click_id visit_id visitor_id interaction_id order_id trace_id",
        "episode trajectory patient subject session stay encounter",
        "step prob reward",
        absent="no column holds an episode's id: add one; if every row is one, number the rows",
    ),
    "step": Role(
        "t time timestep time_step ts step_id step_index turn stage bloc block_index k round "
        "visit seq",
        "step timestep time",
        "limit out prob",
        absent="no column counts the steps of an episode 0, 1, 2, … or tells when its rows were "
        "logged: add one; if every row is an episode of its own, run init with --bandit",
    ),
    "state": Role(
        "s state_id obs observation context cluster cluster_id task",
        "state obs observation context feature",
        "next new prime prev previous prob",
        absent="no column was found for the state",
    ),
    "action": Role(
        "a act action_id treatment arm decision intervention choice routed_to assigned_to chosen "
        "route ad ad_id banner banner_id offer variant item_id selected_model chosen_model "
        "response_model selected_tool chosen_tool",
        "action treatment",
        "prob probability propensity next prev previous",
        _needs(lambda c: (c.is_label or c.is_numeric) and not c.nulls, "it has empty cells"),
        absent="no column was found for the action",
    ),
    "reward": Role(
        "r rew rewards outcome payoff utility click clicks clicked return score points profit "
        "revenue feedback",
        "reward outcome",
        "prob",
        _needs(lambda c: c.is_numeric, "it does not hold numbers"),
        truth_to_number,
        absent="no column was found for the reward",
    ),
    "behavior_prob": Role(
        "behaviour_prob mu mu_prob propensity propensity_score pscore pi_b p_b "
        "behavior_probability behaviour_probability behavior_policy_prob logging_prob logged_prob "
        "action_prob prob_action prob probability p b_prob old_prob",
        "propensity behavior behaviour logging mu",
        "target eval action state",
        _no_probability(LEAST, "(0, 1]"),
        _share_of_percent,
    ),
    "target_prob": Role(
        "pi pi_e p_e target_probability target_policy_prob eval_prob evaluation_prob new_prob "
        "e_prob",
        "target eval evaluation pi",
        "behavior behaviour logging",
        _no_probability(0.0, "[0, 1]"),
        _share_of_percent,
    ),
    "next_state": Role(
        "s_next next_s sp s_prime next_obs next_observation state_next new_state observation_next "
        "obs_next next_state_id",
        "next",
        "action reward prob",
    ),
    "terminated": Role(
        "terminal terminals is_terminal done dones end is_done absorbed ended closed died dead "
        "death deceased expired discharged discharge churned churn cancelled canceled unsubscribed "
        "game_over gameover finished completed",
        "terminated terminal done died death discharged churned",
        "prob time date",
        _no_flag,
        yes_to_true,
    ),
    "truncated": Role(
        "timeout timeouts time_limit censored truncation is_truncated cut cut_off",
        "truncated timeout censored",
        "",
        _no_flag,
        yes_to_true,
    ),
    "time": Role(
        "timestamp datetime date charttime chart_time time ts created_at logged_at served_at "
        "shown_at played_at observed_at event_time start_time utc epoch",
        "timestamp datetime date charttime time at",
        "limit out prob step next timestep",
    ),
}
EXPECTED = ("episode", "step", "state", "action", "reward", "behavior_prob")  # in every log
EPOCH = 1e8  # seconds: numbers from here on may be seconds or less since 1970
FLAGS = ("terminated", "truncated")
PROBABILITIES = ("behavior_prob", "target_prob")
# words in the names of what is known only after the action, or because of it: never the state
AFTERWARD = {"latency", "elapsed", "duration", "cost", "response", "chosen", "selected", "draws"}
CHOSEN_BY_NAME = (*PROBABILITIES, "reward", "action", *FLAGS)


def is_clock(c: Column) -> bool:
    """Whether a column tells when its rows were logged: times as they are written, or numbers that
    are named so and count no steps."""
    if c.kind == "time":
        return not c.nulls
    if not c.is_numeric or c.nulls or not rating("time", c.name):
        return False
    known = rating("time", c.name) > PART
    return (known and c.has_fractions) or bool(c.values.min() >= EPOCH)


def words(name: str) -> list[str]:
    """The words of a name: patientID, patient-id and patient_id are the same two."""
    plain = unicodedata.normalize("NFKC", name).replace("'", "_prime").replace("%", " percent")
    return [word.casefold() for word in WORD.findall(plain)]


def rating(role: str, name: str) -> int:
    """How strongly a column's name suggests a role; 0 if it does not. Of a nested field such as
    meta.session.id the last parts count: id, session.id."""
    known, parts = ROLES[role], words(name)
    fields = name.split(".")
    wholes = {"_".join(words(".".join(fields[k:]))) for k in range(len(fields))}
    if role in wholes:
        return OWN
    if wholes & set(known.usual.split()):
        return KNOWN
    inside, others = set(known.inside.split()), set(known.others.split())
    return PART if inside & set(parts) and not others & set(parts) else 0


def is_named(c: Column) -> bool:
    """The name alone suggests a role."""
    return any(rating(role, c.name) > PART for role in ROLES)


def best_named(role: str, columns: Iterable[Column]) -> list[Column]:
    """Those whose names suggest the role most strongly."""
    ratings = {c: rating(role, c.name) for c in columns}
    return [c for c, r in ratings.items() if r == max(ratings.values())]


# --- the proposal


@dataclass(frozen=True)
class Choice:
    """The columns of a role and why; a guess rests on the content alone."""

    columns: tuple[str, ...]
    why: str
    guess: bool = False


@dataclass
class Proposal:
    """What is proposed for these columns, which are put right as soon as they have a role.

    roles     what is proposed
    open      roles that several columns may play
    doubts    what a reader should look at
    missing   what the log lacks, and what to do
    needless  roles that this log does without
    settings  further options
    repairs   what `--tidy` can put right
    bins      the edges of the columns that are put into bins, in the rows that were looked at
    """

    columns: dict[str, Column]
    roles: dict[str, Choice] = field(default_factory=dict)
    open: dict[str, Choice] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    needless: set[str] = field(default_factory=set)
    repairs: list[Repair] = field(default_factory=list)
    bins: dict[str, str] = field(default_factory=dict)

    def free(self) -> list[Column]:
        """The columns without a role."""
        used = {name for choice in self.roles.values() for name in choice.columns}
        return [c for c in self.columns.values() if c.name not in used]

    @property
    def unused(self) -> list[str]:
        considered = {name for choice in self.open.values() for name in choice.columns}
        return [c.name for c in self.free() if c.name not in considered]

    def by_role(self) -> list[tuple[str, Choice | None, Choice | None]]:
        """(role, what is proposed, what it may be), without the roles that only some logs have and
        this one lacks, or that it does without."""
        answers = [
            (role, self.roles.get(role), self.open.get(role))
            for role in ROLES
            if role not in self.needless
        ]
        return [each for each in answers if each[0] in EXPECTED or any(each[1:])]

    def column(self, role: str) -> Column | None:
        """The one column of a role."""
        names = self.roles[role].columns if role in self.roles else ()
        return self.columns[names[0]] if len(names) == 1 else None

    def choose(
        self,
        role: str,
        columns: list[Column],
        why: str,
        *,
        alone: str = "",
        guess: bool = False,
        repair: Repair | None = None,
    ) -> Column | None:
        """Take the only column for the role (because of `alone`, else `why`), put right by the
        repair; several stay open."""
        if len(columns) != 1:
            if columns:
                self.open[role] = Choice(tuple(c.name for c in columns), why)
            return None
        [column] = columns
        self.roles[role] = Choice((column.name,), alone or why, guess)
        self.open.pop(role, None)
        if repair is not None:
            self.repairs.append(repair)
            self.columns[column.name] = repair.mended(column)
        return column

    def rule_out(self, name: str) -> None:
        """The column plays a role by now: it is none of the open ones."""
        for role, choice in self.open.items():
            rest = tuple(other for other in choice.columns if other != name)
            self.open[role] = Choice(rest, choice.why)


def reason(role: str, c: Column, what: str) -> str:
    return f"named so; {what}" if rating(role, c.name) else what


def suggests(role: str, name: str, others: Iterable[str]) -> bool:
    """The name suggests the role, and none of the others' names fits better."""
    return 0 < rating(role, name) >= max(rating(other, name) for other in others)
