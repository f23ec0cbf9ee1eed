"""The hub is reached through `huggingface_hub` alone: what is asked of it, and what its refusals become."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from forerun.errors import FetchError, ForerunError, ModelFileError, UnknownModelError, UnsupportedModelError
from forerun.models import pull, resolve
from forerun.models.hub import QUICK, HubReference

GGUFS = ["README.md", "model-Q4_K_M.gguf", "model-Q8_0.gguf"]
SPLIT = [GGUFS[1], *(f"sub/model-f16-0000{n}-of-00003.gguf" for n in (1, 2, 3))]
FOLDER = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin", "model.gguf"]


class FakeHub(ModuleType):
    """Stands in for the package: a folder per repository, and what was asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__("huggingface_hub")
        self.root = root
        self.repos: dict[str, list[str]] = {}
        self.local: dict[str, list[str]] = {}
        self.fails: Exception | None = None
        self.calls: list[tuple[str, bool]] = []

    def HfApi(self) -> FakeHub:  # noqa: N802
        return self

    def model_info(self, repo: str, revision: str | None, timeout: float) -> SimpleNamespace:
        self.calls.append(("list", False))
        assert timeout == QUICK
        if self.fails:
            raise self.fails
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.repos[repo]])

    def _have(self, repo: str, local_files_only: bool) -> list[str]:
        if self.fails and not local_files_only:
            raise self.fails
        if repo not in self.local and local_files_only:
            raise refusal("LocalEntryNotFoundError")
        return self.local[repo] if local_files_only else self.repos[repo]

    def hf_hub_download(self, repo: str, file: str, revision: str | None, local_files_only: bool) -> str:
        self.calls.append((f"file {file}@{revision}", local_files_only))
        assert file in self._have(repo, local_files_only)
        return str(self.root / file)

    def snapshot_download(
        self, repo: str, revision: str | None, local_files_only: bool = False, allow_patterns: list[str] | None = None
    ) -> str:
        files = self._have(repo, local_files_only)
        taken = [name for name in files if any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns or ["*"])]
        self.calls.append((f"folder {' '.join(taken)}@{revision}", local_files_only))
        folder = self.root / "snapshot"
        folder.mkdir(exist_ok=True)
        for name in taken:
            (folder / name).touch()
        return str(folder)


def refusal(kind: str, base: type[Exception] = Exception, said: str = "refused\nwith details") -> Exception:
    error: Exception = type(kind, (base,), {})(said)
    return error


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.chdir(tmp_path)
    return fake


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("org/name", HubReference("org/name")),
        ("Org-1/na.me_2", HubReference("Org-1/na.me_2")),
        ("org/name:x.gguf", HubReference("org/name", None, "x.gguf")),
        ("org/name:sub/x.gguf", HubReference("org/name", None, "sub/x.gguf")),
        ("org/name@v1:Q4", HubReference("org/name", "v1", "Q4")),
        ("org/name@refs/pr/1", HubReference("org/name", "refs/pr/1")),
        ("name", None),
        ("org/", None),
        ("/org/name", None),
        ("org/name:", None),
        ("a/b/c", None),
        ("../name", None),
    ],
)
def test_references(text: str, reference: HubReference | None) -> None:
    assert HubReference.parse(text) == reference


def test_one_gguf_needs_no_name(hub: FakeHub) -> None:
    hub.repos["org/name"] = ["README.md", "only.gguf"]
    assert resolve("org/name") == hub.root / "only.gguf"
    assert hub.calls == [("list", False), ("file only.gguf@None", False)]
    assert pull("org/name") == hub.root / "only.gguf"


@pytest.mark.parametrize("wanted", ["model-Q8_0.gguf", "q8_0", "Q8"])
def test_a_gguf_by_name_or_part_of_it(hub: FakeHub, wanted: str) -> None:
    hub.repos["org/name"] = GGUFS
    assert resolve(f"org/name@main:{wanted}") == hub.root / "model-Q8_0.gguf"
    assert hub.calls[-1] == ("file model-Q8_0.gguf@main", False)


@pytest.mark.parametrize("wanted", ["f16", "sub/model-f16-00001-of-00003.gguf", "sub/model-f16-00002-of-00003.gguf"])
def test_all_parts_of_a_split_gguf_are_fetched(hub: FakeHub, wanted: str) -> None:
    hub.repos["org/name"] = SPLIT
    assert resolve(f"org/name:{wanted}") == hub.root / SPLIT[1]
    assert [call for call, _ in hub.calls[1:]] == [f"file {name}@None" for name in SPLIT[1:]]


def test_a_split_gguf_that_is_alone_needs_no_name(hub: FakeHub) -> None:
    hub.repos["org/name"] = SPLIT[1:]
    assert resolve("org/name") == hub.root / SPLIT[1]


def test_exact_name_wins_over_a_longer_one(hub: FakeHub) -> None:
    hub.repos["org/name"] = ["model.gguf", "big-model.gguf"]
    assert resolve("org/name:model.gguf") == hub.root / "model.gguf"


def test_folder_of_safetensors_without_the_other_formats(hub: FakeHub) -> None:
    hub.repos["org/name"] = FOLDER
    assert resolve("org/name") == hub.root / "snapshot"
    assert hub.calls[-1] == ("folder config.json model.safetensors tokenizer.json@None", False)
    assert resolve("org/name:model.gguf") == hub.root / "model.gguf"


@pytest.mark.parametrize(
    ("name", "files", "kind", "said"),
    [
        ("org/name", GGUFS, ModelFileError, "there are several GGUF files; name one as org/name:FILE, of model-Q4"),
        ("org/name:model", GGUFS, ModelFileError, "several GGUF files match 'model'"),
        ("org/name:Q5", GGUFS, ModelFileError, "no GGUF file matches 'Q5'"),
        ("org/name", SPLIT, ModelFileError, "of model-Q4_K_M.gguf, sub/model-f16-00001-of-00003.gguf"),
        ("org/name:f16", SPLIT[:-1], ModelFileError, "sub/model-f16-00003-of-00003.gguf is missing, a part of"),
        (
            "org/name",
            ["pytorch_model.bin", "config.json"],
            UnsupportedModelError,
            "neither a GGUF file nor safetensors",
        ),
        ("org/name:x.gguf", ["model.safetensors", "config.json"], UnsupportedModelError, "neither a GGUF file nor"),
    ],
)
def test_nothing_to_take(hub: FakeHub, name: str, files: list[str], kind: type[ForerunError], said: str) -> None:
    hub.repos["org/name"] = files
    with pytest.raises(kind) as caught:
        resolve(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_pulling_only_local_files_are_asked_for(hub: FakeHub) -> None:
    with pytest.raises(ModelFileError, match=r"org/name is not on this machine; run `forerun pull org/name`"):
        resolve("org/name", pull=False)
    hub.local["org/name"] = ["only.gguf"]
    assert resolve("org/name", pull=False) == hub.root / "only.gguf"
    assert all(local for _, local in hub.calls)


def test_without_a_network_what_was_fetched_still_works(hub: FakeHub) -> None:
    hub.fails = ConnectionError("no route to host")
    with pytest.raises(FetchError, match=r"cannot fetch org/name from the hub: no route to host; check the network"):
        resolve("org/name")
    hub.local["org/name"] = FOLDER
    hub.hf_hub_download = lambda *args, **kwargs: str(hub.root / "kept.gguf")  # type: ignore[method-assign]
    assert resolve("org/name:model.gguf") == hub.root / "kept.gguf"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (refusal("RepositoryNotFoundError"), UnknownModelError, "no model 'org/name'"),
        (refusal("GatedRepoError", type("RepositoryNotFoundError", (Exception,), {})), UnknownModelError, "is gated"),
        (refusal("RevisionNotFoundError"), UnknownModelError, "no revision 'v9'"),
        (refusal("HFValidationError", ValueError), UnknownModelError, "no model 'org/name'"),
        (refusal("HfHubHTTPError"), FetchError, "from the hub: refused; check"),
        (refusal("SomethingNew", said=""), FetchError, "from the hub: SomethingNew; check"),
    ],
)
def test_refusals(hub: FakeHub, error: Exception, kind: type[ForerunError], said: str) -> None:
    hub.fails = error
    with pytest.raises(kind) as caught:
        resolve("org/name@v9")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FetchError, match=r'no file or folder org/name here.*pip install "forerun\[hub\]"'):
        resolve("org/name")


def test_a_refusal_is_not_covered_up_by_what_is_here(hub: FakeHub) -> None:
    hub.local["org/name"] = ["only.gguf"]
    hub.fails = refusal("RepositoryNotFoundError")
    hub.hf_hub_download = lambda *args, **kwargs: str(hub.root / "kept.gguf")  # type: ignore[method-assign]
    with pytest.raises(UnknownModelError):
        resolve("org/name")


@pytest.mark.parametrize("fails", [ConnectionError("no route to host"), refusal("RepositoryNotFoundError"), None])
def test_a_mistyped_path_is_said_to_be_one(
    hub: FakeHub, fails: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hub.root / "models" / "qwen2.5").mkdir(parents=True)
    hub.fails = fails
    if fails is None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises((FetchError, UnknownModelError)) as caught:
        resolve("models/qwen25")
    said = str(caught.value)
    assert said.startswith(
        "there is a folder models here, but no qwen25 in it (did you mean models/qwen2.5?); as a repo"
    )
    assert "\n" not in said
    with pytest.raises((FetchError, UnknownModelError)) as caught:
        resolve("other/qwen25")
    assert "there is a folder" not in str(caught.value)


def test_no_network_is_known_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package asks once, and nothing is tried again."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    refused: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            refused.append(self.path)
            self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            environment = os.environ | {
                "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
                "HF_HOME": str(tmp_path / "hf"),
                "HF_HUB_OFFLINE": "0",
            }
            run = subprocess.run(
                [sys.executable, "-c", ASK], capture_output=True, text=True, env=environment, check=False
            )
        finally:
            server.shutdown()
            thread.join()
    assert run.stdout.startswith("FetchError: cannot fetch org/name from the hub: "), run.stderr
    assert run.stdout.count("\n") == 1
    assert [path for path in refused if path.startswith("/api/models/")] == ["/api/models/org/name"]


ASK = """
from forerun.errors import ForerunError
from forerun.models import resolve
try:
    resolve("org/name")
except ForerunError as error:
    print(f"{type(error).__name__}: {error}")
"""

WEIGHTS = b"GGUF" + bytes(range(256)) * 100
COMMIT = "a" * 40


class LoopbackHub(BaseHTTPRequestHandler):
    """As much of the hub's API as the real package needs to list and fetch `org/name`."""

    files = {"model.gguf": WEIGHTS, "README.md": b"hello"}  # noqa: RUF012

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/name/tree/"):
            listing = [{"type": "file", "path": n, "size": len(d), "oid": "0" * 40} for n, d in self.files.items()]
            return self.reply(json.dumps(listing).encode())
        if path.startswith("/api/models/org/name"):
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data),
                    "blobId": "0" * 40,
                    "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100},
                }
                for name, data in self.files.items()
            ]
            told = {"id": "org/name", "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
            return self.reply(json.dumps(told).encode())
        name = path.rpartition("/")[2]
        if path.startswith("/org/name/resolve/") and name in self.files:
            return self.reply(self.files[name])
        return self.reply(b"", 404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def reply(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        told: dict[str, Any] = {
            "Content-Length": len(body),
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{hashlib.sha256(body).hexdigest()}"',
        }
        for name, value in (told | (headers or {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), LoopbackHub) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


REAL = """
from forerun.errors import ForerunError
from forerun.models import resolve
for name, pull in [("org/name", False), ("org/name:GGUF", True), ("org/name", False), ("org/other", True)]:
    try:
        print(resolve(name, pull=pull).read_bytes()[:4].decode())
    except ForerunError as error:
        print(type(error).__name__)
"""


def test_the_real_package(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    run = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["ModelFileError", "GGUF", "GGUF", "UnknownModelError"], run.stderr


SAME = """
import sys
from pathlib import Path
from forerun.models.hub import fetch_same
from forerun.models.progress import QuietProgress
for digest in sys.argv[2:]:
    print(fetch_same("org/name", digest, Path(sys.argv[1]), QuietProgress()))
"""


def test_the_real_package_finds_a_file_by_its_digest(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    digests = hashlib.sha256(WEIGHTS).hexdigest(), "0" * 64
    asked = [sys.executable, "-c", SAME, str(tmp_path / "f"), *digests]
    run = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert run.stdout.split() == [str(tmp_path / "f" / "model.gguf"), "None"], run.stderr
    assert (tmp_path / "f" / "model.gguf").read_bytes() == WEIGHTS
