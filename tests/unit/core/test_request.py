"""What was asked stays as it was asked, and makes sense."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from forerun.core.request import Request, Speculation
from forerun.errors import UsageError


def test_a_callers_list_may_change_later() -> None:
    prompt, prediction = [1, 2], [3]
    request = Request(prompt, prediction=prediction)
    prompt.append(9)
    prediction.clear()
    assert (request.prompt, request.prediction) == ((1, 2), (3,))
    with pytest.raises(FrozenInstanceError):
        request.seed = 4  # type: ignore[misc]


def test_requests_of_the_same_words_are_the_same() -> None:
    assert Request([1, 2], seed=3) == Request((1, 2), seed=3)
    assert Request([1, 2], seed=3) != Request([1, 2], seed=4)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1; it must be a whole number, at least 0"),
        ({"num_speculative_tokens": 2.5}, "num_speculative_tokens is 2.5"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens is True"),
        ({"num_speculative_tokens": "4"}, "num_speculative_tokens is '4'"),
        ({"draft": 3}, "draft is 3; it must be a name"),
        ({"verifier": ["keyed"]}, "verifier is "),
    ],
)
def test_speculation_that_makes_no_sense_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Speculation(**given)


def test_speculation_at_the_ends_of_its_ranges_is_taken() -> None:
    Speculation(num_speculative_tokens=0)
    Speculation(False, "ngram", "keyed", 4096)
