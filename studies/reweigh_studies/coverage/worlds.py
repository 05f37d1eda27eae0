"""The worlds of the coverage study: each has a name, a description, a group and a half.

Thresholds are set on the worlds of one half and checked on those of the other. The half of a world
follows from its name, so it is not chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np

from reweigh import worlds
from reweigh.log.log import EpisodeLog
from reweigh.policy import ColumnPolicy, Policy
from reweigh.policy.behavior import fit_behavior
from reweigh.system.files import digest_of
from reweigh.worlds.random_worlds import RandomWorld
from reweigh.worlds.world import World
from reweigh_studies.coverage.faults import READINGS
from reweigh_studies.theorems import tilted_world

Half = Literal["setting", "checking"]
GROUPS = {
    "well": "good overlap, with a Markov state and known propensities",
    "rare": "an action that the target often takes is rare in the log",
    "none": "the target takes actions that are not in the log",
    "hidden": "some states are hidden, and the log marks them",
    "misspecified": "the state is incomplete, and the log does not mark it",
    "estimated": "good overlap; the propensities are estimated from the log",
}
MAKERS: dict[str, Callable[..., World]] = {
    "modelwin": worlds.ModelWin,
    "modelfail": worlds.ModelFail,
    "timevarying": worlds.TimeVarying,
    "mountaincar": worlds.MountainCar,
    "icu-sepsis": worlds.ICUSepsis,
    "bandit": worlds.Bandit.random,
    "fate": lambda horizon, fate: tilted_world(np.ones(horizon), reward_sd=0.5, fate=fate),
}

WITH_WORLD: dict[str, Callable[[EpisodeLog, World], EpisodeLog]] = {}


@dataclass(frozen=True)
class Named:
    """A world of MAKERS by its arguments."""

    kind: str
    arguments: Mapping[str, int | float | str] = field(default_factory=dict)

    def build(self) -> World:
        return MAKERS[self.kind](**self.arguments)


@dataclass(frozen=True, eq=False)
class StudyWorld:
    """A world as the study logs it.

    reading  how its log is read: "logged" as it is; "fitted" with propensities estimated from it;
             one of WITH_WORLD with what the world knows of it; one of `coverage_faults.READINGS`
             with a state that leaves something out
    """

    name: str
    group: str
    base: RandomWorld | Named
    reading: str = "logged"

    @property
    def half(self) -> Half:
        """The half of the study that the world belongs to, by a hash of its name."""
        return "setting" if int(digest_of("half", self.name)[:8], 16) % 2 == 0 else "checking"

    def describe(self) -> dict[str, Any]:
        kind = {"kind": "random"} if isinstance(self.base, RandomWorld) else {}
        return {"name": self.name, "reading": self.reading, **kind, **asdict(self.base)}

    def world(self) -> World:
        """The world, made once per process."""
        return _built(self)

    @property
    def horizon(self) -> int:
        return _horizon(self)

    def truth(self) -> tuple[float, float]:
        """v^π and v^μ."""
        return _truth(self)

    def log(self, n: int, rng: np.random.Generator) -> tuple[EpisodeLog, Policy]:
        """n episodes as the study reads them, and the target to evaluate."""
        world = self.world()
        log, target = world.simulate(n, rng), world.target
        if self.reading == "fitted":
            return log.with_behavior(fit_behavior(log)), target
        if self.reading in WITH_WORLD:
            return WITH_WORLD[self.reading](log, world), target
        if self.reading != "logged":  # the target uses the true state, and is logged
            return READINGS[self.reading](log), ColumnPolicy("target_prob")
        return log, target


@lru_cache(maxsize=4)
def _built(world: StudyWorld) -> World:
    return world.base.build()


@cache
def _truth(of: StudyWorld) -> tuple[float, float]:
    world = _built(of)
    return float(world.value()), float(world.behavior_value())


@cache
def _horizon(world: StudyWorld) -> int:
    return _built(world).horizon


def _drawn(name: str, seed: int, group: str = "well", **options: Any) -> StudyWorld:
    reading = options.pop("reading", "logged")
    return StudyWorld(name, group, RandomWorld(seed, **options), reading)


def _named(
    name: str, group: str, kind: str, reading: str = "logged", **arguments: Any
) -> StudyWorld:
    return StudyWorld(name, group, Named(kind, arguments), reading)


def _shape(S: int, A: int, H: int) -> dict[str, Any]:
    return {"n_states": S, "n_actions": A, "horizon": H}


LIST = (
    # the paper's
    _named("modelwin-10", "well", "modelwin", horizon=10),
    _named("modelwin-50", "well", "modelwin", horizon=50),
    _named("timevarying-16", "well", "timevarying", horizon=16, seed=0),
    _named("timevarying-64", "well", "timevarying", horizon=64, seed=0),
    _named("modelfail-10", "hidden", "modelfail", horizon=10),
    _named("mountaincar", "misspecified", "mountaincar"),
    # random worlds with a drawn target, on average no better than the behavior
    _drawn("default", 1),
    _drawn("tiny", 2, **_shape(2, 2, 3)),
    _drawn("noisy", 3, reward_sd=1.0),
    _drawn("many-states", 4, **_shape(20, 3, 5)),
    _drawn("many-actions", 5, **_shape(3, 8, 4), overlap=0.3),
    _drawn("long", 6, **_shape(4, 3, 10), overlap=0.7),
    _drawn("longer", 7, **_shape(6, 2, 20), overlap=0.7),
    _drawn("close", 8, overlap=0.8, reward_sd=0.3),
    _drawn("apart", 9, overlap=0.3, reward_sd=0.3),
    _drawn("further-apart", 10, overlap=0.15),
    _drawn("discounted", 11, **_shape(4, 3, 8), discount=0.9),
    _drawn("steady", 12, **_shape(4, 3, 10), time_varying=False),
    _drawn("ending", 13, **_shape(5, 3, 8), terminal=1),
    # the same kinds with a target that is really better
    _drawn("default-better", 21, tilt=3.0),
    _drawn("tiny-better", 22, **_shape(2, 2, 3), tilt=4.0),
    _drawn("noisy-better", 23, reward_sd=1.0, tilt=3.0),
    _drawn("many-states-better", 24, **_shape(20, 3, 5), tilt=5.0),
    _drawn("many-actions-better", 25, **_shape(3, 8, 4), overlap=0.3, tilt=4.0),
    _drawn("long-better", 26, **_shape(4, 3, 10), tilt=2.0),
    _drawn("longer-better", 27, **_shape(6, 2, 20), tilt=3.0),
    _drawn("discounted-better", 28, **_shape(4, 3, 8), discount=0.9, tilt=3.0),
    _drawn("steady-better", 29, **_shape(4, 3, 10), time_varying=False, tilt=2.0),
    _drawn("ending-better", 30, **_shape(5, 3, 8), terminal=1, tilt=2.0),
    _drawn("apart-better", 31, tilt=6.0, reward_sd=0.3),
    _drawn("sparse-better", 32, **_shape(8, 3, 6), concentration=0.3, tilt=3.0),
    # an action that is rare in the log, and one that is never there
    _drawn("rare-5", 41, "rare", rare=0.05),
    _drawn("rare-2", 42, "rare", rare=0.02, reward_sd=0.3),
    _drawn("rare-1", 43, "rare", rare=0.01),
    _drawn("rare-half", 45, "rare", **_shape(2, 2, 4), rare=0.005),
    _drawn("rare-5-better", 44, "rare", rare=0.05, tilt=8.0),
    _drawn("rare-2-better", 46, "rare", rare=0.02, tilt=10.0),
    _drawn("none", 51, "none", rare=0.0),
    _drawn("none-two-actions", 52, "none", **_shape(2, 2, 4), rare=0.0, overlap=0.8),
    _drawn("none-long", 53, "none", **_shape(4, 4, 10), rare=0.0, reward_sd=0.3),
    # hidden states
    _drawn("hidden", 61, "hidden", **_shape(4, 3, 6), hidden=1),
    _drawn("hidden-two", 62, "hidden", **_shape(5, 2, 8), hidden=2),
    _drawn("hidden-better", 63, "hidden", **_shape(4, 3, 6), hidden=1, tilt=3.0),
    # a state that leaves something out
    _drawn("coarse", 71, "misspecified", **_shape(6, 2, 8), reading="coarse"),
    _drawn("coarse-better", 72, "misspecified", **_shape(6, 2, 8), tilt=4.0, time_varying=False,
           reading="coarse"),
    _named("modelfail-naive", "misspecified", "modelfail", "naive", horizon=10),
    # episodes that are good or bad as a whole, which is in no column: no bias, but dependence
    _named("fate", "misspecified", "fate", "blind", horizon=4, fate=1.0),
    # estimated propensities, where the behavior does not change with time
    _drawn("fitted", 81, "estimated", **_shape(4, 3, 6), time_varying=False, reading="fitted"),
    _drawn("fitted-better", 82, "estimated", **_shape(4, 3, 6), time_varying=False, tilt=4.0,
           reading="fitted"),
    _named("fitted-modelwin", "estimated", "modelwin", "fitted", horizon=10),
    # one step
    _named("bandit", "well", "bandit", rng=1),
    _named("bandit-many", "well", "bandit", rng=2, n_contexts=200, n_actions=4),
    _named("fitted-bandit", "estimated", "bandit", "fitted", rng=3),
    # treatment of sepsis
    _named("icu-better", "well", "icu-sepsis", horizon=20, target="tilted"),
    _named("icu-softened", "rare", "icu-sepsis", horizon=20, target="softened"),
    _named("icu-random", "none", "icu-sepsis", horizon=20, target="random"),
)  # fmt: skip
WORLDS: dict[str, StudyWorld] = {world.name: world for world in LIST}
SIZES = (50, 200, 1000, 5000)


def installed(world: StudyWorld) -> bool:
    """Whether the package that a world is made of is there."""
    from importlib.util import find_spec

    icu = isinstance(world.base, Named) and world.base.kind == "icu-sepsis"
    return not icu or find_spec("icu_sepsis") is not None
