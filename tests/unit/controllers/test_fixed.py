"""The same number for every text, all of it verified; a model where the other drafters have nothing to say."""

from __future__ import annotations

import pytest

from forerun.controllers import Fixed, Heuristic
from forerun.core.draft import EMPTY
from forerun.core.protocols import Controller, DraftingCost
from tests.unit.controllers.texts import candidate, chain, text


def test_the_same_number_for_every_text() -> None:
    assert [Fixed(5).nodes(one) for one in (text(), text(written=90), text(keyed=False))] == [5, 5, 5]


@pytest.mark.parametrize("controller", [Fixed(4), Heuristic(4)], ids=lambda one: one.name)
def test_what_does_not_look_at_the_clock_verifies_all_and_asks_a_model_where_nothing_is_said(
    controller: Controller,
) -> None:
    candidates = [candidate(text(), chain(0.1), unread=1), candidate(text(), EMPTY, unread=5000)]
    plan = controller.plan(candidates)
    assert [levels > 0 for levels in plan.levels] == [False, True]
    assert plan.levels[1] > 1000
    assert plan.min_probability == 0.0
    drafts = [chain(0.1), chain(*[0.0] * 4)]
    assert controller.trim(candidates, drafts, 2, DraftingCost(9.0, 9.0, 4, [0, 5000])) == drafts
