"""Speculative cascades (Narasimhan et al., 2405.19261): an exact rule, run against pi instead of p. Lossy by a stated law.

pi mixes the laws of drafter and target at each position by a rule of `core.mixtures`: chow, diff and opt defer to one of
the two, v1, v2 and v3 keep those of the drafter's tokens that pass a test.

Where pi is defined. q is known at a node when one of its children carries it (or, drafted greedily, a belief, whose
largest is then all of q). The law is pi there, and p where nothing was drafted or only tokens without a q. After the
last drafted token q is not known, so a verdict that reaches a leaf ends with the leaf itself as its bonus: the text
follows pi throughout, for one token less than a lossless rule would give. That is exact, since the token left out is
drawn anew by the next round, and a round's end depends only on where the draft ends, not on what was drawn after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.core.draft import ROOT, Draft
from forerun.core.mixtures import RULES, Mixture
from forerun.core.protocols import Rng, Target, Verifier
from forerun.core.scratch import Scratch
from forerun.core.step import Verdict
from forerun.errors import CompositionError
from forerun.verifiers.distributions import Law, differs, one_hot, total_variation
from forerun.verifiers.rejection import Rejection

__all__ = ["RULES", "Cascade"]


# The law after a leaf at which the text will end: a rule draws from it, and the token is thrown away.
_DRAWN_FOR_NOTHING = np.ones(1)


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
        self.mixture = Mixture(rule, alpha)
        self._scratch = Scratch()
        self.within: Verifier = Rejection() if within is None else within
        if not self.within.exact or self.within.shares_noise:
            raise CompositionError(
                f"a cascade cannot run on {self.within.name}; use rejection, block, traversal or kseq within it."
            )

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        self._scratch.rewind()
        mixed = _Mixed(self.mixture, draft, target, self._scratch)
        verdict = self.within.verify(draft, mixed, rng)
        path, bonus = verdict.path, verdict.bonus
        if path and mixed.ends_at(path[-1]):
            path, bonus = path[:-1], draft.tokens[path[-1]]
        overridden, lost = [], []
        for node, token in zip((ROOT, *path), (*(draft.tokens[n] for n in path), bonus), strict=True):
            p, pi = target.law(node), mixed.law(node)
            overridden.append(p is not pi and differs(p, pi, token, rng))
            lost.append(mixed.lost(node))
        return Verdict(path, bonus, tuple(overridden), tuple(lost))

    def mix(self, p: Law, q: Law, p_belief: Law, q_belief: Law) -> Law:
        """pi `[vocab]` from the two laws as sampled and their beliefs at temperature 1."""
        return self.mixture.mix(p, q, p_belief, q_belief)


class _Mixed:
    """The target as the exact rule sees it: pi where the drafter's law is known, p elsewhere."""

    def __init__(self, mixture: Mixture, draft: Draft, target: Target, scratch: Scratch) -> None:
        self._mixture = mixture
        self._draft = draft
        self._target = target
        self._scratch = scratch
        self._laws: dict[int, Law] = {}
        self._lost: dict[int, Any | None] = {}
        self._known: dict[int, tuple[Law, Law] | None] = {}

    def drafter(self, node: int) -> tuple[Law, Law] | None:
        """The drafter's law and belief after a node, None where it gave neither."""
        if node not in self._known:
            self._known[node] = self._drafter(node)
        return self._known[node]

    def _drafter(self, node: int) -> tuple[Law, Law] | None:
        draft = self._draft
        for child in draft.children(node):
            q = None if draft.q is None else draft.q[child]
            belief = None if draft.beliefs is None else draft.beliefs[child]
            if q is not None:
                return q, q if belief is None else belief
            if belief is not None:
                return one_hot(int(np.argmax(belief)), belief), belief
        return None

    def ends_at(self, node: int) -> bool:
        """Whether a path that reaches this node ends with it: a leaf that was drawn by the drafter."""
        draft = self._draft
        return node != ROOT and not draft.children(node) and self.drafter(draft.parents[node]) is not None

    def law(self, node: int) -> Law:
        if node not in self._laws:
            self._laws[node] = self._law(node)
        return self._laws[node]

    def _law(self, node: int) -> Law:
        if self.ends_at(node):
            return _DRAWN_FOR_NOTHING
        p = self._target.law(node)
        known = self.drafter(node)
        if known is None:
            return p
        q, belief = known
        mixture = self._mixture
        out = self._scratch.array(len(p)) if p.dtype == np.float64 and not mixture.defers else None
        law, self._lost[node] = mixture.mix_and_loss(p, q, self.belief(node) if mixture.asks_target else p, belief, out)
        return law

    def lost(self, node: int) -> float:
        """Total variation between the target's law after a node and the law that was sampled from."""
        p, pi = self._target.law(node), self.law(node)
        known = 0.0 if p is pi else self._lost.get(node)
        return float(total_variation(p, pi) if known is None else known)

    def belief(self, node: int) -> Law:
        return self._target.belief(node)

    def choose(self, node: int) -> int:
        raise AssertionError("rules within a cascade draw from the law")
