"""Results as text, and the words that text, tables and charts share."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from reweigh.errors import RefusedError, UsageError
from reweigh.show.record import PER_EPISODE, Beside, Change, Evaluation
from reweigh.system import number, rounded, two_digits

if TYPE_CHECKING:
    from reweigh.trust.gates import Verdict
    from reweigh.trust.intervals import Interval

LONGEST_NAME, LONGEST_STATE = 20, 28
HIDDEN_WHERE_RED = "not shown: the verdict is red"
ENDS = (9, 14, 18, 4)  # characters that a cut name keeps of its end, in the order of trial
Lines = Sequence[tuple[str, str]]
Text = TypeVar("Text")


def evaluation_lines(e: Evaluation) -> list[tuple[str, str]]:
    """What is printed of an estimate, as (label, text)."""
    d, verdict = e.diagnostics, e.verdict
    assert d is not None
    assert verdict is not None
    how = e.error_method
    if e.error != e.standard_error:
        how = f"of the episodes; {two_digits(e.standard_error)} if the state were all"
    worst = "none"
    if d.worst_ess is not None:
        worst = f"{d.worst_ess:,.0f} of {e.n_episodes:,} episodes at step {d.worst_step}"
    around = "none" if e.interval is None else e.no_interval or str(e.interval)
    error = f"none: {how}" if e.error is None else f"{two_digits(e.error)} ({how})"
    known = e.trusted and e.tested_gain is not None
    better = str(e.tested) if known else f"not known: {e.gain_why}"
    unseen = "not computed" if d.total_unseen is None else number(d.total_unseen)
    placebo = "not computed" if math.isnan(d.placebo) else number(d.placebo)
    lines = [
        ("value", e.text),
        ("95 % interval", around),
        *([("unseen events", e.unseen_events)] if e.unseen_events else []),
        ("standard error", error if e.trusted else HIDDEN_WHERE_RED),
        ("behavior's own value", number(e.behavior_value)),
        ("better than behavior", better),
        ("episodes, horizon", f"{e.n_episodes:,}, {e.horizon}"),
        ("effective size, worst", worst),
        ("mass on unseen states", unseen),
        ("placebo (reward 1)", f"{placebo} (should be {number(d.placebo_expected)})"),
        ("verdict", str(verdict)),
    ]
    if unchecked := verdict.unchecked_lines():
        lines.append(("not checked", "; ".join(unchecked)))
    if e.chosen is not None:
        lines.append(("chosen", e.chosen))
    lines += [(f"beside, {other.estimator}", beside_text(other)) for other in e.beside]
    return lines + [("warning", str(warning)) for warning in e.warnings]


def beside_text(other: Beside) -> str:
    """What another estimator says beside the answer."""
    if other.value is None or other.difference is None:
        return f"refused: {other.why}"
    error, way = other.error, "more" if other.difference > 0 else "less"
    if other.difference == 0 or (error is not None and not error > 0):
        return f"{number(other.value)}, the same"
    text = f"{rounded(other.value, error)}, {rounded(abs(other.difference), error)} {way}"
    if error is None:
        return f"{text}; whether by chance is not known"
    most = "at most " if other.at_most else ""
    beyond = "more than chance explains" if other.beyond else "within chance"
    return f"{text}: {beyond} (error of the difference {most}{two_digits(error)})"


def beside_line(e: Evaluation) -> str:
    """The same of all of them in a line."""
    every = "; ".join(f"{other.estimator} {beside_text(other)}" for other in e.beside)
    return f"beside {e.label}: {every}" if every else ""


def aligned(lines: Lines, indent: str = "", width: int | None = None) -> list[str]:
    """Labels and texts in two columns, the texts wrapped to so many characters."""
    first = max(len(label) for label, _ in lines)
    every = [f"{indent}{label:<{first}}  {text}" for label, text in lines]
    if width is None:
        return every
    hanging = " " * (len(indent) + first + 2)
    return [part for line in every for part in wrapped(line, width, hanging)]


def wrapped(line: str, width: int, hanging: str | None = None) -> list[str]:
    """A line as several that fit, broken between words alone. What follows the first stands below
    its text: after the spaces that it begins with, and a "- ", "! " or "? "."""
    if len(line) <= width:
        return [line]
    if hanging is None:
        mark = re.match(r" *([-!?•→] )?", line)
        hanging = " " * (0 if mark is None else mark.end())
    text = line.lstrip(" ")
    return textwrap.wrap(
        text,
        width,
        initial_indent=line[: len(line) - len(text)],
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def html_table(name: str, lines: Lines) -> str:
    """The same for a notebook."""
    cells = "".join(
        f"<tr><th style='text-align:left;white-space:nowrap'>{html.escape(label)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for label, text in lines
    )
    caption = f"<caption style='text-align:left'>{html.escape(name)}</caption>"
    return f"<table>{caption}<tbody>{cells}</tbody></table>"


def columns_of(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Rows of texts in columns, which stand to the right but for those at `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def html_rows(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a notebook."""

    def row(tag: str, cells: Sequence[str]) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

    body = "".join(f"<tr>{row('td', cells)}</tr>" for cells in rows)
    caption = f"<caption style='text-align:left'>{html.escape(name)}</caption>"
    return (
        f"<table>{caption}<thead><tr>{row('th', columns)}</tr></thead><tbody>{body}</tbody></table>"
    )


# --- several estimates


def estimate_rows(records: Sequence[Evaluation], truth: float | None = None) -> list[list[str]]:
    """(estimator, value, interval, ESS, unseen mass, error, verdict) of each; with the `truth` how
    far the value is off in place of the error. A refusal gives its reason elsewhere."""
    rows = []
    for e in records:
        if e.value is None or e.diagnostics is None:
            rows.append([e.label, "refused", *[""] * 5])
            continue
        ess, unseen = e.diagnostics.worst_ess, e.diagnostics.total_unseen
        rows.append(
            [
                e.label,
                e.text,
                _around(e, "none", "not reliable"),
                "none" if ess is None else f"{ess:,.0f}",
                "" if unseen is None else f"{unseen:.1%}",
                _error(e) if truth is None else f"{e.value - truth:+.2g}",
                e.level or "",
            ]
        )
    return rows


def _error(e: Evaluation) -> str:
    return two_digits(e.error) if e.trusted else ""


def answer_line(e: Evaluation) -> str:
    """What is left of a row where only the answer is wanted."""
    if e.refused is not None:
        return f"{e.label} refused"
    around = _around(e, "no interval", "no interval")
    return f"{e.label} {e.text_of(e.standard_error)} {around} {e.level}"


def _around(e: Evaluation, none: str, untrusted: str) -> str:
    if e.interval is None:
        return none
    return str(e.interval) if e.trusted else untrusted


def whole_log(records: Sequence[Evaluation]) -> Evaluation | None:
    """The estimate of the most episodes, where others leave cut-off ones out."""
    answered = [e for e in records if e.value is not None]
    return max(answered, key=lambda e: e.n_episodes, default=None)


def log_line(e: Evaluation, unit: str = PER_EPISODE) -> str:
    """The line that every table of estimates needs beside it."""
    earned = "what today's policy earned is not known"
    if e.behavior_value is not None:
        earned = f"today's policy earned {number(e.behavior_value)} {unit}"
    return f"{e.n_episodes:,} episodes, horizon {e.horizon}; {earned}"


def gain_lines(records: Sequence[Evaluation]) -> list[str]:
    """Whether the target is better than the behavior, by each estimator whose error may be shown;
    why it is missing, once for all that lack it for the same reason. Where cut-off episodes were
    left out, what the behavior earned in the others, which the gain is over."""
    from reweigh.estimate.standard_error import same

    whole = whole_log(records)
    every = None if whole is None else whole.behavior_value
    lines, lacking = [], []
    for e in (e for e in records if e.tested is not None and e.trusted):
        if isinstance(e.tested, RefusedError):
            lacking.append((e.label, f"better than today's policy? not known: {e.tested.reason}"))
            continue
        behavior, over = e.behavior_value, ""
        if behavior is not None and every is not None and not same(behavior, every):
            over = f", over the {number(behavior)} earned in the episodes that were not cut off"
        lines.append(f"{e.label}: better than today's policy? {e.tested}{over}")
    return lines + named_lines(lacking)


def remarks(records: Iterable[Evaluation]) -> list[str]:
    """Warnings and refusals as lines, the same text once with all its estimators."""
    return named_lines((e.label, text) for e in records for text in _remarks_on(e))


def notes(records: Iterable[Evaluation]) -> list[str]:
    """The same without what gates and refusals say."""
    pairs = []
    for e in records:
        gates = () if e.verdict is None else e.verdict.reasons
        against = {f"{gate.level}: {gate.sentence}" for gate in gates}
        lines = [] if e.refused is not None else _remarks_on(e)
        pairs += [(e.label, line) for line in lines if line not in against]
    return named_lines(pairs)


def warning_lines(e: Evaluation) -> list[str]:
    """Its warnings, without those that are reasons too."""
    said = set() if e.verdict is None else {gate.sentence for gate in e.verdict.reasons}
    return [text for text in map(str, e.warnings) if text not in said]


def _remarks_on(e: Evaluation) -> list[str]:
    if e.refused is not None or e.verdict is None:
        return [] if e.refused is None else [f"refused ({e.refused.code}): {e.refused}"]
    of_interval = []
    if e.standard_error is not None and not e.trusted:
        of_interval.append(e.untrusted)
    if e.standard_error is None and "interval" not in e.reasons:
        of_interval.append(f"no interval: {e.error_method}")
    return remark_lines(e.warnings, of_interval, e.verdict)


def remark_lines(
    warnings: Iterable[Warning], of_interval: list[str], verdict: Verdict
) -> list[str]:
    """Warnings that no gate repeats, the reasons against an estimate, what is said of its interval,
    and what could not be checked."""
    against = {gate.sentence: gate.level for gate in verdict.reasons}
    lines = [f"! {warning}" for warning in warnings if str(warning) not in against]
    lines += [f"{level}: {text}" for text, level in against.items()]
    return lines + of_interval + [f"not checked: {line}" for line in verdict.unchecked_lines()]


def named_lines(pairs: Iterable[tuple[str, str]], between: str = ", ") -> list[str]:
    """(name, text) as lines: the same text once, with all its names."""
    return [f"{between.join(names)}: {text}" for text, names in by_text(pairs).items()]


def interval_cell(e: Evaluation) -> str:
    """The interval in a table."""
    if e.around is not None:
        return span(e.around)
    return "none" if e.trusted else "not reliable"


def by_text(pairs: Iterable[tuple[str, Text]]) -> dict[Text, list[str]]:
    """(name, text) by text: what is said of several is said once, with all their names."""
    names: dict[Text, list[str]] = {}
    for name, text in pairs:
        names.setdefault(text, []).append(name)
    return names


def change_cells(change: Change, error: float | None) -> tuple[str, str, str]:
    """(change, value, moved by) in a table of other choices."""
    if change.value is None or change.moved is None:
        return change.change, f"none: {change.why}", ""
    sign = "+" if change.moved >= 0 else ""
    return change.change, rounded(change.value, error), sign + rounded(change.moved, error)


def span(interval: Interval) -> str:
    """The ends in words."""
    if math.isfinite(interval.low) and math.isfinite(interval.high):
        margin = (interval.high - interval.low) / 4
        return f"{rounded(interval.low, margin)} to {rounded(interval.high, margin)}"
    return str(interval)


def percent(level: float) -> str:
    return f"{100 * level:.10g} %"


def sentence(text: str) -> str:
    """A reason or an advice as a sentence."""
    end = "" if text.endswith((".", "!", "?")) else "."
    return f"{text[:1].upper()}{text[1:]}{end}"


def signed(value: float, error: float | None) -> str:
    return f"{'+' if value > 0 else ''}{rounded(value, error)}"


def plain_value(value: Any, number_text: Callable[[float], str] = number) -> str:
    """A fact about a log in words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(plain_value(item, number_text) for item in value) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{role}: {plain_value(name)}" for role, name in value.items())
    return str(value)


def facts_in_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A log's description, its states by columns and ranges where they are known."""
    from reweigh.log.abstractions import state_in_words

    about = facts.get("state_columns", ()), facts.get("abstraction")
    examples = facts.get("state_examples", [])
    named = [state_in_words(str(name), *about) for name in examples]
    return {**facts, "state_examples": examples if named == examples else "; ".join(named)}


def plain(name: str) -> str:
    """A name from the data without characters that a terminal obeys."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def display_names(
    names: Iterable[str], safe: Callable[[str], str] = plain, longest: int = LONGEST_NAME
) -> dict[str, str]:
    """Names from the data as they are shown: harmless (`safe`), not too long, and distinct.

    Long ones are cut in the middle, since names of a kind differ at their end; where that makes
    two of them alike, elsewhere. Where no place differs, those that are called by the
    same columns (ward icu, lactate < 2) leave these out (icu, < 2), and others are numbered.
    """
    texts = {name: safe(name) for name in names}
    for end in ENDS:
        labels = {name: _cut(text, end, longest) for name, text in texts.items()}
        if len(set(labels.values())) == len(labels):
            return labels
    values = _without_columns(texts)
    if values != texts:
        labels = display_names(values.values(), str, longest)
        return {name: labels[text] for name, text in values.items()}
    numbered: dict[str, str] = {}
    for name, text in texts.items():
        label, k = _cut(text, ENDS[0], longest), 1
        while label in numbered.values():
            k += 1
            mark = f" #{k}"
            label = _cut(text, ENDS[0], longest - len(mark)) + mark
        numbered[name] = label
    return numbered


def _without_columns(texts: Mapping[str, str]) -> dict[str, str]:
    parts = {name: [p.partition(" ") for p in text.split(", ")] for name, text in texts.items()}
    columns = {tuple(p[0] for p in each) for each in parts.values() if len(each) > 1}
    if len(columns) != 1:
        return dict(texts)
    return {
        name: ", ".join(value for *_, value in parts[name]) if len(parts[name]) > 1 else text
        for name, text in texts.items()
    }


def _cut(text: str, end: int, longest: int = LONGEST_NAME) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest - end - 1].rstrip()}…{text[-end:].lstrip()}"


# --- what values are per


def check_unit(unit: str) -> str:
    """UsageError unless it is like "per patient" or "dollars per user"."""
    if not re.fullmatch(r"(.* )?per \S.*", unit):
        raise UsageError(f'the unit must be like "per patient"; got {unit!r}')
    return unit


def one_of(unit: str) -> str:
    """ "patient" of "per patient"."""
    return unit.rpartition("per ")[2]


def several(unit: str) -> str:
    """ "patients" of "per patient"."""
    noun = one_of(unit)
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if re.search(r"(s|x|z|ch|sh)$", noun) else f"{noun}s"
