"""The queue: bounded, first come first served for each key, and the keys in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from forerun.server.errors import ApiError
from forerun.server.turns import Place, Turns


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await test()

    asyncio.run(whole())


class Asking:
    """Requests that note when it was their turn."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.order: list[str] = []
        self.places: dict[str, Place] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, name: str, tenant: str = "", choices: int = 1, tokens: int = 0) -> None:
        place = self.places[name] = self.turns.join(tenant, choices)

        async def wait() -> None:
            await place.wait(tokens)
            self.order.append(name)

        self.tasks.append(asyncio.create_task(wait()))

    async def settle(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.order


def test_first_come_first_served_and_the_keys_in_turn() -> None:
    async def test() -> None:
        asking = Asking(Turns(1, 10))  # and one that waits in the engine
        for name, tenant in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("a4", "a"), ("b1", "b"), ("c1", "c")):
            asking.ask(name, tenant)
        assert await asking.settle() == ["a1", "a2"]
        for name in ("a1", "a2", "b1", "c1"):
            asking.places[name].leave()
            await asking.settle()
        assert asking.order == ["a1", "a2", "b1", "c1", "a3", "a4"]

    run(test)


def test_a_full_queue_says_when_to_come_again() -> None:
    async def test() -> None:
        asking = Asking(Turns(1, 2))
        for name in "1234":
            asking.ask(name)
        await asking.settle()
        assert (asking.turns.running, asking.turns.waiting) == (2, 2)
        with pytest.raises(ApiError) as refused:
            asking.ask("5")
        assert refused.value.status_code == 503
        assert refused.value.headers is not None
        assert int(refused.value.headers["Retry-After"]) >= 1
        asking.places["3"].leave()
        asking.ask("6")
        await asking.settle()
        asking.places["1"].leave()
        asking.places["2"].leave()
        assert await asking.settle() == ["1", "2", "4", "6"]

    run(test)


def test_nobody_waits_where_the_queue_is_of_no_length() -> None:
    async def test() -> None:
        turns = Turns(1, 0)
        places = [turns.join("", 1), turns.join("", 1)]
        with pytest.raises(ApiError):
            turns.join("", 1)
        places[0].leave()
        turns.join("", 1)

    run(test)


def test_several_choices_and_tokens_take_their_room() -> None:
    async def test() -> None:
        asking = Asking(Turns(3, 10, most_tokens=100))
        asking.ask("wide", choices=3, tokens=10)
        asking.ask("two", choices=2, tokens=10)
        asking.ask("one", choices=1, tokens=10)
        assert await asking.settle() == ["wide"]  # none overtakes
        asking.places["wide"].leave()
        assert await asking.settle() == ["wide", "two", "one"]
        asking.ask("large", tokens=90)
        assert await asking.settle() == ["wide", "two", "one"]
        asking.places["two"].leave()
        assert (await asking.settle())[-1] == "large"
        # More choices than there are places for go alone.
        asking.places["one"].leave()
        asking.places["large"].leave()
        asking.ask("huge", choices=100, tokens=1000)
        assert (await asking.settle())[-1] == "huge"

    run(test)


def test_who_gives_up_holds_nobody_up() -> None:
    async def test() -> None:
        asking = Asking(Turns(1, 10))
        for name in "1234":
            asking.ask(name)
        await asking.settle()
        asking.tasks[2].cancel()
        asking.places["3"].leave()
        asking.places["3"].leave()
        asking.places["1"].leave()
        assert await asking.settle() == ["1", "2", "4"]

    run(test)


def test_a_closed_queue_refuses_those_who_wait_and_those_who_come() -> None:
    async def test() -> None:
        asking = Asking(Turns(1, 10))
        for name in "123":
            asking.ask(name)
        unready = asking.turns.join("", 1)
        await asking.settle()
        asking.turns.close(ApiError(503, "closed"))
        results = await asyncio.gather(*asking.tasks, return_exceptions=True)
        assert [isinstance(result, ApiError) for result in results] == [False, False, True]
        with pytest.raises(ApiError, match="closed"):
            asking.turns.join("", 1)
        unready.leave()
        asking.places["1"].leave()

    run(test)
