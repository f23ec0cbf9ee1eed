"""The app: endpoints, and what stands before all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from forerun.server import errors
from forerun.server.bodies import BoundedBody
from forerun.server.errors import ApiError
from forerun.server.guard import Guard, KeyCheck
from forerun.server.logs import RequestLog
from forerun.server.pages import FOLDER, Pages
from forerun.server.routes import completions, missing, operation, texts
from forerun.server.service import Service
from forerun.server.settings import Settings

if TYPE_CHECKING:
    from forerun.llm import LLM

_HERE = Path(__file__).parent
_ABOUT = """Language models that answer faster and still say the same thing: OpenAI's API, with speculation that each request
can steer (`speculation`) and that every answer reports on (`metrics`, `timings`, `speculation`)."""


def create_app(llm: LLM, settings: Settings | None = None) -> FastAPI:
    """An ASGI app over a loaded model. Closing the model is the caller's business. `app.state.service` is what it runs on."""
    from forerun import __version__

    settings = settings or Settings()
    service = Service(llm, settings)
    app = FastAPI(
        title="forerun",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        middleware=_middleware(service),
        strict_content_type=False,
    )
    app.state.service = service
    errors.install(app)
    for part in (completions, texts, operation):
        app.include_router(part.router)
    app.add_api_route("/docs", _docs, include_in_schema=False)
    pages = Pages(directory=FOLDER)
    app.add_route("/", pages.index, include_in_schema=False)
    app.mount("/page", pages)
    app.include_router(missing.router)
    return app


def _middleware(service: Service) -> list[Middleware]:
    """From the outside in: the log, who may ask from where, browsers' questions, keys, and how large a body may be."""
    settings = service.settings
    layers = [Middleware(RequestLog)]
    hosts, origins = settings.allowed_hosts, settings.cors_origins
    layers.append(Middleware(Guard, host=settings.host, hosts=hosts, origins=origins))
    if settings.cors_origins:
        cors: dict[str, Any] = {"allow_origins": settings.cors_origins, "allow_methods": ["GET", "POST"]}
        headers = ["Authorization", "Content-Type", "X-Request-Id"]
        layers.append(Middleware(CORSMiddleware, **cors, allow_headers=headers, expose_headers=["X-Request-Id"]))
    layers.append(Middleware(KeyCheck, keys=service.keys))
    layers.append(Middleware(BoundedBody, most=settings.max_body, seconds=settings.body_timeout))
    return layers


def _docs(_request: Request) -> FileResponse:
    """The description of all endpoints, as a page."""
    path = _HERE / "docs.html"
    if not path.is_file():
        raise ApiError(404, "the page is missing from this installation; /openapi.json has the same.")
    return FileResponse(path)
