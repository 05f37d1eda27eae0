"""reweigh demo: a worked example with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reweigh.cli.evaluate import summary

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


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the log and the policy.")
    ] = Path("reweigh-demo"),
    overwrite: Annotated[bool, typer.Option(help="Replace the files if they exist.")] = False,
) -> None:
    """Simulate a log whose truth is known, evaluate it with every estimator, compare.

    Example: reweigh demo -o demo
    """
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    import reweigh as rw
    from reweigh.cli.show import (
        escape_lines,
        estimates_table,
        print_table,
        remarks,
        working,
    )
    from reweigh.errors import ResourceError
    from reweigh.output import write_atomically

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {str(output)!r}: {error.strerror}") from error
    log_path, policy_path = output / "log.parquet", output / "policy.csv"
    with working("simulating"):
        world = demo_world()
        table = world.simulate(EPISODES, SEED).to_table().drop_columns(["target_prob"])
    policy_table = world.target.to_table()
    write_atomically(
        policy_path, lambda stream: pacsv.write_csv(policy_table, stream), overwrite=overwrite
    )
    write_atomically(log_path, lambda stream: pq.write_table(table, stream), overwrite=overwrite)
    with working("evaluating"):
        log = rw.read_log(log_path, next_state="next_state")
        results = rw.evaluate_all(log, rw.read_policy(policy_path), list(rw.ESTIMATORS))
    truth = float(world.value())
    print(
        f"A log of {EPISODES:,} episodes, {HORIZON} steps each: {log_path}\n"
        f"A target policy to evaluate: {policy_path}\n"
        f"What the target really earns per episode: {truth:.4f}"
    )
    print_table(estimates_table(results, truth))
    first = next(result for result in results if isinstance(result, rw.Estimate))
    print(escape_lines([summary(first), *remarks(results)]))
    print(
        "\nThe same on the files:\n"
        f"  reweigh evaluate {log_path} --target {policy_path} --next-state next_state "
        "--estimators all"
    )
