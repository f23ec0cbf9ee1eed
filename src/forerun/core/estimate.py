"""A running mean that starts from a prior and follows what was seen lately: the one estimator of drafters and controllers."""

from __future__ import annotations


class RunningMean:
    """prior: the value before anything was seen, worth `weight` observations. memory: the most observations it counts;
    from then on each new one moves the mean by 1 / memory."""

    __slots__ = ("_memory", "_seen", "value")

    def __init__(self, prior: float, *, weight: float, memory: float) -> None:
        self.value = prior
        self._seen = weight
        self._memory = memory

    def add(self, observed: float) -> None:
        """Count one observation."""
        self._seen = min(self._seen + 1.0, self._memory)
        self.value += (observed - self.value) / self._seen
