"""The estimators by name: each composes a Recipe in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from reweigh.errors import UsageError, must_be, nearest
from reweigh.estimate.estimator import ModelControl, Normalize, OwnQ, Recipe, Reward
from reweigh.estimate.marginal import Marginal

Estimators: TypeAlias = Recipe | str | Iterable[Recipe | str]


def _products(
    name: str,
    normalize: Normalize = "none",
    control: ModelControl | None = None,
    *,
    max_ratio: float | None,
    trajectory: bool = False,
) -> Recipe:
    from reweigh.estimate.products import Stepwise, Trajectory

    weights = Trajectory() if trajectory else Stepwise()
    return Recipe(name, weights, normalize, control=control, max_ratio=max_ratio)


def is_(*, max_ratio: float | None = None) -> Recipe:
    """Step-wise importance sampling: (1/n) Σ_i Σ_t γ^t ρ_{0:t} r_t (the paper's IS)."""
    return _products("is", max_ratio=max_ratio)


def wis(*, max_ratio: float | None = None) -> Recipe:
    """Step-wise weighted IS: each step's weights divided by their sum (the paper's WIS)."""
    return _products("wis", "step", max_ratio=max_ratio)


def trajectory_is(*, max_ratio: float | None = None) -> Recipe:
    """Trajectory-wise IS: the whole product times the whole return."""
    return _products("trajectory-is", trajectory=True, max_ratio=max_ratio)


def trajectory_wis(*, max_ratio: float | None = None) -> Recipe:
    """Trajectory-wise weighted IS."""
    return _products("trajectory-wis", "step", trajectory=True, max_ratio=max_ratio)


def dm(unseen: Literal["zero", "renorm"] = "zero") -> Recipe:
    """Direct method: a time-dependent model from counts; an unseen action has no mass ("zero"),
    or the target is renormalised over the seen ones ("renorm")."""
    from reweigh.estimate.model import Model

    if unseen not in ("zero", "renorm"):
        raise must_be("unseen", '"zero" or "renorm"', unseen)
    return Recipe("dm" if unseen == "zero" else "dm-renorm", Model(unseen))


def ssd_is(
    use: Literal["ratio", "plugin", "selfnorm"] = "ratio", *, max_ratio: float | None = None
) -> Recipe:
    """IS with the stationary state distribution d. `use` says how: d over the logged share of the
    state as a weight ("ratio"), d in the place of d_t ("plugin"), or the weights of "ratio" divided
    once by their sum over all rows and steps ("selfnorm", Liu et al. 2018)."""
    from reweigh.estimate.stationary import Stationary

    if use not in ("ratio", "plugin", "selfnorm"):
        raise must_be("use", '"ratio", "plugin" or "selfnorm"', use)
    name = "ssd-is" if use == "ratio" else f"ssd-is-{use}"
    return Recipe(name, Stationary(use), max_ratio=max_ratio)


def mis(
    normalize: Normalize = "simplex",
    pooled: bool = False,
    reward: Reward = "logged",
    *,
    max_ratio: float | None = None,
) -> Recipe:
    """Marginalized importance sampling. "simplex" is the paper's experiments and Algorithm 1,
    "none" the estimator of Theorem 4.1, "state" is self-normalised in every state; `pooled`
    shares the estimates of all steps (for worlds that do not change with time)."""
    suffix = {"simplex": "", "none": "-plain", "state": "-state"}
    if normalize not in suffix:
        raise must_be("normalize", '"simplex", "none" or "state"', normalize)
    name = "mis" + ("-pooled" if pooled else "") + suffix[normalize]
    if reward != "logged":
        name += f"-{reward}-reward"
    return Recipe(name, Marginal(bool(pooled)), normalize, reward, max_ratio=max_ratio)


def dr(q: str | OwnQ = "in-sample", *, max_ratio: float | None = None) -> Recipe:
    """Doubly robust: IS on the shaped reward r - Q + γV', plus V(s_0)."""
    control = ModelControl(q)
    return _products(_with_fit("dr", control), "none", control, max_ratio=max_ratio)


def wdr(q: str | OwnQ = "in-sample", *, max_ratio: float | None = None) -> Recipe:
    """Weighted doubly robust: WIS on the shaped reward, plus V(s_0)."""
    control = ModelControl(q)
    return _products(_with_fit("wdr", control), "step", control, max_ratio=max_ratio)


def mdr(q: str | OwnQ = "split", *, max_ratio: float | None = None) -> Recipe:
    """Marginalized doubly robust: MIS on the shaped reward, plus V(s_0)."""
    control = ModelControl(q)
    name = _with_fit("mdr", control, default="split")
    return Recipe(name, Marginal(), "simplex", control=control, max_ratio=max_ratio)


def _with_fit(name: str, control: ModelControl, default: str = "in-sample") -> str:
    if control.own:
        return f"{name}-own-q"
    if control.q == default:
        return name
    return f"{name}-{str(control.q).replace('cross-fit', 'crossfit')}"


ESTIMATORS: dict[str, Callable[[], Recipe]] = {
    "is": is_,
    "wis": wis,
    "trajectory-is": trajectory_is,
    "trajectory-wis": trajectory_wis,
    "dm": dm,
    "dm-renorm": lambda: dm("renorm"),
    "ssd-is": ssd_is,
    "ssd-is-plugin": lambda: ssd_is("plugin"),
    "ssd-is-selfnorm": lambda: ssd_is("selfnorm"),
    "mis": mis,
    "mis-plain": lambda: mis("none"),
    "mis-state": lambda: mis("state"),
    "mis-pooled": lambda: mis(pooled=True),
    "dr": dr,
    "dr-split": lambda: dr("split"),
    "dr-crossfit": lambda: dr("cross-fit"),
    "wdr": wdr,
    "wdr-split": lambda: wdr("split"),
    "wdr-crossfit": lambda: wdr("cross-fit"),
    "mdr": mdr,
    "mdr-crossfit": lambda: mdr("cross-fit"),
}


def estimator(name: str) -> Recipe:
    """An estimator by the name that the command line uses: one of ours, or one that another package
    adds to the entry points `reweigh.estimators`."""
    if name == "auto":
        raise UsageError(
            "auto is a choice that evaluate and compare make for a log and its targets; name the "
            "estimator here, such as the one that evaluate chose"
        )
    make = ESTIMATORS.get(name)
    if make is None:
        from reweigh.system.entry_points import added, added_names

        make = added("estimators", name)
    if make is None:
        names = [*ESTIMATORS, *added_names("estimators")]
        raise UsageError(
            f"there is no estimator {name!r}{nearest(name, names)} (estimators: {', '.join(names)})"
        )
    recipe: Recipe = make()
    return recipe


def estimator_list(estimators: Estimators) -> list[Recipe | str]:
    """The estimators that were asked for; one alone, or its name, is a list of one."""
    if isinstance(estimators, Recipe | str):
        return [estimators]
    if not isinstance(estimators, Iterable):
        raise must_be("estimators", "an estimator such as mis(), or a list of them", estimators)
    return list(estimators)


def as_recipe(named: Recipe | str) -> Recipe:
    """The estimator itself, or the one of this name."""
    if isinstance(named, Recipe):
        return named
    if isinstance(named, str):
        return estimator(named)
    raise must_be("estimator", 'an estimator such as mis(), or its name "mis"', named)
