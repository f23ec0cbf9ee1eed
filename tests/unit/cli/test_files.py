"""No command writes over what it reads, nor over a model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from forerun.cli.files import apart
from forerun.errors import UsageError
from tests.conftest import Cli

TOY = ("--backend", "toy")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    return path


def test_files_of_their_own_are_fine(prompts: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    apart(None, prompts)
    apart(other, prompts, None, "", "some-model", "org/name", tmp_path / "missing", tmp_path / "q2")
    other.write_text("older answers")
    apart(other, prompts, None, str(prompts))


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_the_same_file_under_whatever_name(prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.link(prompts, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(prompts)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("q.jsonl", "./q.jsonl", "sub/../q.jsonl", "hard", "soft"):
        for other in (prompts, str(prompts)):
            with pytest.raises(UsageError, match="is named twice"):
                apart(Path(name), other)


def test_files_that_do_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is named twice"):
        apart(Path("new"), tmp_path / "new")
    apart(Path("toy"), "toy")  # the name of a model is no file


def test_a_folder_stands_for_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="is named twice"):
        apart(tmp_path / "config.json", str(tmp_path))
    apart(tmp_path / "answers", str(tmp_path))


def test_models_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and the rest")
    with pytest.raises(UsageError, match="is a model"):
        apart(path)


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="devices")
def test_devices_may_be_both() -> None:
    apart(Path(os.devnull), Path(os.devnull))


def test_no_command_writes_over_what_it_reads(cli: Cli, prompts: Path, tmp_path: Path) -> None:
    text, model = tmp_path / "text", tmp_path / "m.gguf"
    text.write_text("some text")
    model.write_bytes(b"GGUF and the rest")
    memory = tmp_path / "memory"
    assert cli("memory", "build", str(memory), str(text), *TOY).status == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for asked in (
        ("generate", *TOY, "--prompts", str(prompts), "-o", str(prompts)),
        ("generate", *TOY, "hello", "--prediction", str(text), "-o", str(text)),
        ("generate", *TOY, "hello", "--memory", str(memory), "-d", "suffix", "-o", str(memory)),
        ("generate", *TOY, "hello", "-d", f"model:{text}@w4", "-o", str(text)),
        ("generate", *TOY, "hello", "-d", f"ngram+model:x@head={text}", "-o", str(text)),
        ("generate", *TOY, "hello", "--model", str(model), "-o", str(model)),
        ("bench", "methods", str(prompts), *TOY, "--log", str(prompts)),
        ("cascade", str(prompts), *TOY, "--log", str(prompts)),
        ("cascade", str(prompts), *TOY, "--picture", str(prompts)),
        ("cascade", str(prompts), *TOY, "--picture", str(tmp_path / "new"), "--log", str(tmp_path / "new")),
        ("memory", "build", str(text), str(text), *TOY),
    ):
        ran = cli(*asked)
        assert (ran.status, ran.out) == (2, ""), asked
        assert "choose another file" in ran.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
