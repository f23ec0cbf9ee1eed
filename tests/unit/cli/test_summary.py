"""The line about an answer."""

from __future__ import annotations

import pytest

from forerun import Completion, Timings, Usage
from forerun.cli.summary import count, summarize
from forerun.core.request import FinishReason
from forerun.core.stats import Stats


def answer(
    reason: FinishReason, draft: str = "ngram", stats: Stats | None = None, written: int = 1, read: int = 3000
) -> Completion:
    timings = Timings(tokens_per_second=20.04, prompt_tokens_per_second=150.0, ttft_s=read / 150)
    return Completion(
        "x", [1], reason, Usage(3000, written), "m", draft, "keyed", "toy", 1, timings=timings, stats=stats or Stats()
    )


def test_the_summary_says_what_speculation_did() -> None:
    said = summarize(answer("stop", stats=Stats(steps=4, spec_steps=2, accepted=3, drafted=8)), 256)
    assert said == (
        "1 token, 20.0 tokens/s (prompt: 3,000 tokens, 150.0 tokens/s), 4 steps, mean acceptance length 2.50 with ngram"
    )
    assert summarize(answer("abort", "none"), 256).endswith("nothing drafted (--draft none); interrupted")
    assert summarize(answer("stop", stats=Stats(steps=1)), 256).endswith("1 step, nothing drafted by ngram")


def test_the_summary_says_how_much_of_a_conversation_was_new() -> None:
    assert "(prompt: 3,000 tokens, 21 of them new, 150.0 tokens/s)" in summarize(answer("stop", read=21), 256)


@pytest.mark.parametrize(
    ("written", "most", "says"),
    [
        (256, 256, "; cut at the length limit (--max-tokens)"),
        (255, 256, "; cut where the context is full"),
        (255, None, "; cut where the context is full"),
    ],
)
def test_the_summary_says_which_limit_cut_an_answer(written: int, most: int | None, says: str) -> None:
    assert summarize(answer("length", written=written), most).endswith(says)


def test_counts_are_words() -> None:
    assert [count(n, "token") for n in (0, 1, 2, 3000)] == ["0 tokens", "1 token", "2 tokens", "3,000 tokens"]
