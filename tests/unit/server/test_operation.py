"""Stopping, logs, pages, and the description of it all."""

from __future__ import annotations

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from forerun.llm import LLM
from forerun.server.logs import JsonLines, Lines
from tests.serving import Client, serving, toy
from tests.unit.server.test_scheduling import until

TEXT = "/v1/completions"


def test_running_requests_finish_and_new_ones_are_refused() -> None:
    with toy(step_s=0.002) as llm, ThreadPoolExecutor() as threads:
        with serving(llm, shutdown_timeout=30) as client:
            running = threads.submit(client.complete, "the", max_tokens=100, ignore_eos=True)
            until(lambda: bool(llm.assembly.engine.scheduler.live))
            client.server.service.stop()
            answer = client.post(TEXT, json={"prompt": "x"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
            assert client.get("/health").json()["status"] == "stopping"
        assert running.result()["usage"]["completion_tokens"] == 100


@pytest.mark.parametrize("stream", [True, False])
def test_what_does_not_finish_in_time_ends_with_a_reason(stream: bool) -> None:
    with toy(step_s=0.002, max_sequences=1) as llm, ThreadPoolExecutor() as threads:
        with serving(llm, shutdown_timeout=0.2) as client:
            asked: dict[str, Any] = {"prompt": "the", "max_tokens": 4000, "ignore_eos": True}
            ask: Any = (lambda: client.chunks(TEXT, **asked)) if stream else (lambda: client.complete(**asked))
            running = threads.submit(ask)
            until(lambda: bool(llm.assembly.engine.scheduler.live))
        told = running.result()
        last = (told[-1] if stream else told)["choices"][0]
        assert last["finish_reason"] == "abort"
        if not stream:
            assert last["text"]


def test_a_request_has_one_line_without_its_texts(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "forerun.server")
    with serving(llm) as client:
        client.post(TEXT, json={"prompt": "a secret", "max_tokens": 3}, headers={"X-Request-Id": "mine"})
        answer = client.get("/v1/models", headers={"X-Request-Id": "two\twords"})
        client.get("/health")
    noted: list[dict[str, Any]] = [getattr(record, "fields", {}) for record in caplog.records]
    lines = [fields for fields in noted if fields.get("event") == "request"]
    assert [line["path"] for line in lines] == [TEXT, "/v1/models"]
    assert lines[0]["id"] == "mine"
    assert lines[0]["completion_tokens"] == 3
    assert answer.headers["x-request-id"] not in ("", "two\twords")
    assert "a secret" not in str([record.__dict__ for record in caplog.records])
    caplog.clear()
    with serving(llm, log_requests=True) as client:
        client.complete("a secret", max_tokens=3)
        client.chunks(TEXT, prompt="another secret", max_tokens=3)
    told = str([getattr(record, "fields", "") for record in caplog.records])
    assert "'a secret'" in told
    assert "'another secret'" in told


def test_lines_of_the_log() -> None:
    record = logging.LogRecord("forerun", logging.WARNING, "", 0, "said\n%s", ("so",), None)
    record.fields = {"event": "request", "ms": 3, "prompt": "a\nb\x1b"}
    line = JsonLines().format(record)
    assert json.loads(line)["message"] == "said\nso"
    assert json.loads(line)["ms"] == 3
    assert "\n" not in line
    shown = Lines().format(record)
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert shown.endswith('warning said so ms=3 prompt="a\\nb\\u001b"')


def test_a_failure_is_an_error_that_says_so(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("a bug with /secret/paths")

    with serving(llm) as client:
        monkeypatch.setattr("forerun.server.routes.completions.text_choices", broken)
        answer = client.post(TEXT, json={"prompt": "x"})
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "secret" not in answer.text
        assert client.server.service.turns.running == client.server.service.turns.waiting == 0


def test_a_model_that_fails_is_told_to_whoever_asked() -> None:
    with toy() as llm, serving(llm) as client:
        target: Any = llm.assembly.engine.target
        logits_of, alone = target.logits_of, threading.Event()

        def nan(path: tuple[int, ...]) -> Any:
            if path[-1] == ord("!"):
                alone.set()
                return logits_of(path) * float("nan")
            return logits_of(path)

        target.logits_of = nan
        with ThreadPoolExecutor() as threads:
            beside = threads.submit(client.complete, "the drafter", max_tokens=60, temperature=0)
            answer = client.post(TEXT, json={"prompt": "what!", "max_tokens": 5})
            assert answer.status_code == 500
            assert "not finite" in answer.json()["error"]["message"]
            with client.stream("POST", TEXT, json={"prompt": "what!", "max_tokens": 5, "stream": True}) as stream:
                lines = [line for line in stream.iter_lines() if line]
            assert "not finite" in json.loads(lines[0].removeprefix("data: "))["error"]["message"]
            assert lines[-1] == "data: [DONE]"
            assert beside.result()["usage"]["completion_tokens"] > 0


def test_the_pages_need_nothing_from_outside(client: Client) -> None:
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "http://" not in page.text.replace("http://127.0.0.1", "")
        assert "https://" not in page.text


def test_the_description_names_every_endpoint(client: Client) -> None:
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/models/{model}",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/health",
        "/metrics",
        "/cache/save",
        "/cache/load",
    }
    assert "HTTPValidationError" not in described["components"]["schemas"]
    chat = described["components"]["schemas"]["ChatRequest"]["properties"]
    assert chat["seed"]["description"].startswith("The same seed")


def test_a_quiet_stream_says_that_it_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.server.streaming._QUIET", 0.05)
    with toy(step_s=0.1) as llm, serving(llm) as client:
        body = {"prompt": "x", "max_tokens": 3, "stream": True, "speculation": {"enabled": False}}
        with client.stream("POST", TEXT, json=body) as stream:
            lines = list(stream.iter_lines())
        assert ": still here" in lines
        assert lines[-2] == "data: [DONE]"


def test_connections_are_kept_between_requests(client: Client) -> None:
    with httpx.Client(base_url=client.base_url) as other:
        for _ in range(3):
            assert other.get("/health").status_code == 200
            time.sleep(0.01)
