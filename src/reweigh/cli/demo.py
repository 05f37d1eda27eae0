"""reweigh demo: worked examples with known truth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

import reweigh as rw
from reweigh.cli.command import command
from reweigh.cli.evaluate import Detail, print_first_screen
from reweigh.cli.options import WRITES
from reweigh.cli.terminal import Terminal, for_terminal
from reweigh.errors import ResourceError, UsageError
from reweigh.show.record import ranked
from reweigh.system.process import each

if TYPE_CHECKING:
    from reweigh.worlds import TabularMDP

STATES, ACTIONS, HORIZON, EPISODES, SEED = 8, 3, 30, 2000, 7
FIRST_ESTIMATORS = ("mis", "wis", "dm", "is")  # beside the answer, of the small world
RECORD = ".reweigh-demo.json"
ICU_EPISODES, ICU_HORIZON, ICU_PILOT, ICU_DIFFERENCE = 20_000, 20, 2_000, 0.01
ICU_ESTIMATORS = ("auto", "mis", "wis", "is", "dm")
ICU_POLICIES = {
    "softened": "the clinicians', but 1 in 10 treatments is drawn evenly among theirs",
    "tilted": "the clinicians', with more of what helps",
    "optimal-mix": "the clinicians', but 3 in 10 treatments are the best ones",
}


def demo_world() -> TabularMDP:
    """A random world in which the target is a better policy than the behavior.

    π(a|s) ∝ μ(a|s) exp(β Q_t(s,a)): more weight where the behavior's own values are higher.
    """
    import numpy as np

    from reweigh.worlds import TabularMDP, random_mdp

    world = random_mdp(
        np.random.default_rng(SEED), STATES, ACTIONS, HORIZON, reward_sd=0.5, time_varying=False
    )
    behavior = world.behavior_array[0]
    values = world.state_values(world.behavior_array)
    move = world.transition[0]
    q = np.sum(move * (world.reward[0] + values[1]), axis=2)
    advantage = q - np.sum(behavior * q, axis=1, keepdims=True)
    target = behavior * np.exp(5 * advantage)
    target /= target.sum(axis=1, keepdims=True)
    return TabularMDP(
        world.initial, move, world.reward[0], target, behavior, reward_sd=0.5, horizon=HORIZON
    )


@dataclass(frozen=True)
class Folder:
    """Where a demo writes its files."""

    path: Path
    policies: Sequence[str]
    pages: Sequence[str]
    overwrite: bool

    @property
    def log(self) -> Path:
        return self.path / "log.parquet"

    def policy(self, name: str) -> Path:
        return self.path / f"{name}.csv"

    def page(self, name: str) -> Path:
        return self.path / f"{name}.html"

    @property
    def record(self) -> Path:
        """Names the files that a demo wrote here, with their digests."""
        return self.path / RECORD

    def prepare(self) -> None:
        """Make the folder. What an earlier demo wrote, and nobody changed, is replaced; any other
        file stays, unless another is named."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(
                f"cannot make the folder {str(self.path)!r}: {error.strerror}"
            ) from error
        if self.overwrite:
            return
        own = self._written()
        for path in (path for path in self.files if path.exists() or path.is_symlink()):
            if path.name not in own:
                what = f"{str(path)!r} exists, and no demo wrote it"
            elif own[path.name] != _digest(path):
                what = f"{str(path)!r} was changed since the demo wrote it"
            else:
                continue
            raise UsageError(f"{what}; give another folder or ask to overwrite it")

    @property
    def files(self) -> list[Path]:
        return [self.log, *map(self.policy, self.policies), *map(self.page, self.pages)]

    def _written(self) -> dict[str, Any]:
        """Name and digest of each file that an earlier demo wrote here."""
        from reweigh.system.files import parse_object

        if not self.record.is_file() or self.record.is_symlink():
            return {}
        return parse_object(self.record.read_bytes(), f"the file {str(self.record)!r}")

    def remember(self, *paths: Path) -> None:
        """Write down what was written, so that running the demo again may replace it."""
        from reweigh.system.files import write_atomically

        content = json.dumps(self._written() | {p.name: _digest(p) for p in paths}, indent=2)
        write_atomically(
            self.record, lambda stream: stream.write(f"{content}\n".encode()), overwrite=True
        )

    def write(self, log: Any, targets: Mapping[str, Any]) -> None:
        """The log without the target's probabilities, and the policies."""
        import pyarrow.csv as pacsv
        import pyarrow.parquet as pq

        from reweigh.system.files import write_atomically

        rows = log.to_table().drop_columns(["target_prob"])
        write_atomically(self.log, partial(pq.write_table, rows), overwrite=True)  # see prepare
        for name, target in targets.items():
            write = partial(pacsv.write_csv, target.to_table())
            write_atomically(self.policy(name), write, overwrite=True)
        self.remember(self.log, *map(self.policy, targets))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@command()
def demo(
    world: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORLD]",
            help="icu-sepsis: three treatment policies on a log of 20,000 patients (needs the "
            "package icu-sepsis). Without it, a small random world.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Folder for the log, the policy and the report."),
        WRITES,
    ] = Path("reweigh-demo"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that no demo wrote, or that changed.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the path of the report alone.")
    ] = False,
) -> None:
    """Simulate a log whose truth is known, evaluate it with every estimator, compare, report.

    Example: reweigh demo -o demo, or reweigh demo icu-sepsis -o icu
    """
    if world not in (None, "icu-sepsis"):
        raise UsageError(f"there is no demo {world!r}; give icu-sepsis, or nothing")
    if world is None:
        show, folder = _small_world, Folder(output, ["policy"], ["report"], overwrite)
    else:
        pages = ["report", "comparison"]
        show, folder = _icu_sepsis, Folder(output, list(ICU_POLICIES), pages, overwrite)
    folder.prepare()
    terminal = Terminal(quiet)
    commands = show(folder, terminal)
    folder.remember(*map(folder.page, folder.pages))
    terminal.answer(str(folder.page("report")))
    terminal.say("The same on these files:")
    terminal.command(*commands)


def _small_world(folder: Folder, terminal: Terminal) -> list[str]:
    """One target and every estimator; returns the commands that do the same on the files."""
    from reweigh.evaluation.beside import once
    from reweigh.evaluation.evaluations import main_of
    from reweigh.evaluation.report import write_report

    with terminal.working("simulating"):
        world = demo_world()
        log = world.simulate(EPISODES, SEED)
    folder.write(log, {"policy": world.target})
    policy_path, report_path = folder.policy("policy"), folder.page("report")
    with terminal.working("evaluating"):
        read = rw.read_log(folder.log, next_state="next_state")
        results = once(rw.evaluate_all(read, rw.read_policy(policy_path), ["auto", *rw.ESTIMATORS]))
    truth = float(world.value())
    again = (
        f"reweigh evaluate {quote(str(folder.log))} --target {quote(str(policy_path))} "
        "--next-state next_state --estimators all"
    )
    with terminal.working("writing the report"):
        write_report(
            results, report_path, truth=truth, command=again, words=for_terminal, overwrite=True,
        )  # fmt: skip
    main = main_of(results)
    assert main is not None
    rows = ranked([result.record() for result in results], results.index(main))
    detail = Detail(truth=truth, named=FIRST_ESTIMATORS, reasons=1, rest=("in the report", ""))
    print_first_screen(rows, (), terminal, detail)
    terminal.say(
        f"Simulated: {EPISODES:,} episodes of {HORIZON} steps, whose true value is {truth:.2f}.",
        f"Report, to open in a browser: {report_path}",
    )
    return [again]


def _icu_sepsis(folder: Folder, terminal: Terminal) -> list[str]:
    """Three treatment policies on the clinicians' log: log, evaluate, compare, plan and report;
    returns the commands that do the same on the files."""
    from reweigh.decide.report import write_comparison
    from reweigh.evaluation.beside import once
    from reweigh.evaluation.report import write_report
    from reweigh.worlds import ICUSepsis

    with terminal.working("simulating"):
        worlds = {name: ICUSepsis(ICU_HORIZON, name) for name in ICU_POLICIES}
        first = next(iter(worlds.values()))
        simulated = first.simulate(ICU_EPISODES, SEED)
    folder.write(simulated, {name: world.target for name, world in worlds.items()})
    with terminal.working("evaluating"):
        log = rw.read_log(folder.log, terminated="terminated", engine="arrays")
        assert isinstance(log, rw.EpisodeLog)
        targets = {name: rw.read_policy(folder.policy(name)) for name in worlds}
        evaluated = each(
            "policies", targets.values(), lambda t: once(rw.evaluate_all(log, t, ICU_ESTIMATORS))
        )
        results = dict(zip(targets, evaluated, strict=True))
        records = {name: [r.record() for r in estimates] for name, estimates in results.items()}
    truth = {name: float(world.value()) for name, world in worlds.items()}
    terminal.say(
        f"{ICU_EPISODES:,} patients with sepsis, simulated from ICU-Sepsis (716 states, 25 "
        "treatments, fitted to hospital records). To leave the hospital alive within "
        f"{ICU_HORIZON} steps of 4 hours pays 1. The clinicians' own chance is "
        f"{float(first.behavior_value()):.4f}.",
        f"Their log: {folder.log}",
        "",
    )
    for name, what in ICU_POLICIES.items():
        terminal.say(f"{name}: {what}.\n{folder.policy(name)}; in truth {truth[name]:.4f}")
        rows = ranked(records[name], 0)
        detail = Detail(
            unit="per patient", truth=truth[name], reasons=1, rest=("in the report", "")
        )
        print_first_screen(rows, (), terminal, detail)
    comparison = _compared_and_planned(log, targets, terminal)
    again = (
        f"reweigh evaluate {quote(str(folder.log))} --target {quote(str(folder.policy('tilted')))} "
        f"--terminated terminated --estimators {','.join(ICU_ESTIMATORS)}"
    )
    report_path, comparison_path = folder.page("report"), folder.page("comparison")
    with terminal.working("writing the report"):
        words: dict[str, Any] = {"words": for_terminal, "overwrite": True}
        known: dict[str, Any] = {"truth": truth["tilted"], "unit": "per patient"}
        write_report(results["tilted"], report_path, command=again, **known, **words)
        write_comparison(comparison, comparison_path, **words)
    terminal.say(f"\nReports, to open in a browser: on tilted, {report_path}")
    terminal.say(f"on all three, {comparison_path}")
    files = " ".join(f"--target {quote(str(folder.policy(name)))}" for name in targets)
    log_file = quote(str(folder.log))
    return [again, f"reweigh compare {log_file} --terminated terminated {files}"]


def _compared_and_planned(
    log: rw.EpisodeLog, targets: dict[str, Any], terminal: Terminal
) -> rw.Comparison:
    """Which policy is better, and how many patients would be enough to tell."""
    from reweigh.cli.compare import print_answer
    from reweigh.theory.plan_result import plan_text

    terminal.say("Which one is better?")
    with terminal.working("comparing"):
        comparison = rw.compare(log, targets, seed=SEED)
    print_answer(comparison, (), terminal, unit="per patient")
    terminal.say(f"\nHow many patients would be enough, from a pilot of the first {ICU_PILOT:,}?")
    with terminal.working("planning"):
        pilot = log.select(log.steps.episode < ICU_PILOT)
        plan: Any = rw.theory.plan
        goal = {"difference": ICU_DIFFERENCE, "estimators": ["mis", "is"]}
        needed = plan(pilot, targets["tilted"], **goal)
    terminal.say(plan_text(needed, for_terminal))
    return comparison
