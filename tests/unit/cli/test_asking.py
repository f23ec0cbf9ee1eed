"""What `forerun generate` is asked: an argument, files and standard input, together."""

from __future__ import annotations

import io
import os
import select
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.cli.asking import prompt_of
from forerun.errors import PromptError, UsageError

Typed = Callable[..., None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Put bytes on standard input; at a terminal they are not there yet."""

    def put(data: bytes = b"", terminal: bool = False) -> None:
        stream = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
        monkeypatch.setattr(sys, "stdin", stream)

    put()
    return put


def test_standard_input_follows_the_argument(typed: Typed) -> None:
    typed(b"some text\n")
    assert prompt_of("Summarize:", [], raw=False) == "Summarize:\n\nsome text"
    typed(b"some text\r\n")
    assert prompt_of(None, [], raw=False) == "some text"
    typed(b"")
    assert prompt_of("Summarize:", [], raw=False) == "Summarize:"


def test_files_come_between_the_two(typed: Typed, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"\xef\xbb\xbfone\n")
    two.write_bytes(b"two\n\n")
    typed(b"three")
    assert prompt_of("zero", [one, two], raw=False) == "zero\n\none\n\ntwo\n\n\nthree"
    typed(b"three")
    assert prompt_of(None, [one, Path("-"), two], raw=False) == "one\n\nthree\n\ntwo\n"


def test_a_dash_is_standard_input_and_read_once(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "one"
    file.write_text("one")
    typed(b"\xef\xbb\xbfzero\n")
    assert prompt_of("-", [file], raw=False) == "zero\n\none"


def test_raw_keeps_the_last_line_end_and_blanks(typed: Typed) -> None:
    for data in (b"text\n", b"\n\n", b" "):
        typed(data)
        assert prompt_of("-", [], raw=True) == data.decode()
    assert prompt_of("", [], raw=True) == ""


def test_prompts_that_are_none(typed: Typed, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no prompt"):
        prompt_of(None, [], raw=False)
    for argument in ("", " \n", "-"):
        with pytest.raises(PromptError, match="the prompt is empty"):
            prompt_of(argument, [], raw=False)
    typed(b"caf\xe9")
    with pytest.raises(PromptError, match=r"not UTF-8 text \(byte 3\)"):
        prompt_of("x", [], raw=False)
    (tmp_path / "bad").write_bytes(b"caf\xe9")
    for name in ("bad", "none"):
        with pytest.raises(UsageError, match=name):
            prompt_of("x", [tmp_path / name], raw=False)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX descriptors")
def test_only_a_pipe_and_a_file_are_read_unasked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def prompt(descriptor: int) -> str:
        with open(descriptor, encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            return prompt_of("x", [], raw=False)

    file = tmp_path / "file"
    file.write_text("from a file\n")
    assert prompt(os.open(file, os.O_RDONLY)) == "x\n\nfrom a file"
    reading, writing = os.pipe()
    os.write(writing, b"from a pipe\n")
    os.close(writing)
    assert prompt(reading) == "x\n\nfrom a pipe"
    assert prompt(os.open(os.devnull, os.O_RDONLY)) == "x"
    # What a program that starts others hands down may never be closed.
    ours, theirs = socket.socketpair()
    with ours:
        assert prompt(theirs.detach()) == "x"
    closed = open(os.devnull)  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, "stdin", closed)
    assert prompt_of("x", [], raw=False) == "x"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX descriptors")
@pytest.mark.parametrize("quiet", [False, True])
def test_a_silent_pipe_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    reading, writing = os.pipe()

    def nothing_yet(*_: object) -> tuple[list[object], ...]:
        os.close(writing)
        return [], [], []

    monkeypatch.setattr(select, "select", nothing_yet)
    if quiet:
        os.close(writing)
    with open(reading, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert prompt_of("x", [], raw=False, quiet=quiet) == "x"
    assert ("waiting for standard input" in capsys.readouterr().err) != quiet
