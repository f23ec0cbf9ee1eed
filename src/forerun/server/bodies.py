"""Bodies of requests: bounded in size, in time and in depth, and JSON that is Unicode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio.to_thread
import pydantic_core
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.errors import ApiError

# Bytes from which a body is parsed aside of the event loop.
_LARGE = 1 << 18


class BoundedBody:
    """Middleware that refuses bodies of more than `most` bytes, and those that take more than `seconds` to arrive."""

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self._app, self._most, self._seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            # What is left of the body is not read, so the connection cannot be used again.
            response = JSONResponse(error.body, error.status_code, {"Connection": "close"})
            await response(scope, receive, send)
            return
        if body is None:
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None where the client has gone. Raises ApiError 413 or 408."""
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if length.isdigit() and int(length) > self._most:
            raise self._too_large()
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._most:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(
                408, f"the body took more than {self._seconds:g} seconds to arrive.", code="too_slow"
            ) from None

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._most} bytes (--max-body).", code="body_too_large")


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        return parse(body) if len(body) < _LARGE else await anyio.to_thread.run_sync(parse, body)


class JsonRoute(APIRoute):
    """A route whose body is parsed by `parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle


def parse(body: bytes) -> Any:
    """JSON as data. Raises ApiError 400: not JSON, not UTF-8, half a character, numbers that are none, too deep."""
    try:
        return pydantic_core.from_json(body, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}.", code="invalid_json") from None
