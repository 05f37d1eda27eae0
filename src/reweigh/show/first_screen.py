"""What every face says first: one sentence made from the record, then reasons with what to do.

Where the verdict is red no interval, gain or p-value is written; JSON keeps them, marked.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from reweigh.show.record import NEW_POLICY, PER_EPISODE, Evaluation
from reweigh.show.text import (
    aligned,
    by_text,
    columns_of,
    estimate_rows,
    evaluation_lines,
    html_rows,
    html_table,
    percent,
    sentence,
    span,
    warning_lines,
    wrapped,
)
from reweigh.system import number, rounded

MOST_ROWS, MOST_REASONS = 5, 3
if TYPE_CHECKING:
    from reweigh.trust.gates import GateResult

FILE = re.compile(r"\.\w{1,8}$")  # what the names of files end in
UNINFORMATIVE = ("", "table", "policy", "target")  # names that say nothing
NO_CLEAR = "No clear difference: "
# what helps against a gate that is red; other gates ask for more episodes
STATE = "a state that holds more (a longer memory, or features)"
NEARER = "a target closer to today's policy"
MORE = "more episodes"
HELP = {
    **dict.fromkeys(
        ("history", "policies", "hidden policies", "stationarity", "steadiness"), (STATE,)
    ),
    "fitted values": (STATE, MORE),
    "propensities": ("the propensities that were logged when the actions were taken",),
    "estimated propensities": ("the propensities that were logged when the actions were taken",),
    "drift": ("one period at a time",),
    "cut-off episodes": ("the state after each cut (next_state)",),
}
FAR = (MORE, NEARER)


@dataclass(frozen=True)
class Reason:
    """Why a verdict is what it is, with what to do; `names` are the estimators concerned, with
    their `verdicts`."""

    names: tuple[str, ...]
    level: str
    text: str
    advice: str = ""
    verdicts: tuple[str, ...] = ()

    @property
    def concerned(self) -> str:
        """Whom it concerns, such as "wis, is (red)" or "mis (red), dm (amber)"."""
        if len(self._levels) == 1:
            return f"{', '.join(self.names)} ({', '.join(self._levels)})"
        pairs = zip(self.names, self.verdicts, strict=True)
        return ", ".join(f"{name} ({verdict})" for name, verdict in pairs)

    @property
    def mark(self) -> str:
        """Its own level, where that is not the verdict of all those concerned."""
        return "" if self._levels == {self.level} else f"{self.level}: "

    @property
    def _levels(self) -> set[str]:
        return {*self.verdicts} or {self.level}


# --- the sentence


def answer_sentence(e: Evaluation, unit: str = PER_EPISODE, how: str = "") -> str:
    """The answer of one estimator: what the new policy would earn, how that compares with today,
    and whether it is reliable. `how` is what to know about the interval."""
    if e.refused is not None:
        return f"No answer: {ended(e.refused.reason)}"
    if e.level == "red":
        return verdict_sentence(e)
    return f"{value_sentence(e, unit, how)} {verdict_sentence(e)}"


def value_sentence(e: Evaluation, unit: str = PER_EPISODE, how: str = "") -> str:
    """The value with its interval, and the gain over today's, as far as they may be shown."""
    around = "no interval" if e.around is None else interval_words(e) + how
    if e.around is None and e.no_interval and e.no_interval != e.error_method:
        around += f": {e.no_interval}"
    policy = e.policy[:1].upper() + e.policy[1:]
    earns = f"{policy} would earn {e.text} {unit} ({around})"
    if e.behavior_value is None or e.gain is None:
        return f"{earns}. What today's policy earned is not known."
    error = max(filter(None, (e.error, e.gain_error)), default=None)
    today = number(e.behavior_value) if error is None else rounded(e.behavior_value, error)
    between = e.gain_interval
    if is_todays(e):
        same = f"{policy} is today's policy, but for rounding or estimation"
        return f"{same}: both earn {e.text} {unit} ({around})."
    if e.gain == 0 and not e.gain_error:
        return f"{earns}, just what today's policy earned."
    if between is None:
        why = f" ({e.gain_why})" if e.gain_why else ""
        return f"{earns}; today's policy earned {today}. Whether that is a gain is not known{why}."
    gain = rounded(abs(e.gain), error)
    if between.low <= 0 <= between.high:
        unclear = f"{NO_CLEAR}{e.policy} would earn {e.text} {unit} ({around})"
        sign = "" if e.gain >= 0 else "-"
        ends = f"difference {sign}{gain}, interval {span(between)}"
        if tiny_gain(e):
            ends = "they differ by less than 1 % of the standard error"
        return f"{unclear}, and today's policy earned {today} ({ends})."
    return f"{earns}, {gain} {'more' if e.gain > 0 else 'less'} than today's {today}."


def tiny_gain(e: Evaluation) -> bool:
    """Whether gain and interval of the gain are less than 1 % of the value's standard error."""
    if e.gain is None or not e.error:
        return False
    around = e.gain_interval
    ends = () if around is None else (around.low, around.high)
    return bool(max(map(abs, (e.gain, *ends))) < e.error / 100)


def is_todays(e: Evaluation) -> bool:
    """Whether the target is the logged policy: all weights are nearly 1, and nothing is gained."""
    return tiny_gain(e) and e.ess is not None and e.ess > 0.999 * e.n_episodes


def interval_words(e: Evaluation) -> str:
    """ "95 % interval 17.62 to 18.03"."""
    assert e.around is not None
    low, high = e.around.low, e.around.high
    if math.isfinite(low) and math.isfinite(high):
        return f"{percent(e.around.level)} interval {span(e.around)}"
    side, end = ("lower", low) if math.isfinite(low) else ("upper", high)
    return f"{percent(e.around.level)} {side} bound {rounded(end, e.around.standard_error)}"


def verdict_sentence(e: Evaluation) -> str:
    """Whether to rely on it, with the first reason why not."""
    assert e.verdict is not None
    if e.verdict.reasons:
        how = "Not reliable" if e.level == "red" else "Use with caution"
        return f"{how}: {ended(reason_text(e, e.verdict.reasons[0]))}"
    from reweigh.trust.gates.gate import NOT_DECLARED

    # what only a declaration could answer is in the details: it is missing from most evaluations
    unchecked = [gate.name for gate in e.verdict.unchecked if gate.text != NOT_DECLARED]
    if unchecked:
        return f"Reliable as far as it was checked; not checked: {', '.join(unchecked)}."
    return "Reliable: every check passed."


def ended(text: str) -> str:
    """With one full stop at its end."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


# --- the reasons


def reason_text(e: Evaluation, gate: GateResult) -> str:
    """What a gate found, its state by columns and ranges where they are known."""
    if gate.state is None:
        return gate.text
    from reweigh.log.abstractions import state_in_words

    words = state_in_words(gate.state, e.state_columns, e.abstraction)
    if words == gate.state:
        return gate.text
    text = gate.text.replace(f"in state {gate.state}", f"where {words}")
    return text.replace(f"state {gate.state}", words)


def reasons_of(records: Sequence[Evaluation], tried: Sequence[Evaluation] = ()) -> list[Reason]:
    """The reasons against them, those of the first before all others, each once with the names of
    all whom it concerns. Advice that leads to an estimator which cannot answer either is left out;
    `tried` are estimators that were evaluated only to know that."""
    found: list[tuple[str, Reason]] = []
    leads = leading([*records, *tried])
    for e in records:
        if e.refused is not None:
            found.append((e.label, Reason((), "refused", e.refused.reason)))
        for gate in () if e.verdict is None else e.verdict.reasons:
            advice = gate.advice if leads(gate.advice) else ""
            found.append((e.label, Reason((), gate.level, reason_text(e, gate), advice)))
    verdicts = {e.label: e.level or "refused" for e in records}
    named = [
        replace(reason, names=tuple(names), verdicts=tuple(verdicts[name] for name in names))
        for reason, names in by_text(found).items()
    ]
    first = records[0].label if records else ""
    rank = ("red", "amber", "refused")
    return sorted(named, key=lambda r: (first not in r.names, rank.index(r.level)))


def leading(every: Sequence[Evaluation]) -> Callable[[str], bool]:
    """Whether the estimators that an advice names can answer, as far as that is known. Nothing is
    known of others than mis that were not evaluated, and their own advice would lead back."""
    fine = {e.estimator for e in every if e.reliable}
    dead = {e.estimator for e in every} - fine
    return lambda advice: all(
        name in fine or (name == "mis" and name not in dead) for name in estimators_in(advice)
    )


def estimators_in(text: str) -> tuple[str, ...]:
    """The estimators that an advice names."""
    from reweigh.estimate.presets import ESTIMATORS

    words = re.findall(r"[a-z]+(?:-[a-z]+)*", text)
    return tuple(dict.fromkeys(w for w in words if w in ESTIMATORS and w != "is"))


def nothing_answers(
    records: Sequence[Evaluation], tried: Sequence[Evaluation] = (), what: str = "estimators"
) -> str:
    """What to say where none of the estimators (or policies) answers, and what would help; empty
    where one does."""
    every = [*records, *tried]
    if not every or any(e.reliable for e in every):
        return ""
    gates = [gate for e in every if e.verdict for gate in e.verdict.reasons if gate.level == "red"]
    helps = dict.fromkeys(text for gate in gates for text in HELP.get(gate.name, FAR))
    if any(e.refused is not None for e in every):
        helps |= dict.fromkeys(FAR)
    listed = [*helps] or [*FAR]
    together = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} or {listed[-1]}"
    names = list(dict.fromkeys(e.label for e in every))
    which = f"{names[0]} cannot"
    if len(names) > 1:
        listed_names = f" ({', '.join(names)})" if len(names) <= MOST_ROWS else ""
        which = f"None of the {len(names)} {what} tried{listed_names} can"
    return f"{which} answer this question from this log. What would help: {together}."


def other_answer(records: Sequence[Evaluation]) -> str:
    """Which of the others can answer where the first one cannot."""
    if not records or records[0].reliable:
        return ""
    fine = [f"{e.label} ({e.level})" for e in records[1:] if e.reliable][:MOST_ROWS]
    return f"What can answer instead: {', '.join(fine)}." if fine else ""


def help_after(records: Sequence[Evaluation], tried: Sequence[Evaluation] = ()) -> str:
    """One sentence for an answer that is not reliable: who else can answer, or what would help."""
    return nothing_answers(records, tried) or other_answer([*records, *tried])


def reason_lines(reasons: Iterable[Reason], *, alone: bool = False) -> list[str]:
    """Reasons as lines, the names of the estimators once above theirs; `alone`: there is one
    estimator, which needs no name."""
    lines: list[str] = []
    for concerned, group in by_concerned(reasons).items():
        lines.append("Why:" if alone else f"{concerned}:")
        for reason in group:
            lines.append(f"- {reason.mark}{sentence(reason.text)}")
            lines += [f"  What to do: {sentence(reason.advice)}"] if reason.advice else []
    return lines


def by_concerned(reasons: Iterable[Reason]) -> dict[str, list[Reason]]:
    """Reasons by whom they concern: the names stand once above theirs."""
    groups: dict[str, list[Reason]] = {}
    for reason in reasons:
        groups.setdefault(reason.concerned, []).append(reason)
    return groups


def how_to_see(rest: str, many: int) -> str:
    """How to see the rest, such as "--all shows them", of so many."""
    return rest.replace("them", "it") if many == 1 else rest


def below_the_table(
    rows: Sequence[Evaluation],
    tried: Sequence[Evaluation],
    *,
    most: int | None,
    rest: str,
    limit: int | None = None,
) -> list[str]:
    """The reasons of so many rows, the first one's before all others, at most so many; how to see
    the rest; and what to do where there is no reliable answer."""
    reasons = further_reasons(rows[:limit], [*rows, *tried])
    listed = reasons[:most]
    lines = reason_lines(listed, alone=len(rows) == 1)
    hidden = len(reasons) - len(listed)
    if hidden and rest:
        noun = "reasons" if hidden > 1 else "reason"
        lines.append(f"{hidden} more {noun}: {how_to_see(rest, hidden)}")
    after = help_after(rows, tried)
    return [*lines, after] if after else lines


def further_reasons(records: Sequence[Evaluation], known: Sequence[Evaluation]) -> list[Reason]:
    """The reasons without what the sentence of the first one says, where there is no advice to
    add."""
    first = records[0]
    said = [reason_text(first, gate) for gate in first.verdict.reasons[:1]] if first.verdict else []
    said += [] if first.refused is None else [first.refused.reason]
    reasons = reasons_of(records, known)
    return [r for r in reasons if r.advice or r.text not in said or first.label not in r.names]


def more_rows(rest: Sequence[Evaluation], how: str) -> str:
    """How many are not in the table, by their verdicts."""
    if not rest:
        return ""
    count = {"green": 0, "amber": 0, "red": 0, "refused": 0}
    for e in rest:
        count["refused" if e.refused is not None else e.level or "red"] += 1
    levels = ", ".join(f"{n} {level}" for level, n in count.items() if n)
    noun = "estimator" if len(rest) == 1 else "estimators"
    return f"{len(rest)} more {noun} ({levels}): {how_to_see(how, len(rest))}"


def policy_in_words(name: str) -> str:
    """What a policy is called in a sentence: a file by its stem; "the new policy" where the name
    says nothing."""
    stem = PurePath(name).stem if FILE.search(name) else name
    return NEW_POLICY if stem in UNINFORMATIVE else f"the policy “{stem}”"


# --- an estimate as text, and as a card in a notebook

WIDTH = 88  # characters


def evaluation_text(e: Evaluation, tried: Sequence[Evaluation] = ()) -> list[str]:
    """An estimate as Python prints it: the answer, the numbers, the reasons."""
    lines = wrapped(answer_sentence(e), WIDTH)
    lines += ["", e.label, *aligned(_numbers(e), indent="  ", width=WIDTH)]
    for line in _reasons_below(e, tried):
        lines += wrapped(line, WIDTH)
    return lines


def evaluation_card(e: Evaluation, tried: Sequence[Evaluation] = ()) -> str:
    """The same for a notebook."""
    below = "".join(f"<div>{html.escape(line)}</div>" for line in _reasons_below(e, tried))
    first = f"<p><strong>{html.escape(answer_sentence(e))}</strong></p>"
    return f"<div>{first}{html_table(e.label, _numbers(e))}{below}</div>"


def _numbers(e: Evaluation) -> list[tuple[str, str]]:
    """What is printed of it, without the warnings that are reasons too."""
    numbers = [pair for pair in evaluation_lines(e) if pair[0] != "warning"]
    return numbers + [("warning", text) for text in warning_lines(e)]


def _reasons_below(e: Evaluation, tried: Sequence[Evaluation]) -> list[str]:
    return below_the_table([e], tried, most=MOST_REASONS, rest=".verdict.reasons")


# --- results that notebooks show

COLUMNS = ("estimator", "value", "95 % interval", "ESS", "unseen", "std. error", "verdict")


class Summary(str):
    """A text that a console shows line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Card:
    """Results whose first screen notebooks show: Jupyter calls `_repr_html_`, marimo for
    `_mime_`. Each says its sentence, its table and what stands below."""

    def sentence(self) -> str:
        """The answer."""
        raise NotImplementedError

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """The columns and the rows of the table."""
        raise NotImplementedError

    def below(self) -> list[str]:
        """The reasons with what to do."""
        raise NotImplementedError

    def summary(self) -> Summary:
        """The answer in a few lines: what the target would earn, how that compares with the
        behavior, whether it is reliable, and the reasons with what to do."""
        columns, rows = self.table()
        table = ["", *columns_of([columns, *rows]), ""] if len(rows) > 1 else []
        lines = [*wrapped(self.sentence(), WIDTH), *table]
        return Summary("\n".join(lines + [p for t in self.below() for p in wrapped(t, WIDTH)]))

    def _repr_html_(self) -> str:
        below = "".join(f"<div>{html.escape(line)}</div>" for line in self.below())
        said, table = html.escape(self.sentence()), html_rows("", *self.table())
        return f"<div><p><strong>{said}</strong></p>{table}{below}</div>"

    def _mime_(self) -> tuple[str, str]:
        return "text/html", self._repr_html_()


class Estimated(Card):
    """The card of estimates of one target."""

    def record(self) -> Evaluation:
        """What every face shows of it."""
        raise NotImplementedError

    def records(self) -> Sequence[Evaluation]:
        """The records to show, the answer first."""
        return (self.record(),)

    def tried(self) -> Sequence[Evaluation]:
        """What was evaluated only to know whether an advice leads anywhere."""
        return ()

    def sentence(self) -> str:
        return answer_sentence(self.records()[0])

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        return COLUMNS, estimate_rows(self.records())

    def below(self) -> list[str]:
        most, rest = MOST_REASONS, ".verdict.reasons"
        return below_the_table(self.records(), self.tried(), most=most, rest=rest)

    def _repr_html_(self) -> str:
        records = self.records()
        if len(records) == 1 and records[0].refused is None:
            return evaluation_card(records[0], self.tried())
        return super()._repr_html_()
