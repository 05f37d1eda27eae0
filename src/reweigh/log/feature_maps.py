"""Feature maps: from the feature columns of a row to the numbers φ(x) that a recursion sums by.

    rw.features.Fourier(200)        cosines of random directions: smooth functions of all columns
    rw.features.Polynomial(2)       products of powers of the columns
    rw.features.Splines(5)          a cubic spline in each column
    rw.features.Tiles(6)            shifted grids, one-hot
    rw.features.Clusters(100)       the nearest of so many centers, one-hot
    rw.features.sklearn(transformer)
    any function of an (N, k) array that returns (N, d)

A map is fitted to features alone, never to rewards or actions: columns are standardized, and what
the map takes from the data (knots, centers, tiles) comes from a sample of episodes that their ids'
hash chooses, in an order of its own, so that every engine fits the same one. `FittedMap` says what
it is (`describe`) and has a fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import numpy.typing as npt

from reweigh.errors import UsageError, check_whole, must_be
from reweigh.system import optional_module
from reweigh.system.files import digest_of

__all__ = [
    "Clusters",
    "FeatureMap",
    "FittedMap",
    "Fourier",
    "Polynomial",
    "Splines",
    "Tiles",
    "sklearn",
]
Floats = npt.NDArray[np.float64]
MOST_FITTED = 1 << 17  # rows
SPREAD = 1e-9  # of a column's mean, below which it is constant
OUTER = 4.0  # standard deviations beyond which polynomials and splines go on as at the edge


class FeatureMap:
    """A kind of features; a subclass defines `find` and `apply` on standardized columns z."""

    def find(self, z: Floats) -> tuple[Any, ...]:
        """What is taken from the data."""
        return ()

    def apply(self, z: Floats, *fitted: Any) -> Floats:
        """(N, d) φ."""
        raise NotImplementedError

    def for_rows(self, rows: int, actions: int) -> FeatureMap:
        """The map for a log of so many rows, where its size follows a rule."""
        return self

    def resized(self, factor: float) -> FeatureMap | None:
        """With so many times the features; None where that has no meaning."""
        return None

    def fit(self, x: Floats) -> FittedMap:
        x = np.asarray(x, np.float64)
        center, scale = x.mean(axis=0), x.std(axis=0)
        scale = np.where(scale > SPREAD * np.maximum(np.abs(center), SPREAD), scale, 1.0)
        return FittedMap(self, center, scale, self.find((x - center) / scale))

    def describe(self) -> str:
        held = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({held})"


@dataclass(frozen=True, eq=False)
class FittedMap:
    """φ(x) of standardized columns, with what the map took from the data."""

    kind: FeatureMap
    center: Floats
    scale: Floats
    fitted: tuple[Any, ...]

    def __call__(self, x: Floats) -> Floats:
        phi = self.kind.apply((x - self.center) / self.scale, *self.fitted)
        if phi.ndim != 2 or len(phi) != len(x) or not np.all(np.isfinite(phi)):
            raise UsageError(
                f"the features {self.kind.describe()} must be one row of finite numbers for each "
                f"of {len(x):,} rows; got shape {phi.shape}"
            )
        return np.ascontiguousarray(phi, np.float64)

    def describe(self) -> str:
        return self.kind.describe()

    def fingerprint(self) -> str:
        from reweigh.system.fingerprint import digest_of_callable

        return digest_of(digest_of_callable(self))


@dataclass(frozen=True)
class Fourier(FeatureMap):
    """1 and `count` cosines √2 cos(w·z/width + b), w normal and b uniform by `seed`: what a kernel
    of that width can represent. Without a count 1 for every 40 rows and action, 20 to 200; without
    a width √k for k columns."""

    count: int | None = None
    width: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_size("count", self.count)
        if self.width is not None and not self.width > 0:
            raise must_be("width", "a number above 0", self.width)

    def for_rows(self, rows: int, actions: int) -> FeatureMap:
        count = int(np.clip(rows // (40 * actions), 20, 200)) if self.count is None else self.count
        return Fourier(count, self.width, self.seed)

    def resized(self, factor: float) -> FeatureMap | None:
        return Fourier(max(round((self.count or 100) * factor), 1), self.width, self.seed)

    def find(self, z: Floats) -> tuple[Any, ...]:
        rng, k, count = np.random.default_rng(self.seed), z.shape[1], self.count or 100
        w = rng.normal(size=(k, count)) / (self.width or np.sqrt(k))
        return w, rng.uniform(0, 2 * np.pi, count)

    def apply(self, z: Floats, *fitted: Any) -> Floats:
        w, b = fitted
        return _with_one(np.sqrt(2) * np.cos(z @ w + b))


@dataclass(frozen=True)
class Polynomial(FeatureMap):
    """All products of powers of the columns, up to this degree together."""

    degree: int = 2

    def __post_init__(self) -> None:
        _check_size("degree", self.degree)

    def resized(self, factor: float) -> FeatureMap | None:
        return Polynomial(self.degree + 1 if factor > 1 else max(self.degree - 1, 1))

    def apply(self, z: Floats, *fitted: Any) -> Floats:
        z = np.clip(z, -OUTER, OUTER)
        powers = range(1, self.degree + 1)
        terms = [c for p in powers for c in combinations_with_replacement(range(z.shape[1]), p)]
        return _with_one(np.stack([z[:, list(term)].prod(axis=1) for term in terms], axis=1))


@dataclass(frozen=True)
class Splines(FeatureMap):
    """A cubic spline in each column, with this many knots at quantiles; columns add up."""

    knots: int = 5

    def __post_init__(self) -> None:
        _check_size("knots", self.knots)

    def resized(self, factor: float) -> FeatureMap | None:
        return Splines(max(round(self.knots * factor), 1))

    def find(self, z: Floats) -> tuple[Any, ...]:
        return (np.quantile(z, np.arange(1, self.knots + 1) / (self.knots + 1), axis=0),)

    def apply(self, z: Floats, *fitted: Any) -> Floats:
        z = np.clip(z, -OUTER, OUTER)
        bent = [np.maximum(z - knot, 0.0) ** 3 for knot in fitted[0]]
        return _with_one(np.concatenate([z, z**2, z**3, *bent], axis=1) / OUTER)


@dataclass(frozen=True)
class Tiles(FeatureMap):
    """`tilings` shifted grids with `bins` cells per column within two standard deviations, one-hot;
    cells that the sample never shows are all zeros."""

    bins: int = 6
    tilings: int = 4

    def __post_init__(self) -> None:
        _check_size("bins", self.bins)
        _check_size("tilings", self.tilings)

    def resized(self, factor: float) -> FeatureMap | None:
        return Tiles(max(round(self.bins * factor), 1), self.tilings)

    def _cells(self, z: Floats, tiling: int) -> npt.NDArray[np.int64]:
        place = (np.clip(z, -2, 2) + 2) / 4 * self.bins + tiling / self.tilings
        key = np.zeros(len(z), np.int64)
        for column in np.floor(place).astype(np.int64).T:
            key = key * (self.bins + 2) + column
        return key

    def find(self, z: Floats) -> tuple[Any, ...]:
        if (self.bins + 2) ** z.shape[1] >= 2**62:
            raise UsageError(
                f"{z.shape[1]} columns are too many for tiles: use Fourier or Clusters"
            )
        return tuple(np.unique(self._cells(z, j)) for j in range(self.tilings))

    def apply(self, z: Floats, *fitted: Any) -> Floats:
        parts = []
        for j, known in enumerate(fitted):
            cells = self._cells(z, j)
            at = np.minimum(np.searchsorted(known, cells), len(known) - 1)
            parts.append(_one_hot(np.where(known[at] == cells, at, -1), len(known)))
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class Clusters(FeatureMap):
    """The nearest of k centers (k-means), one-hot. Without k 1 for every 30 rows, 20 to 1,000."""

    k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_size("k", self.k)

    def for_rows(self, rows: int, actions: int) -> FeatureMap:
        return Clusters(int(np.clip(rows // 30, 20, 1000)) if self.k is None else self.k, self.seed)

    def resized(self, factor: float) -> FeatureMap | None:
        return Clusters(max(round((self.k or 100) * factor), 2), self.seed)

    def find(self, z: Floats) -> tuple[Any, ...]:
        return (centers_of(z, self.k or 100, np.random.default_rng(self.seed)),)

    def apply(self, z: Floats, *fitted: Any) -> Floats:
        return _one_hot(self.codes(z, *fitted), len(fitted[0]))

    def codes(self, z: Floats, centers: Floats) -> npt.NDArray[np.int64]:
        """(N,) the nearest center."""
        from scipy.spatial import cKDTree

        return np.asarray(cKDTree(centers).query(z)[1], np.int64)


@dataclass(frozen=True, eq=False)
class UserMap(FeatureMap):
    """A function of the columns as they are in the log, or a transformer of scikit-learn, of which
    a copy is fitted to the standardized columns."""

    function: Callable[[Floats], Any] | None = None
    transformer: Any = None

    def fit(self, x: Floats) -> FittedMap:
        if self.transformer is not None:
            return super().fit(x)
        return FittedMap(self, np.zeros(x.shape[1]), np.ones(x.shape[1]), ())

    def find(self, z: Floats) -> tuple[Any, ...]:
        base = optional_module("sklearn.base", "sklearn", "features of a transformer")
        return (base.clone(self.transformer).fit(z),)

    def apply(self, z: Floats, *fitted: Any) -> Floats:
        phi = self.function(z) if self.function is not None else fitted[0].transform(z)
        return np.asarray(phi.toarray() if hasattr(phi, "toarray") else phi, np.float64)

    def describe(self) -> str:
        if self.transformer is not None:
            return f"sklearn({self.transformer!r})"
        return (
            f"function {getattr(self.function, '__qualname__', type(self.function).__qualname__)}"
        )


def sklearn(transformer: Any) -> FeatureMap:
    """The output of a scikit-learn transformer, of which a copy is fitted."""
    if not (hasattr(transformer, "fit") and hasattr(transformer, "transform")):
        raise must_be("transformer", "one with fit and transform", transformer)
    return UserMap(transformer=transformer)


def as_map(given: Any, usual: FeatureMap) -> FeatureMap:
    """A feature map from what a user gives."""
    if given is None:
        return usual
    if isinstance(given, FeatureMap):
        return given
    if not callable(given) or isinstance(given, type):
        raise must_be("features", "a map such as rw.features.Fourier(200), or a function", given)
    return UserMap(function=given)


def sample_order(
    ids: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], most: int = MOST_FITTED
) -> npt.NDArray[np.int64]:
    """The rows that a map is fitted to, by their episodes' hashes: all, or those of 1 in 2, 4, 8, …
    of the episodes; in an order that does not depend on that of the log."""
    order = np.lexsort((steps, ids))
    share = 1
    while len(order) // share > most:
        share *= 2
    return order[ids[order] % share == 0] if share > 1 else order


def centers_of(z: Floats, k: int, rng: np.random.Generator, rounds: int = 12) -> Floats:
    """(k, columns) of k-means: k-means++ on a sample, then rounds of Lloyd."""
    from scipy.spatial import cKDTree

    rows = z if len(z) <= 50 * k else z[rng.choice(len(z), 50 * k, replace=False)]
    k = min(k, len(np.unique(rows, axis=0)))
    centers = rows[[int(rng.integers(len(rows)))]]
    nearest = ((rows - centers[0]) ** 2).sum(axis=1)
    for _ in range(k - 1):
        chosen = int(np.searchsorted(np.cumsum(nearest), rng.random() * nearest.sum()))
        center = rows[min(chosen, len(rows) - 1)]
        centers = np.concatenate([centers, center[None]])
        nearest = np.minimum(nearest, ((rows - center) ** 2).sum(axis=1))
    for _ in range(rounds):
        code = cKDTree(centers).query(rows)[1]
        count = np.bincount(code, minlength=k)
        means = [np.bincount(code, column, minlength=k) for column in rows.T]
        moved = np.stack(means, axis=1) / np.maximum(count, 1)[:, None]
        centers = np.where(count[:, None] > 0, moved, centers)
    return centers


def _check_size(name: str, value: int | None) -> None:
    if value is not None:
        check_whole(name, value, 1)


def _with_one(phi: Floats) -> Floats:
    return np.concatenate([np.ones((len(phi), 1)), phi], axis=1)


def _one_hot(codes: npt.NDArray[np.int64], width: int) -> Floats:
    hot = np.zeros((len(codes), width))
    seen = np.flatnonzero(codes >= 0)
    hot[seen, codes[seen]] = 1.0
    return hot
