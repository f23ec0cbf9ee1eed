"""Where the command line writes: text as it is made, JSON a line at a time, and one-line messages on stderr."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from forerun.cli.json_text import dump
from forerun.errors import ForerunError

ACCEPTED = "\x1b[32m"
PLAIN = "\x1b[0m"

# Model text could hold terminal commands; on a terminal, control characters are shown instead of obeyed.
_SHOWN = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {0x7F: "\u2421"}
_SHOWN |= dict.fromkeys(range(128, 160), "�")


class Output:
    """Stdout, or a file in its place. Everything is flushed at once; a full disk is one clear error.

    color: mark accepted tokens, on a terminal only. terminal: whether people see it at once.
    """

    def __init__(self, path: Path | None = None, color: bool = False) -> None:
        self._path = path
        self._file: TextIO = sys.stdout
        if path is not None:
            try:
                self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise ForerunError(f"cannot write {path}: {reason(error)}; choose another file.") from error
        self.terminal = self._file.isatty()
        self._color = color and self.terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is not None:
            # Every write was flushed, so what closing can still complain about has been said.
            with contextlib.suppress(OSError):
                self._file.close()

    def piece(self, text: str, accepted: bool = False) -> None:
        """A bit of model text; `accepted` where it came from the draft."""
        if self.terminal:
            text = text.translate(_SHOWN)
        if text and accepted and self._color:
            text = f"{ACCEPTED}{text}{PLAIN}"
        self._write(text)

    def json(self, data: dict[str, Any]) -> None:
        """One object on one line. Outside UTF-8, other characters are escaped."""
        ascii_only = (self._file.encoding or "").lower().replace("-", "") != "utf8"
        self._write(dump(data, ascii_only) + "\n")

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except UnicodeEncodeError:
            self._file.write(text.encode(self._file.encoding, "replace").decode(self._file.encoding))
            self._file.flush()
        except OSError as error:
            close_quietly(self._file)
            if error.errno == errno.EPIPE:
                raise
            where = "standard output" if self._path is None else str(self._path)
            todo = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check where it goes"
            raise ForerunError(f"cannot write to {where}: {reason(error)}; {todo} and run again.") from error


def complain(line: str) -> None:
    """One line about something wrong, on stderr."""
    note(f"forerun: {line}")


def note(line: str) -> None:
    """One line for people, on stderr. A closed stderr is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def close_quietly(file: TextIO) -> None:
    """Send what a broken file still buffers to nowhere, so that the interpreter does not complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):
        number = file.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def reason(error: OSError) -> str:
    """What the system says is wrong."""
    return (error.strerror or str(error)).lower()
