"""Answers to clients that may hang up: server-sent events, and whole answers that somebody waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

# Seconds without an event after which a comment is sent, so that nothing in between takes the connection for dead.
_QUIET = 15.0
_COMMENT = b": still here\n\n"


class EventStream(Response):
    """Server-sent events as `source` makes them. `close` is called when the client has all of them, or has gone."""

    media_type = "text/event-stream"

    def __init__(self, source: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._source, self._close = source, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await unless_gone(receive, lambda: self._send(send))
        except ClientDisconnect:
            pass
        finally:
            self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        writing = anyio.Lock()
        last = anyio.current_time()

        async def write(part: bytes) -> None:
            nonlocal last
            async with writing:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                last = anyio.current_time()

        async def keep_alive() -> None:
            while True:
                await anyio.sleep(max(0.01, last + _QUIET - anyio.current_time()))
                if anyio.current_time() - last >= _QUIET:
                    await write(_COMMENT)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_alive)
            async for part in self._source:
                await write(part)
            tasks.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """What `work` returns. When the client hangs up it is cancelled. Raises ClientDisconnect then."""
    results: list[T] = []
    failures: list[Exception] = []

    async def watch(scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        try:
            results.append(await work())
        except Exception as error:  # a task group would wrap it
            failures.append(error)
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if not results:
        raise ClientDisconnect
    return results[0]
