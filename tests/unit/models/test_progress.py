"""Progress is a bar on a terminal, two lines elsewhere, and nothing when nobody asked."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from forerun.models.progress import QuietProgress, TerminalProgress, megabytes


def test_lines_where_there_is_no_terminal() -> None:
    shown = io.StringIO()
    progress = TerminalProgress(Console(file=shown, force_terminal=False))
    with progress.task("pulling [tiny]", 98_362_432) as advance:
        advance(10)
    progress.note("note [bold]this[/bold]")
    assert shown.getvalue() == "pulling [tiny] (98 MB)\npulling [tiny]: done\nnote [bold]this[/bold]\n"


def test_no_done_after_a_failure() -> None:
    shown = io.StringIO()
    progress = TerminalProgress(Console(file=shown, force_terminal=False))
    with pytest.raises(KeyboardInterrupt), progress.task("pulling", 10):
        raise KeyboardInterrupt
    assert "done" not in shown.getvalue()


def test_bar_on_a_terminal() -> None:
    shown = io.StringIO()
    progress = TerminalProgress(Console(file=shown, force_terminal=True, width=120))
    with progress.task("pulling tiny", 2_000_000) as advance:
        advance(500_000)
        advance(1_500_000)
    assert "pulling tiny" in shown.getvalue()
    assert "2.0/2.0 MB" in shown.getvalue()


def test_default_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    TerminalProgress().note("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_quiet_notes_are_logged(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.WARNING), QuietProgress().task("pulling", 10) as advance:
        advance(10)
        QuietProgress().note("terms 100%s")
    assert [record.getMessage() for record in caplog.records] == ["terms 100%s"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 kB"), (12_300, "12 kB"), (98_362_432, "98 MB"), (999_499_999, "999 MB"), (1_117_320_768, "1.12 GB")],
)
def test_sizes(size: int, text: str) -> None:
    assert megabytes(size) == text
