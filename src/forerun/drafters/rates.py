"""Hit rates learned as a drafter goes: how often a guess of a certain kind was right, whether it was proposed or not.

Each kind starts from a prior and forgets slowly, so a drafter's scores are about right from the first step on and follow
the text. Rates are shared by a drafter's sessions: they shape drafts, never the text under keyed verification.
"""

from __future__ import annotations

from collections.abc import Iterable

from forerun.core.estimate import RunningMean

# Observations that a kind of guess remembers.
_MEMORY = 400.0


def hit_rates(priors: Iterable[float], *, weight: float = 6.0) -> list[RunningMean]:
    """One rate per kind of guess, from the rate assumed before anything was seen, worth `weight` observations."""
    return [RunningMean(prior, weight=weight, memory=_MEMORY) for prior in priors]
