"""The parent's side: starts the child when it is first needed, asks, and says in words what was taken too much of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any, Final, cast

from forerun.confined.child import ANSWER_TOO_LONG, OUT_OF_MEMORY, READY
from forerun.confined.frames import decoded, encoded, receive, send
from forerun.errors import ForerunError, ModelFileError, PromptError, UnsupportedModelError

_MB: Final = 1 << 20
# By the clock, the parent waits so many times the processor time that the child may take.
_PATIENCE: Final = 10
_ERRORS: Final = {error.__name__: error for error in (ModelFileError, PromptError, UnsupportedModelError)}


@dataclass(frozen=True)
class Limits:
    """What one request may take: seconds of processor time, bytes of memory, bytes of the answer."""

    seconds: float
    memory: int
    answer: int

    @classmethod
    def of(cls, size: int) -> Limits:
        """Of a request of `size` bytes: many times what honest templates and tokenizers take (a conversation of a million
        characters: 0.05 s and 50 MB)."""
        return cls(3 + size / 100_000, 256 * _MB + 256 * size, _MB + 32 * size)


class ExceededError(Exception):
    """What ran took more than its limits; the message is what it did, such as "takes more than 5 s"."""


class Worker:
    """Asks a child process that runs `module`, whose main calls `confined.child.serve`. Safe to share between threads.

    opening: the first request to each child, the answer to which is `opened`. limits: of the opening.
    """

    def __init__(self, module: str, opening: Any, limits: Limits | None = None) -> None:
        self._module = module
        self._opening = encoded(opening)
        self._opening_limits = Limits.of(len(self._opening)) if limits is None else limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._greeted = self._is_open = False
        self._opened: Any = None
        self._end: weakref.finalize[[subprocess.Popen[bytes], int], Worker] | None = None

    def start(self) -> None:
        """Start the child, if there is none, without waiting for it. Raises ForerunError where there can be none."""
        with self._lock:
            self._start()

    def opened(self) -> Any:
        """The answer to the opening. Raises as `ask` does."""
        with self._lock:
            return self._open()

    def ask(self, request: Any) -> Any:
        """The answer to a request.

        Raises ExceededError where the limits were exceeded, the PromptError, ModelFileError or UnsupportedModelError that
        the child raised, TypeError for a request that is not plain data, ForerunError where no child can be started.
        """
        payload = encoded(request)
        with self._lock:
            self._open()
            return self._exchange(payload, Limits.of(len(payload)))

    def close(self) -> None:
        """End the child; the next request would start another."""
        with self._lock:
            self._stop()

    def _open(self) -> Any:
        self._start()
        if not self._is_open:
            self._opened = self._exchange(self._opening, self._opening_limits)
            self._is_open = True
        return self._opened

    def _start(self) -> None:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return
        if self._owner == os.getpid():
            self._stop()
        # In a fork, the child is the parent's; it must not be asked by two.
        self._owner, self._greeted, self._is_open = os.getpid(), False, False
        try:
            # In a session of its own, so that Ctrl-C does not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # What libraries have to say to a terminal when they break down is not for it.
                stderr=None if os.environ.get("FORERUN_DEBUG", "0") not in ("", "0") else subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        except (OSError, TypeError, ValueError) as error:
            raise ForerunError(f"a process to run {self._module} in cannot be started: {error}") from error
        self._end = weakref.finalize(self, _end, self._process, self._owner)

    def _exchange(self, payload: bytes, limits: Limits) -> Any:
        assert self._process is not None
        process = self._process
        patience = threading.Timer(_PATIENCE * limits.seconds, process.kill)
        patience.daemon = True
        patience.start()
        try:
            result = self._answer(process, b"[%b,%b]" % (encoded(asdict(limits)), payload))
            if result is None:
                raise ExceededError(_why(process.wait(), limits))
        except BaseException:
            # Also Ctrl-C: an answer that nobody has read would be taken for the next one.
            self._stop()
            raise
        finally:
            patience.cancel()
        reply = decoded(result)
        if "error" in reply:
            raise _ERRORS.get(reply["error"], ForerunError)(reply["message"])
        return reply["value"]

    def _answer(self, process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
        """None where the child ended instead."""
        requests, answers = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        if not self._greeted and receive(answers) != READY:
            raise ForerunError(f"the process that is to run {self._module} ends at once, with status {process.wait()}")
        self._greeted = True
        try:
            send(requests, request)
        except BrokenPipeError:
            return None
        return receive(answers)

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process, self._end = None, None


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    process.kill()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # what was still to be sent
            cast("IO[bytes]", stream).close()
    process.wait()


def _environment() -> Mapping[str, str]:
    """This process's, so that the child finds the same packages; threads' stacks would count as memory."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return os.environ | {"PYTHONPATH": paths, "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def _why(status: int, limits: Limits) -> str:
    if status == ANSWER_TOO_LONG:
        return f"writes more than {limits.answer // _MB} MB"
    if status in (OUT_OF_MEMORY, -signal.SIGABRT):
        return f"takes more than {limits.memory // _MB} MB of memory"
    if sys.platform == "win32" or status in (-signal.SIGPROF, -signal.SIGKILL):
        return f"takes more than {round(limits.seconds, 1):g} s of processor time"
    return f"breaks down (status {status})"
