"""Keys: one tenant's text is in no other's drafts, and starts no other's prompts; saved prefixes belong to whoever saved."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.llm import LLM
from forerun.server.tenants import Key
from tests.serving import Client, serving, toy

KEYS = (Key.of("sk-a", "anna"), Key.of("sk-b", "ben"))
TEXT = "zebras zigzag through quartz and jazz, zebras zigzag"


def as_key(client: Client, secret: str) -> Client:
    client.headers["Authorization"] = f"Bearer {secret}"
    return client


def ask(client: Client, prompt: str = TEXT) -> Any:
    """A text that ends with one of its own words over and over, so that its drafts are its own."""
    bias = {str(ord(char)): 20.0 for char in set("zebra gqut")}
    return client.complete(prompt, max_tokens=40, temperature=0, logit_bias=bias, speculation={"trace": True})


@pytest.mark.parametrize("share", [False, True])
def test_drafts_and_prefixes_stay_with_their_key(share: bool) -> None:
    with (
        toy(draft="suffix+recycling", keep_prefixes=8) as llm,
        serving(llm, keys=KEYS, share_memory=share) as client,
    ):
        first = ask(as_key(client, "sk-a"))
        theirs = ask(as_key(client, "sk-b"))
        own = ask(as_key(client, "sk-a"))
        assert theirs["choices"] == own["choices"] == first["choices"]
        cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, theirs, own)]
        assert cached[0] == 0
        assert cached[2] >= len(TEXT) - 1
        assert (cached[1] > 0) == share
        steps = [len(one["speculation"]["steps"]) for one in (first, theirs, own)]
        assert steps[2] < steps[0]
        assert (steps[1] == steps[0]) != share
        matrices = llm.assembly.engine.speculator.methods["suffix+recycling"].cheap.parts[1]  # type: ignore[union-attr]
        assert (len(matrices.shared.matrix) == 0) != share


def test_a_key_saves_and_loads_what_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    with toy(keep_prefixes=8) as llm, serving(llm, keys=KEYS) as client:
        ask(as_key(client, "sk-a"))
        ask(as_key(client, "sk-b"), "something else that ben has asked for")
        saved = as_key(client, "sk-a").post("/cache/save", json={"filename": "mine"}).json()
        assert saved["prefixes"] == 1
        assert saved["bytes"] > 0
        assert as_key(client, "sk-b").post("/cache/load", json={"filename": "mine"}).status_code == 404
    with toy(keep_prefixes=8) as llm, serving(llm, keys=KEYS) as client:
        assert as_key(client, "sk-a").post("/cache/load", json={"filename": "mine"}).json()["tokens"] == saved["tokens"]
        assert ask(client)["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(TEXT) - 1
        assert ask(as_key(client, "sk-b"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 200, "a\\b", "a\0b"])
def test_names_of_files_are_names(client: Client, name: str) -> None:
    for path in ("/cache/save", "/cache/load"):
        assert client.refused(path, filename=name)[1]["param"] == "filename"


def test_clients_cannot_fill_the_disk_with_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    with toy(keep_prefixes=8) as llm, serving(llm) as client:
        for number in range(16):
            assert client.post("/cache/save", json={"filename": f"x{number}"}).status_code == 200
        assert client.refused("/cache/save", filename="more")[0] == 409
        assert client.post("/cache/save", json={"filename": "x3"}).status_code == 200


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LLM, Client, Path]]:
    """A server that has saved its prefixes as x, and the file."""
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    with toy(keep_prefixes=8) as llm, serving(llm) as client:
        ask(client)
        assert client.post("/cache/save", json={"filename": "x"}).status_code == 200
        [path] = (tmp_path / "prefixes" / "shared").iterdir()
        yield llm, client, path


def test_what_is_no_file_is_not_written_over(saved: tuple[LLM, Client, Path]) -> None:
    _, client, path = saved
    path.unlink()
    path.mkdir()
    status, error = client.refused("/cache/save", filename="x")
    assert (status, error["code"]) == (409, "not_a_file")
    assert path.is_dir()


def _hostile() -> list[bytes]:
    """Files whose parts are as `save` names them, and what is in them is not."""
    shape = b"{'descr': '|u1', 'fortran_order': False, 'shape': (999999999999999,), }".ljust(117) + b"\n"
    deep = io.BytesIO()
    np.save(deep, np.frombuffer(b"[" * 100_000, dtype=np.uint8))
    made = []
    for head in (deep.getvalue(), b"\x93NUMPY\x01\x00\x76\x00" + shape, b"\x00" * 1000):
        for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", kind) as archive:
                archive.writestr("head.npy", head)
            made.append(file.getvalue())
    # What was packed is no packed data any more.
    made.append(made[1].replace(made[1][40:60], b"\xff" * 20))
    return made


def test_files_of_other_models_and_damaged_ones(saved: tuple[LLM, Client, Path]) -> None:
    llm, client, path = saved
    whole = path.read_bytes()
    for damaged in (b"", b"PK\x03\x04", whole[: len(whole) // 2], *_hostile()):
        path.write_bytes(damaged)
        status, error = client.refused("/cache/load", filename="x")
        assert (status, error["code"]) == (409, "damaged")
    path.unlink()
    os.mkfifo(path)
    status, error = client.refused("/cache/load", filename="x")
    assert (status, error["code"]) == (409, "damaged")
    path.unlink()
    path.write_bytes(whole)
    object.__setattr__(llm.assembly, "fingerprint", "another")
    status, error = client.refused("/cache/load", filename="x")
    assert (status, error["code"]) == (409, "other_model")
    with toy(keep_prefixes=0) as llm, serving(llm) as client:
        assert client.refused("/cache/save", filename="x")[0] == 501
