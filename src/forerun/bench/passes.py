"""What a verification pass costs: T(rows) against T(1), beside a peer on the same file and the machine's own limits.

Every repeat runs each size of each engine once, in turn, so that a machine that slows down slows all of them; medians are
reported. Nothing is committed: each pass rolls back.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.bench.peers import Peer
from forerun.core.draft import Draft
from forerun.core.model import KV, ForwardInput, Model

Clock = Callable[[], float]


class Ours:
    """A forerun model behind the same three calls as a peer."""

    def __init__(self, model: Model, chunk: int = 256) -> None:
        self.name = f"forerun {model.info.backend}"
        self._model, self._chunk = model, chunk
        self._kv: KV | None = None

    def read(self, tokens: Sequence[int]) -> None:
        self.close()
        self._kv = kv = self._model.open()
        for start in range(0, len(tokens), self._chunk):
            with self._model.forward(
                [ForwardInput(kv, tuple(tokens[start : start + self._chunk]), logits=False)]
            ) as output:
                output.commit(0, ())

    def rows(self, tokens: Sequence[int]) -> None:
        assert self._kv is not None, "read comes before rows"
        with self._model.forward([ForwardInput(self._kv, (tokens[0],), Draft.chain(tokens[1:]))]) as output:
            output.logits(0)

    def close(self) -> None:
        if self._kv is not None:
            self._kv.close()
            self._kv = None


@dataclass(frozen=True)
class PassTable:
    """Medians of one engine at one context length.

    seconds: rows -> seconds of a pass. prefill: tokens per second over the context (0 where it is too short to time).
    """

    engine: str
    context: int
    repeats: int
    seconds: dict[int, float] = field(default_factory=dict)
    prefill: float = 0.0

    def v(self, rows: int) -> float:
        """T(rows) / T(1)."""
        return self.seconds[rows] / self.seconds[1]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"v": {rows: self.v(rows) for rows in self.seconds if 1 in self.seconds}}


def measure_passes(
    engines: Sequence[Peer],
    rows: Sequence[int],
    *,
    text: Sequence[int],
    context: int,
    repeats: int = 15,
    clock: Clock = time.perf_counter,
) -> list[PassTable]:
    """One table per engine, at the same context, with interleaved repeats. Row counts always include 1.

    text: the tokens that are read, at least `context` and the largest number of rows. A pass over ordinary text may take
    longer than one over a token said again and again.
    """
    sizes = sorted({1, *rows})
    read, following = text[:context], text[context:]
    assert len(following) >= sizes[-1], "the text is shorter than what is to be read of it"
    prefill: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for repeat in range(3):
        for engine in engines if repeat % 2 == 0 else reversed(engines):
            started = clock()
            engine.read(read)
            prefill[engine.name].append(clock() - started)
    times: dict[tuple[str, int], list[float]] = {}
    for repeat in range(repeats + 1):
        for size in sizes:
            for engine in engines if repeat % 2 == 0 else reversed(engines):
                started = clock()
                engine.rows(following[:size])
                if repeat:  # the first repeat pays for pages and buffers
                    times.setdefault((engine.name, size), []).append(clock() - started)
    return [
        PassTable(
            engine.name,
            context,
            repeats,
            {size: statistics.median(times[engine.name, size]) for size in sizes},
            context / statistics.median(prefill[engine.name]),
        )
        for engine in engines
    ]
