"""Operations on distributions that all rules share, the same for float64 and for arrays of fractions.

Tests run every rule on `dtype=object` arrays of `fractions.Fraction`, so nothing here may turn a fraction into a float.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.draft import Draft

Probs = NDArray[Any]
# Sums run over blocks that stay in the cache: a temporary of a whole vocabulary costs more than its arithmetic.
_BLOCK = 14_336


def excess(p: Probs, q: Probs) -> Probs:
    """(p - q)+, not normalized."""
    left: Probs = p - q
    return np.maximum(left, 0, out=left)


def total_variation(p: Probs, q: Probs) -> Any:
    """TV(p, q) = sum (p - q)+, at most 1 where rounding says a little more."""
    if p is q:
        return p[0] * 0
    starts = range(0, len(p), _BLOCK)
    return min(sum(excess(p[at : at + _BLOCK], q[at : at + _BLOCK]).sum() for at in starts), 1)


def one_hot(token: int, like: Probs) -> Probs:
    """All mass on one token, in the arithmetic of `like`."""
    nothing = like[token] * 0
    hot = np.zeros(len(like)) if like.dtype == np.float64 else np.full(len(like), nothing, dtype=like.dtype)
    hot[token] = nothing + 1
    return hot


def acceptance(p: Any, q: Any) -> Any:
    """min(1, p / q) without overflow; 0 where p is 0, so that no token the target cannot emit is ever accepted."""
    if p <= 0:
        return p * 0
    return p * 0 + 1 if p >= q else p / q


def normalized(weights: Probs, otherwise: Probs) -> Probs:
    """weights / sum; `otherwise` where nothing is left, which exact arithmetic never reaches and rounding may."""
    total = weights.sum()
    return weights / total if total > 0 else otherwise


def proposal(draft: Draft, node: int, like: Probs) -> Probs:
    """The distribution `[vocab]` from which a node was drawn, given the siblings before it.

    Without replacement these are taken out of q. A node without q, or with a q that rounding left without the drawn
    token, is one-hot: given the token, that is right for every rule, however the token was found.
    """
    token = draft.tokens[node]
    q = None if draft.q is None else draft.q[node]
    if q is None:
        return one_hot(token, like)
    if not draft.with_replacement:
        before = drawn_before(draft, node)
        if before:
            q = q.copy()
            q[before] = 0
            q = normalized(q, q)
    return q if q[token] > 0 else one_hot(token, like)


def drawn_before(draft: Draft, node: int) -> list[int]:
    """Tokens of the earlier siblings that were drawn from the same q (a merged draft may hold several)."""
    assert draft.q is not None
    siblings = draft.children(draft.parents[node])
    return [draft.tokens[s] for s in siblings if s < node and same(draft.q[s], draft.q[node])]


def same(left: Probs | None, right: Probs | None) -> bool:
    """Whether two nodes have one q. Siblings share an array; copies of it count too."""
    return left is right or (left is not None and right is not None and np.array_equal(left, right))
