"""Operations on distributions, in floats and in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from forerun.core.draft import Draft
from forerun.verifiers.distributions import (
    acceptance,
    excess,
    normalized,
    one_hot,
    proposal,
    same,
    total_variation,
)
from tests.exact.enumeration import fractions

P, Q = fractions(5, 3, 2), fractions(2, 5, 3)


def test_acceptance() -> None:
    assert acceptance(Fraction(1, 4), Fraction(1, 2)) == Fraction(1, 2)
    assert acceptance(Fraction(1, 2), Fraction(1, 4)) == 1
    assert acceptance(0.0, 0.5) == 0
    assert acceptance(0.0, 0.0) == 0
    assert acceptance(1e-300, 0.0) == 1
    with np.errstate(all="raise"):
        assert acceptance(np.float64(1.0), np.float64(5e-324)) == 1


def test_excess_and_total_variation_stay_fractions() -> None:
    assert excess(P, Q).tolist() == [Fraction(3, 10), 0, 0]
    assert total_variation(P, Q) == total_variation(Q, P) == Fraction(3, 10)
    assert normalized(excess(P, Q), P).tolist() == [1, 0, 0]
    assert isinstance(normalized(excess(P, Q), P)[0], Fraction)


def test_a_total_variation_is_at_most_one_where_probabilities_sum_to_more() -> None:
    p = np.array([1 / 20] * 20 + [0.0])
    assert p.sum() > 1
    assert total_variation(p, one_hot(20, p)) == 1


def test_normalized_falls_back_where_nothing_is_left() -> None:
    assert normalized(P - P, Q) is Q


def test_one_hot_keeps_the_arithmetic() -> None:
    assert isinstance(one_hot(1, P)[0], Fraction)
    assert one_hot(1, np.array([0.5, 0.5])).tolist() == [0.0, 1.0]


def test_proposal_takes_earlier_siblings_out() -> None:
    draft = Draft((1, 0, 2), (-1, -1, -1), (Q, Q, Q))
    assert proposal(draft, 0, P).tolist() == Q.tolist()
    assert proposal(draft, 1, P).tolist() == [Fraction(2, 5), 0, Fraction(3, 5)]
    assert proposal(draft, 2, P).tolist() == [0, 0, 1]
    assert Q.tolist() == fractions(2, 5, 3).tolist()


def test_proposal_with_replacement_is_q() -> None:
    draft = Draft((1, 1), (-1, -1), (Q, Q), with_replacement=True)
    assert proposal(draft, 1, P) is Q


def test_proposal_looks_at_siblings_from_the_same_q_only() -> None:
    draft = Draft((1, 0, 1, 2), (-1, -1, -1, 0), (Q, None, P, Q))
    assert proposal(draft, 1, P).tolist() == [1, 0, 0]
    assert proposal(draft, 2, P) is P
    assert proposal(draft, 3, P) is Q


def test_copies_of_q_count_as_the_same() -> None:
    draft = Draft((1, 0), (-1, -1), (Q, Q.copy()))
    assert proposal(draft, 1, P).tolist() == [Fraction(2, 5), 0, Fraction(3, 5)]
    assert same(Q, Q.copy())
    assert not same(Q, P)
    assert not same(Q, None)
    assert same(None, None)


def test_a_q_that_rounding_emptied_is_one_hot() -> None:
    """After the favorite is taken out nothing is left in floats, though the drafter drew on, from log-weights."""
    q = np.array([1.0, 0.0, 0.0])
    draft = Draft((0, 2), (-1, -1), (q, q))
    assert proposal(draft, 1, q).tolist() == [0, 0, 1]
    assert proposal(Draft((1,), (-1,), (q,)), 0, q).tolist() == [0, 1, 0]
