"""The front door, on the toy: prompts, streams, batches, stops and what results say."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from typing import Any

import pytest

import forerun
from forerun.core.step import StepResult
from forerun.errors import PromptError, SamplingError, UsageError


def load(draft: str = "none", **options: Any) -> forerun.LLM:
    return forerun.LLM.load("toy", draft=draft, **options)


def test_speculation_changes_the_steps_and_not_the_text() -> None:
    plain, fast = load(), load(draft="ngram", num_speculative_tokens=5)
    sets: list[dict[str, Any]] = [{}, {"temperature": 0.7, "seed": 3}, {"repetition_penalty": 1.2}]
    for options in sets:
        slow = plain.generate("the drafter", max_tokens=80, **options)
        quick = fast.generate("the drafter", max_tokens=80, **options)
        assert (quick.text, quick.token_ids) == (slow.text, slow.token_ids)
        assert slow.stats.steps == 80
        assert quick.stats.steps == 80 - quick.stats.accepted < 80


def test_a_stream_adds_up_to_the_text() -> None:
    stream = load(draft="ngram").stream("the target", max_tokens=50)
    chunks = list(stream)
    done = stream.completion
    assert "".join(chunk.text for chunk in chunks) == done.text
    assert [t for chunk in chunks for t in chunk.token_ids] == done.token_ids
    assert sum(sum(chunk.accepted) for chunk in chunks) == done.stats.accepted > 0
    assert all(len(c.pieces) == len(c.token_ids) == len(c.accepted) for c in chunks)


@pytest.mark.parametrize("draft", ["none", "ngram"])
def test_a_stop_string_is_cut_wherever_it_falls(draft: str) -> None:
    whole = load().generate("the drafter", max_tokens=120).text
    llm = load(draft=draft)
    for start in range(3, 60, 7):
        stop = whole[start : start + 6]
        done = llm.generate("the drafter", max_tokens=120, stop=[stop])
        assert done.text == whole[: whole.index(stop)]
        assert done.finish_reason == "stop"
        # One byte is one token here: the usage ends with the token that completed the stop string.
        assert done.usage.completion_tokens == len(done.token_ids) == whole.index(stop) + len(stop)


def test_an_end_token_leaves_no_text_and_ignore_eos_goes_on() -> None:
    llm = load(draft="ngram")
    ended = llm.generate("come to its ", max_tokens=200)
    assert (ended.text, ended.finish_reason, ended.token_ids[-1]) == ("end.", "stop", 256)
    longer = llm.generate("come to its ", max_tokens=200, ignore_eos=True)
    assert (longer.usage.completion_tokens, longer.finish_reason) == (200, "length")


def test_text_that_could_begin_a_stop_string_is_shown_when_it_does_not() -> None:
    llm = load()
    whole = llm.generate("the drafter", max_tokens=20).text
    stop = whole[-1] + "\x00"
    stream = llm.stream("the drafter", max_tokens=20, stop=[stop])
    assert "".join(chunk.text for chunk in stream) == stream.completion.text == whole


def test_many_at_once_come_back_in_order_with_the_texts_of_each_alone() -> None:
    prompts = ["the drafter", "what", "so the text is", "and", "passes", "until the"]
    llm = load(draft="ngram", max_sequences=3)
    alone = [llm.generate(p, max_tokens=40, temperature=0.8, seed=5).token_ids for p in prompts]
    together = [c.token_ids for c in llm.generate_all(prompts, max_tokens=40, temperature=0.8, seed=5)]
    assert together == alone


def test_stopping_a_stream_early_leaves_the_model_usable() -> None:
    llm = load(draft="ngram")
    stream = llm.stream("the drafter", max_tokens=1000, ignore_eos=True)
    next(stream)
    stream.close()
    assert stream.completion.finish_reason == "abort"
    assert llm.assembly.engine.idle
    assert llm.generate("the drafter", max_tokens=5).usage.completion_tokens == 5


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = load()
    step, count, seen = llm.assembly.engine.step, 0, threading.Event()

    def interrupted() -> list[StepResult]:
        nonlocal count
        count += 1
        if count == 5:
            os.kill(os.getpid(), signal.SIGINT)  # which reaches the thread that waits for chunks
            assert seen.wait(60)
        return step()

    monkeypatch.setattr(llm.assembly.engine, "step", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stream = llm.stream("the drafter", max_tokens=100)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    finally:
        signal.signal(signal.SIGINT, before)
    assert stream.completion.usage.completion_tokens == 4
    assert len(stream.completion.text) == 4
    assert stream.completion.finish_reason == "abort"
    seen.set()
    stream.close()
    assert stream.completion.finish_reason == "abort"
    assert llm.assembly.engine.idle


def test_the_seed_is_reported_and_repeats_the_text() -> None:
    llm = load()
    first = llm.generate("the drafter", max_tokens=30, temperature=1.0)
    assert llm.generate("the drafter", max_tokens=30, temperature=1.0, seed=first.seed).text == first.text


def test_results_are_plain_data() -> None:
    done = load(draft="ngram").generate("the drafter", max_tokens=30, logprobs=2, trace=True)
    data = json.loads(json.dumps(done.as_dict()))
    assert data["usage"] == {"prompt_tokens": 11, "completion_tokens": 30, "cached_tokens": 0}
    assert (data["model"], data["draft"], data["backend"], data["verifier"]) == ("toy", "ngram", "toy", "keyed")
    assert set(data["timings"]) == {
        "load_s", "ttft_s", "decode_s", "tokens_per_second", "prompt_tokens_per_second", "draft_s", "verify_s", "other_s",
    }  # fmt: skip
    assert data["lossy"] is False
    metrics = data["metrics"]["speculative_decoding"]
    assert metrics["num_accepted_draft_tokens"] == sum(len(r["accepted_path"]) for r in data["steps"])
    assert sum(len(r["tokens"]) for r in data["steps"]) == 30
    assert len(data["logprobs"]) == 30
    assert all(len(entry["top"]) == 2 for entry in data["logprobs"])


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0}, {"temperature": math.nan}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1},
        {"max_tokens": 0}, {"max_tokens": -3}, {"min_p": 2.0}, {"stop": [""]}, {"seed": 0.5}, {"temprature": 1},
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SamplingError):
        load().generate("the drafter", **bad)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ([], "empty"),
        (None, "the prompt is None; give text, chat messages or token ids"),
        (5, "the prompt is 5"),
        (b"bytes", "the prompt is b'bytes'"),
        ({"role": "user"}, "give text, chat messages or token ids"),
        ([None], "message 0 has no role"),
        ([1, True], "message 0 has no role"),
        ([1, 300], "the prompt has the token id 300; toy has ids from 0 to 256"),
        ([1, -1], "the prompt has the token id -1"),
        ("x" * 4096, "holds 4096"),
        ([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}], "base model"),
    ],
    ids=repr,
)
def test_bad_prompts_are_refused(prompt: Any, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        load().generate(prompt)


def test_what_goes_with_a_prompt_is_checked_too() -> None:
    llm = load(draft="prediction")
    wrong: Any = ["hello"]
    with pytest.raises(PromptError, match="prediction is list"):
        llm.generate("hello", prediction=wrong)
    for prompt, raw in (([1, 2], False), ("hello", True)):
        with pytest.raises(PromptError, match="no place for a system message"):
            llm.generate(prompt, system="be kind", raw=raw)
    for options, says in (
        ({"logit_bias": {999_999: 1.0}}, "logit_bias has the token id 999999; toy has ids from 0 to 256"),
        ({"stop_token_ids": [257]}, "stop_token_ids has the token id 257"),
    ):
        with pytest.raises(SamplingError, match=says):
            llm.generate("hello", **options)


def test_token_ids_are_a_prompt() -> None:
    llm = load()
    said = llm.generate("the drafter", max_tokens=12)
    assert llm.generate(list(b"the drafter"), max_tokens=12).token_ids == said.token_ids
    assert llm.generate(tuple(b"the drafter"), raw=True, max_tokens=12).usage == said.usage


def test_control_tokens_in_a_prompt_are_text_unless_asked_otherwise() -> None:
    llm = load()
    assert len(llm.encode("a<|endoftext|>")) == 1 + len("<|endoftext|>")
    assert llm.encode("a<|endoftext|>", special=True) == [ord("a"), 256]
    assert llm.encode([{"role": "user", "content": "<|endoftext|>"}], special=True) == [256]
    assert llm.ask("<|endoftext|>", special=True).request.prompt == (256,)


def test_raw_text_may_be_blank_and_empty_where_a_text_has_a_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = load()
    assert llm.encode("\n\n", raw=True) == [10, 10]
    with pytest.raises(PromptError, match="empty"):
        llm.encode("", raw=True)
    monkeypatch.setattr(type(llm.assembly.tokenizer), "bos_id", 256)
    assert llm.encode("", raw=True) == [256]
    with pytest.raises(PromptError, match="empty"):
        llm.encode("")


def test_a_bad_prompt_among_many_takes_its_turn_as_an_error() -> None:
    prompts: list[Any] = ["", "the drafter", None, "what", [999], "passes", "x" * 5000]
    llm = load(draft="ngram", max_sequences=2)
    done = list(llm.generate_all(prompts, max_tokens=20))
    assert [completion.finish_reason for completion in done] == [
        "error", "length", "error", "length", "error", "length", "error",
    ]  # fmt: skip
    assert [completion.text for completion in done[1::2]] == [
        llm.generate(prompt, max_tokens=20).text for prompt in prompts[1::2]
    ]
    assert "the prompt is None" in str(done[2].error)
    assert done[0].as_dict()["error"] == "the prompt is empty; give some text."
    assert llm.assembly.engine.idle


def test_options_that_suit_no_prompt_end_a_batch_at_once() -> None:
    llm = load()
    misspelled: Any = {"temprature": 1}
    with pytest.raises(PromptError, match="put it into a list"):
        list(llm.generate_all("what"))
    with pytest.raises(SamplingError, match="temprature"):
        list(llm.generate_all(["a", "b"], **misspelled))
    wrong: list[Any] = [0, -1, "3"]
    for concurrency in wrong:
        with pytest.raises(UsageError, match="concurrency is"):
            list(llm.generate_all(["a"], concurrency=concurrency))


def test_chunks_tell_how_much_of_the_prompt_was_read() -> None:
    llm = load(draft="ngram")
    prompt = "the target reads " * 80
    rows = llm.assembly.engine.scheduler._prefill_rows
    assert len(prompt) > 2 * rows
    stream = llm.stream(prompt, max_tokens=9)
    chunks = list(stream)
    assert {chunk.prompt_tokens for chunk in chunks} == {len(prompt)}
    reading = [chunk for chunk in chunks if not chunk.token_ids]
    assert [chunk.prompt_tokens_read for chunk in reading] == [rows * n for n in range(1, len(prompt) // rows + 1)]
    assert {chunk.prompt_tokens_read for chunk in chunks if chunk.token_ids} == {len(prompt)}
    timings = stream.completion.timings
    assert timings.prompt_tokens_per_second == pytest.approx(len(prompt) / timings.ttft_s)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"draft": "ngrm"}, "Did you mean ngram"),
        ({"verifier": "keyd"}, "Did you mean keyed"),
        ({"backend": "gpu"}, "known: auto"),
        ({"controller": "best"}, "known: auto"),
        ({"draft": "model:"}, "model:NAME"),
        ({"num_speculative_tokens": -1}, "at least 0"),
        ({"max_sequences": 0}, "at least 1"),
        ({"treads": 3}, "unknown option 'treads'.*Did you mean threads"),
        ({"cascade": "v3"}, "RULE:ALPHA"),
        ({"cascade": "v9:0.5"}, "v1, v2, v3"),
    ],
)
def test_bad_plans_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(**options)


def test_the_public_names_are_there() -> None:
    for name in forerun.__all__:
        assert getattr(forerun, name) is not None
    with pytest.raises(AttributeError):
        _ = forerun.nothing
