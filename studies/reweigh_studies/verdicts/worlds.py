"""The worlds of the study of verdicts, in kinds.

Limits of gates are set on the worlds of one half and reported on those of the other. Within a
kind, in the order of this list, worlds belong to one half and the other by turns.
"""

from __future__ import annotations

from typing import Any

from reweigh.worlds import RandomWorld
from reweigh_studies.by_world import study as by_world
from reweigh_studies.coverage.worlds import MAKERS, WITH_WORLD, Named, StudyWorld
from reweigh_studies.verdicts import makers

KINDS = {
    "rare emergency": "a state that is rare, in which an action that is rare in the log is worth a "
    "lot",
    "rare action": "an action that is rare in the log is worth a lot in every state",
    "unseen event": "a treatment has a large effect once in hundreds of times; the range of "
    "rewards is declared",
    "undeclared event": "the same without a declared range",
    "heavy rewards": "rewards are lognormal",
    "clicks": "one step, and a reward of 1 that is rare",
    "sites": "episodes of a site share an effect, which is in no column",
    "sites, named": "the same, and a column names the site: `cluster=`",
    "loggers": "several loggers, or one that adapts, recorded their own propensities",
    "games": "walks on ice and along a cliff, with the right propensities",
    "binned": "a continuous state, of which the log has cells; the propensities are right",
    "classifier": "the same, with propensities of a classifier on the continuous state",
    "many states": "hundreds of states",
    "counted": "propensities are estimated from the log by counts",
    "clean": "good overlap, a Markov state and known propensities",
    "late effects": "an action pays some steps later, and the state does not show it",
    "unseeable": "a confounder that leaves no trace",
}
CLEAN = "clean"
MAKERS |= {
    "emergency": makers.emergency,
    "rare-action": makers.rare_action,
    "event": makers.event,
    "clicks": makers.clicks,
    "lognormal": makers.lognormal,
    "sites": makers.at_sites,
    "loggers": makers.logged_by,
    "lake": makers.lake,
    "thousand": makers.thousand,
    "control": makers.control,
    "car": makers.car,
    "confounded": makers.confounded,
}
WITH_WORLD["sites"] = makers.with_sites


def _of(name: str, kind: str, maker: str, reading: str = "logged", **arguments: Any) -> StudyWorld:
    return StudyWorld(name, kind, Named(maker, arguments), reading)


def _drawn(name: str, kind: str, seed: int, reading: str = "logged", **options: Any) -> StudyWorld:
    return StudyWorld(name, kind, RandomWorld(seed, **options), reading)


LIST = (
    _of("emergency", "rare emergency", "emergency", share=0.006, rate=0.02, wanted=0.9, worth=60),
    _of("emergency-b", "rare emergency", "emergency", share=0.01, rate=0.03, wanted=0.8, worth=-40,
        horizon=8),
    _of("emergency-c", "rare emergency", "emergency", share=0.02, rate=0.01, wanted=0.7, worth=30,
        horizon=3),
    _of("emergency-d", "rare emergency", "emergency", share=0.003, rate=0.05, wanted=0.9,
        worth=100, horizon=6),
    _of("rare-action", "rare action", "rare-action", rate=0.004, wanted=0.2, worth=30, horizon=3),
    _of("rare-action-b", "rare action", "rare-action", rate=0.01, wanted=0.3, worth=-20,
        horizon=4),
    _of("side-effect", "unseen event", "event", size=-500, one_in=500, pays=1.0, horizon=1),
    _of("jackpot", "unseen event", "event", size=300, one_in=1000, pays=-0.2, horizon=4),
    _of("side-effect-4", "unseen event", "event", size=-300, one_in=300, pays=1.0, horizon=4),
    _of("side-effect-b", "unseen event", "event", size=-200, one_in=400, pays=0.5, horizon=1,
        mu=0.5),
    _of("lognormal", "heavy rewards", "lognormal", seed=1, sigma=2.0, horizon=4),
    _of("lognormal-1", "heavy rewards", "lognormal", seed=2, sigma=2.0, horizon=1),
    _of("lognormal-light", "heavy rewards", "lognormal", seed=3, sigma=1.2, horizon=6),
    _of("lognormal-heavy", "heavy rewards", "lognormal", seed=4, sigma=2.5, horizon=3),
    _of("clicks", "clicks", "clicks", rate=0.005, contexts=5, actions=3, seed=1),
    _of("clicks-b", "clicks", "clicks", rate=0.008, contexts=20, actions=5, seed=2),
    _of("sites-12", "sites", "sites", seed=1, sites=12, spread=0.5, treated=False, horizon=4),
    _of("sites-12-treated", "sites", "sites", seed=2, sites=12, spread=1.0, treated=True,
        horizon=4),
    _of("sites-30", "sites", "sites", seed=3, sites=30, spread=0.5, treated=False, horizon=3),
    _of("sites-8", "sites", "sites", seed=4, sites=8, spread=0.3, treated=False, horizon=5),
    _of("sites-12-named", "sites, named", "sites", "sites", seed=1, sites=12, spread=0.5,
        treated=False, horizon=4),
    _of("sites-12-treated-named", "sites, named", "sites", "sites", seed=2, sites=12, spread=1.0,
        treated=True, horizon=4),
    _of("sites-30-named", "sites, named", "sites", "sites", seed=3, sites=30, spread=0.5,
        treated=False, horizon=3),
    _of("sites-8-named", "sites, named", "sites", "sites", seed=4, sites=8, spread=0.3,
        treated=False, horizon=5),
    _of("two-loggers", "loggers", "loggers", seed=1, how="mixed", horizon=4),
    _of("adaptive", "loggers", "loggers", seed=2, how="adaptive", horizon=4),
    _of("adaptive-long", "loggers", "loggers", seed=3, how="adaptive", horizon=8),
    _of("two-loggers-1", "loggers", "loggers", seed=4, how="mixed", horizon=1),
    _of("lake-4x4", "games", "lake", ice="4x4", horizon=15, target=0.2, behavior=0.5),
    _of("cliff", "games", "lake", ice="cliff", horizon=15, target=0.1, behavior=0.3, slip=0.1),
    _of("lake-8x8", "games", "lake", ice="8x8", horizon=30, target=0.2, behavior=0.4),
    _of("lake-4x4-far", "games", "lake", ice="4x4", horizon=15, target=0.05, behavior=0.8),
    _of("car-10", "binned", "car", bins=10),
    _of("pole", "binned", "control", task="pole", horizon=30, bins=4, target=2.0, behavior=1.0),
    _of("swing", "binned", "control", task="swing", horizon=20, bins=10, target=1.0, behavior=0.3),
    _of("level", "binned", "control", task="level", horizon=20, bins=6, target=2.0, behavior=0.7),
    _of("lander", "binned", "control", task="lander", horizon=25, bins=8, target=1.5,
        behavior=0.8),
    _of("swing-fine", "binned", "control", task="swing", horizon=15, bins=20, target=0.8,
        behavior=0.4),
    _of("level-fine", "binned", "control", task="level", horizon=30, bins=12, target=2.0,
        behavior=1.0),
    _of("car-20", "binned", "car", bins=20),
    _of("level-classifier", "classifier", "control", task="level", horizon=8, bins=6, target=1.5,
        behavior=0.7, logged="classifier"),
    _of("swing-classifier", "classifier", "control", task="swing", horizon=8, bins=6, target=1.0,
        behavior=0.5, logged="classifier"),
    _of("thousand", "many states", "thousand", seed=1, states=1000, horizon=4, overlap=0.6,
        tilt=2.0),
    _of("hundreds", "many states", "thousand", seed=2, states=300, horizon=8, overlap=0.6,
        tilt=2.0),
    _drawn("counted", "counted", 101, "fitted", time_varying=False, horizon=6),
    _drawn("counted-better", "counted", 102, "fitted", time_varying=False, tilt=3.0),
    _drawn("counted-rare", "counted", 103, "fitted", time_varying=False, rare=0.03),
    _of("counted-bandit", "counted", "bandit", "fitted", rng=11),
    _of("modelwin-10", CLEAN, "modelwin", horizon=10),
    _of("timevarying-16", CLEAN, "timevarying", horizon=16, seed=0),
    _drawn("clean", CLEAN, 111, n_states=5, n_actions=3, horizon=6, overlap=0.6),
    _drawn("clean-better", CLEAN, 112, n_states=4, n_actions=2, horizon=8, tilt=2.0, reward_sd=0.3),
    _drawn("clean-actions", CLEAN, 113, n_states=4, n_actions=10, horizon=4, overlap=0.6,
           reward_sd=0.5),
    _drawn("clean-states", CLEAN, 114, n_states=25, n_actions=3, horizon=5, overlap=0.7),
    _of("clean-bandit", CLEAN, "bandit", rng=12),
    _drawn("clean-ending", CLEAN, 115, n_states=5, n_actions=3, horizon=8, terminal=1,
           overlap=0.6),
    _drawn("clean-long", CLEAN, 116, n_states=4, n_actions=2, horizon=20, overlap=0.8),
    _drawn("clean-20-actions", CLEAN, 117, n_states=6, n_actions=20, horizon=3, overlap=0.6),
    _of("delayed-2", "late effects", "delayed", delay=2, horizon=12),
    _of("delayed-3", "late effects", "delayed", delay=3, horizon=8),
    _of("side-effect-open", "undeclared event", "event", size=-500, one_in=500, pays=1.0,
        horizon=1),
    _of("jackpot-open", "undeclared event", "event", size=300, one_in=1000, pays=-0.2, horizon=4),
    _of("confounded", "unseeable", "confounded", horizon=3, strength=0.2, effect=0.5),
    _of("confounded-weak", "unseeable", "confounded", horizon=5, strength=0.1, effect=0.3),
)  # fmt: skip
WORLDS: dict[str, StudyWorld] = {world.name: world for world in LIST}
SIZES = (200, 1000, 5000)
NOISE = 6.0  # standard deviations of 1 around the mean rewards of events


def declared(name: str) -> tuple[float, float] | None:
    """The range of rewards that the evaluation declares: that of the events, where it is known."""
    world = WORLDS[name]
    if world.group != "unseen event":
        return None
    assert isinstance(world.base, Named)
    rewards = (0.0, float(world.base.arguments["size"]), float(world.base.arguments["pays"]))
    return min(rewards) - NOISE, max(rewards) + NOISE


def half_of(name: str) -> str:
    """The half of the study that a world belongs to."""
    return by_world.half_of(WORLDS, name)
