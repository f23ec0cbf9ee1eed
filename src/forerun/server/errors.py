"""What goes wrong, as OpenAI's clients expect to hear it: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from forerun.core.sampling import Sampling
from forerun.errors import ForerunError, UsageError, one_line, quoted

_log = logging.getLogger("forerun.server")

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_implemented_error",
    503: "overloaded_error",
}


class ApiError(HTTPException):
    """A request that gets an error for an answer. param: the field that is to blame; code: for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, one_line(message), headers)
        self.param, self.code = param, code

    @property
    def body(self) -> dict[str, Any]:
        return body_of(self.status_code, self.detail, self.param, self.code)


def body_of(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The object that a client gets."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def api_error(error: Exception) -> ApiError:
    """What to answer to an error of the library: the user's own mistakes are 400, all others 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UsageError):
        first = str(error).partition(" ")[0]
        return ApiError(400, str(error), param=first if first in Sampling.names() else None)
    if isinstance(error, ForerunError):
        return ApiError(500, str(error), code="model_failed")
    return ApiError(500, "the server failed; its log says why.", code="internal_error")


def invalid(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """What pydantic found, the error that says most: a field that is not known by its name, a value by where it is."""
    first = min(errors, key=_vagueness)
    loc = [part for part in first["loc"] if part != "body"]
    where = [str(part) for before, part in zip(["", *loc], loc, strict=False) if not _is_member(part, before)]
    name, said = ".".join(where), str(first["msg"])
    if first["type"] == "value_error":
        return ApiError(400, f"{said.removeprefix('Value error, ')}.", param=name or None, code="invalid_value")
    if not where:
        return ApiError(
            400, "the body is not a JSON object; send one, as Content-Type: application/json.", code="invalid_body"
        )
    if first["type"] == "extra_forbidden":
        message = f"the field {quoted(name)} is not supported by this server; leave it out (docs/serving.md lists all)."
        return ApiError(400, message, param=name, code="unsupported_field")
    if first["type"] == "missing":
        return ApiError(400, f"the field {quoted(name)} is missing; add it.", param=name, code="missing_field")
    for theirs, ours in _WORDS.items():
        said = said.replace(theirs, ours)
    given = "has a wrong value" if isinstance(first.get("input"), dict | list) else f"is {quoted(first.get('input'))}"
    return ApiError(400, f"{name} {given}; {said}.", param=name, code="invalid_value")


def _vagueness(error: Mapping[str, Any]) -> tuple[bool, bool, bool, int]:
    """Of what is said of a union, the member that was meant says most: the one that fits deepest."""
    kind, where = error["type"], error["loc"]
    wrong_member = kind.endswith("_type") and isinstance(error.get("input"), dict | list)
    return where[-1:] != ("type",), kind != "extra_forbidden", wrong_member, -len(where)


def _is_member(part: object, before: object) -> bool:
    """Whether a part of a location names the member of a union, which no client has heard of."""
    return isinstance(part, str) and (part[:1].isupper() or part in _MEMBERS or "[" in part or before in _TAGGED)


_MEMBERS = frozenset({"str", "int", "float", "bool"})
# Unions whose members are told apart by `type`, which then follows in the location.
_TAGGED = frozenset({"response_format"})
_WORDS = {
    "Input should be": "it must be",
    "List should have": "the list must have",
    "Value should have": "it must have",
    "String should": "it must",
    "Input tag": "the type",
    " found using 'type'": "",
    " after validation": "",
}


def install(app: FastAPI) -> None:
    """Answer every error of an app in this form."""

    async def of_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if isinstance(error, ApiError):
            return JSONResponse(error.body, error.status_code, error.headers)
        message = {
            404: f"there is no {request.method} {request.url.path} here; /docs lists what there is.",
            405: f"{request.url.path} does not know {request.method}; /docs lists what there is.",
        }.get(error.status_code, str(error.detail))
        return JSONResponse(body_of(error.status_code, one_line(message)), error.status_code, error.headers)

    async def of_validation(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        found = invalid(error.errors())
        return JSONResponse(found.body, found.status_code)

    async def of_library(_request: Request, error: Exception) -> JSONResponse:
        found = api_error(error)
        if found.status_code >= 500:
            _log.error("a request failed", exc_info=error)
        return JSONResponse(found.body, found.status_code, found.headers)

    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(ForerunError, of_library)
    app.add_exception_handler(Exception, of_library)
