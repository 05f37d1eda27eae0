"""Why a verdict is what it is, from what `--json` printed: nothing is computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reweigh.errors import InputError, InputWarning, RefusedError
from reweigh.estimate.presets import estimator
from reweigh.show.first_screen import (
    answer_sentence,
    ended,
    help_after,
    reason_text,
    reasons_of,
    verdict_sentence,
)
from reweigh.show.record import NEW_POLICY, UNTRUSTED, Evaluation, error_beside
from reweigh.show.text import sentence, wrapped
from reweigh.system import number
from reweigh.trust.gates import GateResult, Verdict, all_gates
from reweigh.trust.intervals import Interval

LISTS = ("estimates", "contenders", "diagnoses")  # where the commands put their results
BLIND = (
    "No check can see episodes that were selected by their outcome, propensities that belong to "
    "another action, or duplicated episodes."
)
HEADINGS = {
    "red": "Red: they rule the estimate out",
    "amber": "Amber: keep them in mind",
    "hint": "Hints: they never change the verdict",
    "green": "Passed",
    "unknown": "Could not be checked: the verdict is not better for it",
}


def results_of(content: Any) -> list[Evaluation]:
    """The results in what a command printed with --json, or in `Estimate.to_dict()`; in a
    comparison those with a holdout's result, called by target and estimator."""
    if not isinstance(content, Mapping):
        raise InputError(f"this must be a JSON object; it is a {type(content).__name__}")
    lists = [content[name] for name in LISTS if name in content]
    if "estimator" in content and ("gates" in content or "refused" in content):
        lists = [[content]]
    if not lists:
        raise InputError(
            "this holds no result: it must be what reweigh evaluate, compare or check --diagnose "
            "prints with --json, or est.to_dict()"
        )
    about = content.get("log", {})
    try:
        return [_result(entry, about) for entry in lists[0]]
    except (KeyError, TypeError, AttributeError) as error:
        what = f"the key {error}" if isinstance(error, KeyError) else "a part"
        raise InputError(
            f"{what} of a result is missing or has another form: evaluate again with --json"
        ) from error


def _result(entry: Mapping[str, Any], about: Mapping[str, Any]) -> Evaluation:
    recipe, label = estimator(entry["estimator"]), entry.get("name", entry["estimator"])
    size = {"n_episodes": entry.get("n_episodes", 0), "horizon": entry.get("horizon", 0)}
    if "refused" in entry:
        refused = RefusedError(entry["refused"]["code"], entry["refused"]["reason"])
        return Evaluation(label, recipe, refused=refused, **size)
    gates = {gate.name: gate for gate in all_gates()}
    found = tuple(_gate(gate, gates) for gate in entry["gates"])
    verdict = Verdict(found)
    if verdict.level != entry["verdict"]:
        raise InputError(
            f"{label}: the verdict is {entry['verdict']}, and its gates make it {verdict.level}: "
            "the file was changed, or comes from another version; evaluate again with --json"
        )
    untrusted = UNTRUSTED if verdict.level == "red" else ""
    own, interval = entry.get("standard_error"), _interval(entry.get("interval"))
    error = error_beside(own, interval)
    if "simultaneous_interval" in entry:
        error, interval = own, _interval(entry["simultaneous_interval"])
    gain = entry.get("over_behavior") or entry.get("gain") or {}
    refusal = gain.get("refused")
    return Evaluation(
        label,
        recipe,
        **size,
        value=entry.get("value"),
        standard_error=own,
        error=error,
        interval=interval,
        untrusted=untrusted,
        no_interval=untrusted or entry.get("no_interval") or entry.get("error_method", ""),
        behavior_value=entry.get("behavior_value"),
        gain=gain.get("value"),
        gain_interval=None if untrusted else _interval(gain.get("interval")),
        gain_why=untrusted or ("" if refusal is None else refusal["reason"]),
        verdict=verdict,
        warnings=tuple(InputWarning(text) for text in entry.get("warnings", ())),
        chosen=entry.get("chosen"),
        policy=entry.get("policy", NEW_POLICY),
        state_columns=tuple(about.get("state_columns", ())),
        abstraction=about.get("abstraction"),
    )


def _gate(entry: Mapping[str, Any], gates: Mapping[str, Any]) -> GateResult:
    known = gates.get(entry["name"])
    parts = ("name", "level", "value", "text", "advice", "limit", "step", "state", "action", "hint")
    assumption = known is not None and known.assumption
    return GateResult(**{name: entry[name] for name in parts}, assumption=assumption)


def _interval(entry: Mapping[str, Any] | None) -> Interval | None:
    if entry is None:
        return None
    low, high = entry["low"], entry["high"]
    return Interval(
        -float("inf") if low is None else low,
        float("inf") if high is None else high,
        entry["level"],
        entry["method"],
        entry["standard_error"],
    )


def main_of(results: Sequence[Evaluation]) -> Evaluation:
    """The one whose number is the answer: what "auto" chose, else the best target of a comparison,
    else MIS, else the first that answered."""
    answered = [e for e in results if e.refused is None] or list(results)
    chosen = [e for e in answered if e.chosen is not None]
    if any(e.label != e.estimator for e in results):  # of a comparison, which the first one ranks
        ranks = [e for e in answered if e.estimator == results[0].estimator and e.value is not None]
        chosen = sorted(ranks, key=lambda e: -(e.value or 0.0))
    default = [e for e in answered if e.estimator == "mis"]
    return [*chosen, *default, *answered][0]


def explained(e: Evaluation, beside: Sequence[Evaluation], unit: str, width: int) -> str:
    """The answer, what decided, every check, and what to do."""
    parts = [[f"{e.label}: {_first(e, unit)}"]]
    if e.verdict is not None:
        parts += [_deciding(e, e.verdict), *_checks(e, e.verdict)]
    parts.append(_what_to_do(e, [other for other in beside if other is not e]))
    if e.warnings:
        said = () if e.verdict is None else tuple(gate.sentence for gate in e.verdict.reasons)
        more = dict.fromkeys(str(w) for w in e.warnings if str(w) not in said)
        parts.append(["Warnings", *(f"- {sentence(text)}" for text in more)] if more else [])
    lines = [[text for line in part for text in wrapped(line, width)] for part in parts if part]
    return "\n\n".join("\n".join(part) for part in lines)


def _first(e: Evaluation, unit: str) -> str:
    if e.refused is None and e.value is None:  # the gates alone, of check --diagnose
        return f"{verdict_sentence(e)} (There is no value in this file: it holds the checks alone.)"
    return answer_sentence(e, unit)


def _deciding(e: Evaluation, verdict: Verdict) -> list[str]:
    checked = [gate for gate in verdict.gates if gate.level != "unknown"]
    rule = f"The verdict is {verdict.level}: the worst of {len(checked)} checks decides"
    deciding = [gate for gate in verdict.reasons if gate.level == verdict.level]
    if not deciding:
        return ["What decided", f"{rule}, and none of them is amber or red."]
    lines = ["What decided", f"{rule}, and {len(deciding)} of them {_are(deciding)}."]
    for gate in deciding:
        measured = "" if gate.value is None else f"measured {number(gate.value)}"
        limit = f"limits: {gate.limit}" if gate.limit else ""
        beyond = "; ".join(part for part in (measured, limit) if part)
        lines.append(f"- {gate.name}: {reason_text(e, gate)}{f' ({beyond})' if beyond else ''}")
    return lines


def _are(gates: Sequence[GateResult]) -> str:
    return f"{'is' if len(gates) == 1 else 'are'} {gates[0].level}"


def _checks(e: Evaluation, verdict: Verdict) -> list[list[str]]:
    """Every gate under its level: its question and what was found."""
    questions = {gate.name: gate.question for gate in all_gates()}
    by_level: dict[str, list[str]] = {name: [] for name in HEADINGS}
    for gate in verdict.gates:
        level = "hint" if gate.hint and gate.level in ("amber", "red") else gate.level
        question = questions.get(gate.name, f"{gate.name}:")
        by_level[level].append(f"- {question} {sentence(reason_text(e, gate))}")
    return [[HEADINGS[level], *lines] for level, lines in by_level.items() if lines]


def _what_to_do(e: Evaluation, beside: Sequence[Evaluation]) -> list[str]:
    every = [e, *beside]
    advice = dict.fromkeys(r.advice for r in reasons_of([e], beside) if r.advice)
    lines = [f"- {sentence(text)}" for text in advice]
    helps = help_after(every)
    if helps:
        lines.append(f"- {ended(helps)}")
    if e.reliable and not lines:
        lines = ["Nothing has to be done before you use this estimate.", BLIND]
    return ["What to do", *lines] if lines else []
