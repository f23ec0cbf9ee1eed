"""Speculative cascades (Narasimhan et al., 2405.19261): an exact rule, run against pi instead of p. Lossy, by a stated
distribution.

pi mixes the distributions of drafter and target at each position by a rule of `cascade.mixtures`: chow, diff and opt defer
to one of the two, v1, v2 and v3 keep those of the drafter's tokens that pass a test.

Where pi is defined. q is known at a node when one of its children carries it (or, drafted greedily, the untruncated q1,
whose largest is then all of q). The distribution is pi there, and p where nothing was drafted or only tokens without a q.
After the last drafted token q is not known, so a verdict that reaches a leaf ends with the leaf itself as its bonus: the
text follows pi throughout, for one token less than a lossless rule would give. That is exact with respect to pi, since the
token left out is drawn anew by the next step, and a step's end depends only on where the draft ends, not on what was drawn
after it.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from forerun.cascade.mixtures import Mixture
from forerun.cascade.verdict import LossyVerdict, is_override
from forerun.core.draft import ROOT, Draft
from forerun.core.model import ForwardOutput
from forerun.core.protocols import Rng, Target, Verifier
from forerun.core.scratch import Scratch
from forerun.errors import CompositionError
from forerun.verifiers.distributions import Probs, one_hot, total_variation
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.rejection import Rejection

# What stands for the distribution after a leaf at which the text will end: a rule draws from it, and the token is dropped.
_DROPPED = np.ones(1)


class UntruncatedTarget(Target, Protocol):
    """A target that also says `p` at temperature 1 and without truncation, whatever is sampled."""

    def untruncated(self, node: int) -> NDArray[Any]: ...


class DeferringTarget(Target, Protocol):
    """A target in a pass of a plain cascade, whose output says which rows the large model was asked for."""

    output: ForwardOutput
    index: int


class Cascade:
    """Runs an exact rule against a mixture of drafter and target, and says what that gave up."""

    name = "cascade"
    exact = False
    keyed = False

    def __init__(self, rule: str, alpha: float, within: Verifier | None = None) -> None:
        """rule: one of mixtures.RULES. alpha: 0 or more. within: the exact rule to run, rejection by default.

        Raises UsageError for an unknown rule or a wrong alpha, CompositionError where `within` is lossy or keyed (which
        draws from the target's own distribution).
        """
        self.mixture = Mixture(rule, alpha)
        self._scratch = Scratch()
        self.within: Verifier = Rejection() if within is None else within
        if not self.within.exact or self.within.keyed:
            raise CompositionError(
                f"a cascade cannot run on {self.within.name}; use rejection, block, traversal or kseq within it."
            )

    def verify(self, draft: Draft, target: Target, rng: Rng) -> LossyVerdict:
        self._scratch.rewind()
        mixed = _Mixed(self.mixture, draft, cast(UntruncatedTarget, target), self._scratch)
        verdict = self.within.verify(draft, mixed, rng)
        path, bonus = verdict.path, verdict.bonus
        if path and mixed.ends_at(path[-1]):
            path, bonus = path[:-1], draft.tokens[path[-1]]
        overrides, lost = [], []
        for node, token in zip((ROOT, *path), (*(draft.tokens[n] for n in path), bonus), strict=True):
            p, pi = target.probs(node), mixed.probs(node)
            overrides.append(p is not pi and is_override(p, pi, token, rng))
            lost.append(mixed.lost(node))
        return LossyVerdict(path, bonus, tuple(overrides), tuple(lost))

    def mix(self, p: Probs, q: Probs, p1: Probs, q1: Probs) -> Probs:
        """pi `[vocab]` from the two distributions as sampled, and untruncated at temperature 1."""
        return self.mixture.mix(p, q, p1, q1)


class PlainCascade(Keyed):
    """The rule of a plain cascade (`cascade.model`): the text is that of the two models together, and each token says
    whether the large one was asked."""

    name = "plain"
    exact = False

    def verify(self, draft: Draft, target: Target, rng: Rng) -> LossyVerdict:
        verdict = super().verify(draft, target, rng)
        pass_ = cast(DeferringTarget, target)
        rows = [1 + node for node in (ROOT, *verdict.path)]
        told = tuple(pass_.output.not_deferred(pass_.index, row) for row in rows)  # type: ignore[attr-defined]
        return LossyVerdict(verdict.path, verdict.bonus, not_deferred=told)


class _Mixed:
    """The target as the exact rule sees it: pi where the drafter's distribution is known, p elsewhere."""

    def __init__(self, mixture: Mixture, draft: Draft, target: UntruncatedTarget, scratch: Scratch) -> None:
        self._mixture = mixture
        self._draft = draft
        self._target = target
        self._scratch = scratch
        self._probs: dict[int, Probs] = {}
        self._lost: dict[int, Any | None] = {}
        self._known: dict[int, tuple[Probs, Probs] | None] = {}

    def drafter(self, node: int) -> tuple[Probs, Probs] | None:
        """q and the untruncated q1 after a node, None where the drafter gave neither."""
        if node not in self._known:
            self._known[node] = self._drafter(node)
        return self._known[node]

    def _drafter(self, node: int) -> tuple[Probs, Probs] | None:
        draft = self._draft
        for child in draft.children(node):
            q = None if draft.q is None else draft.q[child]
            q1 = None if draft.annotations is None else draft.annotations[child]
            if q is not None:
                return q, q if q1 is None else q1
            if q1 is not None:
                return one_hot(int(np.argmax(q1)), q1), q1
        return None

    def ends_at(self, node: int) -> bool:
        """Whether a path that reaches this node ends with it: a leaf that was drawn by the drafter."""
        draft = self._draft
        return node != ROOT and not draft.children(node) and self.drafter(draft.parents[node]) is not None

    def probs(self, node: int) -> Probs:
        if node not in self._probs:
            self._probs[node] = self._mixed(node)
        return self._probs[node]

    def _mixed(self, node: int) -> Probs:
        if self.ends_at(node):
            return _DROPPED
        p = self._target.probs(node)
        known = self.drafter(node)
        if known is None:
            return p
        q, q1 = known
        mixture = self._mixture
        out = self._scratch.array(len(p)) if p.dtype == np.float64 and not mixture.defers else None
        p1 = self._target.untruncated(node) if mixture.asks_target else p
        pi, self._lost[node] = mixture.mix_and_loss(p, q, p1, q1, out)
        return pi

    def lost(self, node: int) -> float:
        """Total variation between the target's distribution after a node and the one that was sampled from."""
        p, pi = self._target.probs(node), self.probs(node)
        known = 0.0 if p is pi else self._lost.get(node)
        return float(total_variation(p, pi) if known is None else known)

    def choose(self, node: int) -> int:  # noqa: ARG002
        raise AssertionError("rules within a cascade draw from the distribution")
