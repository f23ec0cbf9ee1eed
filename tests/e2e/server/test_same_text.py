"""Thirty-two requests at once, of every kind, with speculation and without: each is the same as alone and without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serving import Client

pytestmark = pytest.mark.models

QUESTIONS = [
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "List three colors and say what each of them stands for.",
    "Count from one to twenty.",
]
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 30}, "year": {"type": "integer"}},
    "required": ["title", "year"],
    "additionalProperties": False,
}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 1, "top_p": 0.9, "logprobs": True, "top_logprobs": 3},
    {"temperature": 1.1, "seed": 2, "top_k": 20, "stop": ["\n", " and"], "logprobs": True},
    {"temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"temperature": 0.9, "seed": 3, "presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    {"temperature": 0.7, "seed": 4, "min_p": 0.05, "logit_bias": {"28": -100, "30": 1.5}, "n": 2},
    {"temperature": 0.8, "seed": 5, "guided_regex": r"(The|An?) [a-z ]{5,40}\."},
    {"temperature": 0, "prediction": {"type": "content", "content": "The sky is blue because of the sky."}},
]
SPECULATION: list[dict[str, Any] | None] = [
    None,
    {"draft": "ngram"},
    {"num_speculative_tokens": 16},
    {"enabled": False},
]


def test_together_is_as_alone(smol: Client) -> None:
    asked = [
        {
            "messages": [{"role": "user", "content": QUESTIONS[(i + i // 8) % 4]}],
            "max_tokens": 20 + i,
            "return_token_ids": True,
            "stream": False,
            **KINDS[i % 8],
            "speculation": SPECULATION[(i // 8 + i) % 4],
        }
        for i in range(32)
    ]
    path = "/v1/chat/completions"
    with ThreadPoolExecutor(32) as threads:
        together = list(threads.map(lambda body: smol.post(path, json=body).json(), asked))
    drafted = 0
    for body, answer in zip(asked, together, strict=True):
        plain = smol.post(path, json=body | {"speculation": {"enabled": False}}).json()
        assert answer["choices"] == plain["choices"], body
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert answer["usage"][name] == plain["usage"][name]
        drafted += answer["timings"]["draft_n_accepted"]
        assert plain["timings"]["draft_n"] == 0
    assert drafted > 50


def test_a_prediction_that_crosses_the_end_of_thinking_changes_nothing(coder: Client) -> None:
    messages = [{"role": "user", "content": "What is 17 * 23?"}, {"role": "assistant", "content": "<think>\n"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 40, "temperature": 0, "return_token_ids": True}
    body |= {"continue_final_message": True, "add_generation_prompt": False, "logprobs": True}
    path = "/v1/chat/completions"
    for bound in ({"reasoning": {"max_tokens": 8}}, {"thinking_budget": 3, "guided_regex": "[0-9 =*.]{3,12}"}, {}):
        plain = coder.post(path, json=body | bound | {"speculation": {"enabled": False}}).json()
        said = plain["choices"][0]["message"]
        thought = said.get("reasoning_content", "")
        for text in (
            f"{thought}</think>{said['content']}",
            f"{thought} and more of it</think>\n\n391",
            said["content"],
        ):
            told = coder.post(path, json=body | bound | {"prediction": {"type": "content", "content": text}}).json()
            assert told["choices"] == plain["choices"]
            details = "completion_tokens_details"
            assert told["usage"][details]["reasoning_tokens"] == plain["usage"][details]["reasoning_tokens"]


@pytest.mark.parametrize("stop", ["<answer/>", None])
def test_a_prediction_that_crosses_every_end_changes_nothing(smol: Client, stop: str | None) -> None:
    """Past a stop string, past the end token, and past the end of a grammar."""
    path = "/v1/chat/completions"
    for bound in ({}, {"guided_choice": ["The sky", "The sky is blue"]}, {"guided_regex": "[A-Za-z ,]{10,30}"}):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 40, **bound}
        body |= {"temperature": 0, "logprobs": True, "return_token_ids": True}
        plain = smol.post(path, json=body | {"speculation": {"enabled": False}}).json()["choices"]
        text = plain[0]["message"]["content"]
        body["stop"] = None if stop is None else text[len(text) // 2 :][:5]
        plain = smol.post(path, json=body | {"speculation": {"enabled": False}}).json()["choices"]
        for more in (text * 3, text + "<|im_end|>\n<|im_start|>user\nMore", text[:-2] + " </think> and so on"):
            predicted = smol.post(path, json=body | {"prediction": {"type": "content", "content": more}}).json()
            assert predicted["choices"] == plain
