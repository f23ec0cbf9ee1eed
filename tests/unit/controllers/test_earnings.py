"""A dear drafter runs while it earns more than what is sure, and is tried again ever more rarely when it does not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from forerun.controllers.earnings import Earnings


def test_means_follow_what_happened() -> None:
    earnings = Earnings(2.0, 1.0)
    for _ in range(400):
        earnings.add(3.0, 2.0)
    assert earnings.rate == pytest.approx(1.5, rel=0.01)


def test_a_request_learns_faster_than_the_whole_and_apart_from_it() -> None:
    whole = Earnings(2.0, 1.0)
    own = whole.own()
    for _ in range(20):
        own.add(1.0, 1.0)
    assert whole.rate == 2.0
    assert own.rate < 1.2


def test_tries_again_after_ever_longer_waits_and_returns_when_it_pays() -> None:
    earnings = Earnings(1.0, 1.0)
    tried = [i for i in range(600) if earnings.worth(1.5)]
    waits = [b - a for a, b in pairwise(tried)]
    assert tried[0] == 23
    assert waits == sorted(waits)
    assert max(waits) == 192
    earnings.tokens = 2.0
    assert all(earnings.worth(1.5) for _ in range(10))
    earnings.tokens = 1.0
    assert [i for i in range(30) if earnings.worth(1.5)] == [23]
