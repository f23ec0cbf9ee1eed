"""Finds the strings of control tokens in texts, in time that depends little on how many there are (Gemma has thousands)."""

from __future__ import annotations

import re
from collections.abc import Iterable


class ControlStrings:
    """The strings of control tokens. At each place the longest one is meant."""

    def __init__(self, strings: Iterable[str]) -> None:
        self._by_first: dict[str, set[str]] = {}
        for string in filter(None, strings):
            self._by_first.setdefault(string[0], set()).add(string)
        # Longest first.
        self._sizes = {first: sorted(set(map(len, some)), reverse=True) for first, some in self._by_first.items()}
        self._start = re.compile(f"[{re.escape(''.join(self._by_first))}]") if self._by_first else None

    def split(self, text: str) -> list[str]:
        """Runs of text and, at every odd place, the string of a control token."""
        if self._start is None:
            return [text]
        runs, done, at = list[str](), 0, 0
        while (start := self._start.search(text, at)) is not None:
            at, known = start.start(), self._by_first[start[0]]
            found = next((size for size in self._sizes[start[0]] if text[at : at + size] in known), 0)
            if found:
                runs += [text[done:at], text[at : at + found]]
                done = at + found
            at += found or 1
        return [*runs, text[done:]]
