"""How long jobs report themselves: a protocol of two methods, and implementations for logs and for terminals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[[int], None]
"""Called with the bytes done since the last call."""


class Progress(Protocol):
    """Someone to tell how far a pull or a check has come."""

    def task(self, description: str, total_bytes: int) -> AbstractContextManager[Advance]:
        """One job of `total_bytes`; entering starts it and gives the function to advance it with."""
        ...

    def note(self, line: str) -> None:
        """One line the user should read: terms of use, waiting for another process."""
        ...


class QuietProgress:
    """Shows nothing; notes go to the log, since terms of use must not get lost."""

    @contextmanager
    def task(self, description: str, total_bytes: int) -> Iterator[Advance]:  # noqa: ARG002
        yield lambda n: None

    def note(self, line: str) -> None:
        logging.getLogger("forerun.models").warning(line)


class TerminalProgress:
    """A bar on stderr when that is a terminal, else one line when a job starts and one when it ends."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)

    @contextmanager
    def task(self, description: str, total_bytes: int) -> Iterator[Advance]:
        if not self.console.is_terminal:
            self.note(f"{description} ({megabytes(total_bytes)})")
            yield lambda n: None
            self.note(f"{description}: done")
            return
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Bar(*columns, TimeRemainingColumn(), console=self.console) as bar:
            job = bar.add_task(description, total=total_bytes)
            yield lambda n: bar.advance(job, n)

    def note(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def megabytes(size: int) -> str:
    """A size in bytes as people read it, in decimal units: `12 kB`, `98 MB`, `1.12 GB`."""
    if size < 500_000:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e9:.2f} GB" if size >= 999_500_000 else f"{size / 1e6:.0f} MB"
