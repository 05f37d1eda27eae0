"""Worlds from the tables of other packages: Gymnasium's Taxi, and ICU-Sepsis.

ICU-Sepsis is the treatment of sepsis as a benchmark MDP, fitted to hospital records (MIMIC-III).
Its tables are those of the package icu-sepsis (Choudhary, Gupta and Thomas, 2024; MIT license),
read from its folder: importing the package would import the unmaintained gym.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reweigh.errors import UsageError, check, check_whole
from reweigh.system import optional_module
from reweigh.worlds import improvement
from reweigh.worlds.tabular import RowSampler, TabularMDP
from reweigh.worlds.world import Floats

Outcome = tuple[float, int, float, bool]  # probability, next state, reward, whether it ends there
ToyText = Mapping[int, Mapping[int, Sequence[Outcome]]]  # table[state][action]: its outcomes

STATES, ACTIONS = 716, 25
DEATH, SURVIVAL, GONE = 713, 714, 715  # GONE: where the tables go from death and from survival
DYNAMICS, ADMISSIBLE = "dynamics.npz", "admissible_actions.txt"
BASELINES = ("expert", "random", "optimal")  # those whose returns the package publishes
CANDIDATES = ("softened", "tilted", "optimal-mix")
SOFTENED = 0.1  # share of the even draw in "softened"
TILT = 30.0  # β of "tilted"; one action changes the chance to survive by about 0.01
MIXED = 0.3  # share of "optimal" in "optimal-mix"


class Taxi(TabularMDP):
    """Gymnasium's Taxi (Dietterich, 2000), with the tables of its environment.

    States 0..499 are Gymnasium's: the taxi's place, the passenger's and the destination; state
    500 is the end, after the passenger was brought there. Actions 0..5 go south, north, east and
    west, pick up, put down. A step costs 1, picking up or putting down in the wrong place 10, and
    bringing the passenger pays 20. Both policies are the best one, without a horizon, but for a
    share of actions that are drawn evenly: `target_epsilon` and `behavior_epsilon`.
    """

    _epsilons: tuple[float, float]

    def __init__(
        self, horizon: int = 30, target_epsilon: float = 0.1, behavior_epsilon: float = 0.3
    ) -> None:
        H = check_whole("horizon", horizon, 1)
        epsilons = {"target_epsilon": target_epsilon, "behavior_epsilon": behavior_epsilon}
        for name, epsilon in epsilons.items():
            check(
                isinstance(epsilon, int | float | np.number) and 0 <= epsilon <= 1,
                name,
                "a number in [0, 1]",
                epsilon,
            )
        initial, P, r, best = _taxi_tables()
        pi, mu = (improvement.epsilon_soft(best, epsilon) for epsilon in epsilons.values())
        super().__init__(initial, P, r, pi, mu, horizon=H, terminal=[len(initial) - 1])
        vars(self).update(_epsilons=(float(target_epsilon), float(behavior_epsilon)))

    def __repr__(self) -> str:
        target, behavior = self._epsilons
        return (
            f"Taxi(horizon={self.horizon}, target_epsilon={target:g}, "
            f"behavior_epsilon={behavior:g})"
        )

    def __reduce__(self) -> tuple[type[Taxi], tuple[int, float, float]]:
        return Taxi, (self.horizon, *self._epsilons)


@cache
def _taxi_tables() -> tuple[Floats, Floats, Floats, Floats]:
    """d_0, P and r, with the state 500 of ended episodes, and the best policy (S,A) without a
    horizon."""
    taxi = optional_module("gymnasium.envs.toy_text.taxi", "worlds", "the world taxi")
    env = taxi.TaxiEnv()
    P, r = toy_text_tables(env.P)
    initial = np.append(env.initial_state_distrib, 0.0)
    even = np.full(P.shape[:2], 1 / P.shape[1])
    world = TabularMDP(initial, P, r, even, even, horizon=1, terminal=[len(P) - 1])
    return initial, P, r, improvement.best_policy(world)


def toy_text_tables(table: ToyText) -> tuple[Floats, Floats]:
    """P(s'|s,a) and r(s,a,s') of a toy-text table, (S+1,A,S+1): state S is where episodes end.

    In toy-text transitions end an episode, in TabularMDP states do. So all
    transitions that end lead to one more state, the only terminal one.
    """
    end, A = len(table), len(table[0])
    rows = [
        (s, a, end if ends else int(after), probability, reward)
        for s in range(end)
        for a in range(A)
        for probability, after, reward, ends in table[s][a]
        if probability > 0
    ]
    place = tuple(np.array([row[:3] for row in rows], dtype=np.int64).T)
    p, pay = np.array([row[3:] for row in rows], dtype=float).T
    P, r = np.zeros((2, end + 1, A, end + 1))
    np.add.at(P, place, p)  # outcomes that lead to the same state add up
    r[place] = pay
    if (r[place] != pay).any():
        s, a, after = (int(index[r[place] != pay][0]) for index in place)
        raise UsageError(
            f"state {s}, action {a}: two outcomes lead to "
            f"{'the end' if after == end else f'state {after}'} with different rewards; a "
            "table of rewards r(s,a,s') cannot represent both"
        )
    P[end, :, end] = 1
    return P, r


class ICUSepsis(TabularMDP):
    """A patient's state every four hours, and one of 25 treatments: 5 levels each of two drugs.

    States 0..712 are groups of like patients, 713 is death, 714 survival (discharge); both end
    the episode, as does 715, which no episode reaches. Surviving pays 1, all else 0, so that the
    value is the chance to be discharged alive within `horizon` steps. The behavior is the
    clinicians' policy as estimated from the records; its rows for the three terminal states are
    empty in the tables, and nothing depends on them.

    An action too rare in a state to estimate its effect is not `admissible` there: it has the
    average effect of the admissible ones (the package's default). The clinicians take them too.

    `target` is one of
        expert       the clinicians' own policy
        random       uniform over all 25 actions: some the clinicians never take (no overlap)
        optimal      the admissible action with the best chance to survive, without a horizon
        softened     the clinicians', but 1 in 10 actions is uniform over those they take in the
                     state
        tilted       the clinicians' × exp(30 × advantage): better actions more often, without a
                     horizon
        optimal-mix  the clinicians', but 3 in 10 actions are optimal

    The tables, 200 MB (300 with what simulates), are read once and shared by all instances of a
    process; a pickled instance holds its arguments alone.
    """

    admissible: NDArray[np.bool_]  # (S,A)
    _name: str

    def __init__(self, horizon: int = 20, target: str = "tilted") -> None:
        H = check_whole("horizon", horizon, 1)
        check(
            target in (*BASELINES, *CANDIDATES),
            "target",
            f"one of {', '.join((*BASELINES, *CANDIDATES))}",
            target,
        )
        world, admissible = _icu_tables()
        shared = {field.name: getattr(world, field.name) for field in fields(TabularMDP)}
        policy = _icu_policy(target)[None]
        vars(self).update(shared, horizon=H, _target=policy, _name=target, admissible=admissible)

    def __repr__(self) -> str:
        return f"ICUSepsis(horizon={self.horizon}, target={self._name!r})"

    def __reduce__(self) -> tuple[type[ICUSepsis], tuple[int, str]]:
        return ICUSepsis, (self.horizon, self._name)

    @cached_property
    def _mean_reward(self) -> Floats:
        return _icu_tables()[0]._mean_reward

    @cached_property
    def _samplers(self) -> tuple[list[RowSampler], ...]:
        return _icu_tables()[0]._samplers


@cache
def _icu_tables() -> tuple[TabularMDP, NDArray[np.bool_]]:
    """The world with the clinicians as behavior and target, and which actions are admissible."""
    folder = _icu_folder()
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
    return world, admissible


@cache
def _icu_policy(name: str) -> Floats:
    """π(a|s), (S,A), of a name of BASELINES or CANDIDATES, read-only."""
    world, admissible = _icu_tables()
    expert = world._behavior[0]
    policies: dict[str, Callable[[], Floats]] = {
        "expert": lambda: expert,
        "random": lambda: np.full(expert.shape, 1 / ACTIONS),
        "optimal": lambda: improvement.best_policy(world, admissible),
        "softened": lambda: improvement.softened(expert, SOFTENED),
        "tilted": lambda: improvement.tilted(
            expert, improvement.lasting_advantage(world, expert), TILT
        ),
        "optimal-mix": lambda: (1 - MIXED) * expert + MIXED * _icu_policy("optimal"),
    }
    over = np.isin(np.arange(STATES), world.terminal)[:, None]
    policy = np.where(over, expert, policies[name]())  # no ratio but 1 once the episode is over
    policy.setflags(write=False)
    return policy


def _icu_folder() -> Path:
    """Where the package keeps its tables; finding it does not import it."""
    spec = find_spec("icu_sepsis")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the world ICU-Sepsis needs the package icu-sepsis: pip install "
            "'reweigh[worlds]', or without its other dependencies: pip install --no-deps "
            "'icu-sepsis>=2,<3'"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "envs" / "assets"


def _admissible(path: Path) -> NDArray[np.bool_]:
    """A line with the number of actions of each state, then for each state a line of them."""
    counts, *lines = path.read_text(encoding="utf-8").splitlines()
    actions = [[int(text) for text in line.split()] for line in lines]
    if [len(row) for row in actions] != [int(text) for text in counts.split()]:
        raise ValueError(f"{ADMISSIBLE} lists a different number of actions than it declares")
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
        f"the installed package icu-sepsis {version} does not match this world: {what}; "
        "pip install --no-deps 'icu-sepsis>=2,<3'"
    )
