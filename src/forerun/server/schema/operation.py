"""What the endpoints for operators take and tell: errors, models, health, the cache."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from forerun.server.schema.base import Strict, Told


class ErrorDetail(Told):
    message: str
    """What happened, why, and what to do, in one line."""
    type: str
    param: str | None
    """The field that is to blame."""
    code: str | None


class Error(Told):
    error: ErrorDetail


class ModelCard(Told):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Told):
    object: Literal["list"]
    data: list[ModelCard]


class Health(Told):
    status: Literal["ok", "stalled", "stopping"]
    """`stalled`: a step has taken longer than the server was told to wait (--stall-timeout)."""
    limitations: list[str] | None = None
    """Everything that is not as one might expect, in words."""


class CacheRequest(Strict):
    filename: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """The name of a file in the server's own folder, without any path."""


class CacheReport(Told):
    filename: str
    prefixes: int
    tokens: int
    bytes: int


# The answers that any endpoint may give.
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "The request is wrong, or is not allowed."},
    "5XX": {"model": Error, "description": "The server is busy, stops, or failed."},
}
