"""The pictures of docs/concepts, from one simulated log: always the same.

python scripts/pictures.py          check that the pictures show what the code says
python scripts/pictures.py --write  draw them
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

import reweigh as rw
from reweigh.show.charts import LOOKS, estimator_scales, rendered, styled
from reweigh.worlds import TabularMDP

FOLDER = Path(__file__).parents[1] / "docs" / "concepts"
STATES = ("low", "medium", "severe")
EPISODES, SHOWN, HORIZON = 1000, 60, 30
FLOOR = 1e-6  # products below it are drawn at the lower edge
GREY, DARK = "#8A8A8A", "#111111"


def clinic() -> TabularMDP:
    """Three states, two treatments: the behavior tosses a coin, the target prefers the second."""
    move = [
        [[0.7, 0.2, 0.1], [0.8, 0.15, 0.05]],
        [[0.2, 0.5, 0.3], [0.4, 0.5, 0.1]],
        [[0.05, 0.25, 0.7], [0.1, 0.5, 0.4]],
    ]
    reward = np.zeros((3, 2, 3))
    reward[..., 0] = 1.0  # a week in the state "low" pays 1
    target, behavior = [[0.2, 0.8]] * 3, [[0.5, 0.5]] * 3
    return TabularMDP([0.1, 0.3, 0.6], move, reward, target, behavior, horizon=HORIZON)


def products(log: rw.EpisodeLog, target: rw.TablePolicy) -> Any:
    """The running products of some episodes."""
    steps = log.steps
    # the rows are time-major and all episodes equally long: a row per step
    rho = (target.probabilities(log) / steps.behavior_prob).reshape(log.horizon, log.n_episodes)
    running = np.cumprod(rho, axis=0)[:, :SHOWN]
    values = [
        {"step": t, "episode": i, "weight": max(float(running[t, i]), FLOOR)}
        for i in range(SHOWN)
        for t in range(log.horizon)
    ]
    lines = (
        alt.Chart(alt.Data(values=values))
        .mark_line(opacity=0.35, strokeWidth=1, color=LOOKS["is"].color)
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y("weight:Q", title="weight of an episode", scale=alt.Scale(type="log")).axis(
                values=[1e-6, 1e-4, 1e-2, 1, 1e2, 1e4], format=".0e"
            ),
            detail="episode:N",
        )
    )
    one = alt.Chart(alt.Data(values=[{"y": 1}])).mark_rule(color=DARK).encode(y="y:Q")
    return styled(
        alt.layer(lines, one).properties(
            width=520,
            height=240,
            title=alt.Title(
                "What does one episode weigh?",
                subtitle=[
                    f"Products of the ratios up to a step, {SHOWN} episodes. Their mean is 1 at",
                    "every step; soon nearly all lie far below it, and a few make up for them.",
                ],
            ),
        )
    )


def marginals(estimate: rw.Estimate, world: TabularMDP) -> Any:
    """The shares of the states: logged, estimated for the target, and exact."""
    found = estimate.marginals
    assert found is not None
    exact = world.state_marginals(world.target_array)
    values = []
    for t, state, target, behavior in zip(
        found.step.tolist(), found.state, found.target, found.behavior, strict=True
    ):
        if t >= world.horizon:
            continue
        name = STATES[int(state)]
        shown = {
            "the log": float(behavior),
            "target, by MIS": float(target),
            "target, exact": float(exact[t, int(state)]),
        }
        values += [{"step": t, "state": name, "of": of, "share": x} for of, x in shown.items()]
    of = ["the log", "target, by MIS", "target, exact"]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_line()
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y("share:Q", title="share of the episodes", axis=alt.Axis(format="%")),
            color=alt.Color(
                "of:N",
                title=None,
                scale=alt.Scale(domain=of, range=[GREY, LOOKS["mis"].color, DARK]),
                legend=alt.Legend(orient="bottom"),
            ),
            strokeDash=alt.StrokeDash(
                "of:N", title=None, scale=alt.Scale(domain=of, range=[[6, 3], [1, 0], [2, 2]])
            ),
        )
        .properties(width=165, height=190)
        .facet(column=alt.Column("state:N", title=None, sort=list(STATES)))
    )
    title = alt.Title(
        "Where would the target be at each step?",
        subtitle=f"Learned from {EPISODES:,} episodes of another policy, one step at a time.",
    )
    return styled(chart.properties(title=title))


def effective(results: list[rw.Estimate]) -> Any:
    """The effective number of episodes by step."""
    names = [result.estimator for result in results]
    scales = estimator_scales(names)
    values = [
        {"step": t, "estimator": result.estimator, "ess": float(ess)}
        for result in results
        for t, ess in enumerate(result.diagnostics.ess)
    ]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_line(point=True)
        .encode(
            x=alt.X("step:Q", title="step"),
            y=alt.Y(
                "ess:Q", title="effective episodes", scale=alt.Scale(type="log", domain=[1, 1000])
            ),
            color=alt.Color("estimator:N", scale=scales.color, title=None),
            shape=alt.Shape("estimator:N", scale=scales.shape, title=None),
            strokeDash=alt.StrokeDash("estimator:N", scale=scales.dash, title=None),
        )
        .properties(
            width=460,
            height=220,
            title=alt.Title(
                f"How many of the {EPISODES:,} episodes speak for the target?",
                subtitle="Effective number of episodes: weights of running products, and of MIS.",
            ),
        )
    )
    return styled(chart)


def pictures() -> dict[str, Any]:
    """Every picture by the name of its file."""
    world = clinic()
    log = world.simulate(EPISODES, 0)
    mis = rw.evaluate(log, world.target, rw.mis())
    # what the picture is about: few effective episodes
    products_of = rw.evaluate_all(log, world.target, ["is"])[0]
    assert isinstance(products_of, rw.Estimate)
    return {
        "products": products(log, world.target),
        "marginals": marginals(mis, world),
        "effective": effective([products_of, mis]),
    }


def shown(svg: str) -> list[str]:
    """What a picture says: its texts, and its lines and points to a tenth of their unit."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    places = re.findall(r"(?:translate\(| d=\")([^\")]*)", svg)
    return texts + [re.sub(r"(\.\d)\d+", r"\1", place) for place in places]


def main() -> None:
    false = []
    for name, chart in pictures().items():
        path, svg = FOLDER / f"{name}.svg", rendered(chart, "svg").decode()
        if "--write" in sys.argv:
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or shown(path.read_text(encoding="utf-8")) != shown(svg):
            false.append(path.name)
    if false:
        sys.exit(f"{', '.join(false)}: not what the code draws; run with --write")


if __name__ == "__main__":
    main()
