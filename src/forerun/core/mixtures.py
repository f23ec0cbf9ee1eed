"""Mixtures of two laws, a drafter's q and a target's p, by the rules of speculative cascades (2405.19261).

Deferral rules choose one of the two, token rules keep those of the drafter's tokens that pass a test s:

    pi = (1 - d) q + d p                     chow   d = 1 iff max q < 1 - a
                                             diff   d = 1 iff max q < max p - a
                                             opt    d = 1 iff max q < max p - a TV(p, q)
    pi(v) = q(v) s(v) + (1 - sum q s) p(v)   v1     s(v) = 1 iff q(v) >= max p - a
                                             v2     s(v) = 1 iff p(v) >= max p - a
                                             v3     s(v) = 1 iff p(v) >= (1 - a) max p

Maxima and thresholds look at temperature-1 probabilities (beliefs), so that the rules mean something at temperature 0
too; the mixed laws, and the TV of `opt`, which is the rate of refusals, are those really sampled from.

Everything here works on float64 and on arrays of fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import UsageError

Law = NDArray[Any]

# (p, q as sampled, p, q at temperature 1, alpha) -> whether to defer to the target
_Deferral = Callable[[Law, Law, Law, Law, Any], bool]
# (p, q at temperature 1, alpha) -> the value to compare, and from where on a token passes
_Tokens = Callable[[Law, Law, Any], tuple[Law, Any]]

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
# Sums run over blocks that stay in the cache: a temporary of a whole vocabulary costs more than its arithmetic.
_BLOCK = 14_336


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
        """Whether the mixture is always one of the two laws."""
        return self.rule in _DEFERRALS

    @property
    def asks_target(self) -> bool:
        """Whether the decision looks at the target's belief at all."""
        return self.rule != "chow"

    def sides_with_target(self, p: Law, q: Law, p_belief: Law, q_belief: Law) -> bool:
        """What a deferral rule decides."""
        return _DEFERRALS[self.rule](p, q, p_belief, q_belief, self.alpha)

    def mix(self, p: Law, q: Law, p_belief: Law, q_belief: Law, out: Law | None = None) -> Law:
        """pi `[vocab]` from the two laws as sampled and their beliefs at temperature 1.

        out: where to write a law that is neither of the two.
        """
        return self.mix_and_loss(p, q, p_belief, q_belief, out)[0]

    def mix_and_loss(
        self, p: Law, q: Law, p_belief: Law, q_belief: Law, out: Law | None = None
    ) -> tuple[Law, Any | None]:
        """The same, and TV(p, pi) where it costs nothing to say: sum over kept (m p - q)+ + m p(not kept), m = q(kept)."""
        if self.defers:
            return (p, p[0] * 0) if self.sides_with_target(p, q, p_belief, q_belief) else (q, None)
        values, least = _TOKENS[self.rule](p_belief, q_belief, self.alpha)
        kept = np.flatnonzero(values >= least)
        weights, likely = q[kept], p[kept]
        taken = weights.sum()
        mixture: Law = np.multiply(p, 1 - taken, out=out)
        mixture[kept] += weights
        return mixture, np.maximum(taken * likely - weights, 0).sum() + taken * max(1 - likely.sum(), 0)


def excess(p: Law, q: Law) -> Law:
    """(p - q)+, not normalized."""
    left: Law = p - q
    return np.maximum(left, 0, out=left)


def total_variation(p: Law, q: Law) -> Any:
    """TV(p, q) = sum (p - q)+."""
    if p is q:
        return p[0] * 0
    starts = range(0, len(p), _BLOCK)
    return sum(excess(p[at : at + _BLOCK], q[at : at + _BLOCK]).sum() for at in starts)
