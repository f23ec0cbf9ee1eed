"""Speculative cascades (Narasimhan et al., 2405.19261): an exact rule, run against pi instead of p. Lossy by a stated law.

pi mixes drafter and target at each position. Deferral rules choose one of the two:

    pi = (1 - d) q + d p          chow   d = 1 iff max q < 1 - a
                                  diff   d = 1 iff max q < max p - a
                                  opt    d = 1 iff max q < max p - a TV(p, q)

Token rules keep those of the drafter's tokens that pass a test s, and draw from the target for the others:

    pi(v) = q(v) s(v) + (1 - sum q s) p(v)      v1   s(v) = 1 iff q(v) >= max p - a
                                                v2   s(v) = 1 iff p(v) >= max p - a
                                                v3   s(v) = 1 iff p(v) >= (1 - a) max p

Maxima and thresholds look at temperature-1 probabilities (beliefs), so that the rules mean something at temperature 0
too; the mixed laws, and the TV of `opt`, which is the rate of refusals, are those really sampled from.

Where pi is defined. q is known at a node when one of its children carries it (or, drafted greedily, a belief, whose
largest is then all of q). The law is pi there, and p where nothing was drafted or only tokens without a q. After the
last drafted token q is not known, so a verdict that reaches a leaf ends with the leaf itself as its bonus: the text
follows pi throughout, for one token less than a lossless rule would give. That is exact, since the token left out is
drawn anew by the next round, and a round's end depends only on where the draft ends, not on what was drawn after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import ROOT, Draft
from forerun.core.outcome import Verdict
from forerun.core.protocols import Chance, Target, Verifier
from forerun.errors import CompositionError, UsageError
from forerun.verifiers.laws import Law, differs, one_hot, total_variation
from forerun.verifiers.rejection import Rejection

# (p, q as sampled, p, q at temperature 1, alpha) -> whether to defer to the target
_Deferral = Callable[[Law, Law, Law, Law, Any], bool]
# (p, q at temperature 1, alpha) -> which of the drafter's tokens pass
_Tokens = Callable[[Law, Law, Any], NDArray[np.bool_]]

_DEFERRALS: dict[str, _Deferral] = {
    "chow": lambda p, q, p1, q1, alpha: bool(q1.max() < 1 - alpha),
    "diff": lambda p, q, p1, q1, alpha: bool(q1.max() < p1.max() - alpha),
    "opt": lambda p, q, p1, q1, alpha: bool(q1.max() < p1.max() - alpha * total_variation(p, q)),
}
_TOKENS: dict[str, _Tokens] = {
    "v1": lambda p1, q1, alpha: q1 >= p1.max() - alpha,
    "v2": lambda p1, q1, alpha: p1 >= p1.max() - alpha,
    "v3": lambda p1, q1, alpha: p1 >= (1 - alpha) * p1.max(),
}
RULES = (*_DEFERRALS, *_TOKENS)


class Cascade:
    """Runs an exact rule against a mixture of drafter and target, and says what that gave up."""

    name = "cascade"
    exact = False
    shares_noise = False
    wants_beliefs = True

    def __init__(self, rule: str, alpha: float, within: Verifier | None = None) -> None:
        """rule: one of RULES. alpha: 0 or more. within: the exact rule to run, rejection by default.

        Raises UsageError for an unknown rule or a wrong alpha, CompositionError where `within` is lossy or shares noise
        (keyed draws from the target's own law).
        """
        if rule not in RULES:
            raise UsageError(f"unknown cascade rule {rule!r}; the rules are {', '.join(RULES)}.")
        if not 0 <= alpha < math.inf:
            raise UsageError(f"the cascade's alpha is {alpha!r}; it must be 0 or a positive number.")
        self.rule = rule
        self.alpha = alpha
        self.within: Verifier = Rejection() if within is None else within
        if not self.within.exact or self.within.shares_noise:
            raise CompositionError(
                f"a cascade cannot run on {self.within.name}; use rejection, block, traversal or kseq within it."
            )

    def verify(self, draft: Draft, target: Target, chance: Chance) -> Verdict:
        mixed = _Mixed(self, draft, target)
        verdict = self.within.verify(draft, mixed, chance)
        path, bonus = verdict.path, verdict.bonus
        if path and not draft.children(path[-1]) and mixed.drafter(draft.parents[path[-1]]) is not None:
            path, bonus = path[:-1], draft.tokens[path[-1]]
        overrides, given_up = 0, 0.0
        for node, token in zip((ROOT, *path), (*(draft.tokens[n] for n in path), bonus), strict=True):
            if mixed.drafter(node) is not None:
                p, pi = target.law(node), mixed.law(node)
                overrides += differs(p, pi, token, chance)
                given_up += float(total_variation(p, pi))
        return Verdict(path, bonus, overrides, given_up)

    def mix(self, p: Law, q: Law, p_belief: Law, q_belief: Law) -> Law:
        """pi `[vocab]` from the two laws as sampled and their beliefs at temperature 1."""
        if self.rule in _DEFERRALS:
            return p if _DEFERRALS[self.rule](p, q, p_belief, q_belief, self.alpha) else q
        kept = np.where(_TOKENS[self.rule](p_belief, q_belief, self.alpha), q, q * 0)
        mixture: Law = kept + (1 - kept.sum()) * p
        return mixture


class _Mixed:
    """The target as the exact rule sees it: pi where the drafter's law is known, p elsewhere."""

    def __init__(self, cascade: Cascade, draft: Draft, target: Target) -> None:
        self._cascade = cascade
        self._draft = draft
        self._target = target
        self._laws: dict[int, Law] = {}

    def drafter(self, node: int) -> tuple[Law, Law] | None:
        """The drafter's law and belief after a node, None where it gave neither."""
        draft = self._draft
        for child in draft.children(node):
            q = None if draft.q is None else draft.q[child]
            belief = None if draft.beliefs is None else draft.beliefs[child]
            if q is not None:
                return q, q if belief is None else belief
            if belief is not None:
                return one_hot(int(np.argmax(belief)), belief), belief
        return None

    def law(self, node: int) -> Law:
        if node not in self._laws:
            p = self._target.law(node)
            known = self.drafter(node)
            self._laws[node] = p if known is None else self._cascade.mix(p, known[0], self.belief(node), known[1])
        return self._laws[node]

    def belief(self, node: int) -> Law:
        return self._target.belief(node)

    def choose(self, node: int) -> int:
        raise AssertionError("rules within a cascade draw from the law")
