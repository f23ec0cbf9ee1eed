"""Where the command line writes: terminals, files, encodings, and what goes wrong with them."""

from __future__ import annotations

import errno
import io
import sys
from pathlib import Path

import pytest

from forerun.cli.output import Output, complain
from forerun.errors import ForerunError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of standard output (no fixture: pytest's capture would take it back before the test)."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


def test_accepted_tokens_are_colored_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with Output(color=True) as out:
        out.piece("plain ")
        out.piece("drafted", accepted=True)
        out.piece("", accepted=True)
    assert screen.getvalue() == "plain \x1b[32mdrafted\x1b[0m"


def test_without_color_or_without_a_terminal_nothing_is_colored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    screen = terminal(monkeypatch)
    with Output() as out:
        out.piece("drafted", accepted=True)
    assert screen.getvalue() == "drafted"
    with Output(tmp_path / "x", color=True) as out:
        out.piece("drafted", accepted=True)
    assert (tmp_path / "x").read_text("utf-8") == "drafted"


def test_a_terminal_shows_control_characters_and_a_file_keeps_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    screen = terminal(monkeypatch)
    said = "a\tb\n\x1b[2J\x07\x7f\x9b"
    with Output() as out:
        out.piece(said)
    assert screen.getvalue() == "a\tb\n\u241b[2J\u2407\u2421\ufffd"
    with Output(tmp_path / "x") as out:
        out.piece(said)
    assert (tmp_path / "x").read_bytes().decode() == said


@pytest.mark.parametrize(("encoding", "text", "json"), [("ascii", "caf?", '"caf\\u00e9"'), ("utf-8", "café", '"café"')])
def test_characters_that_the_encoding_lacks(
    monkeypatch: pytest.MonkeyPatch, encoding: str, text: str, json: str
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    out = Output()
    out.piece("café\n")
    out.json({"text": "café"})
    assert raw.getvalue().decode(encoding) == f'{text}\n{{"text": {json}}}\n'


class Broken(io.StringIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, "something about it")


def test_every_write_is_flushed_and_a_failed_one_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    with Output(path) as out:
        out.piece("now")
        assert path.read_text("utf-8") == "now"
    monkeypatch.setattr(sys, "stdout", Broken(errno.EIO))
    with pytest.raises(ForerunError, match="cannot write to standard output: something about it; check where it goes"):
        Output().piece("x")
    monkeypatch.setattr(sys, "stdout", Broken(errno.ENOSPC))
    with pytest.raises(ForerunError, match="free some space"):
        Output().piece("x")
    monkeypatch.setattr(sys, "stdout", Broken(errno.EPIPE))
    with pytest.raises(BrokenPipeError):
        Output().piece("x")


def test_an_output_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ForerunError, match=r"is a directory; choose another file\."):
        Output(tmp_path)


def test_messages_survive_a_closed_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    complain("something.")
    assert capsys.readouterr().err == "forerun: something.\n"
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    complain("nobody hears this.")
