"""What a lossy rule gave up, counted over the tokens that were kept."""

from __future__ import annotations

from forerun.cascade.verdict import LossyStats, LossyVerdict
from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.step import StepResult, Verdict
from forerun.core.transcript import Transcript

TEXT = Transcript(Request((0,)))


def counted(*results: StepResult) -> LossyStats:
    stats = LossyStats()
    for each in results:
        stats.add(each)
    return stats


def test_a_text_that_ends_within_a_verdict_keeps_the_start_of_it() -> None:
    draft = Draft.chain((1, 2))
    verdict = LossyVerdict((0, 1), 9, (True, False, True), (0.5, 0.25, 0.125))
    stats = counted(StepResult(TEXT, (0,), draft, (0, 1), (1, 2), verdict=verdict))
    assert (stats.overrides, stats.lost, stats.tokens) == (1, 0.75, 2)
    assert stats.as_dict("v3:0.5") == {
        "rule": "v3:0.5",
        "num_tokens": 2,
        "num_overrides": 1,
        "mean_total_variation": 0.375,
        "num_not_deferred": 0,
    }


def test_of_tokens_that_the_target_was_not_asked_about_nothing_is_known() -> None:
    asked = StepResult(TEXT, (0,), tokens=(4,), verdict=LossyVerdict((), 4, (True,), (0.5,)))
    not_asked = StepResult(TEXT, (0,), tokens=(4,), verdict=LossyVerdict((), 4, not_deferred=(True,)))
    told = counted(asked, not_asked).as_dict("plain:0.5")
    assert (told["num_overrides"], told["mean_total_variation"], told["num_not_deferred"]) == (None, None, 1)


def test_what_an_exact_rule_wrote_is_counted_as_nothing_lost() -> None:
    """Prompt chunks have no verdict at all; a request may have chosen an exact rule beside the lossy one."""
    stats = counted(
        StepResult(TEXT, (1, 2, 3), decoded=False), StepResult(TEXT, (0,), tokens=(4,), verdict=Verdict((), 4))
    )
    assert stats == LossyStats(tokens=1)
    assert counted().as_dict("typical")["mean_total_variation"] == 0.0
