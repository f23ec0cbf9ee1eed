"""Traversal verification (2505.12398): block verification for trees, from the leaves up. Exact.

A node t under P carries w(t) = min(1, w(P) p_P(t) / q_P(t)), the root w = 1. Take the first leaf L in depth-first order.
With probability w(L), and always at the root, accept its path and draw the bonus from p_L. Otherwise delete L from P:

    r = (w_P p_P - q_P)+     Z = sum r     w_P <- Z / (Z + 1 - w_P)     p_P <- r / Z

without replacement also q_P(L) <- 0, renormalized; weights below P follow. P is a leaf once its children are gone.

Why it is exact. The invariant is that a node reached with weight w and distribution p hands out, over everything that can
happen below it, its own path with probability w and the next token v with w p(v). A child drawn from q takes
min(w p(v), q(v)) of that for itself; what it leaves is (w p - q)+, of mass Z, out of 1 - w + Z: exactly the new w and
p. So each deletion keeps the invariant for the next sibling, or for the node as a leaf, and w = 1 at the root. On a
chain this is block verification; it needs the distribution at every node, where rejection stops at the first refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Target
from forerun.core.step import Verdict
from forerun.verifiers.distributions import Probs, acceptance, excess, normalized, proposal


@dataclass
class _Open:
    """A node on the way to the leaf under test, with what its deleted children have left."""

    node: int
    weight: Any
    probs: Probs
    tried: int = 0


class Traversal:
    """Accepts the first leaf, in depth-first order from the bottom, whose joint test succeeds."""

    name = "traversal"
    exact = True
    keyed = False

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        root = target.probs(ROOT)
        way = [_Open(ROOT, root.sum() * 0 + 1, root)]
        while True:
            here = way[-1]
            children = draft.children(here.node)
            if here.tried < len(children):
                child = children[here.tried]
                token = draft.tokens[child]
                q = proposal(draft, child, root)
                way.append(_Open(child, acceptance(here.weight * here.probs[token], q[token]), target.probs(child)))
            elif here.node == ROOT or rng.accept(here.weight):
                return Verdict(draft.path_to(here.node), rng.sample(here.probs))
            else:
                way.pop()
                _delete(way[-1], proposal(draft, here.node, root))


def _delete(parent: _Open, q: Probs) -> None:
    """Take a refused child, drawn from q, out of its parent."""
    left = excess(parent.weight * parent.probs, q)
    mass = left.sum()
    total = mass + 1 - parent.weight
    # 0 / 0 is p = q under full weight, where only rounding can have refused the child: nothing changes then.
    parent.weight = mass / total if total > 0 else parent.weight
    parent.probs = normalized(left, parent.probs)
    parent.tried += 1
