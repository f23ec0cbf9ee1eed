"""Which requests take part in the next pass, and how much of a prompt each reads (continuous batching).

First come, first served. Requests that decode always take part; prompts share what is left of the pass, so a long prompt
never stops the others from writing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.core.request import Request


@dataclass(frozen=True)
class Turn:
    """One request's part in a pass: the committed tokens it inputs, and whether the last of them is the root."""

    request: Request
    input_tokens: tuple[int, ...]
    decodes: bool


class Scheduler:
    """Queues and the pass plan. `max_sequences` requests are live at once; prompts read `prefill_rows` tokens a pass."""

    def __init__(self, max_sequences: int, prefill_rows: int) -> None:
        self.max_sequences = max_sequences
        self.prefill_rows = prefill_rows
        self.waiting: deque[Request] = deque()
        self.live: list[Request] = []

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def admit(self) -> Iterator[Request]:
        """Move waiting requests into free places, oldest first; the caller opens what they need."""
        while self.waiting and len(self.live) < self.max_sequences:
            request = self.waiting.popleft()
            self.live.append(request)
            yield request

    def remove(self, request: Request) -> None:
        if request in self.live:
            self.live.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def plan(self) -> Sequence[Turn]:
        """The turns of the next pass. Invariant: a decoding request's KV is one token short of its text."""
        turns: list[Turn] = []
        rows = self.prefill_rows
        for request in self.live:
            assert request.kv is not None, "a live request has a KV"
            unread = len(request.tokens) - request.kv.length
            taken = min(unread, max(rows, 1 if unread == 1 else 0))
            if taken == 0:
                continue
            if unread > 1:
                rows -= taken
            start = request.kv.length
            turns.append(Turn(request, tuple(request.tokens[start : start + taken]), decodes=taken == unread))
        return turns
