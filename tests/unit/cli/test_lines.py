"""What is typed: an editor that takes a paste as one message, and standard input where there is no terminal."""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.input.base import PipeInput
from prompt_toolkit.output import DummyOutput

from forerun.cli.lines import Editor, Piped, lines_for

PASTE = "\x1b[200~{}\x1b[201~"


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as keys:
        yield keys


def editor(keys: PipeInput, history: Path | None = None) -> Editor:
    return Editor(history, input=keys, output=DummyOutput())


def test_a_paste_is_one_message_however_many_lines_it_has(keys: PipeInput) -> None:
    lines = [f"line {i}" for i in range(40)]
    keys.send_text(PASTE.format("\r".join(lines)) + "\r" + "next\r")
    typed = editor(keys)
    assert typed.read() == "\n".join(lines)
    assert typed.read() == "next"


def test_escape_and_enter_make_a_new_line(keys: PipeInput) -> None:
    keys.send_text("one\x1b\rtwo\r")
    assert editor(keys).read() == "one\ntwo"


def test_ctrl_c_and_ctrl_d(keys: PipeInput) -> None:
    typed = editor(keys)
    keys.send_text("half\x03")
    with pytest.raises(KeyboardInterrupt):
        typed.read()
    keys.send_text("\x04")
    with pytest.raises(EOFError):
        typed.read()


def test_bytes_that_are_not_utf8_are_replaced(keys: PipeInput) -> None:
    keys.send_bytes(b"caf\xe9 \r")
    assert editor(keys).read() == "caf\ufffd "


def test_the_history_is_kept_for_the_next_session_and_for_its_owner_alone(keys: PipeInput, tmp_path: Path) -> None:
    path = tmp_path / "new" / "chat_history"
    keys.send_text("first\rsecond\r")
    typed = editor(keys, path)
    assert [typed.read(), typed.read()] == ["first", "second"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(editor(keys, path)._session.history.load_history_strings()) == ["second", "first"]


def test_a_history_that_others_could_read_is_closed_to_them(keys: PipeInput, tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    path.touch(0o644)
    editor(keys, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_history_nothing_is_written(keys: PipeInput, tmp_path: Path) -> None:
    keys.send_text("first\rsecond\r")
    typed = editor(keys)
    assert [typed.read(), typed.read()] == ["first", "second"]
    assert typed._session.history.get_strings() == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_a_history_that_cannot_be_kept_is_no_reason_to_stop(
    keys: PipeInput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    typed = editor(keys, tmp_path / "file" / "chat_history")
    assert "cannot be kept" in capsys.readouterr().err
    keys.send_text("first\r")
    assert typed.read() == "first"
    assert typed._session.history.get_strings() == ["first"]
    kept = tmp_path / "chat_history"
    typed = editor(keys, kept)
    kept.unlink()
    kept.mkdir()
    keys.send_text("second\r")
    assert typed.read() == "second"


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> Piped:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    lines = lines_for(None)
    assert isinstance(lines, Piped)
    return lines


def test_lines_of_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = piped(monkeypatch, b"\xef\xbb\xbffirst\r\n  second \n\nlast")
    assert [lines.read() for _ in range(4)] == ["first", "  second ", "", "last"]
    with pytest.raises(EOFError):
        lines.read()
    assert capsys.readouterr().err == ""


def test_one_bad_byte_ends_no_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = piped(monkeypatch, b"caf\xe9\nnext\n")
    assert [lines.read(), lines.read()] == ["caf\ufffd", "next"]
    assert capsys.readouterr().err.count("not UTF-8 text") == 1


def test_there_is_an_editor_where_there_is_a_terminal_to_see_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(lines_for(None), Piped)
    monkeypatch.setattr("forerun.cli.lines.Editor", lambda history, output: ("editor", history))
    for name in ("stdout", "stderr"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, Terminal())
            patch.setattr("prompt_toolkit.output.create_output", lambda stdout: stdout)
            made: object = lines_for(Path("history"))
            assert made == ("editor", Path("history"))
