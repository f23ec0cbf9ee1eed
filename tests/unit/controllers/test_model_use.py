"""A model drafts where that is quicker, reads no more than it would have saved, and is tried again when it failed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from forerun.controllers import CostCurve
from forerun.controllers.model_use import Expected, ModelUse
from forerun.core.draft import EMPTY
from forerun.core.protocols import Candidate, DraftingCost, ModelPlan
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from tests.unit.controllers.texts import candidate, chain, text

NOTHING_AT_HAND = Expected(1.0, 0.0)


def planned(use: ModelUse, *candidates: Candidate, hand: Expected = NOTHING_AT_HAND) -> list[int]:
    return list(use.plan(candidates, lambda one: hand).levels)


def wants(use: ModelUse, one: Transcript, unread: int = 1, hand: Expected = NOTHING_AT_HAND) -> bool:
    return planned(use, candidate(one, unread=unread), hand=hand)[0] > 0


def readable() -> ModelUse:
    """Where a level costs 0.3 of a plain pass, and a token read 0.05."""
    return ModelUse(CostCurve({1: 1.0, 64: 1.3}), CostCurve({1: 0.3, 32: 1.6}))


def step(use: ModelUse, one: Transcript, tokens: int = 1, *, seconds: float = 0.0, levels: int = 0) -> None:
    """A step of a text that wrote so many tokens; with levels, of a model that took so many seconds."""
    draft = chain(*[0.9] * levels)
    if levels or seconds:
        cost = DraftingCost(model_seconds=seconds, levels=levels, read=[0])
        use.spent([candidate(one, unread=1)], ModelPlan([8]), cost)
    use.observe(StepResult(one, (1,), draft, tuple(range(min(tokens - 1, levels))), (7,) * tokens))


def watch(use: ModelUse, one: Transcript, probability: float, steps: int = 1) -> None:
    """Plain steps in which the target gave its likeliest token that probability."""
    vocab = 11
    row = np.log(np.array([probability, *[(1.0 - probability) / (vocab - 1)] * (vocab - 1)])).astype(np.float32)
    for _ in range(steps):
        use.observe(StepResult(one, (1,), tokens=(0,), rows=row[None]))


# What it is expected to earn.


def test_a_model_runs_where_the_target_is_sure_and_not_where_it_hesitates() -> None:
    use, sure, unsure = readable(), text(), text()
    watch(use, sure, 0.95, 40)
    watch(use, unsure, 0.1, 40)
    assert wants(use, sure)
    assert not wants(use, unsure)


def test_a_model_does_not_run_where_the_draft_at_hand_is_better() -> None:
    assert wants(readable(), text(), hand=Expected(1.3, 2))
    assert not wants(readable(), text(), hand=Expected(3.0, 4))


def test_where_no_model_drafts_nothing_is_planned() -> None:
    assert planned(readable(), candidate(text()), candidate(text(), chain(0.9))) == [0, 0]
    assert planned(readable()) == []


def test_what_it_earned_for_a_text_counts_more_than_what_was_expected() -> None:
    use, failing, fine = readable(), text(), text()
    for _ in range(12):
        step(use, failing, 1, seconds=0.9, levels=3)
        step(use, fine, 4, seconds=0.9, levels=3)
    assert not wants(use, failing)
    assert wants(use, fine)


def test_what_it_earned_for_one_text_is_expected_of_the_next_that_is_as_predictable() -> None:
    use = readable()
    assert wants(use, text())
    for _ in range(3):
        failing = text()
        watch(use, failing, 0.7, 40)
        for _ in range(12):
            step(use, failing, 1, seconds=0.9, levels=3)
    assert not wants(use, text())
    for _ in range(3):
        fine = text()
        watch(use, fine, 0.7, 40)
        for _ in range(30):
            step(use, fine, 4, seconds=0.9, levels=3)
    assert wants(use, text())


def test_rows_that_are_not_numbers_say_that_the_target_hesitates() -> None:
    use, one = readable(), text()
    for _ in range(40):
        use.observe(StepResult(one, (1,), tokens=(0,), rows=np.full((1, 5), np.nan, dtype=np.float32)))
    assert not wants(use, one)


# An answer's first and last tokens.


def test_nothing_is_drafted_by_a_model_before_an_answers_first_token() -> None:
    assert not wants(readable(), text(written=0))
    assert wants(readable(), text(written=1))


def test_nothing_is_drafted_by_a_model_for_an_answers_last_token() -> None:
    assert not wants(readable(), text(max_tokens=2))
    assert wants(readable(), text(max_tokens=3))


# Prices.


def test_the_threshold_rises_with_what_a_level_costs() -> None:
    thresholds = []
    for level in (0.02, 0.2, 0.6):
        use = ModelUse(CostCurve({1: 1.0, 8: 1.4}), CostCurve({1: level}))
        thresholds.append(use.plan([candidate(text(), unread=1)], lambda one: NOTHING_AT_HAND).min_probability)
    assert thresholds == sorted(thresholds)
    assert 0.0 < thresholds[0] < 0.4 < thresholds[2] <= 0.95


def test_what_a_level_costs_is_followed() -> None:
    use, one = ModelUse(CostCurve({1: 1.0, 8: 1.4}), CostCurve({1: 0.6})), text()
    at_first = use.plan([candidate(one, unread=1)], lambda one: NOTHING_AT_HAND).min_probability
    for _ in range(50):
        use.spent([candidate(one, unread=1)], ModelPlan([8]), DraftingCost(model_seconds=2 * 0.1, levels=2, read=[0]))
    assert use.plan([candidate(one, unread=1)], lambda one: NOTHING_AT_HAND).min_probability < at_first / 2


def test_a_level_is_taken_to_cost_a_share_of_a_pass_where_that_was_not_measured() -> None:
    slow, fast = ModelUse(CostCurve({1: 10.0, 64: 13.0}), None), ModelUse(CostCurve({1: 1.0, 64: 1.3}), None)
    plans = [use.plan([candidate(text(), unread=1)], lambda one: NOTHING_AT_HAND) for use in (slow, fast)]
    assert plans[0].levels == plans[1].levels == [8]
    assert plans[0].min_probability == pytest.approx(plans[1].min_probability)


def test_what_reading_took_is_told_apart_and_not_charged_to_the_step() -> None:
    use = readable()
    one = candidate(text([1] * 500, 400), unread=500)
    assert use.plan([one], lambda one: NOTHING_AT_HAND).levels == [8]
    # Three levels at 0.3 and 492 tokens: reading takes half of what was thought, and the next estimate lies between.
    reading = use.spent([one], ModelPlan([8]), DraftingCost(model_seconds=0.9 + 492 * 0.025, levels=3, read=[500]))
    assert 492 * 0.025 <= reading < 492 * 0.05
    for _ in range(20):
        reading = use.spent([one], ModelPlan([8]), DraftingCost(model_seconds=0.9 + 492 * 0.025, levels=3, read=[500]))
    assert reading == pytest.approx(492 * 0.025, rel=0.05)


def test_a_few_unread_tokens_ride_along() -> None:
    use, one = readable(), candidate(text(), unread=6)
    assert use.spent([one], ModelPlan([8]), DraftingCost(model_seconds=0.9, levels=3, read=[6])) == 0.0
    assert use.spent([one], ModelPlan([0]), DraftingCost(model_seconds=0.9, levels=3, read=[60])) == 0.0


def test_what_took_no_time_says_nothing_of_the_model() -> None:
    """Before the target has read a prompt there is nothing to borrow; a text past its context is not drafted for."""
    use, one = readable(), text()
    before = use.plan([candidate(one, unread=1)], lambda one: NOTHING_AT_HAND)
    for _ in range(50):
        step(use, one, 1, seconds=1e-6)
        assert not use.ran(one)
    assert use.plan([candidate(one, unread=1)], lambda one: NOTHING_AT_HAND) == before


def test_a_model_that_says_nothing_is_charged_all_the_same() -> None:
    use, one, asked = ModelUse(CostCurve({1: 1.0, 64: 1.3}), CostCurve({1: 0.3})), text(), 0
    for _ in range(100):
        wanted = wants(use, one)
        asked += wanted
        step(use, one, 1, seconds=0.3 if wanted else 0.0)
    assert asked < 30


# Reading a long text is a purchase.


def answer(use: ModelUse, prompt: int, steps: int, **sampling: Any) -> tuple[int | None, float]:
    """The step before which a text is read for the model, None if in none of so many; and the price of reading it."""
    one = text([1] * prompt, 1, **sampling)
    for index in range(steps):
        if wants(use, one, unread=len(one.tokens)):
            return index, 0.05 * (len(one.tokens) - 8)
        watch(use, one, 0.75)
        one.add(7)
    return None, 0.0


def test_what_is_read_already_costs_nothing() -> None:
    long = text([1] * 5000)
    assert not wants(readable(), long, unread=5001)
    assert wants(readable(), long, unread=1)


@pytest.mark.parametrize("prompt", [100, 200, 600])
def test_a_text_is_never_read_before_that_would_have_paid_for_the_answer_so_far(prompt: int) -> None:
    """Expected of a step: 1 + 2.2 * 0.75 tokens in T(4) + 3 * 0.3, against one in T(1)."""
    at, price = answer(readable(), prompt, 3000)
    expected = 1 + 2.2 * 0.75
    saved_per_token = (expected - (CostCurve({1: 1.0, 64: 1.3})(4) + 0.9)) / expected
    assert at is not None
    # `at` counts the tokens written but for the first.
    assert (at + 1) * saved_per_token >= price
    assert at * saved_per_token < 1.05 * price


def test_a_longer_text_is_read_later_and_a_short_answers_never() -> None:
    read = [answer(readable(), prompt, 3000)[0] for prompt in (100, 200, 600)]
    assert None not in read
    assert read == sorted(set(read), key=lambda at: at or 0)
    assert answer(readable(), 600, 120)[0] is None


def test_a_text_is_not_read_for_an_answer_about_to_end() -> None:
    """However long it has been going on, too little is left to come."""
    one = text([1] * 200, 290, max_tokens=300)
    assert not wants(readable(), one, unread=490)
    assert wants(readable(), text([1] * 200, 290, max_tokens=3000), unread=490)


def test_a_text_is_not_read_for_a_step_that_has_nothing_at_hand_where_others_had_much() -> None:
    """As in a copy: what is saved is counted against the steps that the text usually takes."""
    copied, written = text([1] * 200, 190), text([1] * 200, 190)
    use = readable()
    for _ in range(30):
        step(use, written)
        use.observe(StepResult(copied, (1,), chain(*[0.9] * 5), (0, 1, 2, 3, 4), (7,) * 6))
    assert wants(use, written, unread=390)
    assert not wants(use, copied, unread=390)


def test_nobody_waits_for_reading_that_gains_for_one_of_many() -> None:
    use = readable()
    one = text([1] * 200, 90)
    for _ in range(30):
        step(use, one)
    assert wants(use, one, unread=290)
    others = [candidate(text()) for _ in range(7)]
    assert not any(planned(use, candidate(one, unread=290), *others))


# Tries.


def test_what_does_not_pay_is_tried_again_after_ever_longer_waits() -> None:
    use, one = ModelUse(CostCurve({1: 1.0, 64: 1.3}), CostCurve({1: 2.0})), text()
    tried = [i for i in range(1200) if wants(use, one)]
    waits = [b - a for a, b in pairwise(tried)]
    assert tried[0] == 23
    assert waits == [48, 96, *[192] * (len(waits) - 2)]
    assert len(waits) > 4


def test_the_wait_starts_anew_once_it_has_paid() -> None:
    use, one = ModelUse(CostCurve({1: 1.0, 64: 1.3}), CostCurve({1: 2.0})), text()
    assert [i for i in range(100) if wants(use, one)] == [23, 71]
    for _ in range(30):
        step(use, one, 9, seconds=0.3, levels=3)
    assert all(wants(use, one) for _ in range(5))
    for _ in range(60):
        step(use, one, 1, seconds=6.0, levels=3)
    assert [i for i in range(100) if wants(use, one)] == [23, 71]


def test_in_company_nothing_is_merely_tried() -> None:
    """Alone, what fails is tried now and then; others would have to wait for it."""
    for live, tried in ((1, True), (2, False)):
        use = ModelUse(CostCurve({1: 1.0, 64: 1.3}), CostCurve({1: 2.0}))
        candidates = [candidate(text(), unread=1) for _ in range(live)]
        assert any(any(planned(use, *candidates)) for _ in range(300)) == tried


# Batches.


@pytest.mark.parametrize(("live", "runs"), [(1, True), (8, False)])
def test_a_model_is_judged_by_what_the_batch_costs(live: int, runs: bool) -> None:
    """Alone, rows are nearly free; eight texts fill the rows that are, and whatever is drafted comes on top."""
    use = ModelUse(CostCurve({1: 1.0, 8: 1.5, 64: 9.0}), CostCurve({1: 0.2, 8: 0.3, 64: 1.0}))
    candidates = [candidate(text(), unread=1) for _ in range(live)]
    assert [levels > 0 for levels in planned(use, *candidates)] == [runs] * live


def test_one_that_would_gain_does_not_make_many_wait() -> None:
    """Rows are nearly free, so one more token for each of eight would pay for the levels; for one of them it does not."""
    use = ModelUse(CostCurve({1: 1.0, 8: 1.2, 11: 1.3, 32: 1.8}), CostCurve({1: 0.25, 8: 0.3, 64: 2.0}))
    short = [candidate(text(), unread=1) for _ in range(8)]
    assert all(planned(use, *short))
    long = [candidate(text([1] * 500), unread=501) for _ in range(7)]
    assert not any(planned(use, *long, short[0]))
    assert any(planned(use, short[0]))


def test_the_model_runs_for_those_of_a_batch_that_gain_by_it() -> None:
    use = ModelUse(CostCurve({1: 1.0, 16: 1.05, 64: 9.0}), CostCurve({1: 0.05, 8: 0.4}))
    fine, failing = [text(), text()], [text(), text()]
    for _ in range(12):
        for one in fine:
            step(use, one, 5, seconds=0.1, levels=3)
        for one in failing:
            step(use, one, 1, seconds=0.1, levels=3)
    candidates = [candidate(one, unread=1) for one in (failing[0], fine[0], fine[1], failing[1])]
    assert [levels > 0 for levels in planned(use, *candidates)] == [False, True, True, False]


def test_ended_texts_are_forgotten() -> None:
    use, one = readable(), text()
    step(use, one, 2, seconds=0.9, levels=3)
    use.forget(one)
    use.forget(one)
    assert use._records == {}


def test_a_draft_of_a_step_that_was_cut_short_does_not_count_in_the_next() -> None:
    """A pass failed after drafting: the plain step that follows says nothing of the model."""
    use, one = readable(), text()
    use.spent([candidate(one, unread=1)], ModelPlan([8]), DraftingCost(model_seconds=0.9, levels=3, read=[0]))
    assert use.ran(one)
    use.plan([candidate(one, EMPTY, unread=1)], lambda one: NOTHING_AT_HAND)
    assert not use.ran(one)
