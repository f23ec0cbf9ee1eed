"""The child's side: answers requests from standard input within their bounds, until the parent has gone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from forerun.confined.frames import decoded, encoded, receive, send
from forerun.errors import ForerunError

READY: Final = b"ready"
OUT_OF_MEMORY: Final = 3
ANSWER_TOO_LONG: Final = 4


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer each request with the value of `answer`, or with the ForerunError that it raises.

    A request that takes too much ends the process, with OUT_OF_MEMORY or ANSWER_TOO_LONG or by SIGPROF.
    """
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What else writes to standard output must not get between the answers.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    send(answers, READY)
    while (payload := receive(requests)) is not None:
        bounds, request = decoded(payload)
        with _bounded(bounds["seconds"], bounds["memory"]):
            try:
                result = encoded({"value": answer(request)})
            except ForerunError as error:
                result = encoded({"error": type(error).__name__, "message": str(error)})
            except MemoryError:
                os._exit(OUT_OF_MEMORY)
        if len(result) > bounds["answer"]:
            os._exit(ANSWER_TOO_LONG)
        send(answers, result)


@contextmanager
def _bounded(seconds: float, memory: int) -> Iterator[None]:
    """Limits the processor time from now on, and the memory on top of what there is, in bytes."""
    if sys.platform != "win32":
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
    if sys.platform == "linux":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        limit = now + memory if most == resource.RLIM_INFINITY else min(most, now + memory)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    yield
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, 0)
