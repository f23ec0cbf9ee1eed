"""What /metrics shows: forerun's counters in vLLM's names, and those of speculation under `vllm:` too, for its tools.

Time to first token: from a request's turn to its first token. Time per output token: the time after the first one over the
tokens after it. Inter-token latency: the gap between two chunks over the tokens of the second. End to end: from the request's
turn to its last token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from forerun.completion import Chunk

if TYPE_CHECKING:
    from prometheus_client import Metric

    from forerun.answer import Answer
    from forerun.assembly import Assembly
    from forerun.server.turns import Turns

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Timed(Protocol):
    """A choice while it is written. began: when it was its turn; first, last: when its first token came, and its latest."""

    answer: Answer
    began: float
    first: float | None
    last: float


class Metrics(Collector):
    """The metrics of one server, in a registry of its own."""

    def __init__(self, assembly: Assembly, turns: Turns) -> None:
        self._assembly, self._turns = assembly, turns
        self._registry = CollectorRegistry()
        self._first = self._histogram("time_to_first_token", "From a request's turn to its first token.", _LONG)
        self._per_token = self._histogram("time_per_output_token", "Mean time of the tokens after the first.", _SHORT)
        self._gap = self._histogram("inter_token_latency", "Gap between chunks, per token.", _SHORT)
        self._whole = self._histogram("e2e_request_latency", "From a request's turn to its last token.", _LONG)
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._drafts = self._drafted = self._accepted = 0
        self._positions: list[int] = []
        self._finished: dict[str, int] = {}
        self._registry.register(self)

    def chunk(self, writing: Timed, chunk: Chunk, now: float) -> None:
        """Count a chunk of a choice."""
        tokens = len(chunk.token_ids)
        if tokens:
            if writing.first is None:
                writing.first = now
                self._first.observe(now - writing.began)
            else:
                for _ in range(tokens):
                    self._gap.observe((now - writing.last) / tokens)
            writing.last = now
            self._counts["generation_tokens"] += tokens
        if chunk.drafted:
            accepted = sum(chunk.accepted)
            self._drafts += 1
            self._drafted += chunk.drafted
            self._accepted += accepted
            self._positions += [0] * (accepted - len(self._positions))
            for position in range(accepted):
                self._positions[position] += 1
        if chunk.finish_reason is not None:
            self._end(writing, chunk, now)

    def expose(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What is read off the moment it is asked for."""
        engine = self._assembly.engine
        room = engine.target.room()
        waiting = len(engine.scheduler.waiting)
        gauges = {
            "num_requests_running": ("Answers that are being written.", len(engine.scheduler.live)),
            "num_requests_waiting": ("Requests that wait for their turn.", self._turns.waiting + waiting),
            "kv_cache_usage_perc": ("Share of the memory for keys and values in use.", 1.0 - room.free / room.total),
        }
        for name, (help_, value) in gauges.items():
            yield GaugeMetricFamily(f"forerun_{name}", help_, value)
        for name, help_ in _COUNTERS.items():
            yield CounterMetricFamily(f"forerun_{name}", help_, self._counts[name])
        finished = CounterMetricFamily("forerun_request_finished", "Answers by how they ended.", labels=["reason"])
        for reason, count in sorted(self._finished.items()):
            finished.add_metric([reason], count)
        yield finished
        for prefix in ("forerun_", "vllm:"):
            yield from self._speculation(prefix)

    def _speculation(self, prefix: str) -> Iterator[Metric]:
        counts = {
            "num_drafts": ("Steps that verified drafted tokens.", self._drafts),
            "num_draft_tokens": ("Drafted tokens that were verified.", self._drafted),
            "num_accepted_tokens": ("Drafted tokens that were accepted.", self._accepted),
        }
        for name, (help_, value) in counts.items():
            yield CounterMetricFamily(f"{prefix}spec_decode_{name}", help_, value)
        help_ = "Accepted tokens by their position in the draft."
        positions = CounterMetricFamily(f"{prefix}spec_decode_num_accepted_tokens_per_pos", help_, labels=["position"])
        for position, count in enumerate(self._positions):
            positions.add_metric([str(position)], count)
        yield positions

    def _end(self, writing: Timed, chunk: Chunk, now: float) -> None:
        usage = writing.answer.completion().usage
        self._counts["prompt_tokens"] += usage.prompt_tokens
        self._counts["prefix_cache_queries"] += usage.prompt_tokens
        self._counts["prefix_cache_hits"] += usage.cached_tokens
        self._whole.observe(now - writing.began)
        if writing.first is not None and usage.completion_tokens > 1:
            self._per_token.observe((now - writing.first) / (usage.completion_tokens - 1))
        self._finished[str(chunk.finish_reason)] = self._finished.get(str(chunk.finish_reason), 0) + 1

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"forerun_{name}_seconds", help_, buckets=buckets, registry=self._registry)


_COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens that were written.",
    "prefix_cache_queries": "Tokens of prompts that were looked up among kept prefixes.",
    "prefix_cache_hits": "Tokens of prompts that had been read for an earlier request.",
}
