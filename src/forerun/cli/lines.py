"""Where the lines of a chat come from: an editor on a terminal, standard input elsewhere."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forerun.cli.output import complain, reason

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output as Screen

HISTORY = "chat_history"


class Lines(Protocol):
    """Gives what was typed, piece by piece."""

    def read(self, more: bool = False) -> str:
        """The next line, or several that were pasted as one; more: of a block that was begun.

        Raises EOFError at the end, KeyboardInterrupt on Ctrl-C.
        """
        ...


def lines_for(history: Path | None) -> Lines:
    """An editor where there is a terminal to type at and one to see it on; else standard input as it comes.

    history: a file that keeps what was typed between sessions; None is no such file.
    """
    screen = next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)
    if not sys.stdin.isatty() or screen is None:
        return Piped()
    from prompt_toolkit.output import create_output

    return Editor(history, output=create_output(stdout=screen))


class Piped:
    """Lines of standard input, read as UTF-8. What is not becomes U+FFFD, with a note: one bad byte ends no conversation."""

    def __init__(self) -> None:
        self._first = True

    def read(self, more: bool = False) -> str:  # noqa: ARG002
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        if self._first:
            line, self._first = line.removeprefix(codecs.BOM_UTF8), False
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
            complain("a line of standard input is not UTF-8 text; what cannot be read of it is sent as \ufffd.")
        return text.removesuffix("\n").removesuffix("\r")


class Editor:
    """A line editor with history. A paste is one piece however many lines it has; so are lines joined with Esc Enter."""

    def __init__(self, history: Path | None, input: Input | None = None, output: Screen | None = None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        kept = None if history is None else _kept(history)
        self._session: PromptSession[str] = PromptSession(history=kept, key_bindings=keys, input=input, output=output)

    def read(self, more: bool = False) -> str:
        text = self._session.prompt(". " if more else "> ")
        # Bytes that are not UTF-8 arrive as halves of characters.
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _kept(path: Path) -> History | None:
    """The history in a file that only its owner can read; None where there can be none, with a note."""
    from prompt_toolkit.history import FileHistory

    class Kept(FileHistory):
        """A disk that fills up later is no reason to stop talking."""

        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):
                super().store_string(string)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        path.chmod(0o600)
    except OSError as error:
        complain(f"what is typed cannot be kept in {path}: {reason(error)}; it is remembered until you leave.")
        return None
    return Kept(str(path))
