"""OpenAI's own client against a real model: every endpoint and every parameter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serving import Client

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.models

ASK: Any = [{"role": "user", "content": "Why is the sky blue? Answer in one sentence."}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def of(client: Client) -> Any:
    return openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def api(smol: Client) -> Any:
    return of(smol)


@pytest.fixture
def tools(coder: Client) -> Any:
    return of(coder)


def chat(api: Any, **asked: Any) -> Any:
    chosen: dict[str, Any] = {"model": "smollm2-135m", "messages": ASK, "max_tokens": 24, "temperature": 0}
    return api.chat.completions.create(**chosen | asked)


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_models(api: Any) -> None:
    assert [model.id for model in api.models.list()] == ["smollm2-135m", "gpt-4o-mini"]
    assert api.models.retrieve("smollm2-135m").owned_by == "forerun"
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("gpt-5")


def test_chat_whole_and_streamed(api: Any) -> None:
    whole = chat(api, model="gpt-4o-mini")
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 24
    chunks = list(chat(api, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text_of(whole)
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-1].metrics["speculative_decoding"]["num_steps"] > 0
    assert whole.timings["predicted_n"] == 24
    assert whole.system_fingerprint


def test_sampling(api: Any) -> None:
    asked: dict[str, Any] = {
        "temperature": 0.9,
        "seed": 11,
        "top_p": 0.9,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
    }
    more = {"top_k": 40, "min_p": 0.02, "repetition_penalty": 1.1}
    first = chat(api, **asked, extra_body=more)
    assert text_of(first) == text_of(chat(api, **asked, extra_body=more))
    assert text_of(first) != text_of(chat(api, **asked | {"seed": 12}, extra_body=more))
    plain = chat(api, **asked, extra_body=more | {"speculation": {"enabled": False}})
    assert text_of(plain) == text_of(first)
    banned = chat(api, logit_bias={str(token): -100 for token in range(1000)})
    assert text_of(banned) != text_of(chat(api))


def test_several_choices_and_stops(api: Any) -> None:
    several = chat(api, n=3, temperature=1.0, seed=5, max_completion_tokens=12, max_tokens=12)
    assert len({choice.message.content for choice in several.choices}) > 1
    full = text_of(chat(api, max_tokens=40))
    stop = full[12:18]
    cut = chat(api, stop=[stop], max_tokens=40)
    assert (text_of(cut), cut.choices[0].finish_reason) == (full[: full.index(stop)], "stop")
    assert text_of(chat(api, stop=None)) == full[: len(text_of(chat(api)))]


def test_logprobs(api: Any) -> None:
    answer = chat(api, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert "".join(entry.token for entry in entries) == text_of(answer)
    assert all(entry.top_logprobs[0].logprob >= entry.logprob for entry in entries)
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    streamed = chat(api, logprobs=True, top_logprobs=3, stream=True)
    told = [chunk.choices[0].logprobs for chunk in streamed]
    assert [entry for logprobs in told if logprobs is not None for entry in logprobs.content] == entries


def test_completions(api: Any) -> None:
    asked: dict[str, Any] = {"model": "smollm2-135m", "max_tokens": 10, "temperature": 0}
    both = api.completions.create(prompt=["The capital of France is", "One, two, three,"], **asked)
    alone = api.completions.create(prompt="One, two, three,", **asked)
    assert both.choices[1].text == alone.choices[0].text
    echoed = api.completions.create(prompt="One, two, three,", echo=True, logprobs=2, **asked)
    assert echoed.choices[0].text == "One, two, three," + alone.choices[0].text
    assert len(echoed.choices[0].logprobs.tokens) == echoed.usage.total_tokens
    streamed = api.completions.create(prompt="One, two, three,", stream=True, **asked)
    assert "".join(chunk.choices[0].text for chunk in streamed) == alone.choices[0].text
    with pytest.raises(openai.BadRequestError, match="suffix"):
        api.completions.create(prompt="a", suffix="b", **asked)


def test_tokens(smol: Client, api: Any) -> None:
    ids = smol.post("/tokenize", json={"prompt": "One, two, three,"}).json()["tokens"]
    assert smol.post("/detokenize", json={"tokens": ids}).json()["prompt"] == "One, two, three,"
    asked: dict[str, Any] = {"model": "smollm2-135m", "max_tokens": 10, "temperature": 0}
    by_text = api.completions.create(prompt="One, two, three,", **asked)
    assert api.completions.create(prompt=ids, **asked).choices[0].text == by_text.choices[0].text
    assert "<|im_start|>user\nWhy" in smol.post("/apply-template", json={"messages": ASK}).json()["prompt"]


def test_a_message_is_continued(api: Any) -> None:
    messages = [*ASK, {"role": "assistant", "content": "The sky is blue because"}]
    ends = {"continue_final_message": True, "add_generation_prompt": False}
    answer = chat(api, messages=messages, extra_body=ends)
    assert not text_of(answer).startswith("The sky is blue because")
    assert answer.usage.prompt_tokens < chat(api, messages=messages).usage.prompt_tokens


def test_speculation_and_prediction(api: Any) -> None:
    chosen = {"speculation": {"draft": "ngram", "num_speculative_tokens": 4, "verifier": "keyed", "trace": True}}
    answer = chat(api, extra_body=chosen)
    assert answer.speculation["draft"] == "ngram"
    assert answer.speculation["steps"]
    text = text_of(chat(api, max_tokens=60))
    predicted = chat(api, max_tokens=60, prediction={"type": "content", "content": text})
    assert text_of(predicted) == text
    details = predicted.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert details.rejected_prediction_tokens >= 0
    with pytest.raises(openai.BadRequestError, match="unknown draft"):
        chat(api, extra_body={"speculation": {"draft": "model:other"}})


def test_errors_have_their_classes(api: Any) -> None:
    for wrong, kind in (
        ({"temperature": -1}, openai.BadRequestError),
        ({"extra_body": {"mirostat": 2}}, openai.BadRequestError),
        ({"model": "gpt-5"}, openai.NotFoundError),
        ({"store": True}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, openai.BadRequestError),
    ):
        with pytest.raises(kind) as raised:
            chat(api, **wrong)
        assert raised.value.body["message"]
    with pytest.raises(openai.InternalServerError, match="embeddings"):
        api.embeddings.create(model="x", input="y")
    with pytest.raises(openai.BadRequestError, match="mirostat"):
        next(iter(chat(api, stream=True, extra_body={"mirostat": 2})))


def test_cached_tokens(api: Any) -> None:
    system = {"role": "system", "content": "You answer in the style of a pirate, and you never say more than you must."}
    first = [system, {"role": "user", "content": "Who are you?"}]
    answer = chat(api, messages=first)
    turn = [*first, {"role": "assistant", "content": text_of(answer)}, {"role": "user", "content": "And then?"}]
    warm = chat(api, messages=turn)
    assert warm.usage.prompt_tokens_details.cached_tokens >= answer.usage.prompt_tokens
    other = chat(api, messages=[system, {"role": "user", "content": "Where is the gold?"}])
    assert other.usage.prompt_tokens_details.cached_tokens > 10


def test_json(tools: Any) -> None:
    asked: dict[str, Any] = {"model": "qwen2.5-coder-0.5b", "max_tokens": 60}
    messages = [{"role": "user", "content": "Invent a person; give name and age as JSON."}]
    loose = chat(tools, messages=messages, response_format={"type": "json_object"}, **asked)
    assert isinstance(json.loads(text_of(loose)), dict)
    strict = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    for temperature in (0.0, 1.5):
        answer = chat(tools, messages=messages, response_format=strict, temperature=temperature, seed=3, **asked)
        person = json.loads(text_of(answer))
        assert set(person) == {"name", "age"}
        assert 0 <= person["age"] <= 120
    for guide, fits in (
        ({"guided_json": SCHEMA}, lambda text: "age" in json.loads(text)),
        ({"guided_regex": "[A-Z]{2}-[0-9]{3}"}, lambda text: len(text) == 6 and text[2] == "-"),
        ({"guided_choice": ["red", "green"]}, lambda text: text in ("red", "green")),
        ({"guided_grammar": 'start: "a" "b"+ "c"'}, lambda text: text.strip("b") == "" or text[0] + text[-1] == "ac"),
    ):
        assert fits(text_of(chat(tools, messages=messages, extra_body=guide, temperature=1.0, seed=1, **asked)))
    with pytest.raises(openai.BadRequestError, match="regular expression"):
        chat(tools, messages=messages, extra_body={"guided_regex": "("}, **asked)


def test_tools(tools: Any) -> None:
    asked: dict[str, Any] = {
        "model": "qwen2.5-coder-0.5b",
        "messages": [{"role": "user", "content": "What is the weather in Paris, in Celsius?"}],
        "tools": TOOLS,
        "max_tokens": 80,
    }
    required = chat(tools, **asked, tool_choice="required", parallel_tool_calls=False)
    [call] = required.choices[0].message.tool_calls
    assert required.choices[0].finish_reason == "tool_calls"
    assert call.function.name in ("get_weather", "get_time")
    named = chat(tools, **asked, tool_choice={"type": "function", "function": {"name": "get_weather"}})
    [call] = named.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"]
    streamed = list(
        chat(tools, **asked, tool_choice={"type": "function", "function": {"name": "get_weather"}}, stream=True)
    )
    parts = [part for chunk in streamed for part in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(part.function.arguments or "" for part in parts) == call.function.arguments
    assert [part.function.name for part in parts if part.function.name] == ["get_weather"]
    assert streamed[-1].choices[0].finish_reason == "tool_calls"
    assert chat(tools, **asked, tool_choice="none").choices[0].message.tool_calls is None
    chat(tools, **asked, tool_choice="auto")
    # The answer of a tool goes back in.
    turn = [
        *asked["messages"],
        named.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "21"},
    ]
    assert "21" in text_of(chat(tools, **asked | {"messages": turn}, tool_choice="none"))


def test_reasoning_has_an_exact_budget(tools: Any) -> None:
    messages: Any = [{"role": "user", "content": "What is 17 * 23? Think about it step by step, at length."}]
    ends = {"continue_final_message": True, "add_generation_prompt": False}
    opened = [*messages, {"role": "assistant", "content": "<think>\n"}]
    asked: dict[str, Any] = {"model": "qwen2.5-coder-0.5b", "max_tokens": 60}
    for bound in ({"reasoning": {"max_tokens": 4}}, {"thinking_budget": 4}):
        answer = chat(tools, messages=opened, extra_body=ends | bound, **asked)
        assert answer.usage.completion_tokens_details.reasoning_tokens == 4
        assert "</think>" not in text_of(answer)
        assert answer.choices[0].message.reasoning_content
        plain = chat(tools, messages=opened, extra_body=ends | bound | {"speculation": {"enabled": False}}, **asked)
        assert plain.choices == answer.choices
    streamed = chat(tools, messages=opened, extra_body=ends | bound, stream=True, **asked)
    deltas = [chunk.choices[0].delta for chunk in streamed]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == answer.choices[0].message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == text_of(answer)


def test_filling_in_the_middle(tools: Any) -> None:
    asked: dict[str, Any] = {"model": "qwen2.5-coder-0.5b", "max_tokens": 30, "temperature": 0}
    answer = tools.completions.create(prompt="def add(a, b):\n    return ", suffix="\n\nprint(add(1, 2))\n", **asked)
    assert "a + b" in answer.choices[0].text
