"""What is being waited for: one line on stderr, on a terminal only, which is gone as soon as something else is written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    from forerun.models.progress import Advance, Progress


class Activity:
    """The line. quiet: never shown. console: stderr unless said."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console
        self._shown = not quiet and (console is not None or sys.stderr.isatty())
        self._text = ""
        self._live: Live | None = None
        self._spinner: Spinner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def say(self, text: str) -> None:
        """Show this from now on."""
        self._text = text
        if self._spinner is not None:
            self._spinner.update(text=text)
        elif self._shown:
            self._start(text)

    def clear(self) -> None:
        """Take the line away."""
        self._text = ""
        if self._live is not None:
            self._live.stop()
            self._live = self._spinner = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Away while something else is written to the terminal, and then back."""
        text = self._text
        self.clear()
        yield
        if text:
            self.say(text)

    def _start(self, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        console = self._console or Console(stderr=True)
        if not console.is_interactive:
            self._shown = False
            return
        self._spinner = Spinner("dots", text, style="dim")
        # Standard output stays as it is: what the program prints must not go through stderr's console.
        self._live = Live(self._spinner, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._live.start(refresh=True)


class Pausing:
    """Progress of fetching and packing (models.progress.Progress), with the activity's line out of its way."""

    def __init__(self, activity: Activity, inner: Progress) -> None:
        self._activity = activity
        self._inner = inner

    @contextmanager
    def task(self, description: str, total_bytes: int) -> Iterator[Advance]:
        with self._activity.paused(), self._inner.task(description, total_bytes) as advance:
            yield advance

    def note(self, line: str) -> None:
        with self._activity.paused():
            self._inner.note(line)
