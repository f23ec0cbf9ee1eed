"""The page at `/`: files as they are in the folder `page`, under a policy that lets them load nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parent / "page"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Files of two versions do not go together, so a browser asks each time whether they have changed.
    "Cache-Control": "no-cache",
}


class Pages(StaticFiles):
    """The files of the page."""

    async def index(self, request: Request) -> Response:
        """The page itself."""
        return await self.get_response("index.html", request.scope)

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers.update(_HEADERS)
        return response
