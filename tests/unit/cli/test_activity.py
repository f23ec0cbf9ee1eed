"""The line about what is being waited for: on terminals only, and gone before anything else is written."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from forerun.cli.activity import Activity, Pausing
from forerun.models.progress import Advance


def screen() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, force_interactive=True, width=80, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_line_is_shown_and_erased() -> None:
    console = screen()
    with Activity(console=console) as activity:
        activity.say("loading x")
        assert "loading x" in written(console)
        activity.say("reading y")
        activity.clear()
    shown = written(console)
    # "Erase in line" comes after the last text, and nothing is left to be erased later.
    assert shown.rindex("\x1b[2K") > shown.rindex("reading y")
    assert not shown.endswith("y\n")


def test_it_is_away_while_something_else_is_written() -> None:
    console = screen()
    with Activity(console=console) as activity:
        activity.say("loading x")
        with activity.paused():
            console.print("a note")
        assert written(console).count("loading x") >= 2
    before = written(console).partition("a note")[0]
    assert before.rindex("\x1b[2K") > before.rindex("loading x")


def test_nothing_is_shown_when_quiet_or_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for quiet in (False, True):
        console = screen() if quiet else None
        with Activity(quiet, console) as activity:
            activity.say("loading x")
        assert console is None or written(console) == ""
    assert capsys.readouterr().err == ""


def test_a_terminal_that_cannot_move_its_cursor_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Activity() as activity:
        activity.say("loading x")
        activity.say("reading y")
    assert terminal.getvalue() == ""


def test_standard_output_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    console = screen()
    with Activity(console=console) as activity:
        activity.say("loading x")
        print("the answer")
    assert capsys.readouterr().out == "the answer\n"
    assert "the answer" not in written(console)


def test_progress_bars_and_notes_come_in_its_place() -> None:
    console = screen()

    class Bars:
        @contextmanager
        def task(self, description: str, total_bytes: int) -> Iterator[Advance]:
            console.print(f"{description} of {total_bytes}")
            yield lambda n: console.print(f"{n} done")

        def note(self, line: str) -> None:
            console.print(line)

    with Activity(console=console) as activity:
        progress = Pausing(activity, Bars())
        activity.say("loading x")
        progress.note("terms of use")
        with progress.task("fetching", 7) as advance:
            advance(3)
            assert "loading x" not in written(console).rpartition("fetching of 7")[2]
        assert "loading x" in written(console).rpartition("3 done")[2]
    assert "terms of use" in written(console)
