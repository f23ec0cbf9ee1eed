"""Bodies that are not what they should be: each gets an error that names what is wrong, and never a 5xx."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from forerun.llm import LLM
from tests.serving import Client, serving

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"prompt": "x",}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\\ud800\\u0041"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "x", "stop": {"a": ' * 1000 + b"1" + b"}" * 2000,
        b'\xef\xbb\xbf{"prompt": "x"}',
        '{"prompt": "x"}'.encode("utf-16"),
    ],
)
def test_what_is_not_json_is_refused(client: Client, body: bytes) -> None:
    answer = client.post("/v1/completions", content=body, headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "\n" not in answer.json()["error"]["message"]


def test_json_of_another_name_is_refused_with_the_reason(client: Client) -> None:
    answer = client.post("/v1/completions", content=b'{"prompt": "x"}', headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400
    assert "application/json" in answer.json()["error"]["message"]
    unnamed = client.post("/v1/completions", content=b'{"prompt": "x", "max_tokens": 1}', headers={"Content-Type": ""})
    assert unnamed.status_code in (200, 400)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"frequency": 1}, "frequency"),
        ({"speculation": {"tree": True}}, "speculation.tree"),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages.0.mood"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": 3}, "stop"),
        ({"stop": [""]}, None),
        ({"seed": "x"}, "seed"),
        ({"store": True}, "store"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, None),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, None),
        ({"response_format": {"type": "xml"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"tool_choice": "required"}, None),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"functions": []}, "functions"),
        ({"audio": {}}, "audio"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"speculation": {"num_speculative_tokens": -1}}, "speculation.num_speculative_tokens"),
    ],
)
def test_a_wrong_field_is_named(client: Client, body: dict[str, Any], param: str | None) -> None:
    status, error = client.refused(**body)
    assert status == 400, error
    assert error["param"] == param, error
    assert param is None or param.split(".")[-1] in error["message"]


def test_what_is_null_is_the_default(client: Client) -> None:
    fields = ("temperature", "stop", "n", "logit_bias", "seed", "stream", "stream_options", "tools", "response_format")
    nothing: dict[str, Any] = dict.fromkeys(fields)
    client.chat(max_tokens=1, **nothing)


def test_a_body_that_is_too_large(llm: LLM) -> None:
    with serving(llm, max_body=4096) as client:
        answer = client.post("/v1/completions", json={"prompt": "x" * 5000})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        # In chunks, without saying beforehand how much it is.
        answer = client.post("/v1/completions", content=iter([b"x" * 1000] * 5), headers=JSON)
        assert answer.status_code == 413
        client.complete(max_tokens=1)


def test_slow_headers_and_slow_bodies_lose_their_connection(llm: LLM) -> None:
    with serving(llm, header_timeout=0.3, body_timeout=0.3) as client:
        host, port = str(client.base_url.host), client.base_url.port or 0
        with socket.create_connection((host, port), timeout=10) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
            try:
                for _ in range(100):
                    slow.sendall(b"y")
                    time.sleep(0.02)
                ended = False
            except OSError:
                ended = True
            assert ended or slow.recv(1) == b""
        with socket.create_connection((host, port), timeout=10) as slow:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            slow.sendall(head + b"Content-Length: 100\r\n\r\n{")
            assert slow.recv(1000).startswith(b"HTTP/1.1 408")
        assert client.get("/health").status_code == 200
        # A connection that is kept open between requests is no slow one.
        client.get("/health")
        time.sleep(0.1)
        assert client.get("/health").status_code == 200


def test_headers_that_are_too_long(client: Client) -> None:
    host, port = str(client.base_url.host), client.base_url.port or 0
    with socket.create_connection((host, port), timeout=10) as large:
        try:
            large.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000)
            told = large.recv(1000)
        except OSError:
            told = b""
    assert told == b"" or told.startswith(b"HTTP/1.1 400")
    assert client.get("/health").status_code == 200
