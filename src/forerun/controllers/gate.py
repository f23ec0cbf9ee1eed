"""Off when speculation does not pay, cheap probes, on again when it would: the last word after every estimate.

The gate looks only at what happened: each speculating round is charged its real seconds against what its tokens would
have cost one by one. It closes when a round's mean gain is a loss, and probes after 8, 16, 32, ... 256 plain rounds, or
sooner where the drafts that it holds back promise much; a probe that gains opens it, and the wait starts from 8 again only
after a stretch of gains, so that it does not flutter.
"""

from __future__ import annotations

_FIRST_WAIT, _LONGEST_WAIT = 8, 256
# How fast the mean gain forgets, the mean loss that closes, rounds before it is believed, and a steady stretch of gains.
_FADE = 0.95
_LOSS = 0.03
_PATIENCE = 6
_STEADY = 24
# How much nearer a probe comes by a round whose draft promises one token more than a plain round.
_HASTE = 4.0


class Gate:
    """Open or closed for one request (or for a whole batch). Gains are in plain tokens per round."""

    def __init__(self) -> None:
        self.open = True
        self._mean = 0.0
        self._rounds = 0
        self._wait = _FIRST_WAIT
        self._left = 0.0

    def allows(self, promise: float = 0.0) -> bool:
        """Whether this round may speculate: open, or a probe is due. Ask once a round.

        promise: what the draft in hand is believed to gain, in plain tokens.
        """
        if self.open:
            return True
        self._left -= 1.0 + _HASTE * max(0.0, promise)
        return self._left < 0.0

    def observe(self, gain: float) -> None:
        """Learn from a speculating round: tokens it wrote, less the plain rounds that its seconds would have bought."""
        if not self.open:
            if gain > 0.0:
                self.open, self._mean, self._rounds = True, 0.0, 0
            else:
                self._close()
            return
        self._mean = _FADE * self._mean + (1.0 - _FADE) * gain
        self._rounds += 1
        if self._rounds >= _PATIENCE and self._mean < -_LOSS:
            self._close()
        elif self._rounds >= _STEADY:
            self._wait = _FIRST_WAIT

    def _close(self) -> None:
        self.open = False
        self._left = self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._mean, self._rounds = 0.0, 0
