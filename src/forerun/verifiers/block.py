"""Block verification (Sun et al., 2403.10444): a chain is judged as a whole. Exact, and no rule for one path accepts more.

With p_0 = 1 and p_i = min(p_{i-1} p(x_i) / q(x_i), 1), for i < g:

    Z_i = sum_v (p_i p(v | x_1..x_i) - q(v | x_1..x_i))+     h_i = Z_i / (Z_i + 1 - p_i)     h_g = p_g

tau is the largest i whose independent test with probability h_i succeeds (h_0 = 1): a failure further up does not stop
it. After full acceptance draw from p, else from norm((p_tau p - q)+).

Why it is exact. Let r_i be the probability, given x_1..x_i, that at least i tokens are accepted. Backwards from h_g, the
choice of h_i makes r_i = p_i: what survives x_i contributes q(v) min(p_i p(v) / q(v), 1) = min(p_i p(v), q(v)) for a
next token v, what stops there (p_i p(v) - q(v))+, together p_i p(v). At the root p_0 = 1, so tokens have the distribution p.

p_i may underflow: under q it is bounded by a martingale, so from below 1e-300 it comes back with no more probability
than that, and the product needs no logarithms. With a one-hot q nothing is gained over rejection, which stops earlier.
"""

from __future__ import annotations

from typing import Any

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Target
from forerun.core.step import Verdict
from forerun.verifiers.distributions import Probs, acceptance, excess, normalized, proposal
from forerun.verifiers.rejection import Rejection
from forerun.verifiers.traversal import Traversal


class Block:
    """Accepts the longest part of a chain whose joint test succeeds; trees go to its generalization, traversal."""

    name = "block"
    exact = True
    keyed = False

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        if draft.q is None or all(q is None for q in draft.q):
            return Rejection().verify(draft, target, rng)
        if not draft.is_chain:
            return Traversal().verify(draft, target, rng)
        target_probs = [target.probs(node) for node in range(ROOT, len(draft))]
        proposals = [proposal(draft, node, target_probs[0]) for node in range(len(draft))]
        weights = joint_weights(draft, target_probs, proposals)
        if rng.accept(weights[-1]):
            return Verdict(tuple(range(len(draft))), rng.sample(target_probs[-1]))
        for kept in reversed(range(len(draft))):
            p, q, w = target_probs[kept], proposals[kept], weights[kept]
            left = excess(w * p, q)
            if kept == 0 or rng.accept(stopping(w, left.sum())):
                return Verdict(tuple(range(kept)), rng.sample(normalized(left, p)))
        raise AssertionError("the root always succeeds")


def joint_weights(draft: Draft, target_probs: list[Probs], proposals: list[Probs]) -> list[Any]:
    """p_0 .. p_g."""
    weights = [target_probs[0].sum() * 0 + 1]
    for token, p, q in zip(draft.tokens, target_probs, proposals, strict=False):
        weights.append(acceptance(weights[-1] * p[token], q[token]))
    return weights


def stopping(w: Any, mass: Any) -> Any:
    """Z / (Z + 1 - w), and 1 where that is 0 / 0: then the continuation has failed by rounding only."""
    total = mass + 1 - w
    return mass / total if total > 0 else w
