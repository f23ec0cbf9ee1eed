"""Tool calls as JSON, as Hermes and Qwen write them: <tool_call>, an object with `name` and `arguments`, </tool_call>."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from forerun.text.call_stream import Call, CallStream, Step
from forerun.text.json_scan import Scan, ValueScanner, parsed
from forerun.text.tools import OPEN


class HermesParser(CallStream):
    """Arguments are passed on as they are written. They may come before the name, or as JSON in a string."""

    openers = (OPEN,)

    def call(self, opener: str, index: int, identifier: str) -> Call:  # noqa: ARG002
        return _Call(index, identifier)


class _Wants(Enum):
    OBJECT = "the brace that opens the object"
    KEY_OR_END = "the first key, or the end of the object"
    KEY = "a key"
    COLON = "a colon"
    VALUE = "a value"
    COMMA_OR_END = "a comma, or the end of the object"
    CLOSE = "the closing tag"


_FOLLOWS: Final = {
    (_Wants.OBJECT, "{"): _Wants.KEY_OR_END,
    (_Wants.COLON, ":"): _Wants.VALUE,
    (_Wants.COMMA_OR_END, ","): _Wants.KEY,
}


class _Call(Call):
    def __init__(self, index: int, identifier: str) -> None:
        super().__init__(index, identifier)
        self._wants = _Wants.OBJECT
        self._scanner: ValueScanner | None = None
        self._value: Any = None
        self._key = ""
        self._seen: set[str] = set()
        self._name: str | None = None
        # Arguments that were not passed on yet; None as long as none were read.
        self._arguments: str | None = None

    @property
    def whole(self) -> bool:
        return self._wants is _Wants.CLOSE

    def take(self, char: str) -> Step:
        if self.whole:
            return self.close(char)
        if self._scanner is None:
            return self._take_between(char)
        scan = self._scanner.take(char)
        if scan is Scan.WRONG or (scan is not Scan.MORE and not self._good(self._scanner.text)):
            return Step.WRONG
        if self._passes_on(self._scanner.text) and scan is not Scan.PAST:
            self._arguments = (self._arguments or "") + char
            self._release()
        if scan is not Scan.MORE:
            self._scanner = None
            self._settle()
        return self._take_between(char) if scan is Scan.PAST else Step.MORE

    def _take_between(self, char: str) -> Step:
        """A character outside keys and values."""
        wants = self._wants
        if char in " \t\r\n":
            return Step.MORE
        if wants is _Wants.VALUE or (char == '"' and wants in (_Wants.KEY, _Wants.KEY_OR_END)):
            self._scanner = ValueScanner()
            return self.take(char)
        if char == "}" and wants in (_Wants.KEY_OR_END, _Wants.COMMA_OR_END) and self._name is not None:
            if "arguments" not in self._seen:
                self._arguments = "{}"
            self._release()
            self._wants = _Wants.CLOSE
            return Step.MORE
        if (wants, char) not in _FOLLOWS:
            return Step.WRONG
        self._wants = _FOLLOWS[wants, char]
        return Step.MORE

    def _good(self, text: str) -> bool:
        """Whether the key or value that has just ended is what it should be."""
        try:
            self._value = value = parsed(text)
            if self._wants is not _Wants.VALUE:
                return value not in self._seen
            if self._key == "name":
                return isinstance(value, str) and value != ""
            if self._key == "arguments":
                return value is None or isinstance(parsed(value) if isinstance(value, str) else value, dict)
        except ValueError:
            return False
        return True

    def _settle(self) -> None:
        """Take over the key or value that has just ended."""
        if self._wants is not _Wants.VALUE:
            self._key, self._wants = self._value, _Wants.COLON
            self._seen.add(self._key)
            return
        self._wants = _Wants.COMMA_OR_END
        if self._key == "name":
            self._name = self._value
        elif self._key == "arguments" and not isinstance(self._value, dict):
            self._arguments = self._value or "{}"
        self._release()

    def _passes_on(self, text: str) -> bool:
        """Whether the value is the object of arguments."""
        return self._wants is _Wants.VALUE and self._key == "arguments" and text.startswith("{")

    def _release(self) -> None:
        """Say what can be said."""
        if self._name is None or self._arguments is None:
            return
        if not self.started:
            self.start(self._name)
        self.argue(self._arguments)
        self._arguments = ""
