"""Several estimates of one log at once, from their influence values: differences, families, best.

With ψ (n, k) the influence values of k estimates, the error of a contrast c is that of ψc: what
two estimates share cancels. Families of contrasts get one critical value from the multiplier
bootstrap: with independent standard normal ξ, the largest of

    |(1/n) Σ_i ξ_i ψ_i c_j| / SE_j       over j

is as large as the largest t-statistic of the family, whatever the estimates have in common. Given
ψ, the k sums Σ_i ξ_i ψ_i are normal with the covariance ψᵀψ, so that they are drawn as such: with
ψ = QR the rows of ξR, for ξ with k entries instead of n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtr, stdtrit

Floats = npt.NDArray[np.float64]
SAME = 1e-9  # of a value: what two sums of the same numbers may differ by


@dataclass(frozen=True, eq=False)
class Joint:
    """Draws of what k estimates are off by, together: (draws, k), in units of the value."""

    covariance: Floats  # (k, k) of the estimates
    draws: Floats
    n: int

    @classmethod
    def of(cls, psi: Floats, draws: int, seed: int) -> Joint:
        """n/(n-1) corrects for the means that ψ was centred with."""
        n = len(psi)
        centred = (psi - psi.mean(axis=0)) / math.sqrt(n * max(n - 1, 1))
        root = np.linalg.qr(centred, mode="r")  # (min(n, k), k)
        made = np.random.default_rng(seed).standard_normal((draws, len(root))) @ root
        return cls(centred.T @ centred, made, n)

    def errors(self, contrasts: Floats) -> Floats:
        """(m,) standard errors of the contrasts, (m, k)."""
        square: Floats = np.sum(contrasts @ self.covariance * contrasts, axis=1)
        # Equal estimates differ by rounding: what is left of their squares is no error.
        apart = np.abs(contrasts) ** 2 @ np.diag(self.covariance)
        return np.sqrt(np.where(square > 1e-14 * apart, square, 0.0))

    def critical(self, contrasts: Floats, level: float, *, two_sided: bool = True) -> float:
        """The number of errors within which all contrasts are with probability `level`.

        The larger of the bootstrap's quantile and of Student's t for one contrast: the draws know
        the errors, the data does not.
        """
        errors = self.errors(contrasts)
        kept = errors > 0
        alone = float(stdtrit(max(self.n - 1, 1), 0.5 + level / 2 if two_sided else level))
        if not kept.any():
            return alone
        t = self.draws @ contrasts[kept].T / errors[kept]
        largest = np.abs(t).max(axis=1) if two_sided else t.max(axis=1)
        # Normal draws, t-distributed data: the quantile's tail probability is kept.
        normal = float(np.quantile(largest, level, method="higher"))
        widened = -float(stdtrit(max(self.n - 1, 1), ndtr(-normal)))
        return max(widened, alone)

    def best(self, values: Floats, among: npt.NDArray[np.bool_]) -> Floats:
        """(k,) how often each is the best of those `among`, if the truths were the estimates and
        the errors fell again as drawn; 0 for the others. Equal ones share."""
        if not among.any():
            return np.zeros(len(values))
        shown = np.where(among, values + self.draws, -np.inf)
        highest = shown.max(axis=1, keepdims=True)
        best = shown >= highest - SAME * np.abs(highest)
        return np.asarray((best / best.sum(axis=1, keepdims=True)).mean(axis=0), np.float64)


def p_value(difference: float, error: float, n: int) -> float:
    """P(t ≥ difference/error): small where the difference is above 0 beyond chance."""
    if error <= 0:
        return 0.5 if difference == 0 else float(difference < 0)
    return float(stdtr(max(n - 1, 1), -difference / error))
