"""Random finite worlds, for tests and for showing a method on more than one example."""

from __future__ import annotations

import numpy as np

from reweigh.errors import must_be
from reweigh.worlds.tabular import TabularMDP
from reweigh.worlds.world import Floats, as_count, as_generator


def random_mdp(
    rng: np.random.Generator | int,
    n_states: int = 4,
    n_actions: int = 3,
    horizon: int = 5,
    *,
    concentration: float = 1.0,
    overlap: float = 0.5,
    reward_sd: float = 0.0,
    discount: float = 1.0,
    terminal: int = 0,
    time_varying: bool = True,
) -> TabularMDP:
    """A random world: Dirichlet rows, mean rewards uniform on [0, 1).

    Small `concentration` makes rows sparse, large makes them uniform. Both policies are
    `overlap` × uniform + (1 - `overlap`) × Dirichlet, so no ratio π/μ exceeds
    1 + n_actions (1 - overlap)/overlap. The last `terminal` of the states are terminal.
    """
    rng = as_generator(rng)
    S, A = as_count("n_states", n_states, least=1), as_count("n_actions", n_actions, least=1)
    H, ends = as_count("horizon", horizon, least=1), as_count("terminal", terminal, least=0)
    if ends >= S:
        raise must_be("terminal", f"less than n_states = {S}", terminal)
    if not 0 < overlap <= 1:
        raise must_be("overlap", "in (0, 1]", overlap)
    if not 0 < concentration < np.inf:
        raise must_be("concentration", "a positive number", concentration)
    time = (H,) if time_varying else ()

    def rows(size: int, *shape: int) -> Floats:
        return rng.dirichlet(np.full(size, float(concentration)), (*time, *shape))

    initial = np.zeros(S)
    initial[: S - ends] = rng.dirichlet(np.full(S - ends, float(concentration)))
    return TabularMDP(
        initial,
        transition=rows(S, S, A),
        reward=rng.random((*time, S, A, S)),
        target=overlap / A + (1 - overlap) * rows(A, S),
        behavior=overlap / A + (1 - overlap) * rows(A, S),
        reward_sd=reward_sd,
        horizon=H,
        discount=discount,
        terminal=range(S - ends, S),
    )
