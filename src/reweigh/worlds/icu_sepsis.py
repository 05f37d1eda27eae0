"""ICU-Sepsis: the treatment of sepsis as a benchmark MDP, fitted to hospital records (MIMIC-III).

The tables are those of the package icu-sepsis (Choudhary, Gupta and Thomas, 2024; MIT licence).
They are read from its folder: importing the package would import the unmaintained gym.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, fields
from functools import cache, cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reweigh.errors import UsageError, must_be
from reweigh.worlds import improvement
from reweigh.worlds.tabular import TabularMDP, _RowSampler
from reweigh.worlds.world import Floats, as_count

STATES, ACTIONS = 716, 25
DEATH, SURVIVAL, GONE = 713, 714, 715  # GONE: where the tables go from death and from survival
DYNAMICS, ADMISSIBLE = "dynamics.npz", "admissible_actions.txt"

BASELINES = ("expert", "random", "optimal")  # those whose returns the package publishes
CANDIDATES = ("softened", "tilted", "optimal-mix")
SOFTENED = 0.1  # share of the even draw in "softened"
TILT = 30.0  # β of "tilted"; one action changes the chance to survive by about 0.01
MIXED = 0.3  # share of "optimal" in "optimal-mix"


class ICUSepsis(TabularMDP):
    """A patient's state every four hours, and one of 25 treatments: 5 levels each of two drugs.

    States 0..712 are groups of like patients, 713 is death, 714 survival (discharge); both end
    the episode, as does 715, which no episode reaches. Surviving pays 1, all else 0, so that the
    value is the chance to be discharged alive within `horizon` steps. The behavior is the
    clinicians' policy as estimated from the records; its rows for the three terminal states are
    empty in the tables, and nothing depends on them.

    An action that was too rare in a state to tell what it does is not `admissible` there: it does
    what the admissible ones do on average (the package's default). The clinicians take them too.

    `target` is one of
        expert       the clinicians' own policy
        random       an even draw among all 25 actions: some the clinicians never take (no overlap)
        optimal      the admissible action with the best chance to survive, without a horizon
        softened     the clinicians', but 1 in 10 draws evenly among what they ever do in the state
        tilted       the clinicians' × exp(30 × advantage): more of what helps, without a horizon
        optimal-mix  the clinicians', but 3 in 10 actions are optimal

    The tables, 200 MB (300 with what simulates), are read once and shared by all instances of a
    process; a pickled instance holds its arguments alone.
    """

    admissible: NDArray[np.bool_]  # (S,A)
    _name: str

    def __init__(self, horizon: int = 20, target: str = "tilted") -> None:
        H = as_count("horizon", horizon, least=1)
        if target not in (*BASELINES, *CANDIDATES):
            raise must_be("target", f"one of {', '.join((*BASELINES, *CANDIDATES))}", target)
        tables = _tables()
        shared = {field.name: getattr(tables.world, field.name) for field in fields(TabularMDP)}
        own = {"horizon": H, "_target": _policy(target)[None], "_name": target}
        for name, value in (shared | own | {"admissible": tables.admissible}).items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"ICUSepsis(horizon={self.horizon}, target={self._name!r})"

    def __reduce__(self) -> tuple[type[ICUSepsis], tuple[int, str]]:
        return ICUSepsis, (self.horizon, self._name)

    @cached_property
    def _mean_reward(self) -> Floats:
        return _tables().world._mean_reward

    @cached_property
    def _samplers(self) -> tuple[list[_RowSampler], ...]:
        return _tables().world._samplers


@dataclass(frozen=True, eq=False)
class _Tables:
    """The world with the clinicians as behavior and target, and which actions are admissible."""

    world: TabularMDP
    admissible: NDArray[np.bool_]


@cache
def _tables() -> _Tables:
    folder = _folder()
    try:
        with np.load(folder / DYNAMICS, allow_pickle=False) as file:
            names = ("d_0", "tx_mat", "r_mat", "expert_policy")
            initial, transition, reward, expert = (file[name] for name in names)
        admissible = _admissible(folder / ADMISSIBLE)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _unreadable(f"cannot read its tables ({error})") from error
    if transition.shape != (STATES, ACTIONS, STATES) or admissible.shape != (STATES, ACTIONS):
        raise _unreadable(f"its tables are of shape {transition.shape}")
    world = TabularMDP(
        initial, transition, reward, expert, expert, horizon=1, terminal=(DEATH, SURVIVAL, GONE)
    )
    return _Tables(world, admissible)


@cache
def _policy(name: str) -> Floats:
    """π(a|s), (S,A), of a name of BASELINES or CANDIDATES, read-only."""
    tables = _tables()
    world, expert = tables.world, tables.world._behavior[0]
    policy: Floats
    if name == "expert":
        policy = expert
    elif name == "random":
        policy = np.full(expert.shape, 1 / ACTIONS)
    elif name == "optimal":
        policy = improvement.best_policy(world, tables.admissible)
    elif name == "softened":
        policy = improvement.softened(expert, SOFTENED)
    elif name == "tilted":
        advantage = improvement.lasting_advantage(world, expert)
        policy = improvement.tilted(expert, advantage, TILT)
    else:  # optimal-mix
        policy = (1 - MIXED) * expert + MIXED * _policy("optimal")
    over = np.isin(np.arange(STATES), world.terminal)[:, None]
    policy = np.where(over, expert, policy)  # no ratio but 1 once the episode is over
    policy.setflags(write=False)
    return policy


def _folder() -> Path:
    """Where the package keeps its tables; finding it does not import it."""
    spec = find_spec("icu_sepsis")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the world ICU-Sepsis needs the package icu-sepsis: pip install 'reweigh[worlds]', or, "
            "without all that it asks for, pip install --no-deps 'icu-sepsis>=2,<3'"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "envs" / "assets"


def _admissible(path: Path) -> NDArray[np.bool_]:
    """A line with the number of actions of each state, then for each state a line of them."""
    counts, *lines = path.read_text(encoding="utf-8").splitlines()
    actions = [[int(text) for text in line.split()] for line in lines]
    if [len(row) for row in actions] != [int(text) for text in counts.split()]:
        raise ValueError(f"{ADMISSIBLE} lists other numbers of actions than it says")
    table = np.zeros((len(actions), ACTIONS), bool)
    for state, row in enumerate(actions):
        table[state, row] = True
    table.setflags(write=False)
    return table


def _unreadable(what: str) -> UsageError:
    try:
        version = metadata.version("icu-sepsis")
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    return UsageError(
        f"the installed package icu-sepsis {version} is not the one that this world is made of: "
        f"{what}; pip install --no-deps 'icu-sepsis>=2,<3'"
    )
