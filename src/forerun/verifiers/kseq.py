"""K-SEQ (SpecTr; Sun et al., 2310.15141): siblings drawn independently from one q, tested alike. Exact.

For K children drawn with replacement from q, at one node:

    beta(rho) = sum_v min(q(v), p(v) / rho)       rho solves 1 - (1 - beta)^K = rho beta on [1, K], rounded up

Try the children in order, each with probability min(1, p / (rho q)); if none is accepted, draw the bonus from the
residual, proportional to p - min(q, p / rho) c with c = (1 - (1 - beta)^K) / beta.

Why it is exact. Each test emits v with min(q(v), p(v) / rho) and fails with 1 - beta, so the tests together emit v with
min(q, p / rho) c, and the residual adds what is missing to p. It must not be negative: where q rho <= p it is at least
p - q rho, elsewhere p (1 - c / rho), so any rho with c <= rho will do, and the least accepts the most. The equation is
solved in floats, then rho is raised until c <= rho holds in the arithmetic of the distributions (it does at rho = K).

Nodes whose children were not drawn that way (one child, no replacement, no q) fall to the recursive rule of
`rejection`, which decides by how they were drawn and never by what was drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Rng, Target
from forerun.core.step import Verdict
from forerun.verifiers.distributions import Probs, acceptance, normalized, same
from forerun.verifiers.rejection import try_children

# Leaves rho within 1e-6 k of the least one, and acceptance as near to the best; each halving looks at all undecided tokens.
_HALVINGS = 20


class KSeq:
    """Accepts the first sibling that passes min(1, p / (rho q))."""

    name = "kseq"
    exact = True
    keyed = False

    def verify(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        path: list[int] = []
        node = ROOT
        while True:
            p = target.probs(node)
            q = _shared_q(draft, node)
            if q is None:
                accepted, left = try_children(draft, node, p, rng)
            else:
                accepted, left = _try_alike(draft, node, p, q, rng)
            if accepted is None:
                return Verdict(tuple(path), rng.sample(left))
            path.append(accepted)
            node = accepted


def _try_alike(draft: Draft, node: int, p: Probs, q: Probs, rng: Rng) -> tuple[int | None, Probs]:
    children = draft.children(node)
    rho = division_factor(p, q, len(children))
    for child in children:
        token = draft.tokens[child]
        if rng.accept(acceptance(p[token] / rho, q[token])):
            return child, p
    taken = np.minimum(q, p / rho)
    emitted = taken * _per_unit(taken.sum(), len(children))
    return None, normalized(np.maximum(p - emitted, 0), p)


def division_factor(p: Probs, q: Probs, k: int) -> Any:
    """rho for k draws from q: a float, or a fraction where the distributions are fractions."""
    low, high = 1.0, float(k)
    # Only tokens whose p / q lies between 1 and k change sides with rho; the others need to be summed once.
    always = p <= q
    undecided = np.flatnonzero(~always & (p < k * q))
    p_always = float(p.sum(where=always, initial=0))
    p_float, q_float = p[undecided].astype(np.float64), q[undecided].astype(np.float64)
    q_never = float(q.sum(where=~always, initial=0)) - float(q_float.sum())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beta = p_always / middle + q_never + float(np.minimum(q_float, p_float / middle).sum())
        if _per_unit(beta, k) <= middle:
            high = middle
        else:
            low = middle
    one = p.sum() * 0 + 1
    for rho in (one * type(one)(high), one * type(one)(high * (1 + 1e-9))):
        if _per_unit(np.minimum(q, p / rho).sum(), k) <= rho:
            return rho
    return one * k


def _per_unit(beta: Any, k: int) -> Any:
    """c = (1 - (1 - beta)^k) / beta = sum of (1 - beta)^j for j < k, without the cancellation at small beta."""
    fail = 1 - beta
    total = fail * 0
    for _ in range(k):
        total = total * fail + 1
    return total


def _shared_q(draft: Draft, node: int) -> Probs | None:
    """The q of a node's children where there are several, all drawn independently from the same one."""
    children = draft.children(node)
    if len(children) < 2 or draft.q is None or not draft.with_replacement:
        return None
    q = draft.q[children[0]]
    return q if q is not None and all(same(draft.q[child], q) for child in children) else None
