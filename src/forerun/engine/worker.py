"""The one thread that owns an engine. Everyone else asks it: submit, cancel, close, from any thread.

    worker = Worker(engine)
    ticket = worker.submit(request, on_step)      # on_step is called on the engine's thread, once a step
    ticket.cancel()                               # its place is free within a step

Requests join and leave between steps. The last result of a request has `result.sequence.finished`; there is exactly one such,
also after a failure or a cancellation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Constraint
from forerun.engine.engine import Engine
from forerun.engine.sequence import Sequence, Watcher
from forerun.errors import BackendError

_log = logging.getLogger("forerun")
OnStep = Callable[[StepResult], None]
T = TypeVar("T")

# Steps that may fail one after the other before the requests in them are given up.
_TRIES = 3
_ELSEWHERE = "the model was loaded before this process was forked, and runs in the other one only: load it in this one"


class Ticket:
    """A request on its way through a worker."""

    def __init__(
        self, loop: _Loop, request: Request, on_step: OnStep, watcher: Watcher | None, constraint: Constraint | None
    ) -> None:
        self.request, self.watcher, self.constraint = request, watcher, constraint
        self.sequence: Sequence | None = None
        self._loop, self._on_step = loop, on_step

    def cancel(self) -> None:
        """End the request; its last result says `abort`. Harmless when it has ended."""
        with contextlib.suppress(BackendError):  # a closed worker has ended it
            self._loop.put(lambda: self._loop.cancel(self))

    def deliver(self, result: StepResult) -> Exception | None:
        """Hand a result to the caller's function; the error where that raises, else None."""
        try:
            self._on_step(result)
        except Exception as error:
            _log.exception("what takes the results of a request failed; the request ends")
            return error
        return None


class Worker:
    """Runs an engine on a thread of its own, which starts with the first request and ends with `close`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = _Loop(engine)
        # Also at the interpreter's exit: what drafters learned is to be written.
        self._close = weakref.finalize(self, _Loop.close, self._loop)

    def submit(
        self,
        request: Request,
        on_step: OnStep,
        watcher: Watcher | None = None,
        constraint: Constraint | None = None,
    ) -> Ticket:
        """Queue a request. Raises PromptError or UsageError for one that can never run (Engine.check)."""
        self.engine.check(request)
        loop = self._loop
        ticket = Ticket(loop, request, on_step, watcher, constraint)
        loop.put(lambda: loop.add(ticket))
        return ticket

    @property
    def is_here(self) -> bool:
        """False in a fork of the process that made this: threads do not follow there, so nothing would ever be answered."""
        return self._loop.is_here

    def check_here(self) -> None:
        """Raise BackendError in a fork."""
        self._loop.check_here()

    def call(self, function: Callable[[], T]) -> T:
        """What `function` returns when it is called on the engine's thread, between two steps. Raises what it raises."""
        done = threading.Event()
        outcome: list[T] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(function())
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        self._loop.put(run)
        done.wait()
        if failure:
            raise failure[0]
        return outcome[0]

    @property
    def busy_s(self) -> float:
        """Seconds that the step which is being made has taken so far; 0 between steps."""
        began = self._loop.began
        return 0.0 if began is None else time.monotonic() - began

    def close(self) -> None:
        """End what runs, with `abort`, and release the models. Closing twice is harmless."""
        self._close()


class _Loop:
    """The engine's thread: commands, then a step, for as long as there is anything to do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: deque[Callable[[], None]] = deque()
        self._tickets: dict[Sequence, Ticket] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()
        self._failures = 0
        # When the step, or what is called between two steps, began; None while there is neither.
        self.began: float | None = None

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._process

    def check_here(self) -> None:
        if not self.is_here:
            raise BackendError(_ELSEWHERE)

    def put(self, command: Callable[[], None]) -> None:
        """Have something done between two steps. Raises BackendError once closed, and in a fork of this process."""
        self.check_here()  # before the lock, which the engine's thread may have held
        with self._changed:
            if self._closed:
                raise BackendError("the model is closed: load it again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="forerun-engine", daemon=True)
                self._thread.start()
            self._commands.append(command)
            self._changed.notify()

    def close(self) -> None:
        if not self.is_here:
            return  # all of it is the other process's
        with self._changed:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._changed.notify()
        if thread is None:
            self._engine.close()
        elif thread is not threading.current_thread():
            thread.join()

    def add(self, ticket: Ticket) -> None:
        try:
            sequence = self._engine.add(ticket.request, ticket.watcher, ticket.constraint)
        except Exception as error:
            # Checked when it was submitted, so this is what changed since.
            failed = Sequence(ticket.request, next(iter(self._engine.verifiers.values())))
            failed.fail(error)
            ticket.sequence = failed
            ticket.deliver(StepResult(failed, decoded=False))
            return
        ticket.sequence = sequence
        self._tickets[sequence] = ticket

    def cancel(self, ticket: Ticket) -> None:
        if ticket.sequence is not None and ticket.sequence in self._tickets:
            self._finish(ticket.sequence)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._commands or self._closed or not self._engine.idle):
                    self._changed.wait()
                commands, self._commands = self._commands, deque()
                closed = self._closed
            while commands:
                self.began = time.monotonic()
                commands.popleft()()  # and hold on to nothing that it refers to
            if closed:
                self._end()
                return
            if not self._engine.idle:
                self.began = time.monotonic()
                self._step()
            self.began = None

    def _step(self) -> None:
        try:
            results = self._engine.step()
        except BaseException as error:
            # The engine recovers by itself; what fails again and again must not go on for ever.
            self._failures += 1
            _log.exception("a step failed")
            if self._failures >= _TRIES:
                self._give_up(error)
            return
        self._failures = 0
        for result in results:
            self._deliver(result)

    def _deliver(self, result: StepResult) -> None:
        sequence = cast(Sequence, result.sequence)
        ticket = self._tickets.get(sequence)
        if ticket is None:
            return
        if sequence.finished:
            del self._tickets[sequence]
        error = ticket.deliver(result)
        if error is not None and not sequence.finished:
            sequence.fail(error)
            self._finish(sequence)

    def _give_up(self, error: BaseException) -> None:
        """End every request that is live (or the next one, if none is) with the error that keeps steps from being made."""
        self._failures = 0
        reason = error if isinstance(error, Exception) else RuntimeError(repr(error))
        scheduler = self._engine.scheduler
        for sequence in list(scheduler.live) or list(scheduler.waiting)[:1]:
            if not sequence.finished:
                sequence.fail(reason)
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        """End a request and say so; with `abort` unless it says otherwise."""
        try:
            self._engine.abort(sequence)
        except Exception:
            _log.exception("what a request held could not be released")
        self._deliver(StepResult(sequence, decoded=False))

    def _end(self) -> None:
        for sequence in list(self._tickets):
            self._finish(sequence)
        try:
            self._engine.close()
        except Exception:
            _log.exception("the model could not be closed")
