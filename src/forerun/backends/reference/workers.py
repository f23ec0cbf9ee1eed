"""A few threads that share one pass's arithmetic. Which thread computes what never changes a bit of the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from forerun.backends.cores import usable_cores

Task = Callable[[], None]


class Workers:
    """Runs independent tasks on up to `threads` threads, the caller's own among them."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = max(1, usable_cores() if threads is None else threads)
        self._pool = ThreadPoolExecutor(self.threads - 1, "forerun-reference") if self.threads > 1 else None

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks and return when every one has ended; raises what a task raised."""
        waiting = deque(tasks)
        others = (
            []
            if self._pool is None
            else [self._pool.submit(_drain, waiting) for _ in range(min(self.threads, len(tasks)) - 1)]
        )
        try:
            _drain(waiting)
        finally:
            # After an exception (Ctrl-C) nothing may go on writing behind the caller's back.
            waiting.clear()
            wait(others)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads. Tasks run on the caller's thread from then on."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _drain(waiting: deque[Task]) -> None:
    # Broken weights make broken logits, which the engine reports; numpy's error state does not cross threads.
    with np.errstate(all="ignore"):
        while True:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            task()
