"""Sampling parameters: every value that is refused, and what stands for a default."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forerun.core.sampling import Sampling
from forerun.errors import SamplingError, quoted

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature is -0.1"),
    ({"temperature": math.nan}, "temperature is nan"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"temperature": "hot"}, "temperature is 'hot'"),
    ({"temperature": True}, "temperature is True"),
    ({"temperature": 10**5000}, "temperature is a int too large to show"),
    ({"top_k": -1}, "top_k is -1"),
    ({"top_k": 2.5}, "top_k is 2.5; it must be a whole number"),
    ({"top_p": 0.0}, "top_p is 0"),
    ({"top_p": 1.1}, "top_p is 1.1"),
    ({"top_p": math.nan}, "top_p is nan"),
    ({"min_p": -0.1}, "min_p is -0.1"),
    ({"min_p": 1.5}, "min_p is 1.5"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty is 1e-300; it must be between"),
    ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0"),
    ({"presence_penalty": math.nan}, "presence_penalty is nan"),
    ({"frequency_penalty": math.inf}, "frequency_penalty is inf"),
    ({"logit_bias": {1: math.nan}}, "logit_bias of token 1 is nan"),
    ({"logit_bias": {1: math.inf}}, "logit_bias of token 1 is inf"),
    ({"logit_bias": {1: 1e39}}, "logit_bias of token 1"),
    ({"logit_bias": {1: "x"}}, "logit_bias of token 1 is 'x'"),
    ({"logit_bias": {"1": 1.0}}, "keys are token ids"),
    ({"logit_bias": {-1: 1.0}}, "keys are token ids"),
    ({"seed": 2**64}, "seed is"),
    ({"seed": 1.5}, "seed is 1.5"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"max_tokens": -3}, "max_tokens is -3"),
    ({"max_tokens": 1.5}, "max_tokens is 1.5"),
    ({"stop": [""]}, "a stop string is empty"),
    ({"stop": ""}, "a stop string is empty"),
    ({"stop": [3]}, "stop is [3]; it must be a text or a list of texts"),
    ({"stop": 3}, "stop is 3"),
    ({"stop_token_ids": 3}, "stop_token_ids is 3; it must be a list of token ids"),
    ({"stop_token_ids": "3"}, "stop_token_ids is '3'"),
    ({"stop_token_ids": [2.0]}, "stop_token_ids is [2.0]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids is [-1]"),
    ({"logit_bias": [1]}, "logit_bias is [1]"),
    ({"logit_bias": {True: 1.0}}, "keys are token ids"),
    ({"logit_bias": {1: True}}, "logit_bias of token 1 is True"),
    ({"ignore_eos": "no"}, "ignore_eos is 'no'; it must be true or false"),
    ({"stop": ["x" * 500, 3]}, "xxx...; it must be"),
    ({"logprobs": -1}, "logprobs is -1"),
    ({"logprobs": 1001}, "logprobs is 1001"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=quoted)
def test_values_outside_their_range_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError) as caught:
        Sampling(**given)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text


def test_values_at_the_ends_of_their_ranges_are_taken() -> None:
    Sampling(temperature=0, top_k=0, top_p=1, min_p=0, seed=-(2**63), max_tokens=1, logprobs=0)
    Sampling(temperature=100.0, top_p=1e-9, min_p=1, seed=2**64 - 1, max_tokens=None, logprobs=None)


def test_none_stands_for_the_default() -> None:
    names: dict[str, Any] = dict.fromkeys(Sampling.names())
    assert Sampling(**names) == Sampling(max_tokens=None)


def test_one_stop_string_may_come_alone() -> None:
    assert Sampling(stop="END").stop == ("END",)


def test_names_are_the_parameters() -> None:
    assert {"temperature", "top_p", "logit_bias", "seed"} <= set(Sampling.names())
