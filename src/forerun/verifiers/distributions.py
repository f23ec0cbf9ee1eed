"""Operations on distributions that all rules share, the same for float64 and for arrays of fractions.

Tests run every rule on `dtype=object` arrays of `fractions.Fraction`, so nothing here may turn a fraction into a float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.core.draft import Draft
from forerun.core.mixtures import Law, excess, total_variation
from forerun.core.protocols import Rng

__all__ = [
    "Law",
    "acceptance",
    "differs",
    "drawn_before",
    "excess",
    "normalized",
    "one_hot",
    "proposal",
    "same",
    "total_variation",
]


def one_hot(token: int, like: Law) -> Law:
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


def normalized(weights: Law, otherwise: Law) -> Law:
    """weights / sum; `otherwise` where nothing is left, which exact arithmetic never reaches and rounding may."""
    total = weights.sum()
    return weights / total if total > 0 else otherwise


def proposal(draft: Draft, node: int, like: Law) -> Law:
    """The law `[vocab]` from which a node was drawn, given the siblings before it.

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


def same(left: Law | None, right: Law | None) -> bool:
    """Whether two nodes have one q. Siblings share an array; copies of it count too."""
    return left is right or (left is not None and right is not None and np.array_equal(left, right))


def differs(p: Law, pi: Law, token: int, rng: Rng) -> bool:
    """Whether the target would not have chosen `token`, drawn from `pi`, under the coupling that agrees most often.

    Given the token the two agree with probability min(1, p / pi), so the mean is TV(p, pi); at temperature 0 it is a fact.
    """
    return not rng.accept(acceptance(p[token], pi[token]))
