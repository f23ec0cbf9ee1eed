"""Log-probabilities of a prompt: those that writing it would have had, however it is read and whatever runs beside it."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.backends.toy import ToyModel, random_logits
from forerun.controllers.fixed import Fixed
from forerun.core.choosing import TokenLogprob, logprobs
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.drafters.ngram import NgramDrafter
from forerun.engine import Engine, Method
from forerun.engine.sequence import Sequence
from forerun.errors import BackendError
from forerun.verifiers.keyed import Keyed

VOCAB, ORDER = 8, 3
PROMPT = [1, 2, 3, 4, 5, 6, 7, 0] * 20
LOGITS = random_logits(VOCAB, 11)


def expected(prompt: list[int], top: int) -> list[TokenLogprob]:
    rows = [LOGITS(tuple(prompt[max(0, end - ORDER) : end])) for end in range(1, len(prompt))]
    return [logprobs(row, token, top, VOCAB) for row, token in zip(rows, prompt[1:], strict=True)]


def engine(pages: int | None = None, **options: Any) -> Engine:
    target = ToyModel(VOCAB, ORDER, LOGITS, pages=pages)
    methods = {"ngram": Method(cheap=NgramDrafter())}
    return Engine(target, methods, [Keyed()], Fixed(4), keep_prefixes=4, **options)


def run(made: Engine, *asked: Request) -> list[Sequence]:
    sequences = [made.add(one) for one in asked]
    while not made.idle:
        made.step()
    return sequences


@pytest.mark.parametrize("rows", [1, 7, 256])
def test_they_are_those_of_each_token_after_the_ones_before_it(rows: int) -> None:
    scored = Request(PROMPT, Sampling(max_tokens=10), prompt_logprobs=2)
    beside = Request(PROMPT[3:], Sampling(max_tokens=30, temperature=0.9), seed=3)
    [plain] = run(engine(), beside)
    first, other = run(engine(prefill_rows=rows), scored, beside)
    assert first.prompt_logprobs == expected(PROMPT, 2)
    assert other.prompt_logprobs == []
    assert other.output == plain.output
    [alone] = run(engine(), Request(PROMPT, Sampling(max_tokens=10)))
    assert alone.output == first.output


def test_a_prompt_that_is_kept_is_read_again() -> None:
    made = engine()
    run(made, Request(PROMPT, Sampling(max_tokens=2)))
    [again] = run(made, Request(PROMPT, Sampling(max_tokens=2), prompt_logprobs=0))
    assert again.cached == 0
    assert again.prompt_logprobs == expected(PROMPT, 0)
    [later] = run(made, Request(PROMPT, Sampling(max_tokens=2)))
    assert later.cached > 0


def test_a_request_that_is_set_back_has_each_once() -> None:
    # Room for one and a half: the second is set back in the middle, and read again.
    made = engine(pages=36, prefill_rows=16)
    asked = [Request(PROMPT, Sampling(max_tokens=60), prompt_logprobs=1) for _ in range(2)]
    for sequence in run(made, *asked):
        assert sequence.error is None
        assert sequence.prompt_logprobs == expected(PROMPT, 1)


def test_a_step_that_fails_loses_none() -> None:
    made = engine(prefill_rows=16)
    target, forward, passes = made.target, made.target.forward, 0

    def failing(*given: object) -> object:
        nonlocal passes
        passes += 1
        if passes in (3, 4):
            raise BackendError("for a while")
        if passes == 6:
            raise KeyboardInterrupt
        return forward(*given)  # type: ignore[arg-type]

    target.forward = failing  # type: ignore[method-assign, assignment]
    sequence = made.add(Request(PROMPT, Sampling(max_tokens=5), prompt_logprobs=1))
    while not made.idle:
        try:
            made.step()
        except KeyboardInterrupt:
            continue
    assert sequence.error is None
    assert sequence.prompt_logprobs == expected(PROMPT, 1)


def test_a_prompt_of_one_token_has_none() -> None:
    [sequence] = run(engine(), Request([1], Sampling(max_tokens=3), prompt_logprobs=1))
    assert sequence.prompt_logprobs == []
    assert sequence.generated == 3
