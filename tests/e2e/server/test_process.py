"""`forerun serve` as a process: it starts, stops when it is told to, and starts again after the worst."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Cli

pytest.importorskip("fastapi")
TEXT = "/v1/completions"
SECRET = "sk-never-shown"


class Process:
    """A server of its own. lines: what it has written to its log."""

    def __init__(self, *options: str, home: Path) -> None:
        environment = {**os.environ, "FORERUN_HOME": str(home), "FORERUN_API_KEY": SECRET}
        command = [
            sys.executable,
            "-m",
            "forerun.cli",
            "serve",
            "--backend",
            "toy",
            "--model",
            "toy",
            "--port",
            "0",
            *options,
        ]
        self._process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: list[dict[str, Any]] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._ready.wait(60), self.lines
        port = self.lines[-1]["port"]
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {SECRET}"}, timeout=60
        )

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        status = self._process.wait(60)
        self._reader.join()
        return status

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self.client.close()
        self._process.kill()
        self.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1].get("event") == "ready":
                self._ready.set()
        self._ready.set()


@contextmanager
def process(*options: str, home: Path) -> Iterator[Process]:
    started = Process(*options, home=home)
    try:
        yield started
    finally:
        started.close()


def endless(client: httpx.Client, stream: bool = True) -> dict[str, Any]:
    """A request that takes its time: what came of it."""
    # The toy would stop by itself; a ban on its end token keeps it going, however it is drafted for.
    body = {"prompt": "the drafter", "max_tokens": 4000, "ignore_eos": True, "stream": stream, "n": 8}
    body |= {"speculation": {"enabled": False}, "logprobs": 5}
    try:
        with client.stream("POST", TEXT, json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        return {"status": answer.status_code, "last": lines[-1], "lines": lines}
    except httpx.HTTPError as error:
        return {"error": error}


def running(client: httpx.Client, count: int) -> None:
    """Wait until so many answers are being written."""
    end = time.monotonic() + 30
    while client.get("/health").json()["requests"]["running"] < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_server_stops_when_it_is_told_to(tmp_path: Path) -> None:
    with process("--shutdown-timeout", "0.5", home=tmp_path) as server:
        assert server.client.get("/v1/models").status_code == 200
        assert server.client.get("/v1/models", headers={"Authorization": "Bearer x"}).status_code == 401
        assert server.client.post(TEXT, json={"prompt": "the", "max_tokens": 5}).status_code == 200
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(endless, server.client)
            running(server.client, 8)
            server.send(signal.SIGTERM)
            told = asked.result()
        assert told["last"] == "data: [DONE]"
        assert '"finish_reason":"abort"' in told["lines"][-2]
        assert server.wait() == 0
    log = json.dumps(server.lines)
    assert server.lines[-1]["event"] == "stopped"
    assert SECRET not in log
    assert "the drafter" not in log


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with process("--shutdown-timeout", "60", home=tmp_path) as server, ThreadPoolExecutor() as threads:
        asked = threads.submit(endless, server.client)
        running(server.client, 8)
        server.send(signal.SIGINT)
        time.sleep(0.3)
        began = time.monotonic()
        server.send(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT
        assert time.monotonic() - began < 5
        assert "error" in asked.result()


def test_killed_under_load_it_starts_again_with_what_was_saved(tmp_path: Path) -> None:
    prompt = "the drafter runs ahead and the target reads what the drafter wrote"
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0}
    with process("--keep-prefixes", "8", home=tmp_path) as server:
        first = server.client.post(TEXT, json=body).json()
        assert server.client.post("/cache/save", json={"filename": "kept"}).json()["prefixes"] == 1
        with ThreadPoolExecutor() as threads:
            asked = [threads.submit(endless, server.client) for _ in range(4)]
            running(server.client, 8)
            server.send(signal.SIGKILL)
            server.wait()
            assert all("error" in one.result() for one in asked)
    with process("--keep-prefixes", "8", home=tmp_path) as server:
        assert server.client.post("/cache/load", json={"filename": "kept"}).json()["prefixes"] == 1
        again = server.client.post(TEXT, json=body).json()
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompt) - 1
        assert not list(tmp_path.rglob("*.partial"))


def test_memory_stays_flat_under_load(tmp_path: Path) -> None:
    """Eight clients for a while; half of them hang up in the middle."""
    with process("--max-batch", "4", "--keep-prefixes", "8", home=tmp_path) as server:
        end = time.monotonic() + 20
        warm = time.monotonic() + 6

        def ask(number: int) -> int:
            count = 0
            with httpx.Client(base_url=server.client.base_url, headers=server.client.headers, timeout=60) as client:
                while time.monotonic() < end:
                    count += 1
                    prompt = f"{number} {count % 50} " + "the drafter runs ahead " * (1 + count % 7)
                    body = {"prompt": prompt, "max_tokens": 60, "seed": count, "stream": True, "logprobs": 2}
                    with client.stream("POST", TEXT, json=body) as answer:
                        assert answer.status_code == 200
                        for at, _ in enumerate(answer.iter_lines()):
                            if number % 2 and at == count % 40:
                                break
            return count

        with ThreadPoolExecutor(8) as threads:
            asking = [threads.submit(ask, number) for number in range(8)]
            time.sleep(max(0.0, warm - time.monotonic()))
            before = server.memory()
            assert all(one.result() > 3 for one in asking)
        grown = server.memory() - before
        # Drafters remember texts, up to a limit; nothing else grows.
        assert grown < 40 << 20, f"{grown >> 20} MiB more"
        assert server.client.get("/health").json()["requests"]["running"] == 0


def test_what_is_wrong_on_the_command_line_is_told(cli: Cli, tmp_path: Path) -> None:
    for options, told in (
        (("--kv-memory", "lots"), "--kv-memory"),
        (("--port", "99999"), "port"),
        (("--log-format", "xml"), "log format"),
        (("--api-key-file", str(tmp_path / "none")), "cannot be read"),
        (("--cors-origin", "chat"), "chat"),
        (("--host", "203.0.113.7"), "--host"),
    ):
        ran = cli("serve", "--backend", "toy", "--model", "toy", *options)
        assert ran.status == 2, ran.err
        assert told in ran.err
