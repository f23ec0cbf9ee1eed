"""Typical acceptance (Medusa; Cai et al., 2401.10774): whatever the target finds plausible passes. Lossy.

    accept x if p(x) > min(eps, delta exp(-H(p))),  H the entropy of p

At each node the children are tried in order; the first typical one is taken, without any randomness; where none is,
the bonus is drawn from p. The threshold falls where the target itself is unsure. The text does not have the target's
law, except at temperature 0, where only the target's own choice passes.

The stated law. With A the typical tokens and children drawn from q_1 .. q_k (a deterministic one is one-hot), folded
from the last to the first:

    pi_(k+1) = p        pi_j(v) = q_j(v) [v in A] + (1 - q_j(A)) pi_(j+1)(v)

and the token after the node has the law pi_1. It depends on the drafter and on how many children it proposes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Target
from forerun.core.step import Verdict
from forerun.errors import UsageError
from forerun.verifiers.distributions import Law, differs, proposal, total_variation


class Typical:
    """Accepts what the target finds plausible; says how often that was not what the target would have chosen."""

    name = "typical"
    exact = False
    shares_noise = False
    wants_beliefs = False

    def __init__(self, eps: float = 0.09, delta: float = 0.3) -> None:
        """Raises UsageError unless 0 < eps <= 1 and delta > 0."""
        if not (0 < eps <= 1 and 0 < delta < math.inf):
            raise UsageError(
                f"typical acceptance with eps {eps} and delta {delta} is not defined; give eps in (0, 1] and delta above 0."
            )
        self.eps = eps
        self.delta = delta

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        path: list[int] = []
        emitted: list[tuple[Law, Law, int]] = []
        node: int | None = ROOT
        while node is not None:
            p = target.law(node)
            typical = p > self.threshold(p)
            children = draft.children(node)
            law = stated_law(draft, node, p, typical)
            node = next((child for child in children if typical[draft.tokens[child]]), None)
            if node is not None:
                path.append(node)
            token = rng.sample(p) if node is None else draft.tokens[node]
            emitted.append((p, law, token))
        overridden = tuple(differs(p, law, token, rng) for p, law, token in emitted)
        lost = tuple(float(total_variation(p, law)) for p, law, _ in emitted)
        return Verdict(tuple(path), emitted[-1][2], overridden, lost)

    def threshold(self, p: Law) -> float:
        """min(eps, delta exp(-H(p)))."""
        return min(self.eps, self.delta * math.exp(-entropy(p)))


def stated_law(draft: Draft, node: int, p: Law, typical: NDArray[np.bool_]) -> Law:
    """pi_1 `[vocab]` after a node, given its children's proposal laws and which tokens pass."""
    law = p
    passing = np.flatnonzero(typical)
    for child in reversed(draft.children(node)):
        taken = proposal(draft, child, p)[passing]
        law = law * (1 - taken.sum())
        law[passing] += taken
    return law


def entropy(p: Law) -> float:
    """H(p) in nats."""
    positive: Any = p[p > 0].astype(np.float64)
    return float(-(positive * np.log(positive)).sum())
