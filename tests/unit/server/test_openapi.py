"""The description of the server, tried out: whatever fits it, and what does not, gets an answer that it describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving import Client, serving, toy

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

_ENDPOINTS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("POST", "/cache/save"),
    ("POST", "/cache/load"),
]
_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    patch = pytest.MonkeyPatch()
    patch.setenv("FORERUN_HOME", str(tmp_path_factory.mktemp("home")))
    with toy(keep_prefixes=4) as llm, serving(llm, max_tokens_per_request=6) as client:
        yield client
    patch.undo()


_VALID, _INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
_CASES = [(*endpoint, _VALID) for endpoint in _ENDPOINTS]
# Without a body there is nothing to make invalid.
_CASES += [(method, path, _INVALID) for method, path in _ENDPOINTS if method == "POST"]


@pytest.mark.parametrize(("method", "path", "mode"), _CASES)
def test_every_answer_is_described(strict: Client, method: str, path: str, mode: Any) -> None:
    statuses: set[int] = set()
    schema = schemathesis.openapi.from_url(f"{strict.base_url}/openapi.json")

    @settings(
        max_examples=30,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        if mode is _VALID and isinstance(case.body, dict):
            # Values that fit the description and hardly ever the server.
            for name in ("model", "max_tokens", "max_completion_tokens", "suffix"):
                case.body.pop(name, None)
        answer = case.call()
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=_CHECKS)

    one()
    # And what is valid is not refused every time.
    assert mode is _INVALID or "{" in path or 200 in statuses
