"""Stops speculation that does not pay and tries it again now and then, by what steps really took and whatever was estimated.

Each speculating step is charged its seconds against what its tokens would
have cost one by one. It closes when the mean gain of a step is a loss, and probes after 8, 16, 32, ... 256 plain steps, or
sooner where the drafts that it holds back promise much; a probe that gains opens it, and the wait starts from 8 again only
after a stretch of gains, so that it does not open and close all the time.
"""

from __future__ import annotations

# Plain steps before the first probe.
_FIRST_WAIT = 8
# Plain steps before a probe at most; the wait doubles with each probe that loses.
_LONGEST_WAIT = 256
# Weight of the mean gain so far when a step is added to it: the last 20 steps or so count.
_FADE = 0.95
# Mean loss, in plain tokens a step, that closes the gate.
_LOSS = 0.03
# Speculating steps before the mean loss counts.
_PATIENCE = 6
# Speculating steps without closing after which the wait starts from the first again.
_STEADY = 24
# Plain steps that a closed gate's wait gets shorter for each plain token that the draft at hand is expected to gain
# (LOG.md, "A closed gate is probed sooner").
_HASTE = 4.0


class Gate:
    """Open or closed for one text (or for a whole batch). Gains are in plain tokens per step."""

    def __init__(self) -> None:
        self.open = True
        self._mean = 0.0
        self._steps = 0
        self._wait = _FIRST_WAIT
        self._left = 0.0

    def allows(self, promise: float = 0.0) -> bool:
        """Whether this step may speculate: open, or a probe is due. Asked once a step.

        promise: what the draft at hand is expected to gain, in plain tokens.
        """
        if self.open:
            return True
        self._left -= 1.0 + _HASTE * max(0.0, promise)
        return self._left < 0.0

    def observe(self, gain: float) -> None:
        """Learn from a speculating step: tokens it wrote, less the plain steps that its seconds would have bought."""
        if not self.open:
            if gain > 0.0:
                self.open, self._mean, self._steps = True, 0.0, 0
            else:
                self._close()
            return
        self._mean = _FADE * self._mean + (1.0 - _FADE) * gain
        self._steps += 1
        if self._steps >= _PATIENCE and self._mean < -_LOSS:
            self._close()
        elif self._steps >= _STEADY:
            self._wait = _FIRST_WAIT

    def _close(self) -> None:
        self.open = False
        self._left = self._wait
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._mean, self._steps = 0.0, 0
