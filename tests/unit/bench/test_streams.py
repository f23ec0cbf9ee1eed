"""A streamed answer is read from the bytes that came and when they came; what is no answer says why."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from forerun.bench.streams import Address, ask, read, tokens_of
from forerun.errors import BackendError, UsageError
from forerun.server import Key
from tests.serving import serving, toy

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def event(*tokens: int, finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"token_ids": tokens, "finish_reason": finish}]}).encode() + b"\n\n"


def test_a_chunk_came_with_its_last_byte() -> None:
    first, second = event(5), event(6)
    pieces = [
        (1.0, HEAD + first[:9]),
        (2.0, first[9:] + second),
        (3.0, b": still here\n\n" + event(finish="stop")[:-1]),
        (4.0, b"\ndata: [DONE]\n\n"),
    ]
    answer = read(0.25, 0.5, pieces)
    assert answer.failure is None
    assert (answer.due, answer.sent) == (0.25, 0.5)
    assert answer.chunks == (2.0, 2.0, 4.0)
    assert answer.token_ids == (5, 6)


def test_an_answer_may_be_empty() -> None:
    answer = read(0.0, 0.0, [(1.0, HEAD + event(finish="stop"))])
    assert (answer.failure, answer.token_ids, answer.ttft, answer.tpot) == (None, (), 1.0, None)


@pytest.mark.parametrize(
    ("received", "failure"),
    [
        (b"", "no response"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}", "status 503"),
        (HEAD, "the answer broke off"),
        (HEAD + event(5), "the answer broke off"),
        (HEAD + event(5, finish="abort"), "the answer broke off"),
        (HEAD + b"data: {\n\n", "a chunk that is none"),
        (HEAD + b"data: []\n\n", "a chunk that is none"),
        (HEAD + event(5) + b'data: {"error": {"code": "out_of_memory"}}\n\n', "error: out_of_memory"),
    ],
)
def test_what_is_no_answer(received: bytes, failure: str) -> None:
    assert read(0.0, 0.0, [(1.0, received)] if received else []).failure == failure


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("http://box/v1/", Address("box", 80)),
        ("http://[::1]:9", Address("::1", 9)),
    ],
)
def test_where_a_server_listens(url: str, found: Address) -> None:
    assert Address.of(url) == found


@pytest.mark.parametrize("url", ["", "box", "https://box", "http://box/chat", "http://box:x", "http://[::1"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        Address.of(url)


def test_a_server_is_asked() -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "the drafter"}], "max_tokens": 9, "seed": 3}
    body |= {"stream": True, "return_token_ids": True}
    with toy() as llm, serving(llm, keys=(Key.of("k"),)) as client:
        address = Address("127.0.0.1", int(client.base_url.port or 0))
        answer = asyncio.run(ask(address, "k", body, 0.0))
        refused = asyncio.run(ask(address, "wrong", body, 0.0))
        tokens = tokens_of(address, "k", body["messages"])
        expected = llm.chat(body["messages"], max_tokens=9, seed=3, temperature=1.0)
        with pytest.raises(BackendError, match="which tokens"):
            tokens_of(address, "wrong", body["messages"])
    assert answer.failure is None
    assert list(answer.token_ids) == list(expected.token_ids)
    assert answer.sent < answer.chunks[0]
    assert list(answer.chunks) == sorted(answer.chunks)
    assert refused.failure == "status 401"
    assert len(tokens) == expected.usage.prompt_tokens


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = Address("127.0.0.1", closed.getsockname()[1])
    failure = asyncio.run(ask(address, None, {}, 0.0)).failure
    assert failure is not None
    assert failure.startswith("connection: ")
