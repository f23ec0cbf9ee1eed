"""Requests arrive when they should: at their own times, or when a client is free."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from forerun.bench.load import closed_loop, open_loop, poisson


def test_arrivals_are_a_poisson_process() -> None:
    times = poisson(rate=4.0, count=4001, seed=1)
    assert times[0] == 0.0
    assert times == sorted(times)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    # Exponential gaps vary as much as their mean.
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)
    assert poisson(4.0, 5, seed=1) == times[:5]
    assert poisson(4.0, 5, seed=2) != times[:5]


def test_an_open_loop_does_not_wait_for_answers() -> None:
    live, most = 0, 0
    released = asyncio.Event()

    async def send(request: str, due: float) -> tuple[str, float]:
        nonlocal live, most
        live += 1
        most = max(most, live)
        if live == 3:
            released.set()
        await released.wait()
        return request, due

    async def run() -> list[tuple[str, float]]:
        return await open_loop(send, ["a", "b", "c"], [0.0, 0.01, 0.02])

    answers = asyncio.run(run())
    assert [request for request, _ in answers] == ["a", "b", "c"]
    first = answers[0][1]
    assert [due - first for _, due in answers] == pytest.approx([0.0, 0.01, 0.02])
    assert most == 3


def test_a_closed_loop_has_so_many_requests_live() -> None:
    live, lives = 0, []

    async def send(request: int, due: float) -> int:
        nonlocal live
        live += 1
        lives.append(live)
        await asyncio.sleep(0)
        live -= 1
        return request * 10

    async def run() -> list[int]:
        return await closed_loop(send, range(7), 3)

    assert asyncio.run(run()) == [0, 10, 20, 30, 40, 50, 60]
    assert max(lives) == 3
