"""What the server writes to its log: one line for each request, as JSON or for people. No prompt, no answer and no key, unless
the operator asks for the first two (--log-requests).
"""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.errors import one_line
from forerun.server.running import Run
from forerun.server.tenants import Tenant

_log = logging.getLogger("forerun.server")
# Asked for again and again by programs that watch; their lines would hide all others.
_WATCHED = frozenset({"/health", "/metrics"})
_LONGEST_ID = 128


class RequestLog:
    """Middleware that writes a line for each request, and gives each a name (`X-Request-Id`)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        name = _name_of(Headers(scope=scope).get("x-request-id"))
        notes: dict[str, Any] = {}
        scope["forerun.notes"] = notes

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = name
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            path = scope["path"]
            tenant: Tenant = scope.get("forerun.tenant", Tenant())
            fields: dict[str, Any] = {
                "event": "request",
                "id": name,
                "method": scope["method"],
                "path": one_line(path)[:200],
                "status": status,
                "ms": round((time.perf_counter() - began) * 1e3, 1),
            }
            if tenant.name:
                fields["key"] = tenant.name
            level = logging.DEBUG if path in _WATCHED and status < 400 else logging.INFO
            _log.log(level, "%s %s %s", scope["method"], fields["path"], status, extra={"fields": fields | notes})


def note_run(request: Request, run: Run, body: BaseModel, *, texts: bool) -> None:
    """Add to a request's line what was written. texts: the prompt and the answers too."""
    completions = run.completions
    notes: dict[str, Any] = {
        "prompt_tokens": sum(one.usage.prompt_tokens for one in completions),
        "cached_tokens": sum(one.usage.cached_tokens for one in completions),
        "completion_tokens": sum(one.usage.completion_tokens for one in completions),
        "finish_reason": ",".join(sorted({one.finish_reason for one in completions})),
        "ttft_ms": round(max(one.timings.ttft_s for one in completions) * 1e3, 1),
        "tokens_per_second": round(sum(one.timings.tokens_per_second for one in completions), 1),
        "draft": completions[0].draft,
        "drafted": sum(one.stats.drafted for one in completions),
        "accepted": sum(one.stats.accepted for one in completions),
    }
    if texts:
        notes["request"] = body.model_dump(mode="json", exclude_unset=True, by_alias=True)
        notes["answers"] = [one.text for one in completions]
    request.scope["forerun.notes"] |= notes


class JsonLines(logging.Formatter):
    """A line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class Lines(logging.Formatter):
    """A line for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in getattr(record, "fields", {}).items() if key not in _SHOWN}
        more = "".join(f" {key}={json.dumps(value, ensure_ascii=True, default=str)}" for key, value in fields.items())
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{when} {record.levelname.lower()} {one_line(record.getMessage())}{more}{trace}"


_SHOWN = frozenset({"event", "method", "path", "status"})


def start(form: Literal["json", "text"], level: str = "info", loggers: Sequence[str] = ("forerun", "uvicorn")) -> None:
    """Write the log of this process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Lines())
    for name in loggers:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # Requests have lines of our own; what uvicorn says of its start is said by us.
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _name_of(given: str | None) -> str:
    usable = given is not None and given.isascii() and given.isprintable() and 0 < len(given) <= _LONGEST_ID
    return str(given) if usable else uuid.uuid4().hex
