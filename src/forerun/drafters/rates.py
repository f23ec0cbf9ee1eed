"""Hit rates learned as a drafter goes: how often a guess of a certain kind was right, whether it was proposed or not.

Each kind starts from a prior worth a few observations and forgets slowly, so a drafter's scores are about right from
the first round and follow the text. Rates are shared by a drafter's sessions: they shape drafts, never the text.
"""

from __future__ import annotations

from collections.abc import Iterable


class Rates:
    """One rate per kind, a small integer.

    priors: the rate of each kind before anything was seen, in (0, 1). weight: how many observations a prior is worth.
    memory: the most observations a kind remembers; then old ones fade. `values` is the rate of each kind now.
    """

    def __init__(self, priors: Iterable[float], *, weight: float = 6.0, memory: float = 400.0) -> None:
        self.values = list(priors)
        self._seen = [weight] * len(self.values)
        self._memory = memory

    def __getitem__(self, kind: int) -> float:
        return self.values[kind]

    def note(self, kind: int, hit: bool) -> None:
        """Count one guess of a kind."""
        seen = self._seen[kind] = min(self._seen[kind] + 1.0, self._memory)
        self.values[kind] += ((1.0 if hit else 0.0) - self.values[kind]) / seen
