"""/v1/models, /health, /metrics and the cache: for whoever runs the server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from forerun.server import prefixes
from forerun.server.bodies import JsonRoute
from forerun.server.errors import ApiError
from forerun.server.health import health, status_of
from forerun.server.schema.operation import ERRORS, CacheReport, CacheRequest, Health, ModelCard, ModelList
from forerun.server.service import Service, service_of, tenant_of

router = APIRouter(route_class=JsonRoute, tags=["Operation"], responses=ERRORS)


@router.get("/v1/models", response_model=None, responses={200: {"model": ModelList}})
async def list_models(request: Request) -> dict[str, Any]:
    """The model, under each of its names."""
    service = service_of(request)
    return {"object": "list", "data": [_card(service, name) for name in service.names]}


@router.get("/v1/models/{model:path}", response_model=None, responses={200: {"model": ModelCard}})
async def retrieve_model(model: str, request: Request) -> dict[str, Any]:
    """The model under one name."""
    service = service_of(request)
    service.check_name(model)
    return _card(service, model)


@router.get("/health", response_model=None, responses={200: {"model": Health}, 503: {"model": Health}})
async def show_health(request: Request) -> JSONResponse:
    """What runs, and how it is doing. 503 where it makes no progress, or stops. Without an API key, the status alone."""
    service = service_of(request)
    status = status_of(service)
    told = health(service) if request.scope["forerun.known"] else {"status": status}
    return JSONResponse(told, 200 if status == "ok" else 503)


@router.get("/metrics", response_model=None, responses={200: {"content": {"text/plain": {}}}})
async def show_metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(service_of(request).metrics.expose(), media_type=CONTENT_TYPE_LATEST)


@router.post("/cache/save", response_model=None, responses={200: {"model": CacheReport}})
async def save_cache(body: CacheRequest, request: Request) -> dict[str, Any]:
    """Write the prefixes that are kept for this key to a file of the server's."""
    service, memory = service_of(request), tenant_of(request).memory
    path = prefixes.file_of(body.filename, memory)
    told = await service.aside(lambda: prefixes.save(service.llm, path, memory), files=True)
    return {"filename": body.filename, **told}


@router.post("/cache/load", response_model=None, responses={200: {"model": CacheReport}})
async def load_cache(body: CacheRequest, request: Request) -> dict[str, Any]:
    """Keep the prefixes of such a file again. Raises 404, or 409 for a file of another model."""
    service, memory = service_of(request), tenant_of(request).memory
    if service.stopping:
        raise ApiError(503, "the server is shutting down; ask another one, or later.")
    path = prefixes.file_of(body.filename, memory)
    told = await service.aside(lambda: prefixes.load(service.llm, path, memory), files=True)
    return {"filename": body.filename, **told}


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "forerun",
        "max_model_len": service.assembly.engine.context,
    }
