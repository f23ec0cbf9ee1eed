"""Stops speculation that does not pay and tries it again now and then, by what steps really took and whatever was estimated.

Each step whose drafters were asked is charged what that took, and what verifying took, against what its tokens would have
cost one by one. It closes when the mean gain of a step is a loss, and probes after 8, 16, 32, ... 256 plain steps; a probe
that gains opens it, and the wait starts from 8 again only after a stretch of gains, so that it does not open and close all
the time. While it is closed, drafters are asked as often as costs next to nothing, and a draft that promises much is probed
sooner.
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
# Share of the time that is given to asking drafters while a gate is closed.
_LOOKING = 0.01
# Plain steps that a closed gate's wait gets shorter for each plain token that the draft at hand is expected to gain
# (LOG.md, "A closed gate is probed sooner").
_HASTE = 4.0


class Gate:
    """Open or closed for one text (or for a whole batch). Gains are in plain tokens per step.

    gain: what is expected of a step, from other texts; a loss closes it from the start. asking: what asking takes.
    """

    def __init__(self, gain: float = 0.0, asking: float = 0.0) -> None:
        self.open = True
        self._mean = 0.0
        self._steps = 0
        self._wait = _FIRST_WAIT
        # Of a closed gate: plain steps until a probe, between two looks, and until the next look.
        self._left = self._pause = self._rest = 0.0
        if gain < -_LOSS:
            self._close(asking)

    def asks(self) -> bool:
        """Whether drafters are asked in this step. Called once a step."""
        if self.open:
            return True
        self._left -= 1.0
        self._rest -= 1.0
        if self._rest > 0.0:
            return False
        self._rest = self._pause
        return True

    def allows(self, promise: float = 0.0) -> bool:
        """Whether a draft may be verified: open, or a probe is due. Called at most once in a step that asks.

        promise: what the draft is expected to gain, in plain tokens.
        """
        if not self.open:
            self._left -= self._pause * _HASTE * max(0.0, promise)
        return self.open or self._left <= 0.0

    def observe(self, gain: float, asking: float = 0.0) -> None:
        """Learn from a step that asked.

        gain: tokens it wrote, less the plain steps that its seconds would have bought. asking: of these, what asking took.
        """
        if not self.open:
            if gain > 0.0:
                self.open, self._mean, self._steps = True, 0.0, 0
            elif self._left <= 0.0:
                self._close(asking)
            return
        self._mean = _FADE * self._mean + (1.0 - _FADE) * gain
        self._steps += 1
        if self._steps >= _PATIENCE and self._mean < -_LOSS:
            self._close(asking)
        elif self._steps >= _STEADY:
            self._wait = _FIRST_WAIT

    def _close(self, asking: float) -> None:
        self.open = False
        self._left = self._wait
        self._pause = self._rest = max(1.0, asking / _LOOKING)
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._mean, self._steps = 0.0, 0
