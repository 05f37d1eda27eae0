"""reweigh demo: a worked example with known truth."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from reweigh.cli.evaluate import summary
from reweigh.cli.files import WRITES, apart
from reweigh.cli.messages import for_terminal
from reweigh.cli.terminal import Voice

if TYPE_CHECKING:
    from reweigh.worlds import TabularMDP

STATES, ACTIONS, HORIZON, EPISODES, SEED = 8, 3, 30, 2000, 7


def demo_world() -> TabularMDP:
    """A random world in which the target is a better policy than the behaviour.

    π(a|s) ∝ μ(a|s) exp(β Q_t(s,a)): more weight where the behaviour's own values are higher.
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


@apart
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
        bool, typer.Option("--overwrite", help="Replace the files if they exist.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the path of the report alone.")
    ] = False,
) -> None:
    """Simulate a log whose truth is known, evaluate it with every estimator, compare, report.

    Example: reweigh demo -o demo, or reweigh demo icu-sepsis -o icu
    """
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    import reweigh as rw
    from reweigh.cli.demo_icu import files_of, icu_sepsis
    from reweigh.cli.tables import estimates_table, remarks
    from reweigh.errors import ResourceError, UsageError
    from reweigh.evaluation.report import write_report
    from reweigh.system.output import write_atomically

    if world not in (None, "icu-sepsis"):
        raise UsageError(f"there is no demo {world!r}; give icu-sepsis, or nothing")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {str(output)!r}: {error.strerror}") from error
    log_path, policy_path = output / "log.parquet", output / "policy.csv"
    report_path = output / "report.html"
    written = (log_path, policy_path, report_path) if world is None else files_of(output)
    there = [path for path in written if path.exists()]
    if there and not overwrite:
        raise UsageError(f"{str(there[0])!r} exists; give another folder or ask to overwrite it")
    voice = Voice(quiet)
    if world is not None:
        icu_sepsis(output, overwrite, voice)
        return
    with voice.working("simulating"):
        small = demo_world()
        table = small.simulate(EPISODES, SEED).to_table().drop_columns(["target_prob"])
    policy_table = small.target.to_table()
    write_atomically(
        policy_path, lambda stream: pacsv.write_csv(policy_table, stream), overwrite=overwrite
    )
    write_atomically(log_path, lambda stream: pq.write_table(table, stream), overwrite=overwrite)
    with voice.working("evaluating"):
        log = rw.read_log(log_path, next_state="next_state")
        results = rw.evaluate_all(log, rw.read_policy(policy_path), list(rw.ESTIMATORS))
    truth = float(small.value())
    again = (
        f"reweigh evaluate {quote(str(log_path))} --target {quote(str(policy_path))} "
        "--next-state next_state --estimators all"
    )
    with voice.working("writing the report"):
        write_report(
            results, report_path, truth=truth, command=again, words=for_terminal,
            overwrite=overwrite,
        )  # fmt: skip
    voice.say(f"A log of {EPISODES:,} episodes, {HORIZON} steps each: {log_path}")
    voice.say(f"A target policy to evaluate: {policy_path}")
    voice.say(f"What the target really earns per episode: {truth:.4f}")
    voice.table(estimates_table(results, truth))
    for line in [summary([r for r in results if isinstance(r, rw.Estimate)]), *remarks(results)]:
        voice.say(line)
    voice.say(f"\nA report of all this, to open in a browser: {report_path}")
    voice.answer(str(report_path))
    voice.say("The same on the files:")
    voice.say(f"  {again}")
