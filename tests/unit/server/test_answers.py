"""Answers: whole ones are the sum of streamed ones, one event for each token, and every parameter does what it says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving import Client

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "the target reads"}]


def folded(chunks: list[Any]) -> dict[str, Any]:
    """A streamed choice as a whole one has it."""
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    chat = "delta" in choices[0]
    text = "".join(c["delta"].get("content", "") if chat else c["text"] for c in choices)
    ids = [token for choice in choices for token in choice.get("token_ids", [])]
    return {"text": text, "ids": ids, "finish": choices[-1]["finish_reason"]}


@pytest.mark.parametrize("speculation", [{"enabled": False}, {"enabled": True}, {"num_speculative_tokens": 3}])
def test_a_stream_adds_up_to_the_whole_answer(client: Client, speculation: dict[str, Any]) -> None:
    asked = {"max_tokens": 60, "seed": 5, "temperature": 0.8, "return_token_ids": True, "speculation": speculation}
    chat = client.post(CHAT, json={"messages": MESSAGES, **asked}).json()
    streamed = client.chunks(CHAT, messages=MESSAGES, **asked)
    told = chat["choices"][0]
    assert folded(streamed) == {
        "text": told["message"]["content"],
        "ids": told["token_ids"],
        "finish": told["finish_reason"],
    }
    assert len(told["token_ids"]) == chat["usage"]["completion_tokens"]
    assert bytes(told["prompt_token_ids"]).decode() == "u: the target reads\na: "
    # One token an event, and an event for the end.
    assert len(streamed) == len(told["token_ids"]) + 1
    assert streamed[0]["choices"][0]["delta"]["role"] == "assistant"
    text = client.complete("the target", **asked)["choices"][0]
    streamed = client.chunks(TEXT, prompt="the target", **asked)
    assert folded(streamed) == {"text": text["text"], "ids": text["token_ids"], "finish": text["finish_reason"]}


def test_speculation_changes_no_text(client: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 80, "seed": 3, "temperature": 1.1, "return_token_ids": True}
    plain = client.chat(**asked, speculation={"enabled": False})
    for speculation in (None, {"draft": "ngram"}, {"num_speculative_tokens": 16}):
        drafted = client.chat(**asked, speculation=speculation)
        assert drafted["choices"] == plain["choices"]


def test_usage_metrics_and_timings_come_with_the_last_chunk(client: Client) -> None:
    asked: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    *chunks, last = client.chunks(CHAT, **asked, stream_options={"include_usage": True})
    assert last["choices"] == []
    whole = client.post(CHAT, json=asked).json()
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 12
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 12
    counted = last["metrics"]["speculative_decoding"]
    assert counted["num_draft_tokens"] == last["timings"]["draft_n"]
    assert counted["num_accepted_draft_tokens"] == last["timings"]["draft_n_accepted"]
    assert last["timings"]["predicted_n"] == 12
    assert last["timings"]["cache_n"] + last["timings"]["prompt_n"] == last["usage"]["prompt_tokens"]
    assert all("usage" not in chunk and "metrics" not in chunk for chunk in chunks)
    # Who does not ask for usage gets the rest with the end.
    last = client.chunks(CHAT, **asked)[-1]
    assert last["choices"][0]["finish_reason"] == "length"
    assert "usage" not in last
    assert last["timings"]["predicted_n"] == 12


def test_several_choices_have_seeds_of_their_own(client: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "return_token_ids": True}
    several = client.chat(**asked, n=3, seed=7)
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    for index, choice in enumerate(several["choices"]):
        alone = client.chat(**asked, seed=7 + index)["choices"][0]
        assert choice["token_ids"] == alone["token_ids"]
    assert several["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in several["choices"])
    assert several["usage"]["prompt_tokens"] == len("u: the drafter\na: ")
    # More than run at once.
    assert len(client.chat("x", n=20, max_tokens=3)["choices"]) == 20


def test_stops_are_cut_and_end_the_text(client: Client) -> None:
    free = client.complete("the drafter", max_tokens=60, temperature=0)["choices"][0]["text"]
    stop = free[20:23]
    cut = client.complete("the drafter", max_tokens=60, temperature=0, stop=stop)["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == free[: free.index(stop)]
    several = client.complete("the drafter", max_tokens=60, temperature=0, stop=["nothing", stop])["choices"][0]
    assert several["text"] == cut["text"]
    streamed = client.chunks(TEXT, prompt="the drafter", max_tokens=60, temperature=0, stop=stop)
    assert folded(streamed)["text"] == cut["text"]
    by_id = client.complete("the drafter", max_tokens=60, temperature=0, stop_token_ids=[ord(free[5])])["choices"][0]
    assert by_id["text"] == free[: free.index(free[5])]


def test_logprobs_have_one_entry_for_each_token(client: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 10, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = client.chat(**asked)["choices"][0]
    entries = whole["logprobs"]["content"]
    assert len(entries) == 10
    assert "".join(bytes(entry["bytes"]).decode() for entry in entries) == whole["message"]["content"]
    for entry in entries:
        assert entry["top_logprobs"][0]["token"] == entry["token"]
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
    message = [{"role": "user", "content": "the drafter"}]
    streamed = client.chunks(CHAT, messages=message, **asked)
    of_chunks = [chunk["choices"][0]["logprobs"]["content"] for chunk in streamed[:-1]]
    assert [entry for content in of_chunks for entry in content] == entries
    assert all(len(content) == 1 for content in of_chunks)
    assert client.chat(**asked, speculation={"enabled": False})["choices"][0]["logprobs"] == whole["logprobs"]


def test_echo_scores_the_prompt(client: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 5, "temperature": 0, "logprobs": 1, "echo": True}
    first = client.complete("the target", **asked)["choices"][0]
    assert first["text"].startswith("the target")
    told = first["logprobs"]
    assert len(told["tokens"]) == len("the target") + 5
    assert told["token_logprobs"][0] is None
    assert all(value < 0 for value in told["token_logprobs"][1:])
    assert [first["text"][offset] for offset in told["text_offset"]] == told["tokens"]
    # Prompts that were read before give the same, and so does one that is given as ids.
    assert client.complete("the target", **asked)["choices"][0] == first
    assert client.complete(list(b"the target"), **asked)["choices"][0] == first
    chunks = client.chunks(TEXT, prompt="the target", **asked)
    joined: dict[str, list[Any]] = {name: [] for name in told}
    for chunk in chunks:
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == told
    scored = client.complete("the target", **asked | {"max_tokens": 0})
    assert scored["choices"][0]["text"] == "the target"
    assert scored["choices"][0]["logprobs"]["token_logprobs"] == told["token_logprobs"][: len("the target")]
    assert scored["usage"]["completion_tokens"] == 0


def test_several_prompts_are_answered_in_order(client: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    prompts = ["the target", "the drafter", "passes"]
    together = client.complete(prompts, **asked, n=2)
    texts = [choice["text"] for choice in together["choices"]]
    assert texts == [client.complete(one, **asked)["choices"][0]["text"] for one in prompts for _ in range(2)]
    assert together["usage"]["prompt_tokens"] == sum(map(len, prompts))
    as_ids = client.complete([list(one.encode()) for one in prompts], **asked)
    assert [choice["text"] for choice in as_ids["choices"]] == texts[::2]


def test_penalties_biases_and_bans(client: Client) -> None:
    free = client.complete("the drafter", max_tokens=4, temperature=0)["choices"][0]["text"]
    banned = client.complete("the drafter", max_tokens=4, temperature=0, logit_bias={str(ord(free[0])): -1e6})
    assert banned["choices"][0]["text"][0] != free[0]
    forced = client.complete("the drafter", max_tokens=4, temperature=0, logit_bias={"90": 1000})["choices"][0]
    assert forced["text"] == "ZZZZ"
    once = client.complete(
        "the drafter", max_tokens=4, temperature=0, logit_bias={"90": 20, "89": 19}, presence_penalty=5
    )["choices"][0]
    assert once["text"][:2] == "ZY"


def test_a_last_message_is_continued(client: Client) -> None:
    messages = [{"role": "user", "content": "say it"}, {"role": "assistant", "content": "the dra"}]
    ends = {"continue_final_message": True, "add_generation_prompt": False}
    prompt = client.post("/apply-template", json={"messages": messages, **ends}).json()["prompt"]
    assert prompt == "u: say it\na: the dra"
    answer = client.post(CHAT, json={"messages": messages, "max_tokens": 4, "temperature": 0, **ends}).json()
    assert answer["choices"][0]["message"]["content"] == "fter"
    status, error = client.refused(continue_final_message=True)
    assert status == 400
    assert "continue" in error["message"]


def test_ignore_eos_goes_on(client: Client) -> None:
    # The toy's text ends where it has come to its end.
    prompt = "until the text has come to its end."
    assert client.complete(prompt, max_tokens=5, temperature=0)["choices"][0]["finish_reason"] == "stop"
    longer = client.complete(prompt, max_tokens=5, temperature=0, ignore_eos=True)["choices"][0]
    assert longer["finish_reason"] == "length"


def test_a_prediction_counts_its_own_tokens_only(client: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 40, "temperature": 0}
    plain = client.chat(**asked)
    assert plain["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    text = plain["choices"][0]["message"]["content"]
    predicted = client.chat(**asked, prediction={"type": "content", "content": text})
    assert predicted["choices"][0]["message"] == plain["choices"][0]["message"]
    details = predicted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    wrong = client.chat(**asked, prediction={"type": "content", "content": [{"type": "text", "text": "zzz" * 20}]})
    assert wrong["choices"][0]["message"] == plain["choices"][0]["message"]
    off = client.chat(**asked, prediction={"type": "content", "content": text}, speculation={"enabled": False})
    assert off["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0


def test_tokens_and_templates(client: Client) -> None:
    told = client.post("/tokenize", json={"prompt": "ab", "return_token_strs": True}).json()
    assert told == {"tokens": [97, 98], "count": 2, "max_model_len": 4096, "token_strs": ["a", "b"]}
    assert client.post("/tokenize", json={"content": "ab"}).json()["tokens"] == [97, 98]
    chat = client.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    assert bytes(chat).decode() == "u: the target reads\na: "
    assert client.post("/detokenize", json={"tokens": [97, 98, 256]}).json()["prompt"] == "ab<|endoftext|>"
    assert client.refused("/detokenize", tokens=[9999])[0] == 400
    assert client.refused("/tokenize")[0] == 400
    # The strings of control tokens are tokens in plain prompts.
    assert client.post("/tokenize", json={"prompt": "<|endoftext|>"}).json()["tokens"] == [256]


def test_suffix_needs_tokens_for_it(client: Client) -> None:
    status, error = client.refused("/v1/completions", prompt="a", suffix="b")
    assert (status, error["param"]) == (400, "suffix")


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/responses", "/v1/files/file-1", "/api/chat", "/v1/audio/speech"]
)
def test_what_other_servers_have_is_told(client: Client, path: str) -> None:
    answer = client.post(path, json={})
    assert answer.status_code == 501
    assert answer.json()["error"]["type"] == "not_implemented_error"


def test_unknown_paths_methods_and_models(client: Client) -> None:
    assert client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert client.get("/v1/completions").status_code == 405
    assert client.refused(model="gpt-4")[0] == 404
    assert client.get("/v1/models/gpt-4").json()["error"]["code"] == "model_not_found"
    assert client.get("/v1/models/toy").json()["max_model_len"] == 4096
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["toy"]


@pytest.mark.parametrize(
    "form",
    [
        {"guided_regex": r"[^\s\S]"},
        {"guided_grammar": "start: start"},
        {"guided_grammar": "root ::= root"},
        {"guided_json": {"$ref": "#"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}},
    ],
    ids=lambda form: next(iter(form)),
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_no_text_has_is_refused_by_name_before_anything_is_written(
    client: Client, form: dict[str, Any], stream: bool
) -> None:
    status, error = client.refused(**form, stream=stream)
    assert (status, error["param"]) == (400, next(iter(form)))
    assert "no text can begin" in error["message"] or "simplify" in error["message"]
