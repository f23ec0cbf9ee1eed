"""One request while it is written: the chunks of its choices, in the order in which they come, as one event for each token.

Streamed and whole answers are made of the same events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.answer import Answer
from forerun.completion import Chunk, Completion
from forerun.core.choosing import TokenLogprob
from forerun.core.step import StepResult
from forerun.server.answers import Delta
from forerun.server.errors import api_error
from forerun.server.prompts import Choice
from forerun.server.turns import Place

if TYPE_CHECKING:
    from forerun.assembly import Assembly
    from forerun.engine.worker import Ticket, Worker
    from forerun.server.metrics import Metrics


@dataclass(frozen=True)
class Event:
    """One token of a choice, or its end.

    deltas: what became visible. token, logprob: the token, and what was asked for about it. step: the whole step that it is
    the first token of, where a trace was asked for. finish: why the choice ended, on its last event.
    """

    choice: int
    deltas: Sequence[Delta] = ()
    token: int | None = None
    logprob: TokenLogprob | None = None
    step: dict[str, Any] | None = None
    finish: str | None = None


class Writing:
    """One choice on its way."""

    def __init__(self, index: int, choice: Choice, assembly: Assembly) -> None:
        self.choice = choice
        self.answer = Answer(assembly, choice.asked)
        self.ticket: Ticket | None = None
        # When it was its turn, when its first token came, and its last so far.
        self.began = self.last = time.perf_counter()
        self.first: float | None = None
        # Of a stream: whether its first chunk was sent, and how many characters were.
        self.opened, self.shown = False, 0
        self._index = index
        self._token_bytes = assembly.tokenizer.token_bytes

    def events(self, chunk: Chunk) -> list[Event]:
        """What a chunk brings."""
        reader, made = self.choice.reader, []
        step = None if chunk.step is None else self._told(chunk)
        if step is not None and not chunk.token_ids:
            made.append(Event(self._index, step=step))
        for at, token in enumerate(chunk.token_ids):
            piece = chunk.pieces[at] if at < len(chunk.pieces) else ""
            logprob = chunk.logprobs[at] if at < len(chunk.logprobs) else None
            made.append(Event(self._index, reader.push(token, piece), token, logprob, None if at else step))
        if chunk.finish_reason is not None:
            # Text that was held back comes without a token where none came with the end.
            deltas = reader.finish("".join(chunk.pieces[len(chunk.token_ids) :]))
            finish = "tool_calls" if chunk.finish_reason == "stop" and reader.calls else chunk.finish_reason
            made.append(Event(self._index, deltas, finish=finish))
        return made

    def _told(self, chunk: Chunk) -> dict[str, Any]:
        """A step as clients see it: with the texts of its tokens."""
        assert chunk.step is not None
        return {
            "index": self._index,
            **chunk.step,
            "drafted_text": [self._token_bytes(token).decode("utf-8", "replace") for token in chunk.step["drafted"]],
            "text": list(chunk.pieces),
        }


class Run:
    """The choices of one request. Leaving it early ends what still runs, within a step."""

    def __init__(
        self, worker: Worker, assembly: Assembly, metrics: Metrics, place: Place, choices: Sequence[Choice]
    ) -> None:
        self.choices = [Writing(index, choice, assembly) for index, choice in enumerate(choices)]
        self.began = time.perf_counter()
        self.on_close: Callable[[Run], None] | None = None
        self._worker, self._metrics, self._place = worker, metrics, place

    @property
    def completions(self) -> list[Completion]:
        """The answers so far."""
        return [writing.answer.completion() for writing in self.choices]

    async def events(self) -> AsyncIterator[list[Event]]:
        """All events, those together that are there at the same time. Raises ApiError for a choice that fails."""
        chunks: asyncio.Queue[tuple[Writing, Chunk]] = asyncio.Queue()
        try:
            await self._place.wait(sum(map(_most_tokens, self.choices)))
            for writing in self.choices:
                self._submit(writing, chunks)
            left = len(self.choices)
            while left:
                arrived = [await chunks.get()]
                while not chunks.empty():
                    arrived.append(chunks.get_nowait())
                events: list[Event] = []
                for writing, chunk in arrived:
                    self._metrics.chunk(writing, chunk, time.perf_counter())
                    events += writing.events(chunk)
                    left -= chunk.finish_reason is not None
                    if writing.answer.error is not None:
                        raise api_error(writing.answer.error)
                yield events
        finally:
            self.close()

    def cancel(self) -> None:
        """End what still runs; its last events say `abort`."""
        for writing in self.choices:
            if writing.ticket is not None and not writing.answer.finished.is_set():
                writing.ticket.cancel()

    def close(self) -> None:
        """End what still runs and give the place up. Closing twice is harmless."""
        self.cancel()
        self._place.leave()
        if self.on_close is not None:
            on_close, self.on_close = self.on_close, None
            on_close(self)

    def _submit(self, writing: Writing, chunks: asyncio.Queue[tuple[Writing, Chunk]]) -> None:
        loop, put, answer = asyncio.get_running_loop(), chunks.put_nowait, writing.answer

        def take(result: StepResult) -> None:
            loop.call_soon_threadsafe(put, (writing, answer.observe(result)))

        asked = writing.choice.asked
        writing.began = writing.last = time.perf_counter()
        writing.ticket = self._worker.submit(asked.request, take, asked.text, asked.constraint)


def _most_tokens(writing: Writing) -> int:
    """The most tokens that a choice may hold, as far as it says itself."""
    request = writing.choice.asked.request
    return len(request.prompt) + (request.sampling.max_tokens or 0)
