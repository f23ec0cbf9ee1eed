"""Who may ask: foreign pages, rebound names and wrong keys are refused, everybody else is not."""

from __future__ import annotations

import httpx
import pytest

from forerun.llm import LLM
from forerun.server.tenants import Key
from tests.serving import Client, serving


def status(client: httpx.Client, path: str = "/v1/models", **headers: str) -> int:
    return client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()}).status_code


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "localhost", "LOCALHOST:99", "[::1]:8000", "192.168.1.7", "a.localhost"]
)
def test_names_of_this_machine(client: Client, host: str) -> None:
    assert status(client, host=host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_rebound_name_is_refused(client: Client, host: str) -> None:
    answer = client.get("/v1/models", headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"


def test_a_page_of_this_server_may_ask_and_a_foreign_one_not(client: Client) -> None:
    own = str(client.base_url).rstrip("/")
    assert status(client, origin=own) == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1", "nonsense", "http://[::1"):
        assert status(client, origin=origin) == 403, origin
    answer = client.post("/v1/completions", json={"prompt": "x"}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_operators_allow_names_and_pages(llm: LLM) -> None:
    with serving(llm, allowed_hosts=("chat.example",), cors_origins=("https://page.example",)) as client:
        assert status(client, host="chat.example:443") == 200
        assert status(client, host="chat.example", origin="https://chat.example") == 200
        assert status(client, host="evil.example") == 403
        assert status(client, origin="https://evil.example") == 403
        answer = client.get("/v1/models", headers={"Origin": "https://page.example"})
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
        asked |= {"Access-Control-Request-Headers": "authorization,content-type"}
        assert client.options("/v1/completions", headers=asked).status_code == 200
    with serving(llm, allowed_hosts=("*",), cors_origins=("*",)) as client:
        assert status(client, host="any.example", origin="https://other.example") == 200


def test_keys_are_asked_for_and_never_shown(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with serving(llm, keys=(Key.of("sk-secret", "anna"), Key.of("sk-other", "ben"))) as client:
        for wrong in ("", "Bearer sk-wrong", "sk-secret", "Basic sk-secret"):
            answer = client.get("/v1/models", headers={"Authorization": wrong} if wrong else {})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 401
        assert client.get("/metrics").status_code == 401
        # Whether it is up, anybody may know; what it is, not.
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/docs").status_code == 200
        client.headers["Authorization"] = "Bearer sk-secret"
        assert status(client) == 200
        assert client.get("/health").json()["model"] == "toy"
        client.complete(max_tokens=2)
    assert "anna" in str([getattr(record, "fields", "") for record in caplog.records])
    told = caplog.text + str([record.__dict__ for record in caplog.records])
    assert "sk-secret" not in told
    assert "sk-wrong" not in told
