"""What several estimators refuse, each in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reweigh.errors import RefusedError, SupportError

if TYPE_CHECKING:
    from reweigh.estimate.estimator import Recipe


def no_support(t: int) -> SupportError:
    text = f"from step {t} on, no logged episode is possible under the target policy, so the log "
    text += "has no data on what it would earn. Restrict the target, shorten the horizon, or "
    return SupportError("no-overlap", f"{text}log more")


def overflow() -> SupportError:
    return SupportError("overflow", "the ratios overflow floating point; clip them (max_ratio)")


def lacking(kind: str) -> RefusedError:
    text = f"these moments have no sums of the kind {kind!r}; make them again for this estimator"
    return RefusedError("missing-moments", text)


def needs_discrete() -> RefusedError:
    text = "a model needs every action several times, but actions are continuous; use mis(), "
    return RefusedError("continuous-actions", f"{text}which needs no model")


def cut_off(count: int) -> RefusedError:
    text = f"{count:,} episodes were cut off, and running products need complete episodes; use "
    return RefusedError("truncated", f"{text}mis(), or leave these out: log.drop_truncated()")


def needs_log(recipe: Recipe, why: str) -> RefusedError:
    text = f"{recipe.name} needs the rows themselves, and not their sums: {why}. Read the log into "
    return RefusedError("needs-log", f"{text}memory (engine='arrays'), or use mis()")


# ---- the definition of an estimator
