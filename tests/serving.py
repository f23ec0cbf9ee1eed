"""A server on loopback, in a thread of the test's own process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx

from forerun.assembly import build
from forerun.config import Config
from forerun.llm import LLM
from forerun.server import Settings
from forerun.server.run import Server, listening
from forerun.text.chat import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a: {% endif %}"
)


class Client(httpx.Client):
    """What asks. server: what it asks."""

    server: Server

    @property
    def llm(self) -> LLM:
        return self.server.service.llm

    def chat(self, text: str = "the drafter", **body: Any) -> Any:
        """The answer to one message, which must be there."""
        answer = self.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}], **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def complete(self, prompt: Any = "the drafter", **body: Any) -> Any:
        """A text that goes on, which must be there."""
        answer = self.post("/v1/completions", json={"prompt": prompt, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chunks(self, path: str, **body: Any) -> list[Any]:
        """The events of a stream, which must end as it should."""
        with self.stream("POST", path, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            return events(answer.iter_lines())

    def refused(self, path: str = "/v1/chat/completions", **body: Any) -> tuple[int, dict[str, Any]]:
        """Status and error of a request that is refused."""
        if path == "/v1/chat/completions":
            body = {"messages": [{"role": "user", "content": "the drafter"}], **body}
        answer = self.post(path, json=body)
        return answer.status_code, answer.json()["error"]


def events(lines: Iterator[str]) -> list[Any]:
    """The data of server-sent events."""
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert found.pop() == "[DONE]"
    return [json.loads(one) for one in found]


@contextmanager
def serving(llm: LLM, **settings: Any) -> Iterator[Client]:
    """A server over a model, which is left open."""
    chosen = Settings(port=0, **{"shutdown_timeout": 5.0, **settings})
    server = Server(llm, chosen)
    with (
        listening(chosen) as socket,
        Client(base_url=f"http://127.0.0.1:{socket.getsockname()[1]}", timeout=60) as client,
    ):
        client.server = server
        thread = threading.Thread(target=server.run, args=([socket],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield client
        finally:
            # Clients that still wait for an answer get it, or the end that the server makes.
            server.should_exit = True
            thread.join()


def toy(*, step_s: float = 0.0, **config: Any) -> LLM:
    """The toy model, which can chat. step_s: how long it takes for a row."""
    assembly = build(Config(model="toy", backend="toy", **config))
    if step_s:
        target: Any = assembly.engine.target
        logits_of = target.logits_of

        def slow(path: tuple[int, ...]) -> Any:
            time.sleep(step_s)
            return logits_of(path)

        target.logits_of = slow
    return LLM(replace(assembly, template=ChatTemplate(assembly.tokenizer, TEMPLATE)))
