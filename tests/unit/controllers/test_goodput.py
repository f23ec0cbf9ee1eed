"""Sizes that pay: more nodes where rows are cheap and likely, none where they are dear, over all texts together."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.controllers import CostCurve, Goodput
from forerun.core.draft import EMPTY, Draft
from forerun.core.protocols import DraftingCost, ModelPlan
from forerun.core.step import Seconds, StepResult
from forerun.core.transcript import Transcript
from tests.unit.controllers.texts import candidate, chain, text, trimmed

FLAT = {1: 1.0, 64: 1.0}
STEEP = {1: 1.0, 64: 64.0}


def test_takes_everything_where_rows_are_free_and_nothing_where_they_are_dear() -> None:
    draft = chain(0.6, 0.6, 0.6)
    assert trimmed(Goodput(CostCurve(FLAT)), [text()], [draft]) == [draft]
    assert [len(kept) for kept in trimmed(Goodput(CostCurve(STEEP)), [text()], [draft])] == [0]


def test_cuts_where_the_marginal_node_stops_paying() -> None:
    # T = 1 + 0.2 (rows - 1): with probabilities .9, .81, .73, ... the best cut is where E / T peaks.
    curve = CostCurve({1: 1.0, 64: 1.0 + 0.2 * 63})
    [kept] = trimmed(Goodput(curve), [text()], [chain(*[0.9] * 12)])
    rates = [(1 + sum(0.9**i for i in range(1, k + 1))) / (1 + 0.2 * k) for k in range(13)]
    assert len(kept) == max(range(13), key=rates.__getitem__) > 0


def test_seconds_spent_on_drafting_make_deeper_drafts_worth_their_rows() -> None:
    """What is spent is spent: the pass that follows should bring more."""
    curve = CostCurve({1: 1.0, 64: 1.0 + 0.2 * 63})
    lengths = []
    for seconds in (0.0, 0.5, 3.0):
        [kept] = trimmed(Goodput(curve), [text()], [chain(*[0.9] * 12)], DraftingCost(seconds))
        lengths.append(len(kept))
    assert lengths == sorted(set(lengths))


def test_nodes_go_to_the_text_that_is_more_predictable() -> None:
    curve = CostCurve({1: 1.0, 2: 1.0, 4: 1.05, 8: 6.0})
    sure, unsure = chain(0.95, 0.95, source="a"), chain(0.1, 0.1, source="b")
    assert [len(kept) for kept in trimmed(Goodput(curve), [text(), text()], [unsure, sure])] == [0, 2]


def test_drawn_siblings_are_cut_from_the_last() -> None:
    q = np.full(4, 0.25)
    tree = Draft((0, 1, 2), (-1, -1, -1), q=(q, q, q), scores=(0.2, 0.2, 0.2), source="m")
    goodput = Goodput(CostCurve({1: 1.0, 2: 1.1, 3: 1.2, 4: 9.0}), unclocked=None)
    # Observed: only the third sibling is ever right. The first two may still not be skipped.
    for _ in range(100):
        goodput.calibrations[""].observe(Draft((0,), (-1,), scores=(0.2,), source="m"), [9])
    [kept] = trimmed(goodput, [text(keyed=False)], [tree])
    assert kept.tokens == tree.tokens[: len(kept)]


def play(goodput: Goodput, right: float, steps: int, cost: dict[int, float], draft_cost: float = 0.0) -> list[int]:
    """Steps of one text whose drafts of four nodes are right with the given frequency; nodes verified per step."""
    curve, one, verified = CostCurve(cost), text(), []
    for index in range(steps):
        draft = chain(*[0.5] * min(4, goodput.nodes(one)))
        spent = DraftingCost(draft_cost * len(draft))
        [kept] = trimmed(goodput, [one], [draft], spent)
        good = (index * 0.618034) % 1.0 < right
        accepted = len(kept) if good else 0
        tokens = (*range(accepted), accepted if good else 99)
        seconds = Seconds(spent.seconds, curve(1 + len(kept)), 0.0)
        goodput.observe([StepResult(one, (1,), kept, tuple(range(accepted)), tokens, seconds=seconds)])
        verified.append(len(kept))
    return verified


def test_learns_to_speculate_and_not_to() -> None:
    cost = {1: 1.0, 64: 1.0 + 0.15 * 63}
    assert sum(play(Goodput(CostCurve(cost)), 0.9, 200, cost)[-50:]) > 100
    assert sum(play(Goodput(CostCurve(cost)), 0.02, 400, cost)[-200:]) < 20


def test_comes_back_when_the_text_becomes_predictable_again() -> None:
    cost = {1: 1.0, 64: 1.0 + 0.15 * 63}
    goodput = Goodput(CostCurve(cost))
    play(goodput, 0.02, 300, cost)
    assert sum(play(goodput, 0.95, 400, cost)[-50:]) > 100


def test_what_is_not_verified_is_learned_from_all_the_same() -> None:
    """Nothing is worth verifying on this machine, and still it is known how good the drafts would have been."""
    goodput, one = Goodput(CostCurve(STEEP)), text()
    for _ in range(60):
        [kept] = trimmed(goodput, [one], [chain(0.5, 0.5)])
        assert len(kept) == 0
        goodput.observe([StepResult(one, (1,), tokens=(0,), seconds=Seconds(0.0, 1.0, 0.0))])
    assert goodput.calibrations[""].accepted(chain(0.5))[0] > 0.9


def test_ended_texts_are_forgotten() -> None:
    goodput, one = Goodput(CostCurve(FLAT)), text()
    trimmed(goodput, [one], [chain(0.5)])
    goodput.observe([StepResult(one, (1,), tokens=(0,), seconds=Seconds(0.0, 1.0, 0.0))])
    goodput.forget(one)
    goodput.forget(one)
    assert (goodput._records, goodput.model_use._records) == ({}, {})


@pytest.mark.parametrize("count", [1, 8])
def test_no_drafts_cost_nothing(count: int) -> None:
    live = [text() for _ in range(count)]
    assert trimmed(Goodput(CostCurve(FLAT)), live, [EMPTY] * count) == [EMPTY] * count


def test_passes_that_read_a_prompt_say_nothing_of_costs_and_their_texts_nothing_of_drafts() -> None:
    goodput, reading, writing = Goodput(CostCurve({1: 1.0, 64: 2.0})), text(written=0), text()
    before = goodput.curve.as_dict()
    trimmed(goodput, [writing], [chain(0.9)], rows=33)
    chunk = StepResult(reading, (1,) * 32, decoded=False, seconds=Seconds(0.0, 9.0, 0.0))
    goodput.observe([chunk, StepResult(writing, (1,), tokens=(0,), seconds=Seconds(0.0, 9.0, 0.0))])
    assert goodput.curve.as_dict() == before
    assert reading not in goodput._records
    goodput.observe([])


def test_a_prompt_in_the_pass_makes_no_draft_worth_more() -> None:
    """A row costs as much beside it, and the tokens of a long pass are not all that it is for."""
    curve = CostCurve({1: 1.0, 64: 1.0 + 0.2 * 63})
    for draft in (chain(*[0.9] * 12), chain(0.3, 0.3), chain(0.15)):
        alone, beside = (trimmed(Goodput(curve), [text()], [draft], rows=rows) for rows in (1, 201))
        assert alone == beside


def lost(goodput: Goodput, one: Transcript, *, asking: float, prompt: int = 0) -> None:
    """A step whose draft of four was wrong, in a pass as the curve says."""
    [kept] = trimmed(goodput, [one], [chain(*[0.9] * 4)], DraftingCost(asking), 1 + prompt)
    seconds = Seconds(asking, goodput.curve(1 + prompt + len(kept)), 0.0)
    results = [StepResult(one, (1,), kept, (), (99,), seconds=seconds)]
    if prompt:
        results.append(StepResult(text(written=0), (1,) * prompt, decoded=False, seconds=seconds))
    goodput.observe(results)


def test_where_asking_costs_more_than_drafts_bring_drafters_are_left_alone() -> None:
    for asking, share in ((0.2, 0.1), (0.001, 1.0)):
        goodput, one, asked = Goodput(CostCurve({1: 1.0, 2: 3.0, 64: 99.0})), text(), 0
        for _ in range(400):
            asked += goodput.asks(one)
            lost(goodput, one, asking=asking)
        assert asked <= 400 * share
        assert asked > 5


def test_a_loss_is_a_loss_beside_a_prompt_too() -> None:
    for prompt in (0, 300):
        goodput, one = Goodput(CostCurve({1: 1.0, 64: 1.0 + 0.2 * 63})), text()
        for _ in range(12):
            lost(goodput, one, asking=0.0, prompt=prompt)
        assert not goodput._records[one].gate.open


def test_a_new_text_starts_as_the_others_of_its_memory_ended() -> None:
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.0 + 0.2 * 63}))
    for _ in range(3):
        one = text()
        for _ in range(12):
            lost(goodput, one, asking=0.1)
        goodput.forget(one)
    assert not goodput.asks(text())
    assert goodput.asks(text(memory="of another key"))


def plain_steps(right: float) -> int:
    """Of 100 steps, on a machine whose plain steps are quicker than was measured; drafts of four are right so often."""
    return play(Goodput(CostCurve(FLAT)), right, 100, {1: 0.7, 2: 1.0}).count(0)


def test_what_a_plain_step_costs_is_measured_now_and_then_while_little_is_gained() -> None:
    """Or a curve that was measured on a busy machine would be believed for ever."""
    assert plain_steps(0.1) > 3
    assert plain_steps(1.0) == 0


# A rule for which a seed's text depends on what is drafted.


def test_the_clock_does_not_decide_about_texts_that_depend_on_it() -> None:
    """They get a fixed number of nodes, all of which are verified, whatever passes cost."""
    goodput, draft = Goodput(CostCurve(STEEP), 16, unclocked=7), chain(*[0.1] * 7)
    keyed, ratio = text(), text(keyed=False)
    assert (goodput.nodes(keyed), goodput.nodes(ratio)) == (16, 7)
    assert [len(kept) for kept in trimmed(goodput, [keyed, ratio], [draft, draft])] == [0, 7]
    assert Goodput(CostCurve(STEEP), 4, unclocked=7).nodes(ratio) == 4


def test_nor_about_those_whose_request_says_how_many() -> None:
    goodput, draft = Goodput(CostCurve(STEEP), 16, unclocked=7), chain(*[0.1] * 9)
    clocked, fixed, ratio = text(), text(asked=9), text(asked=9, keyed=False)
    assert [goodput.nodes(one) for one in (clocked, fixed, ratio)] == [16, 16, 16]
    assert [len(kept) for kept in trimmed(goodput, [fixed, ratio], [draft] * 2)] == [9, 9]
    assert [len(kept) for kept in trimmed(goodput, [clocked], [draft])] == [0]


def test_it_decides_about_all_where_it_is_told_to() -> None:
    goodput, texts = Goodput(CostCurve(STEEP), 16, unclocked=None), [text(keyed=False), text(asked=7)]
    assert [goodput.nodes(one) for one in texts] == [16, 16]
    assert [len(kept) for kept in trimmed(goodput, texts, [chain(*[0.1] * 7)] * 2)] == [0, 0]


def test_a_model_drafts_for_them_where_the_other_drafters_say_nothing() -> None:
    """As under `fixed`; what the others of the batch get is decided by what is expected of it."""
    goodput = Goodput(CostCurve(FLAT), 16, CostCurve({1: 100.0}), unclocked=7)
    keyed, silent, speaking = text(), text(keyed=False), text(keyed=False)
    candidates = [candidate(keyed, unread=1), candidate(silent, unread=1), candidate(speaking, chain(0.9), unread=1)]
    plan = goodput.plan(candidates)
    assert [levels > 0 for levels in plan.levels] == [False, True, False]
    assert plan.min_probability == 0.0


def test_the_rows_of_fixed_drafts_are_counted_for_the_others() -> None:
    """Rows up to 8 are free: alone a text gets seven of them, beside a fixed draft of five only one."""
    curve = {1: 1.0, 8: 1.0, 9: 90.0, 64: 900.0}
    alone = trimmed(Goodput(CostCurve(curve)), [text()], [chain(*[0.9] * 9)])
    assert len(alone[0]) == 7
    beside = trimmed(Goodput(CostCurve(curve)), [text(), text(keyed=False)], [chain(*[0.9] * 9), chain(*[0.9] * 5)])
    assert [len(draft) for draft in beside] == [1, 5]


# A model that drafts, as the controller sees it. What decides about it is in test_model_use.


def run_model(goodput: Goodput, right: float, steps: int, cheap: Draft, level: float) -> list[int]:
    """Steps of one text; a chain of three of the model's is right with the given frequency. The levels of each."""
    one, told = text(), []
    for index in range(steps):
        candidates = [candidate(one, cheap, unread=1)]
        plan = goodput.plan(candidates)
        wanted = plan.levels[0]
        own = chain(*[0.8] * min(3, wanted), source="model")
        draft = own if wanted else cheap
        cost = DraftingCost(model_seconds=level * len(own), levels=len(own), read=[0] if wanted else [])
        [kept] = goodput.trim(candidates, [draft], 1, cost)
        good = (index * 0.618034) % 1.0 < right
        accepted = len(kept) if good and wanted else 0
        tokens = (*range(accepted), accepted if good else 99)
        seconds = Seconds(level * len(own), goodput.curve(1 + len(kept)), 0.0)
        goodput.observe([StepResult(one, (1,), kept, tuple(range(accepted)), tokens, seconds=seconds)])
        told.append(wanted)
    return told


def test_a_model_runs_where_it_earns_and_is_only_tried_where_it_does_not() -> None:
    curve = {1: 1.0, 64: 1.3}
    assert all(run_model(Goodput(CostCurve(curve)), 0.95, 200, EMPTY, 0.1)[-50:])
    assert sum(levels > 0 for levels in run_model(Goodput(CostCurve(curve)), 0.05, 400, EMPTY, 0.4)[-200:]) < 12


def test_a_model_does_not_run_where_the_draft_at_hand_is_better() -> None:
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.3}))
    for _ in range(200):
        goodput.calibrations[""].observe(chain(*[0.9] * 6), list(range(6)))
    told = run_model(goodput, 0.95, 60, chain(*[0.9] * 6), 0.3)
    assert sum(levels > 0 for levels in told) < 6


def lose(goodput: Goodput, one: Transcript, steps: int) -> Draft:
    """Steps in which what was drafted without a model was wrong and took long; what was verified of the last."""
    for _ in range(steps):
        [kept] = trimmed(goodput, [one], [chain(*[0.9] * 4)])
        goodput.observe([StepResult(one, (1,), kept, (), (99,), seconds=Seconds(0.0, 3.0, 0.0))])
    return kept


def test_a_model_is_not_silenced_by_what_the_others_lost() -> None:
    goodput, one = Goodput(CostCurve({1: 1.0, 64: 1.3}), 16, CostCurve({1: 0.1})), text()
    assert len(lose(goodput, one, 12)) == 0
    candidates = [candidate(one, unread=1)]
    assert goodput.plan(candidates).levels[0] > 0
    cost = DraftingCost(model_seconds=0.3, levels=3, read=[0])
    [kept] = goodput.trim(candidates, [chain(*[0.9] * 3, source="model")], 1, cost)
    assert len(kept) > 0


def test_reading_is_paid_once_for_all_steps_to_come() -> None:
    """What a step took to read a long text is no reason to verify more in it."""
    curve = CostCurve({1: 1.0, 64: 1.0 + 0.2 * 63})
    lengths = []
    for read in (0, 500):
        goodput = Goodput(curve, 16, CostCurve({1: 0.1, 32: 0.32}))
        candidates = [candidate(text([1] * 500, 400), unread=500)]
        plan = goodput.plan(candidates)
        assert isinstance(plan, ModelPlan)
        assert plan.levels[0] > 0
        cost = DraftingCost(model_seconds=0.3 + 0.01 * read, levels=3, read=[read])
        [kept] = goodput.trim(candidates, [chain(*[0.9] * 12, source="model")], 1, cost)
        lengths.append(len(kept))
    assert lengths[0] == lengths[1]
