"""What parsers of tool calls have in common: content up to an opening tag, a call, content again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum

from forerun.text.tools import CLOSE, Arguments, CallEnd, CallStart, Content, Event, call_id, joined


class Step(Enum):
    MORE = "the call goes on"
    DONE = "the call ends with this character"
    ENDED = "the call ended before its last characters, which are content"
    WRONG = "this character does not belong to a call"


class Call(ABC):
    """A call as it is read, from behind its opening tag.

    after: what was read behind the end of a whole call, and may be a closing tag.
    """

    def __init__(self, index: int, identifier: str) -> None:
        self.index, self.identifier = index, identifier
        self.events: list[Event] = []
        self.started = False
        self.after = ""

    @abstractmethod
    def take(self, char: str) -> Step:
        """One more character."""

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether it has all its arguments."""

    def close(self, char: str) -> Step:
        """One more character behind a whole call: the closing tag, or content."""
        self.after += char
        tag = self.after.lstrip()
        if tag == CLOSE:
            return Step.DONE
        return Step.MORE if CLOSE.startswith(tag) else Step.ENDED

    def start(self, name: str) -> None:
        """Its name is known for sure."""
        self.started = True
        self.events.append(CallStart(self.index, self.identifier, name))

    def argue(self, text: str) -> None:
        """More of its arguments."""
        if text:
            self.events.append(Arguments(self.index, text))


class CallStream(ABC):
    """See tools.ToolCallParser. openers: strings that a call may begin with, none the beginning of another."""

    openers: Sequence[str]

    def __init__(self, request_id: str = "") -> None:
        self._request_id = request_id
        self._events: list[Event] = []
        # Content: space and what may be the beginning of an opening tag. In a call: all of its text, with the space before.
        self._held = ""
        self._call: Call | None = None
        self._calls = 0
        self._after_call = self._spoken = False

    @abstractmethod
    def call(self, opener: str, index: int, identifier: str) -> Call:
        """A new call, behind its opening tag."""

    def push(self, text: str) -> list[Event]:
        for char in text:
            self._take(char)
        return self._said()

    def finish(self) -> list[Event]:
        call = self._call
        if call is None:
            self._say("" if self._after_call and self._held.isspace() else self._held)
            self._held = ""
        elif call.whole:
            self._end(call, complete=True)
        else:
            self._break(call)
        return self._said()

    def _said(self) -> list[Event]:
        events, self._events = self._events, []
        return joined(events)

    def _take(self, char: str) -> None:
        if self._call is None:
            self._look(char)
            return
        call = self._call
        step = call.take(char)
        self._events += call.events
        call.events = []
        if step is Step.WRONG:
            self._break(call)
            self._take(char)
            return
        self._held += char
        if step is Step.DONE:
            self._end(call, complete=True)
        elif step is Step.ENDED:
            self._held = self._held.removesuffix(call.after)
            self._end(call, complete=True)
            for left in call.after:
                self._take(left)

    def _look(self, char: str) -> None:
        """In content: hold back what may open a call."""
        self._held += char
        begun = self._held.lstrip()
        if begun in self.openers:
            self._call = self.call(begun, self._calls, call_id(self._request_id, self._calls))
            return
        start = next(start for start in range(len(self._held) + 1) if self._may_open(self._held[start:]))
        self._say(self._held[:start])
        self._held = self._held[start:]

    def _may_open(self, text: str) -> bool:
        begun = text.lstrip()
        return any(opener.startswith(begun) for opener in self.openers)

    def _break(self, call: Call) -> None:
        """The call is none, or not all of one."""
        if call.started:
            self._end(call, complete=False)
            return
        self._call = None
        self._say(self._held)
        self._held = ""

    def _end(self, call: Call, complete: bool) -> None:
        self._events.append(CallEnd(call.index, complete, self._held))
        self._calls += 1
        self._call, self._held, self._after_call = None, "", complete

    def _say(self, text: str) -> None:
        if self._after_call and not self._spoken:
            text = text.lstrip()
        if text:
            self._events.append(Content(text))
            self._after_call, self._spoken = False, True
