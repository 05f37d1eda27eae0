"""Which column plays which role: by its name, by what it holds, and together with the others.

A role is proposed when one column fits best. Where several fit equally, all are named and none is
taken; where only the content speaks for a column, the proposal says that it is a guess.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reweigh.cli.init.columns import (
    Column,
    Look,
    Repair,
    count_from_zero,
    is_percent,
    is_yes_or_no,
    percent_to_share,
    yes_to_true,
)

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
OWN, KNOWN, PART = 3, 2, 1  # the role's own name, a usual name, a name that holds such a word
BY_NAME = "by name"
EARLY = "it is true before the last step of an episode: not taken"
MANY_UNIQUE = 0.5  # of the rows: such a state is seen about once
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


def _no_reward(c: Column, order: Order | None) -> str:
    return "" if c.is_numeric else "it does not hold numbers"


def _no_action(c: Column, order: Order | None) -> str:
    return "" if (c.is_label or c.is_numeric) and not c.nulls else "it has empty cells"


def _no_flag(c: Column, order: Order | None) -> str:
    if c.nulls or not c.is_flag:
        return "it does not hold true/false or 1/0"
    early = order is not None and np.any((c.values == 1) & ~order.last)
    return EARLY if early else ""


def _share_of_percent(c: Column) -> Repair | None:
    """For percentages: texts with the sign, or numbers of which some are too large for shares that
    were written carelessly, in a column whose name speaks of probabilities or of percentages."""
    percent = "%" in c.name or {"percent", "pct", "percentage"} & set(words(c.name))
    named = percent or any(rating(role, c.name) for role in PROBABILITIES)
    large = c.within(0.0, 100.0) and c.values.max() > 2
    return percent_to_share(c.name) if is_percent(c) or (large and named) else None


def _truth_of_words(c: Column) -> Repair | None:
    return yes_to_true(c.name) if is_yes_or_no(c) else None


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
        "journey",
        "episode trajectory patient subject session stay encounter",
        "step prob reward",
        absent="no column holds an episode's id: add one; if every row is one, number the rows",
    ),
    "step": Role(
        "t time timestep time_step ts step_id step_index turn stage bloc block_index k round move "
        "visit seq",
        "step timestep time",
        "limit out prob",
        absent="no column counts the steps of an episode 0, 1, 2, …: add one; if every row is an "
        "episode of its own, it holds zeros",
    ),
    "state": Role(
        "s state_id obs observation context cluster cluster_id",
        "state obs observation context feature",
        "next new prime prev previous prob",
        absent="no column was found for the state",
    ),
    "action": Role(
        "a act action_id treatment arm decision intervention choice routed_to assigned_to",
        "action treatment",
        "prob probability propensity next prev previous",
        _no_action,
        absent="no column was found for the action",
    ),
    "reward": Role(
        "r rew rewards outcome payoff utility click return score points profit revenue",
        "reward outcome",
        "prob",
        _no_reward,
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
        "terminal terminals is_terminal done dones end is_done absorbed ended closed",
        "terminated terminal done",
        "",
        _no_flag,
        _truth_of_words,
    ),
    "truncated": Role(
        "timeout timeouts time_limit censored truncation is_truncated cut cut_off",
        "truncated timeout censored",
        "",
        _no_flag,
        _truth_of_words,
    ),
}
EXPECTED = 6  # roles, from the first on, that every log should have
FLAGS = ("terminated", "truncated")
PROBABILITIES = ("behavior_prob", "target_prob")
CHOSEN_BY_NAME = (*PROBABILITIES, "reward", "action", *FLAGS)


def words(name: str) -> list[str]:
    """The words of a name: patientID, patient-id and patient_id are the same two."""
    plain = unicodedata.normalize("NFKC", name).replace("'", "_prime")
    return [word.casefold() for word in WORD.findall(plain)]


def rating(role: str, name: str) -> int:
    """How strongly a column's name speaks for a role; 0 if it does not."""
    known, parts = ROLES[role], words(name)
    whole = "_".join(parts)
    if whole == role:
        return OWN
    if whole in known.usual.split():
        return KNOWN
    inside, others = set(known.inside.split()), set(known.others.split())
    return PART if inside & set(parts) and not others & set(parts) else 0


def _is_named(c: Column) -> bool:
    """The name speaks for some role by itself."""
    return any(rating(role, c.name) > PART for role in ROLES)


def _best_named(role: str, columns: Iterable[Column]) -> list[Column]:
    """Those whose names speak for the role most strongly."""
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
    settings  further options
    repairs   what `--tidy` can put right
    """

    columns: dict[str, Column]
    roles: dict[str, Choice] = field(default_factory=dict)
    open: dict[str, Choice] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    settings: dict[str, bool] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)

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
        this one lacks."""
        answers = [(role, self.roles.get(role), self.open.get(role)) for role in ROLES]
        return [each for k, each in enumerate(answers) if k < EXPECTED or any(each[1:])]

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


def propose(look: Look) -> Proposal:
    """The roles of a log's columns."""
    proposal = Proposal({column.name: column for column in look.columns})
    order = _episode_and_step(proposal)
    for role in CHOSEN_BY_NAME:
        _by_name(proposal, role, order)
    _states(proposal)
    _by_content(proposal, order)
    _flag_by_content(proposal, order)
    _next_state(proposal, order)
    _missing(proposal)
    if order is not None:
        _short_episodes(proposal, order, look)
    return proposal


def _fit(role: str, c: Column, order: Order | None) -> tuple[str, Repair | None]:
    """Why the column cannot play the role, empty where it can; and what makes it fit, if it needs
    that."""
    unfit = ROLES[role].unfit
    assert unfit is not None
    why = unfit(c, order)
    repair = ROLES[role].repair(c) if why and not c.nulls else None
    if repair is None:
        return why, None
    left = unfit(repair.mended(c), order)
    return (left if left == EARLY else why, None) if left else ("", repair)


def _reason(role: str, c: Column, what: str) -> str:
    return f"named so; {what}" if rating(role, c.name) else what


def _speaks_for(role: str, name: str, others: Iterable[str]) -> bool:
    """The name speaks for the role, and none of the others' names fits better."""
    return 0 < rating(role, name) >= max(rating(other, name) for other in others)


def _by_name(proposal: Proposal, role: str, order: Order | None) -> None:
    named = [c for c in proposal.free() if _speaks_for(role, c.name, CHOSEN_BY_NAME)]
    fits = {c: _fit(role, c, order) for c in named}
    proposal.doubts += [
        f"{c.name!r} is named like {role}, but {why}"
        for c, (why, _) in fits.items()
        if why and (rating(role, c.name) > PART or why == EARLY)
    ]
    best = _best_named(role, [c for c, (why, _) in fits.items() if not why])
    if len(best) != 1:
        proposal.choose(role, best, BY_NAME)
        return
    [c] = best
    proposal.choose(role, best, BY_NAME, alone=_reason(role, c, c.content), repair=fits[c][1])
    if role == "action" and c.kind == "number":
        proposal.settings["continuous_actions"] = True
        proposal.doubts.append(
            f"the actions {c.name!r} are fractions: read as continuous, with densities as "
            "probabilities; if they are codes, write whole numbers"
        )
    if role == "terminated" and "done" in c.name.lower():
        proposal.doubts.append(
            f"{c.name!r} is read as terminated; in some logs it is true at a time limit too: such "
            "rows are truncated"
        )


def _states(proposal: Proposal) -> None:
    named = [
        c
        for c in proposal.free()
        if (c.is_label or c.is_numeric)
        and _speaks_for("state", c.name, (*CHOSEN_BY_NAME, "next_state"))
    ]
    best = _best_named("state", named)
    # the columns of one state share the first word: state_bp, state_hr
    stems = {next(iter(words(c.name)), c.name) for c in best}
    if len(best) > 1 and len(stems) == 1 and rating("state", best[0].name) == PART:
        why = f"{len(best)} columns named alike make one state"
        proposal.roles["state"] = Choice(tuple(c.name for c in best), why)
        return
    alone = _reason("state", best[0], best[0].content) if best else ""
    proposal.choose("state", best, BY_NAME, alone=alone)


def _is_unit(c: Column) -> bool:
    shares = c.has_fractions and c.within(LEAST, 1.0) and not c.is_flag
    return shares or _fit("behavior_prob", c, None)[1] is not None


def _is_choice(c: Column) -> bool:
    return c.is_label and c.distinct > 1 and not is_percent(c)


CONTENT: tuple[tuple[str, Callable[[Column], bool], str], ...] = (
    ("behavior_prob", _is_unit, "the only column of probabilities"),
    ("reward", lambda c: c.has_fractions, "the only other column of numbers"),
    ("reward", lambda c: c.is_numeric and c.distinct > 1, "the only other column of numbers"),
    ("state", _is_choice, "the only column of labels left"),
    ("action", _is_choice, "the only column of labels left"),
)


def _by_content(proposal: Proposal, order: Order | None) -> None:
    """Roles that no name told: the one column that is left for it, as a guess."""
    for role, fits, why in CONTENT:
        if role in proposal.roles or role in proposal.open:
            continue
        by_name = [choice.columns for choice in proposal.open.values() if choice.why == BY_NAME]
        named = {name for columns in by_name for name in columns}
        left = [
            c
            for c in proposal.free()
            if c.name not in named and not _is_named(c) and not c.nulls and fits(c)
        ]
        repair = _fit(role, left[0], order)[1] if left and ROLES[role].unfit else None
        proposal.choose(
            role, left, "by content", alone=f"{why}; a guess", guess=True, repair=repair
        )


def _flag_by_content(proposal: Proposal, order: Order | None) -> None:
    """Where episodes are short and no name tells why: the one flag that only last rows have."""
    if order is None or set(FLAGS) & set(proposal.roles):
        return
    flags = []
    for c in proposal.free():
        why, repair = _fit("terminated", c, order)
        flag = c if repair is None else repair.mended(c)
        if not why and np.any((flag.values == 1) & order.short):
            flags.append((c, repair))
    if len(flags) == 1:
        [(c, repair)] = flags
        why = "set in last rows alone; a guess"
        proposal.choose("terminated", [c], why, guess=True, repair=repair)
        proposal.rule_out(c.name)


def _next_state(proposal: Proposal, order: Order | None) -> None:
    """A column that holds the state of the next row, wherever there is one."""
    state = proposal.column("state")
    if state is None or order is None:
        return
    rows = np.flatnonzero(~order.last)
    following = state.cells.take(order.after[rows])
    columns = []
    for c in proposal.free():
        if c.cells.type != state.cells.type or c.kind == "empty":
            continue
        named = rating("next_state", c.name) > 0
        agree = c.cells.take(rows).equals(following)
        if agree and (named or state.distinct > 1):
            columns.append(c)
        elif named:
            proposal.doubts.append(
                f"{c.name!r} is named like next_state, but it is not the next row's "
                f"{state.name!r}: not taken"
            )
    alone = f"the next row's {state.name!r}"
    chosen = proposal.choose("next_state", columns, "the state of the next row", alone=alone)
    if chosen is not None:
        proposal.rule_out(chosen.name)


# --- episode and step: they only make sense together


def _episode_and_step(proposal: Proposal) -> Order | None:
    """The pair of columns in which each id has the steps 0, 1, 2, …, as the names have it."""
    ids = [c for c in proposal.free() if c.kind in ("whole", "text") and not c.nulls]
    counts = [c for c in ids if c.kind == "whole"]
    named_ids = [c for c in ids if _speaks_for("episode", c.name, ["step"])]
    named_counts = [c for c in counts if _speaks_for("step", c.name, ["episode"])]
    best = _best_pairs(
        named_ids or [c for c in ids if not _is_named(c)],
        named_counts or [c for c in counts if not _is_named(c)],
    )
    guess = not (named_ids or named_counts)
    if len(best) == 1:
        [(e, t)] = best
        if guess and e.kind == "whole" and _first_step(t, e) == 1:
            # n ids 0, 1, … with H steps from 1 look like H ids with n steps from 0
            return _in_order(proposal, t, e, 1, guess=guess)
        return _in_order(proposal, e, t, 0, guess=guess)
    if best:
        why = "in which the steps are 0, 1, 2, … per episode"
        proposal.choose("episode", list(dict.fromkeys(e for e, _ in best)), why)
        proposal.choose("step", list(dict.fromkeys(t for _, t in best)), why)
        return None
    by_name = proposal.choose("episode", _best_named("episode", named_ids), BY_NAME)
    counted = proposal.choose("step", _best_named("step", named_counts), BY_NAME)
    if by_name is not None and counted is not None:
        first = _first_step(by_name, counted)
        if first is not None:
            return _in_order(proposal, by_name, counted, first, guess=False)
        proposal.doubts.append(
            f"within a {by_name.name!r} the values of {counted.name!r} are not 0, 1, 2, … each "
            "once: `reweigh check` names the rows"
        )
        return None
    pairs = [(e, t) for e in named_ids or ids for t in named_counts or counts if e is not t]
    from_one = [(e, t) for e, t in pairs if _first_step(e, t) == 1]
    if len(from_one) == 1:
        [(e, t)] = from_one
        unnamed = not (rating("episode", e.name) or rating("step", t.name))
        return _in_order(proposal, e, t, 1, guess=unnamed)
    proposal.doubts += [
        f"{t.name!r} counts 1, 2, … within each {e.name!r}: these two may be step and episode"
        for e, t in from_one
    ]
    return None


def _best_pairs(ids: list[Column], counts: list[Column]) -> list[tuple[Column, Column]]:
    """The pairs in which each id has the steps 0, 1, 2, …, and whose names fit best."""
    pairs = [(e, t) for e in ids for t in counts if e is not t and _first_step(e, t) == 0]
    ratings = [rating("episode", e.name) + rating("step", t.name) for e, t in pairs]
    best = [pair for pair, r in zip(pairs, ratings, strict=True) if r == max(ratings)]
    if len(best) == 2 and best[0][0] is best[1][1]:
        # n ids with H steps each are H ids with n steps each: an episode's rows stand together
        best = [max(best, key=lambda pair: np.mean(np.diff(pair[0].codes) == 0))]
    return best


def _first_step(e: Column, t: Column) -> int | None:
    """The number that the steps of every episode begin with; None unless each episode has the
    steps from there on, each once, and some episode has more than one."""
    first = t.values.min()
    episode, step = e.codes, t.values - first
    length = np.bincount(episode)
    highest = np.zeros(len(length))
    np.maximum.at(highest, episode, step)
    if length.max() < 2 or np.any(highest != length - 1):
        return None
    cells = episode * int(length.max()) + step.astype(np.int64)
    return int(first) if len(np.unique(cells)) == len(step) else None


def _in_order(proposal: Proposal, e: Column, t: Column, first: int, *, guess: bool) -> Order:
    """The order of the rows by these columns, whose steps count from `first`."""
    counted = f"{first}, {first + 1}, {'2, ' if first == 0 else ''}… within each {e.name!r}"
    repair = count_from_zero(t.name, first) if first else None
    alone = _reason("episode", e, f"{e.distinct:,} of them")
    proposal.choose("episode", [e], BY_NAME, alone=alone, guess=guess)
    alone = _reason("step", t, f"its values are {counted}")
    proposal.choose("step", [t], BY_NAME, alone=alone, guess=guess, repair=repair)
    order = np.lexsort((t.values, e.codes))
    same = e.codes[order[1:]] == e.codes[order[:-1]]
    after = np.full(len(order), -1, np.int64)
    after[order[:-1][same]] = order[1:][same]
    return Order(e.codes, np.bincount(e.codes), after)


# --- what is missing


def _missing(proposal: Proposal) -> None:
    decided = proposal.roles.keys() | proposal.open.keys()
    absent = {role: known.absent for role, known in ROLES.items() if role not in decided}
    proposal.missing += [text for text in absent.values() if text]
    behavior = proposal.column("behavior_prob")
    if "behavior_prob" in absent:
        proposal.settings["fit_behavior"] = True
        proposal.missing.append(
            "no column holds the behaviour's probabilities: they will be estimated by counts "
            "(fit_behavior), and the errors take them for the truth"
        )
    elif behavior is not None and behavior.within(1.0, 1.0):
        proposal.doubts.append(
            f"every value of {behavior.name!r} is 1: a log of a deterministic policy cannot tell "
            "about another one"
        )
    for name in proposal.roles["state"].columns if "state" in proposal.roles else ():
        c = proposal.columns[name]
        many = f"{c.distinct:,} values in {c.rows:,} rows"
        if c.kind == "number":
            proposal.missing.append(
                f"the state {name!r} is a fraction ({many}): make states of it with round or grid"
            )
        elif c.distinct > MANY_UNIQUE * c.rows:
            proposal.doubts.append(f"{name!r} has {many}: most states would be seen once")


def _short_episodes(proposal: Proposal, order: Order, look: Look) -> None:
    """Episodes shorter than the longest must say why."""
    unexplained = order.short
    for flag in map(proposal.column, FLAGS):
        if flag is not None:
            unexplained &= flag.values != 1
    if not look.whole:  # the last episode may go on in the next row
        unexplained &= order.episode != order.episode[-1]
    many = int(np.sum(unexplained))
    if many:
        proposal.missing.append(
            f"{many:,} episode{'s are' if many > 1 else ' is'} shorter than the longest "
            f"({order.length.max():,} steps) and nothing says why: set short_episodes to "
            "terminal (they ended) or truncated (they were cut off)"
        )
