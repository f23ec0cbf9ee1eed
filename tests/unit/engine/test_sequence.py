"""A request's run: how its text ends, and how it is made anew from its tokens after a fault."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.core.choosing import TokenLogprob
from forerun.core.noise import Noise
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.engine import Sequence
from forerun.text.stream import TextStream
from forerun.tokenizers.tokenizer import byte_tokenizer
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.rejection import Rejection

CONTEXT = 100


def started(prompt: bytes = b"ab", stop_ids: tuple[int, ...] = (), **sampling: Any) -> Sequence:
    chosen = Sampling(**{"max_tokens": None} | sampling)
    request = Request(list(prompt), chosen, stop_ids=frozenset(stop_ids))
    watcher = TextStream(byte_tokenizer(), chosen.stop, frozenset(stop_ids))
    return Sequence(request, Keyed(), watcher=watcher)


def write(one: Sequence, text: bytes) -> list[bool]:
    return [one.append(token, CONTEXT) for token in text]


def logprob(token: int) -> TokenLogprob:
    return TokenLogprob(token, -1.0)


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (b"xyz", {"max_tokens": 3}, "length"),
        (b"x" * 98, {}, "length"),
        (b"xy.", {"stop_ids": (ord("."),)}, "stop"),
        (b"x, stop", {"stop": ["stop"]}, "stop"),
        (b"xy.", {"stop_ids": (ord("."),), "max_tokens": 3}, "stop"),
        (b"stop", {"stop": ["stop"], "max_tokens": 4}, "stop"),
    ],
)
def test_a_text_ends_with_the_token_that_ends_it(text: bytes, options: dict[str, Any], reason: str) -> None:
    one = started(**options)
    ended = write(one, text)
    assert ended == [False] * (len(text) - 1) + [True]
    assert (one.finish_reason, one.finished) == (reason, True)


def test_the_rule_decides_whose_noise_drafters_draw_with() -> None:
    assert Sequence(Request([1]), Keyed()).keyed
    assert not Sequence(Request([1]), Rejection()).keyed
    noise = Noise(9)
    assert Sequence(Request([1]), Keyed(), noise=noise).noise is noise


def test_numbers_tell_sequences_of_the_same_request_apart() -> None:
    request = Request([1])
    one, other = Sequence(request, Keyed()), Sequence(request, Keyed())
    assert one.number != other.number
    assert one != other


def test_an_error_keeps_what_was_written() -> None:
    one = started()
    write(one, b"xy")
    error = ValueError("why")
    one.fail(error)
    assert (one.output, one.error, one.finish_reason) == (list(b"xy"), error, "error")


# After a step that was cut short at an unknown place.


def test_counts_are_those_of_the_tokens() -> None:
    """`add` may have been cut short between its lines."""
    one = started()
    write(one, b"xyx")
    one.tokens.append(ord("y"))
    one.rebuild(CONTEXT)
    assert one.output == list(b"xyxy")
    ids, counts = one.prefix().output_counts()
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {ord("x"): 2, ord("y"): 2}
    assert set(one.prefix().seen().tolist()) == set(b"abxy")
    assert one.finish_reason is None


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_tokens_without_their_logprobs_are_written_again(missing: int) -> None:
    one = started(logprobs=0)
    for token in b"wxyz":
        one.logprobs.append(logprob(token))
        one.append(token, CONTEXT)
    del one.logprobs[4 - missing :]
    one.rebuild(CONTEXT)
    assert one.output == list(b"wxyz")[: 4 - missing]
    assert len(one.logprobs) == one.generated


def test_a_logprob_without_its_token_goes_too() -> None:
    one = started(logprobs=0)
    one.logprobs.append(logprob(ord("x")))
    one.append(ord("x"), CONTEXT)
    one.logprobs.append(logprob(ord("y")))
    one.rebuild(CONTEXT)
    assert (one.output, len(one.logprobs)) == ([ord("x")], 1)


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (b"xy", {"max_tokens": 2}, "length"),
        (b"xy", {"max_tokens": 3}, None),
        (b"xy.", {"stop_ids": (ord("."),)}, "stop"),
        (b"x" * 98, {}, "length"),
        (b"stop", {"stop": ["stop"]}, "stop"),
        (b"sto", {"stop": ["stop"]}, None),
    ],
)
def test_whether_a_text_has_ended_follows_from_its_tokens(
    text: bytes, options: dict[str, Any], reason: str | None
) -> None:
    """Whatever the interrupted step had said of it already, or not yet."""
    for said in (None, "stop", "length"):
        one = started(**options)
        for token in text:
            one.add(token)
        one.finish_reason = said
        one.rebuild(CONTEXT)
        assert one.finish_reason == reason


def test_what_was_shown_is_not_shown_again() -> None:
    one = started()
    stream = one._watcher
    assert isinstance(stream, TextStream)
    write(one, b"xy")
    assert stream.take() == ["x", "y"]
    one.add(ord("z"))
    one.rebuild(CONTEXT)
    assert stream.take() == ["z"]
    assert stream.text == "xyz"


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_what_was_ended_from_outside_stays_ended(reason: str) -> None:
    one = started()
    write(one, b"xy")
    if reason == "error":
        one.fail(ValueError("why"))
    else:
        one.finish_reason = "abort"
    one.rebuild(CONTEXT)
    assert one.finish_reason == reason
