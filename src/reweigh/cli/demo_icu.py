"""reweigh demo icu-sepsis: three treatment policies on the clinicians' log, with known truth."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from reweigh.cli.evaluate import summary
from reweigh.cli.messages import for_terminal
from reweigh.cli.terminal import Voice

EPISODES, HORIZON, SEED = 20_000, 20, 7
PILOT, DIFFERENCE = 2_000, 0.01
ESTIMATORS = ("mis", "wis", "is", "dm")
POLICIES = {
    "softened": "the clinicians', but 1 in 10 treatments is drawn evenly among theirs",
    "tilted": "the clinicians', with more of what helps",
    "optimal-mix": "the clinicians', but 3 in 10 treatments are the best ones",
}


def files_of(folder: Path) -> list[Path]:
    """What the demo writes."""
    return [
        folder / "log.parquet",
        *(folder / f"{n}.csv" for n in POLICIES),
        folder / "report.html",
        folder / "comparison.html",
    ]


def icu_sepsis(folder: Path, overwrite: bool, voice: Voice) -> None:
    """Log, evaluate, compare, plan and report; the folder is there."""
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    import reweigh as rw
    from reweigh.cli.compare import comparison_remarks, comparison_table, comparison_warnings
    from reweigh.cli.tables import estimates_table, remarks
    from reweigh.decide.comparison_report import write_comparison
    from reweigh.evaluation.report import write_report
    from reweigh.policy.base import Policy
    from reweigh.system.output import write_atomically
    from reweigh.system.progress import each
    from reweigh.theory import plan
    from reweigh.theory.plan_result import plan_text
    from reweigh.worlds import ICUSepsis

    log_path, *policy_paths, report_path, compared_path = files_of(folder)
    with voice.working("simulating"):
        worlds = {name: ICUSepsis(HORIZON, name) for name in POLICIES}
        first = next(iter(worlds.values()))
        table = first.simulate(EPISODES, SEED).to_table().drop_columns(["target_prob"])
    for path, world in zip(policy_paths, worlds.values(), strict=True):
        policy_table = world.target.to_table()

        def write(stream: object, rows: object = policy_table) -> None:
            pacsv.write_csv(rows, stream)

        write_atomically(path, write, overwrite=overwrite)
    write_atomically(log_path, lambda stream: pq.write_table(table, stream), overwrite=overwrite)

    with voice.working("evaluating"):
        log = rw.read_log(log_path, terminated="terminated", engine="arrays")
        assert isinstance(log, rw.EpisodeLog)
        targets = dict(zip(worlds, (rw.read_policy(path) for path in policy_paths), strict=True))

        def evaluated(target: Policy) -> list[rw.Estimate | rw.Refusal]:
            found = rw.evaluate_all(log, target, ESTIMATORS)
            for result in found:
                if isinstance(result, rw.Estimate):
                    _ = result.verdict  # made here, while a bar is shown
            return found

        found = each("policies", targets.values(), evaluated)
        results = dict(zip(targets, found, strict=True))
    truth = {name: float(world.value()) for name, world in worlds.items()}
    voice.say(
        f"{EPISODES:,} patients with sepsis, simulated from ICU-Sepsis (716 states, 25\n"
        "treatments, fitted to hospital records). To leave the hospital alive within\n"
        f"{HORIZON} steps of 4 hours pays 1. The clinicians' own chance is "
        f"{float(first.behavior_value()):.4f}.\nTheir log: {log_path}"
    )
    for (name, what), path in zip(POLICIES.items(), policy_paths, strict=True):
        voice.say(f"\n{name}: {what}.\n{path}; in truth {truth[name]:.4f}")
        voice.table(estimates_table(results[name], truth[name]))
    best = results["tilted"]
    voice.say(f"\n{summary([r for r in best if isinstance(r, rw.Estimate)])}\nOn tilted:")
    for line in remarks(best):
        voice.say(f"  {line}")

    voice.say("\nWhich one is better?")
    with voice.working("comparing"):
        compared = rw.compare(log, targets, ["mis"], seed=SEED)
    voice.table(comparison_table(compared))
    for line in [*comparison_remarks(compared), *comparison_warnings(compared)]:
        voice.say(line)

    voice.say(f"\nHow many patients would be enough, from a pilot of the first {PILOT:,}?")
    with voice.working("planning"):
        pilot = log.select(log.steps.episode < PILOT)
        needed = plan(pilot, targets["tilted"], difference=DIFFERENCE, estimators=["mis", "is"])
    voice.say(plan_text(needed, for_terminal))

    again = (
        f"reweigh evaluate {quote(str(log_path))} --target {quote(str(policy_paths[1]))} "
        f"--terminated terminated --estimators {','.join(ESTIMATORS)}"
    )
    with voice.working("writing the report"):
        write_report(
            best,
            report_path,
            truth=truth["tilted"],
            command=again,
            words=for_terminal,
            overwrite=overwrite,
        )
        write_comparison(compared, compared_path, words=for_terminal, overwrite=overwrite)
    voice.say(f"\nReports, to open in a browser: on tilted, {report_path}")
    voice.say(f"on all three, {compared_path}")
    voice.answer(str(report_path))
    voice.say("The same on the files:")
    voice.say(f"  {again}")
    targets_given = " ".join(f"--target {quote(str(path))}" for path in policy_paths)
    voice.say(f"  reweigh compare {quote(str(log_path))} --terminated terminated {targets_given}")
