"""From events to what a client gets: chunks of a stream, or one object. What both kinds of completions share."""

from __future__ import annotations

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from forerun.server import speculation
from forerun.server.errors import ApiError, api_error
from forerun.server.running import Event, Run
from forerun.server.schema.asking import Asking

if TYPE_CHECKING:
    from forerun.assembly import Assembly

_log = logging.getLogger("forerun.server")
# What JSON has no number for.
_LEAST_LOGPROB = -9999.0


def frame(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Writer(ABC):
    """Writes the answer to one body.

    kind, chunk_kind: the `object` of a whole answer and of a chunk. prefix: of its id. unwritten: whether tokens are hidden.
    """

    kind: str
    chunk_kind: str
    prefix: str

    @property
    def unwritten(self) -> bool:
        return False

    def __init__(self, run: Run, body: Asking, assembly: Assembly) -> None:
        self.run, self.body, self.assembly = run, body, assembly
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self._left = len(run.choices)
        self._wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._traces = bool(body.speculation and body.speculation.trace)

    @abstractmethod
    def piece(self, event: Event) -> dict[str, Any] | None:
        """The choice of a chunk for an event; None where there is nothing to show."""

    @abstractmethod
    def whole_choice(self, index: int, events: list[Event]) -> dict[str, Any]:
        """A choice of a whole answer, from all of its events."""

    async def stream(self) -> AsyncIterator[bytes]:
        """The chunks, one for each token; a failure is told as an event of its own."""
        try:
            async for events in self.run.events():
                frames = b"".join(map(self._frames, events))
                if frames:
                    yield frames
        except Exception as error:
            yield frame(_told(error).body)
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """The answer when it is complete. Raises ApiError."""
        events: list[list[Event]] = [[] for _ in self.run.choices]
        async for arrived in self.run.events():
            for event in arrived:
                events[event.choice].append(event)
        choices = [self.whole_choice(index, of_one) for index, of_one in enumerate(events)]
        steps = [event.step for of_one in events for event in of_one if event.step is not None]
        return {**self._head(self.kind), "choices": choices, "usage": self.usage(), **self._closing(steps)}

    def usage(self) -> dict[str, Any]:
        return speculation.usage(self.run)

    def text_of(self, token: int) -> str:
        """A token by itself; half a character is U+FFFD."""
        return self.assembly.tokenizer.token_bytes(token).decode("utf-8", "replace")

    def ids_of(self, events: list[Event]) -> dict[str, Any]:
        """The ids of a whole choice, where they were asked for."""
        if not self.body.return_token_ids:
            return {}
        prompt = self.run.choices[events[0].choice].choice.asked.request.prompt
        return {
            "prompt_token_ids": list(prompt),
            "token_ids": [event.token for event in events if event.token is not None],
        }

    def _frames(self, event: Event) -> bytes:
        """The server-sent events of one event of the engine."""
        self._left -= event.finish is not None
        last = event.finish is not None and not self._left
        choice = self.piece(event)
        if choice is None:
            return b""
        if self.body.return_token_ids and event.finish is None:
            choice["token_ids"] = [] if event.token is None or self.unwritten else [event.token]
        data = {**self._head(self.chunk_kind), "choices": [choice]}
        if event.step is not None:
            data["step"] = event.step
        if not last:
            return frame(data)
        if not self._wants_usage:
            return frame(data | self._closing())
        ending = {**self._head(self.chunk_kind), "choices": [], "usage": self.usage(), **self._closing()}
        return frame(data) + frame(ending)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.assembly.model,
            "system_fingerprint": self.assembly.fingerprint,
        }

    def _closing(self, steps: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """What is told at the end: how speculation did, and how long it took."""
        completions = self.run.completions
        return {
            "metrics": speculation.metrics(completions),
            "timings": speculation.timings(completions),
            "speculation": speculation.report(self.assembly, self.run, steps if self._traces else None),
        }


def number(logprob: float) -> float:
    """A log-probability as JSON has it."""
    return max(logprob, _LEAST_LOGPROB)


def _told(error: Exception) -> ApiError:
    found = api_error(error)
    if found.status_code >= 500:
        _log.error("a request failed", exc_info=error)
    return found
