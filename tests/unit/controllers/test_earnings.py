"""A dear drafter runs while it earns more than what is sure, and is tried again ever more rarely when it does not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from forerun.controllers.earnings import Earnings


def test_means_follow_what_happened() -> None:
    earnings = Earnings(2.0, 1.0)
    for _ in range(400):
        earnings.add(3.0, 2.0, 4.0)
    assert (earnings.tokens, earnings.nodes, earnings.levels) == pytest.approx((3.0, 2.0, 4.0), rel=0.01)


def test_a_request_learns_faster_than_the_whole_and_apart_from_it() -> None:
    whole = Earnings(2.0, 1.0)
    own = whole.own()
    for _ in range(20):
        own.add(1.0, 1.0)
    assert whole.tokens == 2.0
    assert own.tokens < 1.2


def test_tries_again_after_ever_longer_waits_and_returns_when_it_pays() -> None:
    earnings = Earnings(1.0, 1.0)
    tried = [i for i in range(600) if earnings.due(False)]
    waits = [b - a for a, b in pairwise(tried)]
    assert tried[0] == 23
    assert waits == sorted(waits)
    assert max(waits) == 192
    assert all(earnings.due(True) for _ in range(10))
    assert [i for i in range(30) if earnings.due(False)] == [23]


def test_what_is_believed_comes_back_slowly() -> None:
    earnings, believed = Earnings(1.0, 1.0, 1.0), Earnings(3.0, 3.0, 3.0)
    earnings.fade(believed)
    assert 1.0 < earnings.tokens < 1.2
    for _ in range(300):
        earnings.fade(believed)
    assert (earnings.tokens, earnings.nodes, earnings.levels) == pytest.approx((3.0, 3.0, 3.0), rel=0.01)
