"""reweigh check --diagnose: every gate of a log and a target, and no estimate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reweigh.cli.inputs import read_given
from reweigh.cli.options import LogOptions, TargetOptions
from reweigh.cli.terminal import Voice
from reweigh.errors import RefusedError

if TYPE_CHECKING:
    from rich.table import Table

    from reweigh.evaluation.result import Estimate, Refusal


def tell(
    paths: list[Path] | None,
    log: LogOptions,
    target: TargetOptions,
    estimators: str,
    *,
    strict: bool,
    voice: Voice,
) -> None:
    """Print the gates. The values are computed on the way, and not told: whoever decides whether
    to believe a number should not have seen it."""
    import reweigh as rw
    from reweigh.cli.evaluate import chosen
    from reweigh.cli.tables import noted, print_json

    recipes = chosen(estimators, None)
    with noted() as general:
        with voice.working("reading"):
            given = read_given(paths, log, target)
        with voice.at_work(given.data, "diagnosing") as data:
            results = rw.evaluate_all(data, given.policy, recipes)
            verdicts = [r.verdict for r in results if isinstance(r, rw.Estimate)]
    if voice.as_json:
        print_json(
            {
                "diagnoses": [_entry(result) for result in results],
                "log": given.about,
                "warnings": general,
                "version": rw.__version__,
            }
        )
    else:
        voice.table(gates_table(results))
        for line in _verdicts(results):
            voice.say(line)
            voice.answer(line)
        for line in _advice(results):
            voice.warn(line)
        for text in general:
            voice.warn(f"! {text}")
    if not verdicts:
        raise RefusedError("refused", "no estimator could answer for this target")
    if strict and any(verdict.level == "red" for verdict in verdicts):
        raise RefusedError("red", "a verdict is red, and --strict takes it for a refusal")


def _entry(result: Estimate | Refusal) -> dict[str, Any]:
    from reweigh.evaluation.result import Refusal

    if isinstance(result, Refusal):
        error = result.error
        refused = {"code": error.code, "reason": error.reason}
        return {"estimator": result.estimator, "verdict": None, "refused": refused}
    found = result.verdict.to_dict()
    return {
        "estimator": result.estimator,
        "verdict": found["level"],
        "unchecked": found["unchecked"],
        "gates": found["gates"],
    }


def gates_table(results: Sequence[Estimate | Refusal]) -> Table:
    """One row per gate and finding, with the estimators that it speaks of; the worst first."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from reweigh.cli.messages import printable
    from reweigh.evaluation.result import Refusal
    from reweigh.trust.gates.gate import ORDER

    found: dict[tuple[str, str, str], list[str]] = {}
    for result in results:
        if not isinstance(result, Refusal):
            for gate in result.verdict.gates:
                level = "hint" if gate.hint and gate.level == "amber" else gate.level
                against = gate.level in ("amber", "red")
                text = f"{gate.text} [{gate.limit}]" if against else gate.text
                found.setdefault((level, gate.name, text), []).append(result.estimator)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1))
    for name in ("gate", "level", "of"):
        table.add_column(name, no_wrap=True)
    table.add_column("found")
    rank: dict[str, int] = {level: -place for place, level in enumerate(("hint", *ORDER))}
    for (at, name, text), names in sorted(found.items(), key=lambda item: rank[item[0][0]]):
        said = "not checked" if at == "unknown" else at
        table.add_row(name, said, ", ".join(names), escape(printable(text)))
    return table


def _verdicts(results: Sequence[Estimate | Refusal]) -> list[str]:
    from reweigh.evaluation.result import Refusal

    return [
        f"{result.estimator}: refused ({result.error.code}): {result.error}"
        if isinstance(result, Refusal)
        else f"{result.estimator}: {result.verdict}"
        for result in results
    ]


def _advice(results: Sequence[Estimate | Refusal]) -> list[str]:
    """What to do about what speaks against the estimators, each once."""
    from reweigh.evaluation.result import Refusal

    reasons = [r.verdict.reasons for r in results if not isinstance(r, Refusal)]
    told = [f"{gate.name}: {gate.advice}" for gates in reasons for gate in gates]
    return list(dict.fromkeys(told))
