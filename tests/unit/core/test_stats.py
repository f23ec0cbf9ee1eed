"""The field's definitions of acceptance, by hand."""

from __future__ import annotations

import pytest

from forerun.core.draft import EMPTY, Draft
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.stats import Stats
from forerun.core.step import Seconds, StepResult, Verdict

REQUEST = Request((0,), Sampling())


def result(drafted: int, accepted: int, bonus: bool = True) -> StepResult:
    draft = Draft.chain(range(drafted)) if drafted else EMPTY
    path = tuple(range(accepted))
    tokens = (*range(accepted), 99) if bonus else tuple(range(accepted))
    verdict = Verdict(path, 99, (True,) + (False,) * accepted, (0.25,) * (accepted + 1))
    return StepResult(REQUEST, (0,), draft, path, tokens, seconds=Seconds(1, 2, 4), verdict=verdict)


def counted(*results: StepResult) -> Stats:
    stats = Stats()
    for each in results:
        stats.add(each)
    return stats


def test_definitions() -> None:
    stats = counted(result(4, 4), result(4, 1), result(2, 0), result(0, 0))
    assert (stats.rounds, stats.steps, stats.drafted, stats.accepted, stats.tokens) == (4, 3, 10, 5, 9)
    assert stats.draft_acceptance_rate == 5 / 10
    assert stats.mean_acceptance_length == 1 + 5 / 3
    assert stats.histogram == [1, 1, 0, 0, 1]
    assert stats.per_position_acceptance_rate == [2 / 3, 1 / 3, 1 / 3, 1 / 3]
    assert sum(stats.per_position_acceptance_rate) == pytest.approx(stats.accepted / stats.steps)
    assert (stats.overrides, stats.given_up) == (4, 9 * 0.25)
    assert (stats.draft_s, stats.verify_s, stats.other_s) == (4, 8, 16)


def test_nothing_counted() -> None:
    stats = counted(result(0, 0))
    assert stats.mean_acceptance_length == 1
    assert stats.draft_acceptance_rate == 0
    assert stats.per_position_acceptance_rate == []


def test_a_prompt_chunk_counts_its_time_only() -> None:
    stats = counted(StepResult(REQUEST, (1, 2, 3), decoded=False, seconds=Seconds(0, 3, 0)))
    assert stats == Stats(verify_s=3)


def test_a_round_cut_by_the_end_counts_what_was_kept() -> None:
    stats = counted(result(4, 2, bonus=False))
    assert (stats.tokens, stats.accepted, stats.histogram) == (2, 2, [0, 0, 1])


def test_merge_adds() -> None:
    first, second = counted(result(4, 3)), counted(result(1, 1), result(0, 0))
    both = counted(result(4, 3), result(1, 1), result(0, 0))
    first.merge(second)
    assert first == both
    second.merge(Stats())
    assert second == counted(result(1, 1), result(0, 0))


def test_response_block() -> None:
    assert counted(result(2, 1)).as_dict() == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.5,
        "acceptance_histogram": [0, 1],
        "num_spec_steps": 1,
        "num_rounds": 1,
        "num_accepted_draft_tokens": 1,
        "num_draft_tokens": 2,
        "per_position_acceptance_rate": [1.0],
    }


def test_what_a_lossy_rule_cost_counts_the_tokens_that_were_kept() -> None:
    """A text that ends within a verdict keeps the start of it."""
    draft, verdict = Draft.chain((1, 2)), Verdict((0, 1), 9, (True, False, True), (0.5, 0.25, 0.125))
    stats = counted(StepResult(REQUEST, (0,), draft, (0, 1), (1, 2), verdict=verdict))
    assert (stats.overrides, stats.given_up, stats.tokens) == (1, 0.75, 2)
    assert stats.cascade("v3:0.5") == {
        "rule": "v3:0.5",
        "num_tokens": 2,
        "num_overrides": 1,
        "mean_total_variation": 0.375,
        "num_unasked": 0,
    }
    stats.merge(counted(StepResult(REQUEST, (0,), tokens=(4,), verdict=Verdict((), 4, unasked=(True,)))))
    told = stats.cascade("plain:0.5")
    assert (told["num_overrides"], told["mean_total_variation"], told["num_unasked"]) == (None, None, 1)
