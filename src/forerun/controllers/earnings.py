"""What drafting has earned lately: tokens, nodes and levels of a model, per round. What that costs depends on the batch.

A request starts from what requests like it saw and then goes its own way, since one text is predictable and the next is
not. When it does not pay for a request it is tried again after 24, 48, 96, ... rounds.
"""

from __future__ import annotations

# How fast the means move: of one request, and of all; and how many rounds what is believed at first counts as.
_OWN, _ALL, _BELIEF = 0.12, 0.02, 8.0
_FIRST_WAIT, _LONGEST_WAIT = 24, 192
# How fast what was seen is forgotten, by requests.
_FADE = 0.02


class Earnings:
    """Running means per round: tokens written, nodes verified for them, levels that a model drafted."""

    def __init__(self, tokens: float, nodes: float, levels: float = 0.0, pace: float = _ALL) -> None:
        self.tokens, self.nodes, self.levels = tokens, nodes, levels
        self._pace = pace
        self._seen = _BELIEF
        self._wait = self._left = _FIRST_WAIT

    def own(self) -> Earnings:
        """A copy for one request."""
        return Earnings(self.tokens, self.nodes, self.levels, _OWN)

    def add(self, tokens: float, nodes: float, levels: float = 0.0) -> None:
        """Count a round."""
        self._seen += 1.0
        self._move(max(self._pace, 1.0 / self._seen), tokens, nodes, levels)

    def follow(self, other: Earnings) -> None:
        """Expect what another expects, keeping count of the tries."""
        self._move(1.0, other.tokens, other.nodes, other.levels)

    def fade(self, believed: Earnings, part: float = 1.0) -> None:
        """Move a little toward what was believed at first, so that a drafter which failed is tried again one day."""
        self._move(_FADE * part, believed.tokens, believed.nodes, believed.levels)

    def due(self, pays: bool) -> bool:
        """Whether to run it now: it pays, or it is time to try again. Ask once a round."""
        if pays:
            self._wait = self._left = _FIRST_WAIT
            return True
        self._left -= 1
        if self._left > 0:
            return False
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._left = self._wait
        return True

    def _move(self, share: float, tokens: float, nodes: float, levels: float) -> None:
        self.tokens += share * (tokens - self.tokens)
        self.nodes += share * (nodes - self.nodes)
        self.levels += share * (levels - self.levels)
