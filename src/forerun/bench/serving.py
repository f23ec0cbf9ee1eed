"""A server under load, with speculation off, on and as it decides itself: the same requests in each mode, in turn.

Modes are interleaved (ABC, BCA, CAB, ...), so that a machine that drifts treats them alike, and compared within a repeat. The
text comes first: where a mode wrote other tokens than `off` for any request of a cell, none of that cell's times count.

Open loop: Poisson arrivals at a rate at which so many streams are live on average with speculation off (Little's law: the
rate is that number over the mean E2EL, measured before anything is timed). Closed loop: so many clients, each with one request.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from forerun.bench.hosting import all_cpu_seconds, cpu_seconds
from forerun.bench.latency import Answer
from forerun.bench.load import closed_loop, open_loop, poisson
from forerun.bench.streams import Address, ask, tokens_of
from forerun.errors import ForerunError

OFF, ON, AUTO = "off", "on", "auto"
# Prompts of several kinds, for whoever has none at hand.
BUILT_IN = Path(__file__).parent / "prompts.jsonl"
# Requests of a cell, and of the warm-up, are at least so many.
_FEW = 8


@dataclass(frozen=True)
class Wanted:
    """One request. lap: how many times its prompt was asked before, by each mode."""

    prompt: str
    seed: int
    lap: int = 0


@dataclass(frozen=True)
class Schedule:
    """How requests arrive: from so many clients, or at these times (load)."""

    streams: int
    times: Sequence[float] | None = None


class Contender(Protocol):
    """What is measured. compared: whether it must write the text of `off`."""

    name: str
    compared: bool

    def run(self, requests: Sequence[Wanted], schedule: Schedule) -> list[Answer]:
        """Answers to all requests, in their order."""
        ...


class Mode:
    """A way to ask a server. keys: by lap, so that no prompt meets drafters that have seen its answer; None for none."""

    compared = True

    def __init__(self, name: str, address: Address, keys: Sequence[str | None], body: dict[str, Any]) -> None:
        self.name = name
        self._address, self._keys, self._body = address, keys, body

    def tokens(self, prompt: str) -> list[int]:
        """The token ids that the server reads for a prompt."""
        return tokens_of(self._address, self._keys[0], [{"role": "user", "content": prompt}])

    def run(self, requests: Sequence[Wanted], schedule: Schedule) -> list[Answer]:
        async def send(wanted: Wanted, due: float) -> Answer:
            messages = [{"role": "user", "content": wanted.prompt}]
            key = self._keys[min(wanted.lap, len(self._keys) - 1)]
            body = {**self._body, "messages": messages, "seed": wanted.seed, "stream": True, "return_token_ids": True}
            return await ask(self._address, key, body, due)

        if schedule.times is None:
            return asyncio.run(closed_loop(send, requests, schedule.streams))
        return asyncio.run(open_loop(send, requests, schedule.times))


@dataclass(frozen=True)
class Cell:
    """One mode under one load, once.

    rate: requests a second that were to arrive; None in a closed loop. seconds: from the first request to the last chunk.
    client: share of a core that the client took. others: cores that were busy with anything but client and server, not a
    number where that is not known.
    """

    mode: str
    compared: bool
    streams: int
    repeat: int
    rate: float | None
    answers: Sequence[Answer]
    seconds: float
    client: float
    others: float

    @property
    def answered(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.failure is None]

    @property
    def tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answered)

    @property
    def live(self) -> float:
        """Requests that were live on average."""
        return sum(answer.e2el for answer in self.answered) / self.seconds

    def same_text(self, off: Cell) -> list[bool]:
        """For each request that both answered: whether the tokens are those of speculation off."""
        pairs = zip(self.answers, off.answers, strict=True) if self.compared else ()
        return [a.token_ids == b.token_ids for a, b in pairs if a.failure is b.failure is None]

    def lines(self) -> Iterator[dict[str, Any]]:
        """One line of a log for each request, without its text."""
        for index, answer in enumerate(self.answers):
            line = {"mode": self.mode, "streams": self.streams, "repeat": self.repeat, "request": index}
            line |= {"failure": answer.failure, "tokens": len(answer.token_ids), "late": answer.sent - answer.due}
            if answer.failure is None:
                line |= {"ttft": answer.ttft, "tpot": answer.tpot, "e2el": answer.e2el}
            yield line


def cells_of(
    contenders: Sequence[Contender],
    prompts: Sequence[str],
    *,
    levels: Sequence[int],
    repeats: int,
    per_stream: int,
    closed: bool,
    seed: int = 0,
    server: int | None = None,
) -> Iterator[Cell]:
    """Run everything. The first contender is `off`. server: the process id of the server, where it runs here.

    Raises ForerunError where the warm-up fails: there is nothing to measure then.
    """
    requests = _requests(prompts, seed)
    _warm_up(contenders, requests, max(levels))
    rates = {} if closed else {level: _rate(contenders[0], requests, level) for level in levels}
    for repeat in range(repeats):
        for at, level in enumerate(levels):
            wanted = list(itertools.islice(requests, _count(level, per_stream)))
            rate = rates.get(level)
            times = None if rate is None else poisson(rate, len(wanted), seed + 1000 * repeat + level)
            turn = (repeat + at) % len(contenders)
            for contender in (*contenders[turn:], *contenders[:turn]):
                yield _measured(contender, wanted, Schedule(level, times), repeat, rate, server)


def laps(prompts: int, levels: Sequence[int], repeats: int, per_stream: int, closed: bool) -> int:
    """How many times the prompts are gone through by `cells_of`."""
    measured = repeats * sum(_count(level, per_stream) for level in levels)
    before = max(_FEW, max(levels)) + (0 if closed else sum(map(_before, levels)))
    return -(-(measured + before) // prompts)


def _requests(prompts: Sequence[str], seed: int) -> Iterator[Wanted]:
    """The prompts, again and again, each time with another seed."""
    if not prompts:
        raise ForerunError("there are no prompts to run; give a file with at least one.")
    for index in itertools.count():
        yield Wanted(prompts[index % len(prompts)], seed + index, index // len(prompts))


def _count(level: int, per_stream: int) -> int:
    return max(_FEW, level * per_stream)


def _before(level: int) -> int:
    """Requests that tell the rate of a level."""
    return max(_FEW, 2 * level)


def _warm_up(contenders: Sequence[Contender], requests: Iterator[Wanted], level: int) -> None:
    wanted = list(itertools.islice(requests, max(_FEW, level)))
    for contender in contenders:
        answers = contender.run(wanted, Schedule(level))
        failure = next((answer.failure for answer in answers if answer.failure is not None), None)
        if failure is not None:
            raise ForerunError(f"the warm-up of {contender.name} failed: {failure}.")


def _rate(off: Contender, requests: Iterator[Wanted], level: int) -> float:
    """Requests a second at which about `level` of them are live."""
    answers = off.run(list(itertools.islice(requests, _before(level))), Schedule(level))
    latencies = [answer.e2el for answer in answers if answer.failure is None]
    if not latencies:
        raise ForerunError(f"no request was answered at {level} streams; there is no rate to choose.")
    return level * len(latencies) / sum(latencies)


def _measured(
    contender: Contender, wanted: Sequence[Wanted], load: Schedule, repeat: int, rate: float | None, server: int | None
) -> Cell:
    before, began = _clocks(server), time.perf_counter()
    answers = contender.run(wanted, load)
    wall, after = time.perf_counter() - began, _clocks(server)
    client, serving, everything = (now - then for now, then in zip(after, before, strict=True))
    ends = [answer.chunks[-1] for answer in answers if answer.chunks]
    seconds = max(ends) - min(answer.sent for answer in answers) if ends else wall
    others = (everything - serving - client) / wall
    return Cell(contender.name, contender.compared, load.streams, repeat, rate, answers, seconds, client / wall, others)


def _clocks(server: int | None) -> tuple[float, float, float]:
    """Processor time of the client, of the server and of everything."""
    return time.process_time(), math.nan if server is None else cpu_seconds(server), all_cpu_seconds()
