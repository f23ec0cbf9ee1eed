"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from forerun.server.bodies import JsonRoute
from forerun.server.chat import ChatWriter
from forerun.server.completions import TextWriter
from forerun.server.errors import ApiError
from forerun.server.logs import note_run
from forerun.server.prompts import chat_choices, text_choices
from forerun.server.running import Run
from forerun.server.schema.answers import ChatCompletion, TextCompletion
from forerun.server.schema.asking import Asking
from forerun.server.schema.chat import ChatRequest
from forerun.server.schema.completions import CompletionRequest
from forerun.server.schema.operation import ERRORS
from forerun.server.service import service_of, tenant_of
from forerun.server.streaming import EventStream, unless_gone
from forerun.server.writing import Writer

router = APIRouter(route_class=JsonRoute, tags=["Completions"])

# A client that has gone hears no status; the log shows what nginx calls it.
_GONE = 499


def _answers(model: type) -> dict[int | str, dict[str, Any]]:
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    return {**ERRORS, 200: {"model": model, "description": "The answer; with `stream`, its chunks.", "content": stream}}


@router.post("/v1/chat/completions", response_model=None, responses=_answers(ChatCompletion))
async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    service.check_name(body.model)
    tenant = tenant_of(request)
    run = await service.start(tenant, body.n or 1, lambda llm, limits: chat_choices(llm, body, limits))
    return await _answered(request, run, body, ChatWriter(run, body, service.assembly))


@router.post("/v1/completions", response_model=None, responses=_answers(TextCompletion))
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Go on with a text."""
    service = service_of(request)
    service.check_name(body.model)
    tenant, count = tenant_of(request), _prompts(body) * (body.n or 1)
    run = await service.start(tenant, count, lambda llm, limits: text_choices(llm, body, limits))
    return await _answered(request, run, body, TextWriter(run, body, service.assembly))


def _prompts(body: CompletionRequest) -> int:
    """How many prompts a body has. Raises ApiError for more choices than one request may have."""
    several = isinstance(body.prompt, list) and not isinstance(body.prompt[0], int)
    count = len(body.prompt) if several else 1
    if count * (body.n or 1) > _MOST_CHOICES:
        raise ApiError(
            400,
            f"{count} prompts with n = {body.n or 1} are more than {_MOST_CHOICES} answers; ask in parts.",
            param="prompt",
        )
    return count


_MOST_CHOICES = 512


async def _answered(request: Request, run: Run, body: Asking, writer: Writer) -> Response:
    """The response, as a stream or whole; either way the run ends when the client hangs up."""

    def close() -> None:
        run.close()
        note_run(request, run, body, texts=service_of(request).settings.log_requests)

    if body.stream:
        return EventStream(writer.stream(), close)
    try:
        return JSONResponse(await unless_gone(request.receive, writer.whole))
    except ClientDisconnect:
        return Response(status_code=_GONE)
    finally:
        close()
