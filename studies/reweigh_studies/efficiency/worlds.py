"""The worlds of the study of efficiency: where estimators differ by what they do with a log.

The rule of `auto` is set on the worlds of one half and reported on those of the other. Within a
kind, in the order of this list, worlds belong to one half and the other by turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from reweigh.worlds import RandomWorld, random_mdp
from reweigh.worlds.improvement import advantage, tilted
from reweigh.worlds.tabular import TabularMDP
from reweigh_studies.by_world import study as by_world
from reweigh_studies.coverage.worlds import MAKERS, Named, StudyWorld

KINDS = {
    "random": "a drawn behavior and a drawn target, on average no better",
    "improved": "π ∝ μ·exp(β·advantage): a target that is really better",
    "rare overlap": "an action that the target often takes has a small probability in the log",
    "high stakes": "the rare action also pays, or costs, several times as much as the others",
    "many actions": "8 to 20 actions, each seen little in each state",
    "early ends": "one or two of the states end the episode",
    "hidden": "some states are hidden, and the log marks them",
    "time-varying": "everything changes from step to step, over 12 to 25 steps",
    "sparse rewards": "1 of 20 transitions pays",
    "shifted rewards": "rewards lie around 120 or -40",
    "paper": "the paper's worlds",
    "ICU-Sepsis": "treatment of sepsis, at H = 20 and 50",
}


def paying(
    seed: int,
    n_states: int,
    n_actions: int,
    horizon: int,
    *,
    sparse: float = 1.0,
    shift: float = 0.0,
    stakes: float = 0.0,
    rare: float | None = None,
    tilt: float | None = None,
    overlap: float = 0.5,
    reward_sd: float = 0.2,
    terminal: int = 0,
) -> TabularMDP:
    """A steady random world with other rewards: `sparse` is the share of transitions that pay,
    `shift` is added to every reward, `stakes` to those of action 0, which the behavior takes with
    probability `rare`; `tilt` is β of an improved target."""
    shape = n_states, n_actions, horizon
    options: dict[str, Any] = {"overlap": overlap, "terminal": terminal, "time_varying": False}
    base = random_mdp(seed, *shape, reward_sd=reward_sd, **options)
    P, r, mu = base.transition[0], base.reward[0].copy(), base.behavior_array[0]
    r *= np.random.default_rng([seed, 1]).random(r.shape) < sparse
    r[:, 0] += stakes
    r += shift
    if rare is not None:  # Pr(action 0) = rare, the others in proportion
        mu = mu * (1 - rare) / (1 - mu[:, :1])
        mu[:, 0] = rare
    ends = range(n_states - terminal, n_states)

    def world(target: Any) -> TabularMDP:
        return TabularMDP(base.initial, P, r, target, mu, reward_sd, horizon, 1.0, ends)

    if tilt is None:
        return world(base.target_array[0])
    return world(tilted(mu, advantage(world(mu), mu).mean(axis=0), tilt))


MAKERS |= {"paying": paying}


def _drawn(name: str, kind: str, seed: int, shape: Iterable[int], **options: Any) -> StudyWorld:
    S, A, H = shape
    options = {"reward_sd": 0.3, "time_varying": False} | options
    base = RandomWorld(seed, n_states=S, n_actions=A, horizon=H, **options)
    return StudyWorld(name, kind, base)


def _paying(name: str, kind: str, seed: int, shape: Iterable[int], **options: Any) -> StudyWorld:
    S, A, H = shape
    sizes: dict[str, Any] = {"seed": seed, "n_states": S, "n_actions": A, "horizon": H}
    return StudyWorld(name, kind, Named("paying", sizes | options))


def _named(name: str, kind: str, maker: str, **arguments: Any) -> StudyWorld:
    return StudyWorld(name, kind, Named(maker, arguments))


LIST = (
    _drawn("random-tiny", "random", 101, (2, 2, 3)),
    _drawn("random-small", "random", 102, (4, 3, 5)),
    _drawn("random-noisy", "random", 103, (4, 3, 5), reward_sd=1.0),
    _drawn("random-apart", "random", 104, (4, 3, 5), overlap=0.3),
    _drawn("random-states", "random", 105, (20, 3, 5)),
    _drawn("random-states-apart", "random", 106, (20, 3, 5), overlap=0.3),
    _drawn("random-long", "random", 107, (5, 2, 20), overlap=0.7),
    _drawn("random-longer", "random", 108, (4, 2, 40), overlap=0.8),
    _drawn("random-discounted", "random", 109, (5, 3, 15), discount=0.9),
    _drawn("random-structured", "random", 110, (8, 3, 6), concentration=0.3),
    _drawn("improved-tiny", "improved", 121, (2, 2, 3), tilt=4.0),
    _drawn("improved-small", "improved", 122, (4, 3, 5), tilt=3.0),
    _drawn("improved-noisy", "improved", 123, (4, 3, 5), reward_sd=1.0, tilt=3.0),
    _drawn("improved-far", "improved", 124, (4, 3, 5), tilt=8.0),
    _drawn("improved-states", "improved", 125, (20, 3, 5), tilt=5.0),
    _drawn("improved-states-far", "improved", 126, (20, 3, 5), tilt=10.0),
    _drawn("improved-long", "improved", 127, (5, 2, 20), tilt=2.0),
    _drawn("improved-longer", "improved", 128, (4, 2, 40), tilt=1.0),
    _drawn("improved-discounted", "improved", 129, (5, 3, 15), discount=0.9, tilt=3.0),
    _drawn("improved-structured", "improved", 130, (8, 3, 6), concentration=0.3, tilt=3.0),
    _drawn("improved-quiet", "improved", 131, (6, 4, 8), reward_sd=0.05, tilt=3.0),
    _drawn("improved-near", "improved", 132, (6, 4, 8), tilt=0.7),
    _drawn("rare-5", "rare overlap", 141, (4, 3, 5), rare=0.05),
    _drawn("rare-2", "rare overlap", 142, (4, 3, 5), rare=0.02),
    _drawn("rare-1", "rare overlap", 143, (4, 3, 5), rare=0.01),
    _drawn("rare-half", "rare overlap", 144, (3, 2, 4), rare=0.005),
    _drawn("rare-5-improved", "rare overlap", 145, (4, 3, 5), rare=0.05, tilt=6.0),
    _drawn("rare-2-improved", "rare overlap", 146, (6, 3, 6), rare=0.02, tilt=8.0),
    _paying("stakes-5", "high stakes", 151, (4, 3, 5), rare=0.05, stakes=5.0),
    _paying("stakes-2", "high stakes", 152, (4, 3, 5), rare=0.02, stakes=5.0),
    _paying("stakes-improved", "high stakes", 153, (4, 3, 5), rare=0.05, stakes=4.0, tilt=0.5),
    _paying("stakes-harm", "high stakes", 154, (4, 3, 5), rare=0.03, stakes=-5.0),
    _drawn("actions-8", "many actions", 161, (3, 8, 4), overlap=0.4),
    _drawn("actions-8-improved", "many actions", 162, (3, 8, 4), overlap=0.4, tilt=4.0),
    _drawn("actions-20", "many actions", 163, (5, 20, 4), overlap=0.5),
    _drawn("actions-20-improved", "many actions", 164, (5, 20, 4), overlap=0.5, tilt=4.0),
    _drawn("ending", "early ends", 171, (5, 3, 8), terminal=1),
    _drawn("ending-improved", "early ends", 172, (5, 3, 8), terminal=1, tilt=2.0),
    _drawn("ending-often", "early ends", 173, (5, 2, 20), terminal=2),
    _drawn("ending-often-improved", "early ends", 174, (5, 2, 20), terminal=2, tilt=3.0),
    _drawn("hidden-one", "hidden", 181, (4, 3, 6), hidden=1),
    _drawn("hidden-two", "hidden", 182, (5, 2, 8), hidden=2),
    _drawn("hidden-one-improved", "hidden", 183, (4, 3, 6), hidden=1, tilt=3.0),
    _drawn("hidden-two-improved", "hidden", 184, (5, 2, 8), hidden=2, tilt=3.0),
    _drawn("varying", "time-varying", 191, (4, 3, 12), time_varying=True, overlap=0.7),
    _drawn("varying-improved", "time-varying", 192, (4, 3, 12), time_varying=True, tilt=2.0),
    _drawn("varying-long", "time-varying", 193, (6, 2, 25), time_varying=True, overlap=0.8),
    _drawn("varying-long-improved", "time-varying", 194, (6, 2, 25), time_varying=True, tilt=1.5),
    _paying("sparse", "sparse rewards", 201, (8, 3, 6), sparse=0.05, reward_sd=0.0),
    _paying("sparse-improved", "sparse rewards", 202, (8, 3, 6), sparse=0.05, reward_sd=0.0,
            tilt=10.0),
    _paying("sparse-long", "sparse rewards", 203, (6, 2, 20), sparse=0.05, overlap=0.7,
            reward_sd=0.0),
    _paying("sparse-long-improved", "sparse rewards", 204, (6, 2, 20), sparse=0.05, reward_sd=0.0,
            tilt=10.0),
    _paying("shifted", "shifted rewards", 211, (4, 3, 5), shift=120.0),
    _paying("shifted-improved", "shifted rewards", 212, (4, 3, 5), shift=120.0, tilt=3.0),
    _paying("shifted-ending", "shifted rewards", 213, (5, 3, 8), shift=-40.0, terminal=1),
    _paying("shifted-long-improved", "shifted rewards", 214, (5, 2, 20), shift=120.0, tilt=2.0),
    _named("modelwin-10", "paper", "modelwin", horizon=10),
    _named("modelwin-50", "paper", "modelwin", horizon=50),
    _named("modelfail-10", "paper", "modelfail", horizon=10),
    _named("mountaincar", "paper", "mountaincar"),
    _named("timevarying-16", "paper", "timevarying", horizon=16, seed=0),
    _named("timevarying-64", "paper", "timevarying", horizon=64, seed=0),
    _named("icu-20-tilted", "ICU-Sepsis", "icu-sepsis", horizon=20, target="tilted"),
    _named("icu-20-softened", "ICU-Sepsis", "icu-sepsis", horizon=20, target="softened"),
    _named("icu-50-softened", "ICU-Sepsis", "icu-sepsis", horizon=50, target="softened"),
    _named("icu-50-tilted", "ICU-Sepsis", "icu-sepsis", horizon=50, target="tilted"),
)  # fmt: skip
WORLDS: dict[str, StudyWorld] = {world.name: world for world in LIST}
SIZES = (200, 1000, 5000)


def half_of(name: str) -> str:
    """The half of the study that a world belongs to."""
    return by_world.half_of(WORLDS, name)
