"""Gates of estimates on features, whose bias no standard error sees. They read `Solution.doubt`.

The limits are in units of the error that the episodes alone would give. They follow from the
definition; the study of continuous states (docs/trust/continuous.md) has not yet shown that any
rule makes these intervals cover, so that no such verdict is green."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reweigh.system import rounded
from reweigh.trust.gates.gate import Context, Gate, GateResult, Limit, limits_by

if TYPE_CHECKING:
    from reweigh.estimate.feature_doubt import Doubt

CHANCE = 0.01  # of the worst region by chance, beyond which a residual is no sign
NOT_TRIED = "the estimate was made without its own checks"


class _OfDoubt(Gate):
    """A gate that judges a number of `Doubt`."""

    def measure(self, context: Context) -> GateResult | None:
        doubt = context.solved.doubt
        if doubt is None:
            return self.unknown(NOT_TRIED)
        if not doubt.sampling_error > 0:
            return self.unknown("there is no standard error to compare with")
        return self.of_doubt(doubt)

    def of_doubt(self, doubt: Doubt) -> GateResult | None:
        raise NotImplementedError


class BehaviorValue(
    _OfDoubt,
    name="behavior value",
    question="Does the same method find the value of the behavior, which the log knows?",
    fault="no-clock",
    reads="solution",
    of={"features"},
    limits=limits_by(Limit(1.0, 3.0)),
):
    def of_doubt(self, doubt: Doubt) -> GateResult:
        if doubt.logged is None:
            return self.unknown("episodes were cut off: the behavior's own value is not known")
        if doubt.behavior is None:
            return self.unknown("the method refuses to evaluate the behavior")
        off = abs(doubt.behavior - doubt.logged) / doubt.sampling_error
        found, known = (rounded(v, doubt.sampling_error) for v in (doubt.behavior, doubt.logged))
        return self.judge(
            off,
            f"asked for the behavior's value, the method says {found}, and the log {known}: "
            f"{off:.1f} errors apart",
            "its features cannot represent the value: use more or other features, or wis",
        )


class BellmanResidual(
    _OfDoubt,
    name="Bellman residual",
    question="Does Q predict the rewards and next values of episodes that it was not fitted to?",
    fault="no-clock",
    reads="solution",
    of={"features"},
    limits=limits_by(Limit(0.0, 3.0)),
):
    def of_doubt(self, doubt: Doubt) -> GateResult | None:
        residual = doubt.residual
        if residual is None:
            return None
        p = min(1.0, residual.regions * math.erfc(residual.z / math.sqrt(2)))
        size = abs(residual.effect) / doubt.sampling_error
        text = (
            f"at {residual.where} Q is off by {residual.mean:.2g} per row, {residual.z:.1f} of its "
            f"errors (p = {p:.2g} over {residual.regions} regions); over an episode this adds up "
            f"to {size:.1f} errors of the estimate"
        )
        if p >= CHANCE:
            text = f"no region of held-out rows contradicts Q (worst: p = {p:.2g})"
        return self.judge(
            0.0 if p >= CHANCE else max(size, 1e-3),
            text,
            "add features that tell these rows apart, or more of them",
            step=residual.step,
        )


class ThinClusters(
    _OfDoubt,
    name="thin clusters",
    question="Is the target where the log has rows, by clusters of the features?",
    fault="elsewhere",
    reads="solution",
    of={"features"},
    limits=limits_by(Limit(0.05, 0.3)),
):
    def of_doubt(self, doubt: Doubt) -> GateResult | None:
        if doubt.thin is None:
            return None
        share, where = doubt.thin
        text = f"{share:.1%} of the target's mass is on clusters with fewer than 10 effective rows"
        return self.judge(
            share,
            text if share == 0 else f"{text}, most of it at {where}",
            "use fewer clusters, log more there, or choose a target closer to the logged policy",
        )


class ChoiceSpread(
    _OfDoubt,
    name="spread of choices",
    question="Does the value stay with other features, seeds, clusters and ridge?",
    fault="elsewhere",
    reads="solution",
    of={"features"},
    limits=limits_by(Limit(1.0, 3.0)),
):
    def of_doubt(self, doubt: Doubt) -> GateResult:
        if not doubt.others:
            return self.unknown("these features have no size or seed to change")
        failed = [name for name, value in doubt.others.items() if not math.isfinite(value)]
        known = {name: value for name, value in doubt.others.items() if name not in failed}
        if not known:
            return self.unknown("the method refuses every other choice")
        name = max(known, key=lambda one: abs(known[one] - doubt.value))
        share = doubt.spread / doubt.sampling_error
        text = (
            f"other choices move the value by {share:.1f} errors, most with {name} (to "
            f"{rounded(known[name], doubt.sampling_error)}); the interval includes this"
        )
        if failed:
            text += f"; refused with {', '.join(failed)}"
        return self.judge(share, text, "log more, or choose features that matter for the reward")


class UnprovenFeatures(
    Gate,
    name="unproven features",
    question="Has a study shown that such intervals cover?",
    fault="no-clock",
    reads="solution",
    of={"features"},
    limits=limits_by(Limit(0.0, None)),
):
    def measure(self, context: Context) -> GateResult:
        return self.judge(
            1.0,
            "no study has yet shown how often intervals on features cover",
            "compare with wis, and with other features, before deciding",
        )
