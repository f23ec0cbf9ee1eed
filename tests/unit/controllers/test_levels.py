"""What a level costs, how often each depth is still right, and the depth that follows."""

from __future__ import annotations

import pytest

from forerun.controllers import CostCurve
from forerun.controllers.levels import Levels
from forerun.core.draft import EMPTY, Draft

FLAT = CostCurve({1: 1.0, 64: 1.0})
STEEP = CostCurve({1: 1.0, 64: 64.0})


def learned(levels: Levels, draft: Draft, tokens: list[int], times: int = 300) -> Levels:
    for _ in range(times):
        levels.observe(draft, tokens)
    return levels


def test_cost_is_seconds_per_level_of_the_deepest_draft() -> None:
    levels = Levels(8)
    levels.spent(0.6, [Draft.chain([1, 2]), Draft.chain([1, 2, 3]), EMPTY])
    assert levels.cost == pytest.approx(0.2)
    for _ in range(200):
        levels.spent(0.1, [Draft((1, 2), (-1, -1))])
    assert levels.cost == pytest.approx(0.1)
    levels.spent(0.1, [EMPTY])  # time was spent, and nothing came of it: a level's worth
    assert levels.cost == pytest.approx(0.1)


def test_dear_is_measured_against_a_plain_pass() -> None:
    levels = Levels(4)
    levels.spent(0.01, [Draft.chain([1])])
    assert not levels.dear(FLAT)
    assert levels.dear(CostCurve({1: 0.1, 2: 0.1}))


def test_survival_learns_how_deep_drafts_are_right() -> None:
    levels = learned(Levels(4), Draft.chain([5, 6, 7, 8]), [5, 6, 9])
    assert levels.survival == pytest.approx([1, 1, 0, 0], abs=1e-6)


def test_a_tree_is_right_where_one_of_its_branches_is() -> None:
    tree = Draft((4, 5, 6, 7), (-1, -1, 1, 0))
    assert learned(Levels(3), tree, [5, 6, 1]).survival[:2] == pytest.approx([1, 1], abs=1e-6)
    assert learned(Levels(3), tree, [5, 7, 1]).survival[:2] == pytest.approx([1, 0], abs=1e-6)


def test_a_text_that_ended_on_the_draft_says_nothing_of_what_was_below() -> None:
    levels = Levels(4)
    before = list(levels.survival)
    learned(levels, Draft.chain([5, 6, 7]), [5])
    assert levels.survival[0] == pytest.approx(1, abs=1e-6)
    assert levels.survival[1:] == before[1:]
    levels.observe(EMPTY, [1, 2])
    assert levels.survival[1:] == before[1:]


def test_the_best_depth_weighs_chance_against_both_costs() -> None:
    sure = learned(Levels(6), Draft.chain([1, 2, 3, 4, 5, 6]), [1, 2, 3, 4, 5, 6, 7])
    depth, rate = sure.best_depth(FLAT, 1)
    assert depth == 6
    assert rate == pytest.approx(7.0)
    assert sure.best_depth(STEEP, 1)[0] == 0
    sure.spent(0.5, [Draft.chain([1])])  # half a pass per level still pays, two passes do not
    assert sure.best_depth(FLAT, 1)[0] == 6
    dear = learned(Levels(6), Draft.chain([1, 2, 3, 4, 5, 6]), [1, 2, 3, 4, 5, 6, 7])
    dear.spent(2.0, [Draft.chain([1])])
    assert dear.best_depth(FLAT, 1) == (0, 1.0)
    shallow = learned(Levels(6), Draft.chain([1, 2, 3, 4, 5, 6]), [1, 2, 9])
    shallow.spent(0.1, [Draft.chain([1])])
    assert shallow.best_depth(FLAT, 1)[0] == 2


def test_a_batch_shares_the_level_but_not_the_rows() -> None:
    curve = CostCurve({1: 1.0, 4: 1.0, 8: 2.0, 64: 8.0})
    levels = learned(Levels(3), Draft.chain([1, 2, 3]), [1, 2, 3, 4])
    assert levels.best_depth(curve, 1)[0] == 3
    depth, rate = levels.best_depth(curve, 4)
    assert depth == 3
    assert rate == pytest.approx(4 * 4 / curve(16))
