"""`forerun memory` and `--memory`: texts are kept in named spaces, found again, and forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli

TOY = ("--backend", "toy")
# What the toy says after this prompt, so that a memory of it drafts well.
PROMPT = "what the target would have said it "


def lines(path: Path, *entries: object) -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n", "utf-8")
    return path


def spaces(cli: Cli, file: Path) -> dict[str, tuple[int, int]]:
    ran = cli("memory", "inspect", str(file), "--json")
    assert ran.status == 0, ran.err
    return {each["space"]: (each["texts"], each["tokens"]) for each in ran.json["spaces"]}


def test_build_adds_texts_in_the_models_tokens(cli: Cli, tmp_path: Path) -> None:
    file, text = tmp_path / "memory", tmp_path / "a.txt"
    text.write_text("four words of text", "utf-8")
    ran = cli("memory", "build", str(file), str(text), *TOY)
    assert ran.status == 0, ran.err
    assert "1 texts with 18 tokens of toy" in ran.err
    assert spaces(cli, file) == {"": (1, 18)}
    cli("memory", "build", str(file), str(text), *TOY, "--space", "mine")
    cli("memory", "build", str(file), str(text), *TOY, "--space", "mine")
    assert spaces(cli, file) == {"": (1, 18), "mine": (2, 36)}
    table = cli("memory", "inspect", str(file)).out.splitlines()
    assert table[0].split() == ["space", "texts", "tokens"]
    assert [line.split() for line in table[1:]] == [["''", "1", "18"], ["'mine'", "2", "36"]]


def test_json_lines_of_every_known_shape(cli: Cli, tmp_path: Path) -> None:
    corpus = lines(
        tmp_path / "c.jsonl",
        "just text",
        {"text": "a text"},
        {"turns": ["one", "two"], "id": 3},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text"}]}]},
        {"prompt": "p", "answer": "q"},
        {"id": 4},
        7,
    )
    file = tmp_path / "memory"
    ran = cli("memory", "build", str(file), str(corpus), *TOY)
    assert ran.status == 0
    assert [line.split(" has no text")[0][-6:] for line in ran.err.splitlines()[:2]] == ["line 6", "line 7"]
    assert spaces(cli, file) == {"": (5, 9 + 6 + 7 + 2 + 3)}


def test_limits_are_kept_and_remembered(cli: Cli, tmp_path: Path) -> None:
    corpus = lines(tmp_path / "c.jsonl", *[f"text number {n:3}" for n in range(50)])
    file = tmp_path / "memory"
    cli("memory", "build", str(file), str(corpus), *TOY, "--limit", "120", "--most-spaces", "2")
    assert spaces(cli, file)[""][1] <= 120
    for name in ("a", "b"):
        cli("memory", "build", str(file), str(corpus), *TOY, "--space", name)
    held = spaces(cli, file)
    assert list(held) == ["a", "b"]
    assert all(tokens <= 120 for _, tokens in held.values())


def test_clear_forgets_a_space_or_all(cli: Cli, tmp_path: Path) -> None:
    file, text = tmp_path / "memory", tmp_path / "a.txt"
    text.write_text("some text", "utf-8")
    for name in ("", "a"):
        cli("memory", "build", str(file), str(text), *TOY, "--space", name)
    ran = cli("memory", "clear", str(file), "--space", "nobody")
    assert (ran.status, "has no space 'nobody'; it has '', 'a'" in ran.err) == (2, True)
    assert cli("memory", "clear", str(file), "--space", "a").status == 0
    assert list(spaces(cli, file)) == [""]
    assert cli("memory", "clear", str(file)).status == 0
    assert not file.exists()
    ran = cli("memory", "inspect", str(file))
    assert (ran.status, "there is no file" in ran.err) == (2, True)


def test_a_memory_drafts_and_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    ask = ("generate", PROMPT, *TOY, "--max-tokens", "80", "--json")
    plain = cli(*ask, "--draft", "none").json
    text = tmp_path / "a.txt"
    text.write_text(PROMPT + plain["text"], "utf-8")
    file = tmp_path / "memory"
    cli("memory", "build", str(file), str(text), *TOY)
    cold, warm = (cli(*ask, "--draft", "suffix", *more).json for more in ((), ("--memory", str(file))))
    assert cold["text"] == warm["text"] == plain["text"]
    counts = [each["metrics"]["speculative_decoding"]["num_steps"] for each in (cold, warm)]
    assert counts[1] < counts[0]


@pytest.mark.parametrize("content", [b"", b"not a memory", b"PK\x03\x04" + b"\x00" * 40, b"GGUF" + b"\x00" * 40, None])
def test_what_is_no_memory_is_refused_and_stays_as_it_is(
    cli: Cli, tmp_path: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("FORERUN_HOME", str(home))
    text = tmp_path / "a.txt"
    text.write_text("some text", "utf-8")
    for file in (tmp_path / "mine", home / "models" / "model.gguf"):
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            file.mkdir()
        else:
            file.write_bytes(content)
        for asked in (
            ("memory", "inspect", str(file)),
            ("memory", "build", str(file), str(text), *TOY),
            ("memory", "clear", str(file)),
            ("memory", "clear", str(file), "--space", "x"),
            ("generate", PROMPT, *TOY, "--draft", "suffix", "--memory", str(file)),
            ("generate", PROMPT, *TOY, "--draft", "suffix", "--memory", str(file), "--remember", "texts"),
        ):
            ran = cli(*asked)
            assert (ran.status, ran.out) == (2, ""), asked
            assert str(file) in ran.err
            assert len(ran.err.splitlines()) == 1
        assert file.is_dir() if content is None else file.read_bytes() == content
        assert list(file.parent.glob("*.damaged")) == []


def test_inspecting_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    file, text = tmp_path / "memory", tmp_path / "a.txt"
    text.write_text("some text", "utf-8")
    cli("memory", "build", str(file), str(text), *TOY)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()}
    spaces(cli, file)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()} == before


def test_a_damaged_memory_of_the_cache_stops_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    ask = ("generate", PROMPT, *TOY, "--draft", "suffix", "--remember", "texts", "--max-tokens", "9")
    assert cli(*ask).status == 0
    (file,) = (tmp_path / "memory").glob("*.history.npz")
    for content in (b"one", b"two"):
        file.write_bytes(content)
        assert cli(*ask).status == 0
        assert "is damaged" in caplog.text
        assert list(spaces(cli, file)) == [""]
    assert {kept.read_bytes() for kept in file.parent.glob("*.damaged")} == {b"one", b"two"}


def test_a_text_is_not_its_own_memory(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("some text", "utf-8")
    ran = cli("memory", "build", str(file), str(file), *TOY)
    assert (ran.status, "is named twice" in ran.err) == (2, True)
    assert file.read_text("utf-8") == "some text"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.txt", None, "cannot read"),
        ("empty.txt", b" \n", "there is no text"),
        ("latin.txt", b"caf\xe9", "is not UTF-8 text (byte 3)"),
        ("none.jsonl", b'{"id": 1}\n', "there is no text"),
    ],
)
def test_corpora_that_are_none(cli: Cli, tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    file, corpus = tmp_path / "memory", tmp_path / name
    if content is not None:
        corpus.write_bytes(content)
    ran = cli("memory", "build", str(file), str(corpus), *TOY)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err.splitlines()[-1]
    assert not file.exists()


def test_wrong_limits(cli: Cli, tmp_path: Path) -> None:
    for flags in (("--limit", "1"), ("--most-spaces", "0")):
        ran = cli("memory", "build", str(tmp_path / "m"), str(tmp_path), *TOY, *flags)
        assert (ran.status, f"{flags[0]} is {flags[1]}" in ran.err) == (2, True)


def test_the_memory_of_another_model_is_refused(cli: Cli, tmp_path: Path) -> None:
    from forerun.drafters.history import History

    file = tmp_path / "memory"
    History(vocabulary="of another").save(file)
    ran = cli("generate", PROMPT, *TOY, "--draft", "suffix", "--memory", str(file))
    assert (ran.status, "holds tokens of of another" in ran.err) == (2, True)


def test_a_memory_that_is_not_there_is_an_error_unless_it_is_to_be_written(cli: Cli, tmp_path: Path) -> None:
    asked = ("generate", *TOY, "--draft", "suffix", "--max-tokens", "8", PROMPT)
    missing = tmp_path / "missing"
    ran = cli(*asked, "--memory", str(missing))
    assert ran.status == 2
    assert f"there is no memory file {missing}" in ran.err
    assert cli(*asked, "--memory", str(missing), "--remember", "texts").status == 0
    assert missing.exists()
