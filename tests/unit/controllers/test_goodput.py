"""Sizes that pay: more nodes where rows are cheap and likely, none where they are dear, over all requests together."""

from __future__ import annotations

import pytest

from forerun.controllers import CostCurve, Goodput
from forerun.core.draft import EMPTY, Draft
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import Seconds, StepResult

FLAT = {1: 1.0, 64: 1.0}
STEEP = {1: 1.0, 64: 64.0}


def request(**sampling: int) -> Request:
    """One that has written its first token."""
    one = Request([1, 2], Sampling(**sampling))  # type: ignore[arg-type]
    one.tokens.append(7)
    return one


def levels_of(goodput: Goodput, *requests: Request, cheap: Draft = EMPTY) -> list[int]:
    """Levels for requests of whose texts a model has read nothing."""
    return goodput.judge.depths(requests, [cheap] * len(requests), [len(one.tokens) for one in requests])


def chain(*scores: float, source: str = "s", first: int = 0) -> Draft:
    return Draft(
        tuple(range(first, first + len(scores))), tuple(range(-1, len(scores) - 1)), scores=scores, source=source
    )


def test_takes_everything_where_rows_are_free_and_nothing_where_they_are_dear() -> None:
    draft = chain(0.6, 0.6, 0.6)
    assert Goodput(CostCurve(FLAT)).trim([request()], [draft], 0.0) == [draft]
    assert len(Goodput(CostCurve(STEEP)).trim([request()], [draft], 0.0)[0]) == 0


def test_cuts_where_the_marginal_node_stops_paying() -> None:
    # T = 1 + 0.2 (rows - 1): with chances .9, .81, .73, ... the best cut is where E / T peaks.
    curve = CostCurve({1: 1.0, 64: 1.0 + 0.2 * 63})
    draft = chain(*[0.9] * 12)
    [kept] = Goodput(curve).trim([request()], [draft], 0.0)
    rates = [(1 + sum(0.9**i for i in range(1, k + 1))) / (1 + 0.2 * k) for k in range(13)]
    assert len(kept) == max(range(13), key=rates.__getitem__) > 0


def test_nodes_go_to_the_request_that_is_more_predictable() -> None:
    curve = CostCurve({1: 1.0, 2: 1.0, 4: 1.05, 8: 6.0})
    sure, unsure = chain(0.95, 0.95, source="a"), chain(0.1, 0.1, source="b")
    kept = Goodput(curve).trim([request(), request()], [unsure, sure], 0.0)
    assert [len(k) for k in kept] == [0, 2]


def test_drawn_siblings_are_cut_from_the_last() -> None:
    import numpy as np

    q = np.full(4, 0.25)
    tree = Draft((0, 1, 2), (-1, -1, -1), q=(q, q, q), scores=(0.2, 0.2, 0.2), source="m")
    goodput = Goodput(CostCurve({1: 1.0, 2: 1.1, 3: 1.2, 4: 9.0}))
    # Observed: only the third sibling is ever right. The first two may still not be skipped.
    for _ in range(100):
        goodput.calibration.observe(Draft((0,), (-1,), scores=(0.2,), source="m"), [9])
    [kept] = goodput.trim([request()], [tree], 0.0)
    assert kept.tokens == tree.tokens[: len(kept)]


def play(goodput: Goodput, right: float, rounds: int, cost: dict[int, float], draft_cost: float = 0.0) -> list[int]:
    """Rounds of one request whose drafts of four nodes are right with the given frequency; nodes verified per round."""
    curve, one, verified = CostCurve(cost), request(), []
    for index in range(rounds):
        [budget] = goodput.budgets([one])
        draft = chain(*[0.5] * min(4, budget))
        [kept] = goodput.trim([one], [draft], draft_cost * len(draft))
        good = (index * 0.618034) % 1.0 < right
        accepted = len(kept) if good else 0
        tokens = (*range(accepted), accepted if good else 99)
        seconds = Seconds(draft_cost * len(draft), curve(1 + len(kept)), 0.0)
        goodput.observe([StepResult(one, (1,), kept, tuple(range(accepted)), tokens, seconds=seconds)])
        verified.append(len(kept))
    return verified


def test_learns_to_speculate_and_not_to() -> None:
    cost = {1: 1.0, 64: 1.0 + 0.15 * 63}
    assert sum(play(Goodput(CostCurve(cost)), 0.9, 200, cost)[-50:]) > 100
    assert sum(play(Goodput(CostCurve(cost)), 0.02, 400, cost)[-200:]) < 20


def judge(goodput: Goodput, right: float, rounds: int, cheap: Draft, level: float) -> list[int]:
    """Rounds of one request that asks the judge first; a dear chain of three is right with the given frequency."""
    one, depths = request(), []
    for index in range(rounds):
        depth = levels_of(goodput, one, cheap=cheap)[0]
        depths.append(depth)
        dear = chain(*[0.8] * min(3, depth), source="dear")
        if depth:
            goodput.judge.spent([one], [dear], [0], level * len(dear))
        draft = dear if depth else cheap
        [kept] = goodput.trim([one], [draft], level * len(dear))
        good = (index * 0.618034) % 1.0 < right
        accepted = len(kept) if good and depth else 0
        tokens = (*range(accepted), accepted if good else 99)
        seconds = Seconds(level * len(dear), goodput.curve(1 + len(kept)), 0.0)
        goodput.observe([StepResult(one, (1,), kept, tuple(range(accepted)), tokens, seconds=seconds)])
    return depths


def test_a_dear_drafter_runs_where_it_earns_and_is_only_tried_where_it_does_not() -> None:
    curve = {1: 1.0, 64: 1.3}
    assert sum(depth > 0 for depth in judge(Goodput(CostCurve(curve)), 0.95, 200, EMPTY, 0.1)[-50:]) == 50
    assert sum(depth > 0 for depth in judge(Goodput(CostCurve(curve)), 0.05, 400, EMPTY, 0.4)[-200:]) < 12


def test_a_dear_drafter_does_not_run_where_the_draft_in_hand_is_better() -> None:
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.3}))
    for _ in range(200):
        goodput.calibration.observe(chain(*[0.9] * 6), list(range(6)))
    depths = judge(goodput, 0.95, 60, chain(*[0.9] * 6), 0.3)
    assert sum(depth > 0 for depth in depths) < 6


def asks_for(goodput: Goodput, sureness: float, rounds: int = 400) -> bool:
    """Whether a fresh request with a prompt of 100 tokens has it read for the dear drafter within so many rounds."""
    one, asked = Request([1] * 100, Sampling(max_tokens=2 * rounds)), False
    for _ in range(rounds):
        asked = asked or levels_of(goodput, one)[0] > 0
        goodput.judge.watched(one, sureness)
        goodput.observe([StepResult(one, (1,), tokens=(7,), seconds=Seconds(0.0, 1.0, 0.0))])
        one.tokens.append(7)
    goodput.forget(one)
    return asked


def readable() -> Goodput:
    """Where a level costs 0.3 of a plain pass and a token read 0.05."""
    return Goodput(CostCurve({1: 1.0, 64: 1.3}), dear=CostCurve({1: 0.3, 32: 1.6}))


def test_a_text_is_not_read_for_a_target_that_hesitates_at_every_token() -> None:
    assert asks_for(readable(), 0.9)
    assert not asks_for(readable(), 0.05, rounds=400)


def test_what_failed_once_is_not_read_again_where_the_target_is_as_sure() -> None:
    goodput = readable()
    assert asks_for(goodput, 0.7)
    failing = request()
    for _ in range(40):
        goodput.judge.watched(failing, 0.7)
    for _ in range(12):
        dear = chain(0.9, 0.9, source="dear")
        goodput.judge.spent([failing], [dear], [0], 0.7)
        [kept] = goodput.trim([failing], [dear], 0.7)
        goodput.observe([StepResult(failing, (1,), kept, (), (99,), seconds=Seconds(0.6, 1.1, 0.0))])
    assert not goodput.judge.watches(failing)
    assert not asks_for(goodput, 0.7)
    assert asks_for(goodput, 0.95)
    assert sum(asks_for(goodput, 0.7) for _ in range(100)) in range(1, 90)  # but one day it is


def test_what_is_read_already_costs_nothing() -> None:
    long = Request([1] * 5000, Sampling())
    long.tokens.append(7)
    judge = readable().judge
    assert judge.depths([long], [EMPTY], [5001]) == [0]
    assert judge.depths([long], [EMPTY], [1])[0] > 0


def test_nothing_is_drafted_by_a_model_before_an_answers_first_token() -> None:
    one = request()
    assert levels_of(readable(), one)[0] > 0
    del one.tokens[-1]
    assert levels_of(readable(), one) == [0]


def test_a_dear_drafter_that_says_nothing_is_charged_all_the_same() -> None:
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.3}), dear=CostCurve({1: 0.3}))
    one, asked = request(), 0
    for _ in range(100):
        goodput.budgets([one])
        if levels_of(goodput, one)[0]:
            asked += 1
            goodput.judge.spent([one], [EMPTY], [0], 0.3)
        goodput.trim([one], [EMPTY], 0.3)
        goodput.observe([StepResult(one, (1,), tokens=(7,), seconds=Seconds(0.3, 1.0, 0.0))])
    assert asked < 30


def test_the_threshold_rises_with_what_a_level_costs() -> None:
    thresholds = []
    for level in (0.02, 0.2, 0.6):
        goodput = Goodput(CostCurve({1: 1.0, 8: 1.4}), dear=CostCurve({1: level}))
        thresholds.append(goodput.judge.threshold())
    assert thresholds == sorted(thresholds)
    assert 0.0 < thresholds[0] < 0.4 < thresholds[2] <= 0.95


def test_what_a_level_costs_is_followed() -> None:
    goodput = Goodput(CostCurve({1: 1.0, 8: 1.4}), dear=CostCurve({1: 0.6}))
    at_first = goodput.judge.threshold()
    for _ in range(50):
        goodput.judge.spent([request()], [chain(0.9, 0.9)], [0], 2 * 0.1)
    assert goodput.judge.threshold() < at_first / 2


def test_a_dear_drafter_is_not_silenced_by_what_the_cheap_one_lost() -> None:
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.3}), dear=CostCurve({1: 0.1}))
    one = request()
    for _ in range(12):
        [kept] = goodput.trim([one], [chain(*[0.9] * 4)], 0.0)
        goodput.observe([StepResult(one, (1,), kept, (), (99,), seconds=Seconds(0.0, 3.0, 0.0))])
    assert len(kept) == 0
    assert levels_of(goodput, one)[0] > 0
    dear = chain(*[0.9] * 3, source="dear")
    goodput.judge.spent([one], [dear], [0], 0.3)
    [kept] = goodput.trim([one], [dear], 0.3)
    assert len(kept) > 0


def test_a_long_text_is_read_only_once_that_would_have_paid_for_the_answer_so_far() -> None:
    goodput = readable()
    one = Request([1] * 200, Sampling(max_tokens=400))
    asked = []
    for _ in range(180):
        goodput.judge.watched(one, 0.75)
        asked.append(levels_of(goodput, one)[0] > 0)
        goodput.observe([StepResult(one, (1,), tokens=(7,), seconds=Seconds(0.0, 1.0, 0.0))])
        one.tokens.append(7)
    # Believed of it: 1 + 2.2 * 0.75 tokens in T(4) + 3 * 0.3; reading costs 0.05 for each token but the first few.
    believed = (1 + 2.2 * 0.75) / (goodput.curve(4) + 0.9)
    first = asked.index(True)
    assert first * (1 - 1.1 / believed) > 0.8 * 0.05 * 192
    assert first < 100

    short = Request([1] * 200, Sampling(max_tokens=60))
    short.tokens += [7] * 55  # too little is left to come
    assert levels_of(goodput, short)[0] == 0


def test_comes_back_when_the_text_becomes_predictable_again() -> None:
    cost = {1: 1.0, 64: 1.0 + 0.15 * 63}
    goodput = Goodput(CostCurve(cost))
    play(goodput, 0.02, 300, cost)
    assert sum(play(goodput, 0.95, 400, cost)[-50:]) > 100


def test_ended_requests_are_forgotten() -> None:
    goodput, one = Goodput(CostCurve(FLAT)), request()
    goodput.trim([one], [chain(0.5)], 0.0)
    goodput.forget(one)
    goodput.forget(one)
    assert (goodput._held, goodput.judge._told) == ({}, {})


@pytest.mark.parametrize("requests", [1, 8])
def test_no_drafts_cost_nothing(requests: int) -> None:
    live = [request() for _ in range(requests)]
    assert Goodput(CostCurve(FLAT)).trim(live, [EMPTY] * requests, 0.0) == [EMPTY] * requests


@pytest.mark.parametrize(("requests", "runs"), [(1, True), (8, False)])
def test_a_dear_drafter_is_judged_by_what_the_batch_costs(requests: int, runs: bool) -> None:
    """Alone, rows are nearly free; eight requests fill the rows that are, and whatever is drafted comes on top."""
    goodput = Goodput(CostCurve({1: 1.0, 8: 1.5, 64: 9.0}), dear=CostCurve({1: 0.2, 8: 0.3, 64: 1.0}))
    live = [request() for _ in range(requests)]
    goodput.budgets(live)
    assert [depth > 0 for depth in levels_of(goodput, *live)] == [runs] * requests


def test_one_that_would_gain_does_not_make_many_wait() -> None:
    """Rows are nearly free, so one more token for each of eight would pay for the levels; for one of them it does not."""
    goodput = Goodput(CostCurve({1: 1.0, 8: 1.2, 11: 1.3, 32: 1.8}), dear=CostCurve({1: 0.25, 8: 0.3, 64: 2.0}))
    short = [request() for _ in range(8)]
    goodput.budgets(short)
    assert all(levels_of(goodput, *short))
    long = [Request([1] * 500, Sampling()) for _ in range(7)]
    for one in long:
        one.tokens.append(7)
    goodput.budgets([*long, short[0]])
    assert not any(levels_of(goodput, *long, short[0]))
    goodput.budgets(short[:1])
    assert any(levels_of(goodput, short[0]))


def test_no_levels_are_drafted_for_an_answers_last_token() -> None:
    goodput = Goodput(CostCurve({1: 1.0, 64: 1.3}), dear=CostCurve({1: 0.1}))
    for left, levels in ((1, 0), (2, 1), (40, 8)):
        one = request(max_tokens=left + 1)
        assert levels_of(goodput, one) == [levels]


def test_what_took_no_time_says_nothing_of_the_model() -> None:
    """In `suffix,model:x` the model does not run where suffix speaks."""
    goodput, one = readable(), request()
    before = goodput.judge._reading, goodput.judge.threshold()
    for _ in range(50):
        goodput.budgets([one])
        goodput.judge.spent([one], [chain(0.9)], [0], 1e-6)
        goodput.trim([one], [chain(0.9)], 0.0)
        goodput.observe([StepResult(one, (1,), EMPTY, (), (99,), seconds=Seconds(0.0, 1.0, 0.0))])
    assert goodput.judge.watches(one)
    assert (goodput.judge._reading, goodput.judge.threshold()) == pytest.approx(before)


def test_in_company_nothing_is_merely_tried() -> None:
    """Alone, what failed is tried again; others would have to wait for it."""
    for live, tried in ((1, True), (2, False)):
        goodput = Goodput(CostCurve({1: 1.0, 64: 1.3}), dear=CostCurve({1: 0.5}))
        several = [request() for _ in range(live)]
        asked = 0
        for _ in range(100):
            goodput.budgets(several)
            wanted = levels_of(goodput, *several)
            asked += any(wanted)
            chosen = [one for one, levels in zip(several, wanted, strict=True) if levels]
            if chosen:
                goodput.judge.spent(chosen, [chain(0.9)] * len(chosen), [0] * len(chosen), 0.5)
            results = [StepResult(one, (1,), tokens=(7,), seconds=Seconds(0.5, 1.0, 0.0)) for one in several]
            goodput.observe(results)
        late = 0
        for _ in range(200):
            goodput.budgets(several)
            late += any(levels_of(goodput, *several))
            goodput.observe([StepResult(one, (1,), tokens=(7,), seconds=Seconds(0.0, 1.0, 0.0)) for one in several])
        assert (late > 0) == tried
