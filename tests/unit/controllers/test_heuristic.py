"""Two more when all were accepted, one less otherwise, each text for itself."""

from __future__ import annotations

from forerun.controllers import Heuristic
from forerun.core.draft import EMPTY, Draft
from forerun.core.protocols import DraftingCost
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from tests.unit.controllers.texts import candidate, text


def ended(asked: Transcript, draft: Draft, accepted: int) -> StepResult:
    return StepResult(asked, (0,), draft, tuple(range(accepted)), tuple(range(accepted + 1)))


def test_the_schedule() -> None:
    schedule, asked = Heuristic(start=5), text()
    seen = []
    for accepted in (5, 7, 3, 0, 9):
        nodes = schedule.nodes(asked)
        seen.append(nodes)
        schedule.observe([ended(asked, Draft.chain(range(nodes)), min(accepted, nodes))])
    assert seen == [5, 7, 9, 8, 7]
    assert schedule.nodes(asked) == 9


def test_never_below_one_nor_past_the_most() -> None:
    schedule, asked = Heuristic(start=2, most=5), text()
    for _ in range(5):
        schedule.observe([ended(asked, Draft.chain([1, 2]), 0)])
    assert schedule.nodes(asked) == 1
    for _ in range(9):
        schedule.observe([ended(asked, Draft.chain([1, 2]), 2)])
    assert schedule.nodes(asked) == 5


def test_nothing_drafted_says_nothing_and_a_tree_counts_by_depth() -> None:
    schedule, asked = Heuristic(start=4), text()
    schedule.observe([ended(asked, EMPTY, 0)])
    assert schedule.nodes(asked) == 4
    tree = Draft((1, 2, 3), (-1, -1, 1))
    schedule.observe([StepResult(asked, (0,), tree, (1, 2), (2, 3, 4))])
    assert schedule.nodes(asked) == 6


def test_texts_are_apart_and_forgotten() -> None:
    schedule, one, other = Heuristic(), text(), text()
    schedule.observe([ended(one, Draft.chain([1]), 1), ended(other, Draft.chain([1]), 0)])
    assert [schedule.nodes(each) for each in (one, other)] == [7, 4]
    schedule.forget(one)
    assert [schedule.nodes(each) for each in (one, other)] == [5, 4]
    drafts = [Draft.chain([1, 2])]
    assert schedule.trim([candidate(other, drafts[0])], drafts, 1, DraftingCost(0.1)) == drafts
