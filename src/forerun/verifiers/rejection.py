"""Rejection sampling, for chains and trees. Exact.

Chains (Leviathan et al. 2211.17192; Chen et al. 2302.01318): accept x ~ q with probability min(1, p(x) / q(x)); at the
first refusal draw from norm((p - q)+) and stop; after full acceptance draw one more from p.

Trees (SpecInfer, 2305.09781; without replacement, Sequoia, 2402.12374): at each node try the children in order. Accept
child t with min(1, p(t) / q(t)) and go there, else p <- norm((p - q)+); without replacement q(t) <- 0, renormalized.
When no child is left draw from what p has become.

Why it is exact. One test emits x with q(x) min(1, p(x) / q(x)) = min(p(x), q(x)) and otherwise, with probability
1 - sum min(p, q) = sum (p - q)+, hands on the distribution norm((p - q)+): together min(p, q) + (p - q)+ = p. By induction
over the children, whatever the next test emits has the distribution it is handed. Only q given the earlier siblings matters. A
deterministic proposal is the case of a one-hot q. Expected tokens of a chain: (1 - a^(g+1)) / (1 - a), a = 1 - TV.
"""

from __future__ import annotations

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Target
from forerun.core.step import Verdict
from forerun.verifiers.distributions import Probs, acceptance, excess, normalized, proposal


class Rejection:
    """Accepts each drafted token with min(1, p / q), siblings one after the other."""

    name = "rejection"
    exact = True
    keyed = False

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        path: list[int] = []
        node = ROOT
        while True:
            accepted, left = try_children(draft, node, target.probs(node), rng)
            if accepted is None:
                return Verdict(tuple(path), rng.sample(left))
            path.append(accepted)
            node = accepted


def try_children(draft: Draft, node: int, p: Probs, rng: Rng) -> tuple[int | None, Probs]:
    """The first child accepted under `p`, or None and the distribution from which the bonus must then be drawn."""
    for child in draft.children(node):
        token = draft.tokens[child]
        q = proposal(draft, child, p)
        if rng.accept(acceptance(p[token], q[token])):
            return child, p
        p = normalized(excess(p, q), p)
    return None, p
