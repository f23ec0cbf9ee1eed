"""Finds stop strings in streamed text and cuts exactly in front of them.

The first stop string to be complete ends the text (of several complete at the same place, the longest), so the result
does not depend on how the text was cut into tokens. Text that may still turn out to begin a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.errors import SamplingError


class StopScanner:
    """Fed with text token by token; gives back what can be shown.

    found: the stop string that ended the text, None as long as none did. Everything after it is swallowed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise SamplingError("stop strings must be a list of strings that are not empty: leave the empty ones out")
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.found is not None

    def push(self, text: str) -> str:
        """The text that is now certain to come before any stop string."""
        if self.stopped:
            return ""
        if not self._stops:
            return text
        seen = len(self._held)
        self._held += text
        for end in range(seen + 1, len(self._held) + 1):
            found = self._ending_at(end)
            if found is not None:
                self.found = found
                shown, self._held = self._held[: end - len(found)], ""
                return shown
        keep = self._undecided()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """The text held back, when nothing follows."""
        shown, self._held = self._held, ""
        return shown

    def _ending_at(self, end: int) -> str | None:
        """The longest stop string whose last character is the one before `end`."""
        ended = [stop for stop in self._stops if self._held.endswith(stop, 0, end)]
        return max(ended, key=len, default=None)

    def _undecided(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for size in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
