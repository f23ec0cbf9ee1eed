"""Who is served next: a bounded queue, first come first served for each key, and the keys in turn.

A place is taken for as long as a request runs. Places are given away a little ahead of the engine's own, so that it never
waits for the event loop. Everything here happens on the event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque

from forerun.server.errors import ApiError

# Requests that wait inside the engine, beside those that run.
_AHEAD = 1
# Weight of the last request in how long one takes; longest advice to a client, in seconds.
_WEIGHT, _LONGEST = 0.2, 60


class Place:
    """A request's place in the queue, then among those that run.

    choices: answers that it writes at once. tokens: the most that it may hold, known once its prompt was read.
    """

    def __init__(self, turns: Turns, tenant: str, choices: int) -> None:
        self.tenant, self.choices, self.tokens = tenant, choices, 0
        self._turns = turns
        self._ready = False
        self._granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._began: float | None = None

    @property
    def ready(self) -> bool:
        """Whether it is known what it needs."""
        return self._ready

    async def wait(self, tokens: int) -> None:
        """Returns when it is this request's turn. Raises ApiError where that will never be."""
        self.tokens, self._ready = tokens, True
        self._turns.advance()
        await self._granted
        self._began = time.monotonic()

    def leave(self) -> None:
        """Give the place up. Doing so twice is harmless."""
        if self._granted.done() and not self._granted.cancelled():
            self._granted.exception()  # nobody waits for it any more
        self._turns.leave(self, None if self._began is None else time.monotonic() - self._began)

    def grant(self) -> None:
        if not self._granted.done():
            self._granted.set_result(None)

    def refuse(self, error: ApiError) -> None:
        if not self._granted.done():
            self._granted.set_exception(error)


class Turns:
    """The queue of a server.

    capacity: answers that the engine writes at once. most_waiting: requests that may wait. most_tokens: of all requests that
    run, None is no limit.
    """

    def __init__(self, capacity: int, most_waiting: int, most_tokens: int | None = None) -> None:
        self._capacity = capacity + _AHEAD
        self._most_waiting, self._most_tokens = most_waiting, most_tokens
        self._waiting: OrderedDict[str, deque[Place]] = OrderedDict()
        self._running: set[Place] = set()
        self._seconds = 1.0
        self._closed: ApiError | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait, those whose prompts are being read included."""
        return sum(map(len, self._waiting.values()))

    @property
    def running(self) -> int:
        """Requests that have a place."""
        return len(self._running)

    def join(self, tenant: str, choices: int) -> Place:
        """A place at the end of the tenant's queue. Raises ApiError 503 where the queue is full or closed."""
        if self._closed is not None:
            raise self._closed
        place = Place(self, tenant, min(choices, self._capacity))
        if self._behind(place) > self._most_waiting:
            raise ApiError(
                503,
                f"the server is busy: {self.running} requests run and {self.waiting} wait; try again later.",
                code="queue_full",
                headers={"Retry-After": str(self.retry_after)},
            )
        self._waiting.setdefault(tenant, deque()).append(place)
        return place

    @property
    def retry_after(self) -> int:
        """Seconds after which there should be a place in the queue."""
        expected = self._seconds * (1 + self.waiting / self._capacity)
        return min(_LONGEST, max(1, math.ceil(expected)))

    def leave(self, place: Place, seconds: float | None) -> None:
        """Take a place back; `seconds` is how long it ran, if it did."""
        if place in self._running:
            self._running.remove(place)
            if seconds is not None:
                self._seconds += _WEIGHT * (seconds - self._seconds)
        else:
            queue = self._waiting.get(place.tenant, deque())
            if place in queue:
                queue.remove(place)
                self._forget(place.tenant)
        self.advance()

    def close(self, error: ApiError) -> None:
        """Refuse those who wait and whoever comes."""
        self._closed = error
        for queue in self._waiting.values():
            for place in queue:
                place.refuse(error)
        self._waiting.clear()

    def advance(self) -> None:
        """Give places away, to one tenant after the other, for as long as whose turn it is fits in."""
        while True:
            tenant = next((name for name, queue in self._waiting.items() if queue[0].ready), None)
            if tenant is None or not self._fits(self._waiting[tenant][0]):
                return
            place = self._waiting[tenant].popleft()
            self._waiting.move_to_end(tenant)
            self._forget(tenant)
            self._running.add(place)
            place.grant()

    def _fits(self, place: Place) -> bool:
        if not self._running:
            return True
        choices = place.choices + self._taken
        tokens = place.tokens + sum(one.tokens for one in self._running)
        return choices <= self._capacity and (self._most_tokens is None or tokens <= self._most_tokens)

    def _behind(self, place: Place) -> int:
        """How many requests would be waiting for others with this one; those whose prompts are being read wait for nobody."""
        free, behind = self._capacity - self._taken, 0
        for one in (*(one for queue in self._waiting.values() for one in queue), place):
            if behind or one.choices > free:
                behind += 1
            free -= one.choices
        return behind

    @property
    def _taken(self) -> int:
        """Answers that are being written."""
        return sum(one.choices for one in self._running)

    def _forget(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]
