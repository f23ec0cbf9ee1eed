"""How requests arrive. Open loop: at times of their own, whatever the server does. Closed loop: each client sends its next
request when it has the answer to the last one, so that a fixed number of them is live.

Times are those of the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
R = TypeVar("R")
# Sends a request that is due at that time and returns its answer.
Send = Callable[[T, float], Awaitable[R]]


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Arrival times of a Poisson process with so many arrivals a second, from 0 on; the same for the same seed."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, count)
    gaps[:1] = 0.0
    times: list[float] = np.cumsum(gaps).tolist()
    return times


async def open_loop(send: Send[T, R], requests: Sequence[T], times: Sequence[float]) -> list[R]:
    """Send each request at its time, counted from now."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(request: T, due: float) -> R:
        await asyncio.sleep(due - loop.time())
        return await send(request, due)

    return await asyncio.gather(*(one(request, began + time) for request, time in zip(requests, times, strict=True)))


async def closed_loop(send: Send[T, R], requests: Sequence[T], clients: int) -> list[R]:
    """Send all requests, in order, from so many clients."""
    loop = asyncio.get_running_loop()
    answers: dict[int, R] = {}
    left = itertools.count()

    async def client() -> None:
        while (index := next(left)) < len(requests):
            answers[index] = await send(requests[index], loop.time())

    await asyncio.gather(*(client() for _ in range(clients)))
    return [answers[index] for index in range(len(requests))]
