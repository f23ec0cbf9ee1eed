"""A real Ctrl-C at a place of the test's choice, in a program of two threads."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import forerun.answer
import forerun.llm
from forerun.backends.toy import ToyModel
from forerun.engine.worker import Ticket

# Longest that one thread waits for the other.
_PATIENCE_S = 60


def interrupt(nth: int, requests: int = 1, *, patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Send SIGINT in the middle of the toy's n-th pass from now.

    Up to it, passes wait until the main thread waits for a chunk; the n-th goes on when that thread has ended its requests.
    """
    waiting, ended, left = threading.Event(), threading.Event(), requests

    class Chunks(SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            waiting.clear()
            super().put(item, block, timeout)

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if self.empty():
                waiting.set()
            return super().get(block, timeout)

    passes, forward, cancel = 0, ToyModel.forward, Ticket.cancel

    def interrupted(*arguments: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes <= nth:
            assert waiting.wait(_PATIENCE_S)
        if passes == nth:
            os.kill(os.getpid(), signal.SIGINT)
            assert ended.wait(_PATIENCE_S)
        return forward(*arguments)

    def cancelled(ticket: Ticket) -> None:
        nonlocal left
        cancel(ticket)
        left -= 1
        if left == 0:
            ended.set()

    # Shells start background jobs with it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    patch(ToyModel, "forward", interrupted)
    patch(Ticket, "cancel", cancelled)
    for module in (forerun.answer, forerun.llm):
        patch(module, "SimpleQueue", Chunks)
