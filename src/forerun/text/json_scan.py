"""JSON as it comes, a character at a time: where a value ends, and where it has gone wrong."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Final

_DEEPEST: Final = 256
_CLOSES: Final = {"{": "}", "[": "]"}
_SPACE: Final = " \t\r\n"
_BETWEEN: Final = frozenset(_SPACE + ",:+-.")


class Scan(Enum):
    MORE = "the value goes on"
    LAST = "the value ends with this character"
    PAST = "the value ended before this character"
    WRONG = "with this character it is no JSON"


class ValueScanner:
    """Reads one value, from its first character. What it lets pass may still be no JSON; what it stops is none."""

    def __init__(self) -> None:
        self.text = ""
        self._open: list[str] = []
        self._string = self._escaped = False

    def take(self, char: str) -> Scan:
        """One more character; `text` gets it where it belongs to the value."""
        scan = self._take(char)
        if scan in (Scan.MORE, Scan.LAST):
            self.text += char
        return scan

    def _take(self, char: str) -> Scan:
        if self._string:
            return self._in_string(char)
        if char == '"' and (self._open or not self.text):
            self._string = True
            return Scan.MORE
        if char in _CLOSES and (self._open or not self.text):
            self._open.append(_CLOSES[char])
            return Scan.MORE if len(self._open) <= _DEEPEST else Scan.WRONG
        if self._open and char in "]}":
            if self._open.pop() != char:
                return Scan.WRONG
            return Scan.MORE if self._open else Scan.LAST
        if char.isascii() and (char.isalnum() or (char in _BETWEEN and self._open) or char in "+-."):
            return Scan.MORE
        return Scan.PAST if self.text and not self._open else Scan.WRONG

    def _in_string(self, char: str) -> Scan:
        if self._escaped:
            self._escaped = False
            return Scan.MORE if char in '"\\/bfnrtu' else Scan.WRONG
        if char == '"':
            self._string = False
            return Scan.MORE if self._open else Scan.LAST
        self._escaped = char == "\\"
        return Scan.MORE if char >= " " else Scan.WRONG


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises ValueError, also for what Python would read but JSON has not (NaN, Infinity)."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
