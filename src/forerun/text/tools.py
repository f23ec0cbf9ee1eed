"""Tools that a model may call, and what parsers of its calls say: events, and their sum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from forerun.errors import PromptError, quoted

# How a model writes its calls:
# hermes     <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>
# qwen_xml   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
Syntax = Literal["hermes", "qwen_xml"]

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    parameters: the JSON schema of its arguments. strict: whether arguments must match it, also where a call is the model's
    own choice.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each argument."""
        properties = self.parameters.get("properties")
        return properties if isinstance(properties, Mapping) else {}


def tools_of(given: Iterable[Any]) -> tuple[Tool, ...]:
    """The tools of a request in OpenAI's form, `{"type": "function", "function": {"name": ..., "parameters": ...}}`.

    Raises PromptError that names the one that is malformed.
    """
    tools = tuple(_tool(item, index) for index, item in enumerate(given))
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PromptError(f"two tools are called {quoted(twice)}; give each a name of its own.")
    return tools


def _tool(item: Any, index: int) -> Tool:
    function = item.get("function") if isinstance(item, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise PromptError(f"tool {index} has no name; each is an object with `function`, an object with `name`.")
    if any(char in name for char in "<>\n"):
        raise PromptError(f"tool {index} is called {quoted(name)}; leave <, > and line ends out of the name.")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise PromptError(f"the parameters of the tool {quoted(name)} are no object; give a JSON schema.")
    return Tool(name, parameters or {}, function.get("strict") is True)


@dataclass(frozen=True)
class Content:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins; its arguments follow. index: counts the calls of a text from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """More of the arguments of a call: pieces of JSON text."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """A call has ended.

    complete: whether its arguments are a whole JSON object; false for a call that breaks off or goes wrong after it began.
    raw: the text that it was read from, so far; what follows in a broken one is content.
    """

    index: int
    complete: bool
    raw: str


Event = Content | CallStart | Arguments | CallEnd


@dataclass(frozen=True)
class ToolCall:
    """One call. arguments: JSON text, as clients of OpenAI expect it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Parsed:
    """A text taken apart: what is said, and what is called."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolCallParser(Protocol):
    """Fed with text in any pieces. The events' sum does not depend on the pieces, and no text is lost.

    Space in front of a call belongs to it, and so does space behind it with which the content would begin or end.
    """

    def push(self, text: str) -> list[Event]:
        """What more text makes certain."""
        ...

    def finish(self) -> list[Event]:
        """What was held back: no text follows."""
        ...


def folded(events: Iterable[Event]) -> Parsed:
    """The sum of a text's events. A call that is not complete is content, as it was written."""
    content: list[str] = []
    calls: list[ToolCall] = []
    started, arguments = CallStart(0, "", ""), ""
    for event in events:
        if isinstance(event, Content):
            content.append(event.text)
        elif isinstance(event, CallStart):
            started, arguments = event, ""
        elif isinstance(event, Arguments):
            arguments += event.text
        elif event.complete:
            calls.append(ToolCall(started.id, started.name, arguments))
        else:
            content.append(event.raw)
    return Parsed("".join(content), tuple(calls))


def joined(events: Sequence[Event]) -> list[Event]:
    """The same events with neighbors of one kind put together."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and last.index == event.index:
            result[-1] = Arguments(event.index, last.text + event.text)
        else:
            result.append(event)
    return result


def call_id(request_id: str, index: int) -> str:
    """The id of a request's call: `call_` and 24 characters that follow from the request's id and the call's index."""
    number = int.from_bytes(hashlib.sha256(f"{request_id}\0{index}".encode()).digest())
    letters = []
    for _ in range(24):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return f"call_{''.join(letters)}"
