"""What a drafter that runs a model has earned lately: tokens and seconds of the rounds that it took part in.

A request starts from what all requests saw and then goes its own way, since one text is predictable and the next is not.
When it does not pay for a request it is tried again after 24, 48, 96, ... rounds.
"""

from __future__ import annotations

# How fast the means move: of one request, and of all; and how many rounds what is believed at first counts as.
_OWN, _ALL, _BELIEF = 0.12, 0.02, 8.0
_FIRST_WAIT, _LONGEST_WAIT = 24, 192
# How fast what was seen is forgotten, by requests.
_FADE = 0.02


class Earnings:
    """Running means of tokens and seconds per round."""

    def __init__(self, tokens: float, seconds: float, pace: float = _ALL) -> None:
        self.tokens = tokens
        self.seconds = seconds
        self._pace = pace
        self._seen = _BELIEF
        self._wait = self._left = _FIRST_WAIT

    def own(self) -> Earnings:
        """A copy for one request."""
        return Earnings(self.tokens, self.seconds, _OWN)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def add(self, tokens: float, seconds: float) -> None:
        """Count a round that it took part in."""
        self._seen += 1.0
        pace = max(self._pace, 1.0 / self._seen)
        self.tokens += pace * (tokens - self.tokens)
        self.seconds += pace * (seconds - self.seconds)

    def follow(self, other: Earnings) -> None:
        """Expect what another expects, keeping count of the tries."""
        self.tokens, self.seconds = other.tokens, other.seconds

    def fade(self, believed: Earnings) -> None:
        """Move a little towards what was believed at first, so that a drafter which failed is tried again one day."""
        self.tokens += _FADE * (believed.tokens - self.tokens)
        self.seconds += _FADE * (believed.seconds - self.seconds)

    def worth(self, rate: float) -> bool:
        """Whether to run it now against a sure `rate`: it earns more, or it is time to try again. Ask once a round."""
        if self.rate > rate:
            self._wait = self._left = _FIRST_WAIT
            return True
        self._left -= 1
        if self._left > 0:
            return False
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._left = self._wait
        return True
