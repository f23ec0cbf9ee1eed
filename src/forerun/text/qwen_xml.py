"""Tool calls as Qwen3-Coder writes them: <function=NAME> in <tool_call>, and a <parameter=KEY> for each argument.

A value is the text up to </parameter>, without the line end behind the opening tag and the one before the closing tag. Strings
are taken as they are; other values become JSON by the types that the tool's schema names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from forerun.text.argument_types import as_json, types_of
from forerun.text.call_stream import Call, CallStream, Step
from forerun.text.tools import OPEN, Tool

FUNCTION: Final = "<function="
PARAMETER: Final = "<parameter="
END_PARAMETER: Final = "</parameter>"
END_FUNCTION: Final = "</function>"


class QwenXmlParser(CallStream):
    """tools: what their schemas say about arguments; those of other functions are strings. <tool_call> may be missing."""

    openers = (OPEN, FUNCTION)

    def __init__(self, tools: Sequence[Tool] = (), request_id: str = "") -> None:
        super().__init__(request_id)
        self._tools = {tool.name: tool for tool in tools}

    def call(self, opener: str, index: int, identifier: str) -> Call:
        return _Call(self._tools, opener if opener == FUNCTION else "", index, identifier)


class _Wants(Enum):
    FUNCTION = (FUNCTION,)
    PARAMETER = (PARAMETER, END_FUNCTION)
    VALUE = (END_PARAMETER,)
    CLOSE = ()


class _Call(Call):
    """pending: text that was read and not yet understood."""

    def __init__(self, tools: Mapping[str, Tool], pending: str, index: int, identifier: str) -> None:
        super().__init__(index, identifier)
        self._tools, self._pending = tools, pending
        self._wants = _Wants.FUNCTION
        self._tool: Tool | None = None
        self._types: frozenset[str] = frozenset()
        # Whether the value is a string, and so passed on as it comes; whether any of it was read; whether there are arguments.
        self._string = self._begun = self._any = False

    @property
    def whole(self) -> bool:
        return self._wants is _Wants.CLOSE

    def take(self, char: str) -> Step:
        if self.whole:
            return self.close(char)
        self._pending += char
        if self._wants is _Wants.VALUE:
            self._take_value()
            return Step.MORE
        text = self._pending.lstrip()
        if text == END_FUNCTION and self._wants is _Wants.PARAMETER:
            self.argue("}" if self._any else "{}")
            self._wants, self._pending = _Wants.CLOSE, ""
            return Step.MORE
        if any(tag.startswith(text) for tag in self._wants.value):
            return Step.MORE
        opening = self._wants.value[0]
        name = text.removeprefix(opening)
        if name == text or any(char in "<\n" for char in name):
            return Step.WRONG
        if name.endswith(">") and name != ">":
            self._named(name[:-1])
        return Step.WRONG if name == ">" else Step.MORE

    def _named(self, name: str) -> None:
        """The name of the function, or the key of an argument, is whole."""
        self._pending = ""
        if self._wants is _Wants.FUNCTION:
            self._tool = self._tools.get(name)
            self.start(name)
            self._wants = _Wants.PARAMETER
            return
        self._types = types_of(self._tool, name)
        self._string = "string" in self._types and "null" not in self._types
        self.argue((", " if self._any else "{") + json.dumps(name, ensure_ascii=False) + ": " + '"' * self._string)
        self._any, self._begun, self._wants = True, False, _Wants.VALUE

    def _take_value(self) -> None:
        """More of a value: the pending text, of which what may belong to the closing tag stays."""
        if not self._begun:
            self._begun = True
            self._pending = self._pending.removeprefix("\n")
        ended = self._pending.endswith(END_PARAMETER)
        if ended:
            value, self._pending = self._pending.removesuffix(END_PARAMETER).removesuffix("\n"), ""
            self._wants = _Wants.PARAMETER
        elif self._string:
            size = _closing(self._pending)
            value, self._pending = (
                self._pending[: len(self._pending) - size],
                self._pending[len(self._pending) - size :],
            )
        else:
            return
        if not self._string:
            self.argue(as_json(value, self._types))
            return
        self.argue(json.dumps(value, ensure_ascii=False)[1:-1] + ('"' if ended else ""))


def _closing(text: str) -> int:
    """Length of the longest end of a value that may belong to its closing tag."""
    tag = f"\n{END_PARAMETER}"
    sizes = range(min(len(tag), len(text)), 0, -1)
    return next((n for n in sizes if tag.startswith(text[-n:]) or END_PARAMETER.startswith(text[-n:])), 0)
