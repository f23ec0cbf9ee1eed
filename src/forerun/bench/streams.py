"""A client of streamed completions that does as little as possible while it waits: it notes when bytes came, and reads them
when the stream has ended. So it takes next to nothing from a server that runs on the same cores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from forerun.bench.latency import Answer
from forerun.errors import BackendError, UsageError

_CHAT, _TOKENIZE = "/v1/chat/completions", "/tokenize"
# An answer that takes longer has failed.
_PATIENCE = 600.0


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises UsageError for what is no http URL of a server."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme != "http" or not host or parts.path not in ("", "/", "/v1", "/v1/"):
            raise UsageError(f"--url {url!r} is not of the form http://127.0.0.1:8000.")
        return cls(host, port or 80)


class _Recorder(asyncio.Protocol):
    """Notes what comes and when, until the server closes the connection."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.received: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = loop.create_future()
        self._time = loop.time

    def data_received(self, data: bytes) -> None:
        self.received.append((self._time(), data))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.ended.done():
            self.ended.set_result(None)


async def ask(address: Address, key: str | None, body: Mapping[str, Any], due: float) -> Answer:
    """The answer to a chat completion, which is streamed; whatever goes wrong is its `failure`."""
    loop = asyncio.get_running_loop()
    sent = loop.time()
    try:
        async with asyncio.timeout(_PATIENCE):
            transport, recorder = await loop.create_connection(_Recorder, address.host, address.port)
            try:
                transport.write(_request(_CHAT, address, key, body))
                await recorder.ended
            finally:
                transport.abort()
    except TimeoutError:
        return Answer(due, sent, failure="no answer in time")
    except OSError as error:
        return Answer(due, sent, failure=f"connection: {error.strerror or error}")
    return read(due, sent, recorder.received)


def tokens_of(address: Address, key: str | None, messages: list[dict[str, str]]) -> list[int]:
    """The token ids of a conversation. Raises BackendError where the server does not say."""
    try:
        with socket.create_connection((address.host, address.port), _PATIENCE) as connection:
            connection.sendall(_request(_TOKENIZE, address, key, {"messages": messages}))
            with connection.makefile("rb") as answer:
                body = answer.read().partition(b"\r\n\r\n")[2]
        tokens: list[int] = json.loads(body)["tokens"]
    except (OSError, ValueError, KeyError) as error:
        raise BackendError(f"the server does not say which tokens it reads ({error!r}).") from error
    return tokens


def read(due: float, sent: float, received: list[tuple[float, bytes]]) -> Answer:
    """The answer that came in these pieces."""
    head, _, _ = b"".join(data for _, data in received).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        return Answer(due, sent, failure=f"status {status[0].decode('latin-1')}" if status else "no response")
    chunks: list[float] = []
    tokens: list[int] = []
    finished = False
    try:
        for at, data in _events(received, len(head) + 4):
            if "error" in data:
                return Answer(due, sent, failure=f"error: {data['error'].get('code') or data['error'].get('type')}")
            for choice in data["choices"]:
                chunks.append(at)
                tokens += choice.get("token_ids", ())
                finished |= choice.get("finish_reason") in ("stop", "length")
    except (ValueError, KeyError, AttributeError, TypeError):
        return Answer(due, sent, failure="a chunk that is none")
    if not finished:
        return Answer(due, sent, failure="the answer broke off")
    return Answer(due, sent, tuple(chunks), tuple(tokens))


def _events(received: list[tuple[float, bytes]], start: int) -> Iterator[tuple[float, dict[str, Any]]]:
    """The data of server-sent events from byte `start` on, each with the time when its last byte came."""
    ends = list(itertools.accumulate(len(data) for _, data in received))
    body, at, piece = b"".join(data for _, data in received), start, 0
    while (end := body.find(b"\n\n", at)) >= 0:
        event, at = body[at:end], end + 2
        while ends[piece] < at:
            piece += 1
        if event.startswith(b"data: ") and event != b"data: [DONE]":
            yield received[piece][0], json.loads(event[6:])


def _request(path: str, address: Address, key: str | None, body: Mapping[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [
        f"POST {path} HTTP/1.0",  # in which a body is not cut into chunks of another kind, and ends with the connection
        f"Host: {host}:{address.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *([] if key is None else [f"Authorization: Bearer {key}"]),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data
