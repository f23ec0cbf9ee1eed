"""Scores become probabilities: of each kind of node, what happened to its like."""

from __future__ import annotations

import random

import pytest

from forerun.controllers import Calibration
from forerun.core.draft import Draft


def chain(*scores: float, source: str = "a") -> Draft:
    return Draft(tuple(range(len(scores))), tuple(range(-1, len(scores) - 1)), scores=scores, source=source)


def test_takes_the_score_before_it_has_seen_anything() -> None:
    assert Calibration().accepted(chain(0.3, 0.9)) == [0.3, 0.9]
    assert Calibration().reached(chain(0.5, 0.5)) == [0.5, 0.25]


def test_learns_that_a_drafter_is_too_sure() -> None:
    calibration, numbers = Calibration(), random.Random(1)
    for _ in range(500):
        calibration.observe(chain(0.95), [0] if numbers.random() < 0.4 else [7])
    assert calibration.accepted(chain(0.95))[0] == pytest.approx(0.4, abs=0.1)
    # Another source keeps its own record.
    assert calibration.accepted(chain(0.95, source="b")) == [0.95]


def test_only_nodes_whose_fate_is_known_count() -> None:
    calibration = Calibration()
    for _ in range(50):
        # The first token was wrong: nothing is known about the second.
        calibration.observe(chain(0.5, 0.9), [5, 1])
        # Only one token was written: nothing is known about the second either.
        calibration.observe(chain(0.6, 0.9), [0])
    assert calibration.accepted(chain(0.5, 0.9))[1] == 0.9
    assert calibration.accepted(chain(0.5))[0] < 0.1
    assert calibration.accepted(chain(0.6))[0] > 0.9


def test_a_tree_follows_the_text_through_the_right_sibling() -> None:
    calibration = Calibration()
    tree = Draft((1, 2, 3), (-1, -1, 1), scores=(0.8, 0.4, 0.2))
    for _ in range(60):
        calibration.observe(tree, [2, 3, 9])
    first, second, below = calibration.accepted(tree)
    assert first < 0.15 < 0.85 < min(second, below)


def test_follows_a_change_of_text() -> None:
    calibration = Calibration()
    for token in [0] * 400 + [7] * 400:
        calibration.observe(chain(0.7), [token])
    assert calibration.accepted(chain(0.7))[0] < 0.15
