"""The field's definitions of acceptance, by hand."""

from __future__ import annotations

import pytest

from forerun.core.draft import EMPTY, Draft
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.stats import Stats
from forerun.core.step import Seconds, StepResult
from forerun.core.transcript import Transcript

TEXT = Transcript(Request((0,), Sampling()))


def result(drafted: int, accepted: int, bonus: bool = True) -> StepResult:
    draft = Draft.chain(range(drafted)) if drafted else EMPTY
    path = tuple(range(accepted))
    tokens = (*range(accepted), 99) if bonus else tuple(range(accepted))
    return StepResult(TEXT, (0,), draft, path, tokens, seconds=Seconds(1, 2, 4))


def counted(*results: StepResult) -> Stats:
    stats = Stats()
    for each in results:
        stats.add(each)
    return stats


def test_definitions() -> None:
    stats = counted(result(4, 4), result(4, 1), result(2, 0), result(0, 0))
    assert (stats.steps, stats.spec_steps, stats.drafted, stats.accepted, stats.tokens) == (4, 3, 10, 5, 9)
    assert stats.draft_acceptance_rate == 5 / 10
    assert stats.mean_acceptance_length == 1 + 5 / 3
    assert stats.histogram == [1, 1, 0, 0, 1]
    assert stats.per_position_acceptance_rate == [2 / 3, 1 / 3, 1 / 3, 1 / 3]
    assert sum(stats.per_position_acceptance_rate) == pytest.approx(stats.accepted / stats.spec_steps)
    assert (stats.draft_s, stats.verify_s, stats.other_s) == (4, 8, 16)


def test_nothing_counted() -> None:
    stats = counted(result(0, 0))
    assert stats.mean_acceptance_length == 1
    assert stats.draft_acceptance_rate == 0
    assert stats.per_position_acceptance_rate == []


def test_a_prompt_chunk_counts_its_time_only() -> None:
    stats = counted(StepResult(TEXT, (1, 2, 3), decoded=False, seconds=Seconds(0, 3, 0)))
    assert stats == Stats(verify_s=3)


def test_a_step_cut_by_the_end_counts_what_was_kept() -> None:
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
        "num_steps": 1,
        "num_accepted_draft_tokens": 1,
        "num_draft_tokens": 2,
        "per_position_acceptance_rate": [1.0],
    }
