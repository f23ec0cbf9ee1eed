"""Many requests at once: none disturbs another, who hangs up frees a place, what cannot fit is refused by name."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serving import Client, serving, toy

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that has to come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def hang_up(client: Client, path: str, body: dict[str, Any], after: int) -> None:
    """Ask, read `after` bytes of the answer, and be gone."""
    host, port = str(client.base_url.host), client.base_url.port or 0
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(head.encode() + data)
        while after > 0:
            got = connection.recv(after)
            if not got:
                return
            after -= len(got)


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_frees_a_place_and_disturbs_nobody(stream: bool) -> None:
    with toy(step_s=0.002, max_sequences=2) as llm, serving(llm) as client:
        alone = client.complete("the drafter", max_tokens=60, temperature=0)["choices"]
        engine = llm.assembly.engine
        with ThreadPoolExecutor() as threads:
            endless = {"prompt": "the target", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
            gone = threads.submit(hang_up, client, TEXT, endless, 300 if stream else 0)
            if stream:
                gone.result()
            beside = threads.submit(client.complete, "the drafter", max_tokens=60, temperature=0)
            assert beside.result()["choices"] == alone
            until(lambda: not engine.scheduler.live)
        assert client.server.service.turns.running == 0
        assert client.complete("the drafter", max_tokens=60, temperature=0)["choices"] == alone


def test_a_queue_that_is_full_says_when_to_come_again() -> None:
    with (
        toy(step_s=0.002, max_sequences=1) as llm,
        serving(llm, max_queue=1) as client,
        ThreadPoolExecutor() as threads,
    ):
        asked: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "speculation": {"enabled": False}}
        # One runs, one waits in the engine, one in the queue.
        running = [threads.submit(client.post, TEXT, json={"prompt": "x", **asked}) for _ in range(3)]
        turns = client.server.service.turns
        until(lambda: (turns.running, turns.waiting) == (2, 1))
        answer = client.post(TEXT, json={"prompt": "x", **asked, "stream": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
        assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert {one.result().status_code for one in running} == {200}


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    with toy(max_sequences=2) as llm, serving(llm, max_tokens_per_request=50, max_tokens_in_flight=200) as client:
        for stream in (False, True):
            answer = client.post(TEXT, json={"prompt": "x" * 5000, "stream": stream})
            assert answer.status_code == 400
            assert "5000" in answer.json()["error"]["message"]
            assert "4096" in answer.json()["error"]["message"]
        status, error = client.refused(max_tokens=51)
        assert (status, error["param"]) == (400, "max_tokens")
        assert "50" in error["message"]
        status, error = client.refused("/v1/completions", prompt="x" * 180, max_tokens=30)
        assert status == 400
        assert "210" in error["message"]
        # Whoever says nothing gets what there is.
        assert client.chat(ignore_eos=True)["usage"]["completion_tokens"] == 50


def test_requests_side_by_side_are_those_alone() -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9, "seed": 1, "top_k": 5},
        {"temperature": 1.2, "seed": 2, "top_p": 0.9, "logprobs": 2},
        {"temperature": 0.7, "seed": 3, "min_p": 0.05, "presence_penalty": 0.5},
        {"temperature": 0, "stop": [" and", "pass"], "frequency_penalty": 0.3},
        {"temperature": 1.0, "seed": 4, "n": 3, "repetition_penalty": 1.2},
        {"temperature": 0.5, "seed": 5, "logit_bias": {"97": 1.5}, "echo": True, "logprobs": 1},
        {"temperature": 0, "ignore_eos": True, "speculation": {"draft": "ngram"}},
    ]
    prompts = ["the drafter runs", "what the target", "in one pass, so the", "until"]
    asked = [
        {"prompt": prompts[i // 8], "max_tokens": 30 + i, "return_token_ids": True, **kinds[i % 8]} for i in range(32)
    ]
    with toy(max_sequences=8, keep_prefixes=8, other_drafts=["ngram"]) as llm, serving(llm) as client:
        with ThreadPoolExecutor(32) as threads:
            together = list(threads.map(lambda body: client.post(TEXT, json=body).json(), asked))
        with toy(max_sequences=1, keep_prefixes=0, draft="none") as plain, serving(plain) as alone:
            for body, answer in zip(asked, together, strict=True):
                body.pop("speculation", None)
                expected = alone.post(TEXT, json=body).json()
                assert answer["choices"] == expected["choices"]
                for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                    assert answer["usage"][name] == expected["usage"][name]


def test_memory_that_is_short_makes_requests_wait_and_ends_none() -> None:
    asked = [{"prompt": f"{i} the drafter runs ahead", "max_tokens": 150, "ignore_eos": True} for i in range(6)]
    with toy(max_sequences=6, keep_prefixes=8) as llm, serving(llm) as client:
        expected = [client.post(TEXT, json=body | {"seed": 1}).json()["choices"] for body in asked]
    with toy(max_sequences=6, keep_prefixes=8) as llm:
        engine: Any = llm.assembly.engine
        pages = engine.target._pages
        pages.total, engine.context = 40, 40 * pages.page
        with serving(llm) as client, ThreadPoolExecutor() as threads:
            told = list(threads.map(lambda body: client.post(TEXT, json=body | {"seed": 1}).json(), asked))
            assert [one["choices"] for one in told] == expected
            status, error = client.refused("/v1/completions", prompt="x" * 400)
            assert status == 400
            assert "400" in error["message"]
            assert "320" in error["message"]
            assert any("320" in line for line in client.get("/health").json()["limitations"])
            assert client.get("/health").json()["memory"]["kv_tokens_budget"] == 320


def test_a_long_prompt_shares_the_pass() -> None:
    with toy(max_sequences=4) as llm, serving(llm) as client, ThreadPoolExecutor() as threads:
        engine: Any = llm.assembly.engine
        engine.scheduler._shared_rows = 8
        most = 0
        forward = engine.target.forward

        def noted(inputs: Any, *more: Any) -> Any:
            nonlocal most
            if len(inputs) > 1:
                most = max(most, sum(len(one.input_tokens) for one in inputs))
            return forward(inputs, *more)

        engine.target.forward = noted
        writes = threads.submit(client.complete, "the drafter", max_tokens=2000, ignore_eos=True)
        until(lambda: bool(engine.scheduler.live))
        long = threads.submit(client.complete, "the target " * 100, max_tokens=2)
        short = threads.submit(client.complete, "what it", max_tokens=2)
        for one in (writes, long, short):
            one.result()
        assert 2 <= most <= 8 + 2


def test_prefixes_are_read_once_also_after_a_streamed_answer() -> None:
    with toy(keep_prefixes=8) as llm, serving(llm) as client:
        system = {"role": "system", "content": "the drafter runs ahead and the target reads what the drafter wrote"}
        first = [system, {"role": "user", "content": "go on"}]
        chunks = client.chunks(CHAT, messages=first, max_tokens=20, temperature=0)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        again = [*first, {"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
        body: dict[str, Any] = {"messages": again, "max_tokens": 20, "temperature": 0}
        warm = client.post(CHAT, json=body).json()
        before = len(f"s: {system['content']}\nu: go on\na: {text}")
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= before - 1
        other = client.post(CHAT, json={"messages": [system, {"role": "user", "content": "else"}]}).json()
        assert other["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(system["content"])
    with toy(keep_prefixes=0) as llm, serving(llm) as client:
        assert client.post(CHAT, json=body).json()["choices"] == warm["choices"]


def test_many_who_hang_up_at_random_places() -> None:
    with toy(step_s=0.0005, max_sequences=4, keep_prefixes=4) as llm, serving(llm, max_queue=300) as client:
        alone = client.complete("the drafter", max_tokens=40, temperature=0)["choices"]
        kept: list[Any] = []

        def one(number: int) -> None:
            stream, n = number % 3 > 0, 1 + number % 2
            body = {"prompt": "the target" * (1 + number % 5), "max_tokens": 200, "stream": stream, "n": n}
            if number % 10 == 0:
                kept.append(client.complete("the drafter", max_tokens=40, temperature=0)["choices"])
            else:
                hang_up(client, TEXT, body, (number * 37) % 900 if stream else 0)

        with ThreadPoolExecutor(40) as threads:
            list(threads.map(one, range(200)))
        until(lambda: not llm.assembly.engine.scheduler.live and client.server.service.turns.running == 0, 30)
        assert kept == [alone] * 20
        assert threading.active_count() < 60
        assert client.server.service._runs == set()
