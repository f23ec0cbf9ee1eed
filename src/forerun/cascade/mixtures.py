"""Mixtures of two distributions, a drafter's q and a target's p, by the rules of speculative cascades (2405.19261).

Deferral rules choose one of the two, token rules keep those of the drafter's tokens that pass a test s:

    pi = (1 - d) q + d p                     chow   d = 1 iff max q < 1 - a
                                             diff   d = 1 iff max q < max p - a
                                             opt    d = 1 iff max q < max p - a TV(p, q)
    pi(v) = q(v) s(v) + (1 - sum q s) p(v)   v1     s(v) = 1 iff q(v) >= max p - a
                                             v2     s(v) = 1 iff p(v) >= max p - a
                                             v3     s(v) = 1 iff p(v) >= (1 - a) max p

Maxima and thresholds look at probabilities at temperature 1 and without truncation (p1, q1), so that the rules mean
something at temperature 0 too; the mixed distributions, and the TV of `opt`, which is the rate of refusals, are those really
sampled from.

Everything here works on float64 and on arrays of fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.errors import UsageError
from forerun.verifiers.distributions import Probs, total_variation

# (p, q as sampled, p, q at temperature 1, alpha) -> whether to defer to the target
_Deferral = Callable[[Probs, Probs, Probs, Probs, Any], bool]
# (p, q at temperature 1, alpha) -> the value to compare, and from where on a token passes
_Tokens = Callable[[Probs, Probs, Any], tuple[Probs, Any]]

_DEFERRALS: dict[str, _Deferral] = {
    "chow": lambda p, q, p1, q1, alpha: bool(q1.max() < 1 - alpha),
    "diff": lambda p, q, p1, q1, alpha: bool(q1.max() < p1.max() - alpha),
    "opt": lambda p, q, p1, q1, alpha: bool(q1.max() < p1.max() - alpha * total_variation(p, q)),
}
_TOKENS: dict[str, _Tokens] = {
    "v1": lambda p1, q1, alpha: (q1, p1.max() - alpha),
    "v2": lambda p1, q1, alpha: (p1, p1.max() - alpha),
    "v3": lambda p1, q1, alpha: (p1, (1 - alpha) * p1.max()),
}
RULES = (*_DEFERRALS, *_TOKENS)


@dataclass(frozen=True)
class Mixture:
    """A rule and its strength, 0 or more. Raises UsageError for an unknown rule or a wrong alpha."""

    rule: str
    alpha: Any

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UsageError(f"unknown cascade rule {self.rule!r}; the rules are {', '.join(RULES)}.")
        if not 0 <= self.alpha < math.inf:
            raise UsageError(f"the cascade's alpha is {self.alpha!r}; it must be 0 or a positive number.")

    @property
    def defers(self) -> bool:
        """Whether the mixture is always one of the two."""
        return self.rule in _DEFERRALS

    @property
    def asks_target(self) -> bool:
        """Whether the decision looks at the target at all."""
        return self.rule != "chow"

    def sides_with_target(self, p: Probs, q: Probs, p1: Probs, q1: Probs) -> bool:
        """What a deferral rule decides."""
        return _DEFERRALS[self.rule](p, q, p1, q1, self.alpha)

    def mix(self, p: Probs, q: Probs, p1: Probs, q1: Probs, out: Probs | None = None) -> Probs:
        """pi `[vocab]` from the two distributions as sampled, and untruncated at temperature 1.

        out: where to write one that is neither of the two.
        """
        return self.mix_and_loss(p, q, p1, q1, out)[0]

    def mix_and_loss(
        self, p: Probs, q: Probs, p1: Probs, q1: Probs, out: Probs | None = None
    ) -> tuple[Probs, Any | None]:
        """The same, and TV(p, pi) where it costs nothing to say: sum over kept (m p - q)+ + m p(not kept), m = q(kept)."""
        if self.defers:
            return (p, p[0] * 0) if self.sides_with_target(p, q, p1, q1) else (q, None)
        values, least = _TOKENS[self.rule](p1, q1, self.alpha)
        kept = np.flatnonzero(values >= least)
        weights, likely = q[kept], p[kept]
        taken = weights.sum()
        mixture: Probs = np.multiply(p, 1 - taken, out=out)
        mixture[kept] += weights
        lost = np.maximum(taken * likely - weights, 0).sum() + taken * max(1 - likely.sum(), 0)
        return mixture, min(lost, 1)  # rounding may say a little more
