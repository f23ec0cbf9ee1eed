"""Who may ask: the names that this machine is called by, the web pages that may ask, and API keys.

A web page of another place must not reach a server on somebody's own machine. Browsers say where a page is from (`Origin`),
and under which name they found the machine (`Host`): a foreign page is refused by the one, and a name that was made to point
here (DNS rebinding) by the other. Programs that send neither are not concerned.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.server.errors import ApiError
from forerun.server.tenants import Keys, Tenant

# What may be seen without a key: whether the server is up, and pages without any secret.
_OPEN = frozenset({"/", "/health", "/docs", "/openapi.json"})
_OPEN_UNDER = "/page/"


class Guard:
    """Middleware that answers 403 to foreign names and pages. hosts: further names; origins: pages that may ask."""

    def __init__(self, app: ASGIApp, host: str, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._app = app
        self._hosts = {"localhost", host.lower(), socket.gethostname().lower(), *(name.lower() for name in hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                self._check(headers.getlist("host"), headers.get("origin"))
            except ApiError as error:
                await JSONResponse(error.body, error.status_code)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, hosts: list[str], origin: str | None) -> None:
        """Raises ApiError."""
        if len(hosts) > 1:
            raise ApiError(400, "the request has several Host headers.")
        host = hosts[0].lower() if hosts else ""
        name = _name(host)
        if host and not (self._hosts & {name, "*"} or _is_address(name) or name.endswith(".localhost")):
            raise ApiError(
                403,
                f"this server is not called {name[:80]!r}; start it with --allowed-host to allow the name.",
                code="host_not_allowed",
            )
        if origin is None or self._origins & {origin.lower().rstrip("/"), "*"}:
            return
        if host and _place(origin) == _place(f"//{host}"):
            return
        raise ApiError(
            403,
            f"pages of {origin[:80]!r} may not use this server; start it with --cors-origin to allow them.",
            code="origin_not_allowed",
        )


class KeyCheck:
    """Middleware that answers 401 where no known key is given, and notes whose request it is."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tenant = self._keys.tenant(Headers(scope=scope).get("authorization", ""))
        scope["forerun.known"] = tenant is not None
        scope["forerun.tenant"] = tenant or Tenant()
        path = scope["path"]
        if tenant is None and path not in _OPEN and not path.startswith(_OPEN_UNDER):
            error = ApiError(
                401, "the API key is missing or wrong; send it as Authorization: Bearer KEY.", code="invalid_api_key"
            )
            response = JSONResponse(error.body, error.status_code, {"WWW-Authenticate": "Bearer"})
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _place(url: str) -> tuple[str | None, int | None] | None:
    """Name and port of an address; without a port, that of its scheme does not count."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.hostname, None if port == default or (not parts.scheme and port in (80, 443)) else port
