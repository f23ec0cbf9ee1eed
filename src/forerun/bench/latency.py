"""What a client sees of an answer, in seconds, by the definitions of vLLM's `bench serve`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.errors import UsageError, quoted

DEFINITIONS = {
    "ttft": "time to first token: from sending the request to its first chunk",
    "tpot": "time per output token: (E2EL - TTFT) / (tokens - 1)",
    "itl": "inter-token latency: the gap from one chunk to the next; the tokens of a step come together",
    "e2el": "end-to-end latency: from sending the request to its last chunk",
}
METRICS = tuple(DEFINITIONS)
PERCENTILES = (50, 90, 99)
# What a service level objective may bound, and the units it may be said in.
_BOUNDED = ("ttft", "tpot", "e2el")
_UNITS = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Answer:
    """One request as its client saw it. Times are of one clock.

    due: when it was to be sent, sent: when it was. chunks: when each chunk came. failure: why it is no answer.
    """

    due: float
    sent: float
    chunks: tuple[float, ...] = ()
    token_ids: tuple[int, ...] = ()
    failure: str | None = None

    @property
    def ttft(self) -> float:
        return self.chunks[0] - self.sent

    @property
    def e2el(self) -> float:
        return self.chunks[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """None for a single token."""
        return (self.e2el - self.ttft) / (len(self.token_ids) - 1) if len(self.token_ids) > 1 else None

    @property
    def itl(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.chunks)]

    def meets(self, slo: Mapping[str, float]) -> bool:
        """Whether it is an answer, and no metric of it is above its bound."""
        return self.failure is None and all((getattr(self, name) or 0.0) <= bound for name, bound in slo.items())


def values(answers: Iterable[Answer], metric: str) -> list[float]:
    """A metric of all answers that are there."""
    found = [getattr(answer, metric) for answer in answers if answer.failure is None]
    if metric == "itl":
        return [gap for gaps in found for gap in gaps]
    return [value for value in found if value is not None]


def percentiles(found: Sequence[float]) -> dict[str, float]:
    """`{"p50": ..., "p90": ..., "p99": ...}`; not-a-number where there is nothing."""
    if not found:
        return {f"p{percent}": float("nan") for percent in PERCENTILES}
    return {f"p{percent}": float(np.percentile(found, percent)) for percent in PERCENTILES}


def parse_slo(text: str) -> dict[str, float]:
    """Bounds in seconds from `ttft:500ms,tpot:100ms`. Raises UsageError."""
    slo: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, bound = part.partition(":")
        unit = "ms" if bound.endswith("ms") else "s"
        try:
            seconds = float(bound.removesuffix(unit)) * _UNITS[unit]
        except ValueError:
            seconds = 0.0
        if name not in _BOUNDED or not bound.endswith(unit) or not 0.0 < seconds < float("inf"):
            raise UsageError(
                f"--slo has {quoted(part)}; give bounds on {', '.join(_BOUNDED)}, such as ttft:500ms,tpot:100ms."
            )
        slo[name] = seconds
    return slo
