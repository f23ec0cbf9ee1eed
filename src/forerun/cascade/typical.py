"""Typical acceptance (Medusa; Cai et al., 2401.10774): whatever the target finds plausible passes. Lossy.

    accept x if p(x) > min(eps, delta exp(-H(p))),  H the entropy of p

At each node the children are tried in order; the first typical one is taken, without any randomness; where none is,
the bonus is drawn from p. The threshold falls where the target itself is unsure. The text does not have the target's
distribution, except at temperature 0, where only the target's own choice passes.

The stated distribution. With A the typical tokens and children drawn from q_1 .. q_k (a deterministic one is one-hot), folded
from the last to the first:

    pi_(k+1) = p        pi_j(v) = q_j(v) [v in A] + (1 - q_j(A)) pi_(j+1)(v)

and the token after the node has the distribution pi_1. It depends on the drafter, so on what it remembers of other texts
too, and on how many children it proposes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.cascade.verdict import LossyVerdict, is_override
from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Target
from forerun.errors import UsageError
from forerun.verifiers.distributions import Probs, proposal, total_variation


class Typical:
    """Accepts what the target finds plausible; says how often that was not what the target would have chosen."""

    name = "typical"
    exact = False
    keyed = False

    def __init__(self, eps: float = 0.09, delta: float = 0.3) -> None:
        """Raises UsageError unless 0 < eps <= 1 and delta > 0."""
        if not (0 < eps <= 1 and 0 < delta < math.inf):
            raise UsageError(
                f"typical acceptance with eps {eps} and delta {delta} is not defined; give eps in (0, 1] and delta above 0."
            )
        self.eps = eps
        self.delta = delta

    def verify(self, draft: Draft, target: Target, rng: Rng) -> LossyVerdict:
        path: list[int] = []
        emitted: list[tuple[Probs, Probs, int]] = []
        node: int | None = ROOT
        while node is not None:
            p = target.probs(node)
            typical = p > self.threshold(p)
            children = draft.children(node)
            stated = stated_probs(draft, node, p, typical)
            node = next((child for child in children if typical[draft.tokens[child]]), None)
            if node is not None:
                path.append(node)
            token = rng.sample(p) if node is None else draft.tokens[node]
            emitted.append((p, stated, token))
        overrides = tuple(is_override(p, stated, token, rng) for p, stated, token in emitted)
        lost = tuple(float(total_variation(p, stated)) for p, stated, _ in emitted)
        return LossyVerdict(tuple(path), emitted[-1][2], overrides, lost)

    def threshold(self, p: Probs) -> float:
        """min(eps, delta exp(-H(p)))."""
        return min(self.eps, self.delta * math.exp(-entropy(p)))


def stated_probs(draft: Draft, node: int, p: Probs, typical: NDArray[np.bool_]) -> Probs:
    """pi_1 `[vocab]` after a node, given what its children were drawn from and which tokens pass."""
    stated = p
    passing = np.flatnonzero(typical)
    for child in reversed(draft.children(node)):
        taken = proposal(draft, child, p)[passing]
        stated = stated * (1 - taken.sum())
        stated[passing] += taken
    return stated


def entropy(p: Probs) -> float:
    """H(p) in nats."""
    positive: Any = p[p > 0].astype(np.float64)
    return float(-(positive * np.log(positive)).sum())
