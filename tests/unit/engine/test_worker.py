"""The thread that owns an engine: whoever asks is answered, exactly once to the end, whatever goes wrong."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.engine import Engine, Sequence
from forerun.engine.worker import Ticket, Worker
from forerun.errors import BackendError, PromptError
from tests.unit.engine.toys import Breaking, OracleDrafter, engine_of, model, plain, requests, whole

# Seconds after which something hangs. Nothing here takes a hundredth of it.
HANGS = 30.0


class Caller:
    """Takes the results of one request. on_step: called with each of them, on the engine's thread."""

    def __init__(self, on_step: Callable[[Caller, StepResult], None] = lambda caller, result: None) -> None:
        self._on_step = on_step
        self.tokens: list[int] = []
        self.results = self.ends = 0
        self.threads: set[str] = set()
        self.sequence: Sequence | None = None
        self.ended = threading.Event()
        self.started = threading.Event()

    def take(self, result: StepResult) -> None:
        assert isinstance(result.sequence, Sequence)
        self.threads.add(threading.current_thread().name)
        self.sequence = result.sequence
        self.results += 1
        self.tokens += result.tokens
        self.ends += result.sequence.finished
        self.started.set()
        if result.sequence.finished:
            self.ended.set()
        self._on_step(self, result)

    def wait(self) -> Sequence:
        assert self.ended.wait(HANGS), "nobody said that it has ended"
        assert self.sequence is not None
        return self.sequence


def submit(worker: Worker, request: Request, caller: Caller | None = None) -> Caller:
    caller = caller or Caller()
    worker.submit(request, caller.take)
    return caller


def endless(number: int = 0) -> Request:
    return Request([1, 2, number], Sampling(max_tokens=None, temperature=0.9), seed=number, id=str(number))


def settled(worker: Worker) -> None:
    """Return when everything that was asked before has been done, and nothing is left to do."""
    deadline = time.monotonic() + HANGS
    while not worker.call(lambda: worker.engine.idle):
        assert time.monotonic() < deadline, "the worker never comes to rest"


@pytest.fixture
def made() -> Any:
    """Makes workers and closes them."""
    workers: list[Worker] = []

    def make(engine: Engine | None = None) -> Worker:
        workers.append(Worker(engine or engine_of(OracleDrafter(whole(9)), 6, model(context=1 << 20))))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


Made = Callable[..., Worker]


def test_requests_from_several_threads_share_the_engine_and_get_their_own_texts(made: Made) -> None:
    worker, expected = made(), plain(9)

    def ask(number: int) -> list[int]:
        caller = submit(worker, requests(9)[number])
        assert caller.wait().finish_reason == "length"
        assert caller.ends == 1
        assert caller.threads == {"forerun-engine"}
        assert caller.tokens == caller.wait().output
        return caller.tokens

    with ThreadPoolExecutor(9) as threads:
        assert list(threads.map(ask, range(9))) == expected


def test_the_thread_starts_with_the_first_request_and_ends_with_close() -> None:
    def alive() -> int:
        return sum(thread.name == "forerun-engine" for thread in threading.enumerate())

    before = alive()
    worker = Worker(engine_of())
    assert alive() == before
    submit(worker, requests()[0]).wait()
    assert alive() == before + 1
    worker.close()
    assert alive() == before


def test_what_can_never_run_is_refused_to_its_face(made: Made) -> None:
    worker = made()
    with pytest.raises(PromptError, match="empty"):
        submit(worker, Request([]))


def test_what_cannot_be_added_any_more_ends_with_its_reason(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = made()
    monkeypatch.setattr(worker.engine, "check", lambda request: None)

    def refuse(*given: object) -> Sequence:
        raise LookupError("gone")

    monkeypatch.setattr(worker.engine, "add", refuse)
    caller = submit(worker, requests()[0])
    assert (caller.wait().finish_reason, caller.ends) == ("error", 1)
    assert isinstance(caller.wait().error, LookupError)


def test_two_texts_are_written_in_turn(made: Made) -> None:
    """Both take part in every pass: neither waits for the other to end."""
    worker = made()
    order: list[str] = []
    callers = [
        Caller(lambda caller, result: order.append("a")),
        Caller(lambda caller, result: order.append("b")),
    ]
    for caller, request in zip(callers, requests(2), strict=True):
        submit(worker, request, caller)
    for caller in callers:
        caller.wait()
    both = "".join(order)
    assert "abab" in both
    assert both.rindex("a") > both.index("b")


def test_a_request_joins_while_another_is_being_written(made: Made) -> None:
    worker = made()
    first = submit(worker, endless())
    assert first.started.wait(HANGS)
    second = submit(worker, requests(2)[1])
    assert second.wait().output == plain(2)[1]
    assert not first.ended.is_set()


# Cancelling.


def test_a_cancelled_request_ends_with_abort_and_frees_its_place(made: Made) -> None:
    worker = made(engine_of(target=model(context=1 << 20), max_sequences=1))
    caller, waiting = Caller(), Caller()
    ticket = worker.submit(endless(), caller.take)
    submit(worker, requests()[0], waiting)
    assert caller.started.wait(HANGS)
    ticket.cancel()
    assert (caller.wait().finish_reason, caller.ends) == ("abort", 1)
    assert waiting.wait().output == plain()[0]
    for _ in range(3):
        ticket.cancel()
    settled(worker)
    assert caller.ends == 1


def test_a_request_is_cancelled_before_its_turn_came(made: Made) -> None:
    worker = made(engine_of(target=model(context=1 << 20), max_sequences=1))
    first, second = Caller(), Caller()
    running = worker.submit(endless(), first.take)
    assert first.started.wait(HANGS)
    worker.submit(endless(1), second.take).cancel()
    assert (second.wait().finish_reason, second.wait().generated, second.ends) == ("abort", 0, 1)
    running.cancel()
    first.wait()


def test_many_are_cancelled_from_many_threads(made: Made) -> None:
    worker = made()

    def ask(number: int) -> tuple[str | None, int]:
        caller = Caller()
        ticket = worker.submit(endless(number % 8), caller.take)
        if number % 2:
            assert caller.started.wait(HANGS)
        for _ in range(2):
            ticket.cancel()
        return caller.wait().finish_reason, caller.ends

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(40))) == {("abort", 1)}
    settled(worker)


def test_what_takes_results_may_cancel(made: Made) -> None:
    worker = made()
    tickets: list[Ticket] = []

    def cancel(caller: Caller, result: StepResult) -> None:
        if len(caller.tokens) > 20:
            tickets[0].cancel()

    caller = Caller(cancel)
    tickets.append(worker.submit(endless(), caller.take))
    assert caller.wait().finish_reason == "abort"
    settled(worker)
    assert caller.ends == 1


# What takes results fails.


@pytest.mark.parametrize("at", ["first", "last"])
def test_a_caller_that_fails_ends_its_request_and_no_other(
    made: Made, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = made()

    def fail(caller: Caller, result: StepResult) -> None:
        if at == "first" or caller.ended.is_set():
            raise ZeroDivisionError("on purpose")

    failing, fine = Caller(fail), Caller()
    for caller, request in ((failing, requests(2)[0]), (fine, requests(2)[1])):
        submit(worker, request, caller)
    assert fine.wait().output == plain(2)[1]
    assert failing.wait().finish_reason == ("error" if at == "first" else "length")
    if at == "first":
        # It is told that it has ended all the same, and why.
        assert isinstance(failing.wait().error, ZeroDivisionError)
    settled(worker)
    assert failing.ends == 1
    assert "what takes the results of a request failed" in caplog.text


# Steps that fail.


def failing(fails: Callable[[int], BaseException | None]) -> Engine:
    """Every step fails where `fails` says so, by the number of its pass, in a way that the engine cannot foresee."""
    return engine_of(OracleDrafter(whole(3)), 6, Breaking(lambda number, inputs: fails(number), context=1 << 20))


def test_a_step_that_fails_once_is_made_again(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    worker = made(failing(lambda number: OSError("on purpose") if number in (2, 5) else None))
    callers = [submit(worker, request) for request in requests(3)]
    assert [caller.wait().output for caller in callers] == plain(3)
    assert [caller.tokens for caller in callers] == plain(3)
    assert caplog.text.count("a step failed") == 2


@pytest.mark.parametrize(
    "error", [OSError("on purpose"), SystemExit(2), AssertionError("no")], ids=lambda e: type(e).__name__
)
def test_a_step_that_fails_again_and_again_gives_up_the_live_ones_and_the_worker_goes_on(
    made: Made, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True
    engine = engine_of(
        OracleDrafter(whole(3)),
        6,
        Breaking(lambda number, inputs: error if broken else None, context=1 << 20),
        max_sequences=2,
    )
    worker = made(engine)
    callers = [submit(worker, request) for request in requests(3)]
    for caller in callers:
        assert (caller.wait().finish_reason, caller.ends) == ("error", 1)
        assert str(error) in str(caller.wait().error)
    settled(worker)
    broken = False
    assert submit(worker, requests()[0]).wait().output == plain()[0]
    # Two were live, then one: each group was tried three times.
    assert caplog.text.count("a step failed") == 6


def test_one_that_cannot_even_be_let_in_is_given_up(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = made()
    opens = worker.engine.target.open

    def fail() -> Any:
        raise BackendError("no memory at all")

    monkeypatch.setattr(worker.engine.target, "open", fail)
    callers = [submit(worker, request) for request in requests(3)]
    for caller in callers:
        assert str(caller.wait().error) == "no memory at all"
    settled(worker)
    monkeypatch.setattr(worker.engine.target, "open", opens)
    assert submit(worker, requests()[0]).wait().output == plain()[0]


def test_what_cannot_be_released_is_said_and_hangs_nobody(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = made()
    caller = Caller()
    ticket = worker.submit(endless(), caller.take)
    assert caller.started.wait(HANGS)

    def fail(*given: object, **more: object) -> None:
        raise OSError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(worker.engine.speculator, "finish", fail)
        ticket.cancel()
        assert caller.wait().finish_reason == "abort"
    assert "could not be released" in caplog.text
    assert submit(worker, requests()[0]).wait().output == plain()[0]


# Calls.


def test_a_call_runs_between_steps_on_the_engines_thread(made: Made) -> None:
    worker = made()
    caller = submit(worker, endless())
    assert caller.started.wait(HANGS)
    assert worker.call(lambda: threading.current_thread().name) == "forerun-engine"
    # Nothing is in the middle of anything.
    lengths = worker.call(lambda: [(len(one.tokens), one.read) for one in worker.engine.scheduler.live])
    assert [written - read for written, read in lengths] == [1]


@pytest.mark.parametrize("error", [ZeroDivisionError("on purpose"), KeyboardInterrupt(), SystemExit(1)])
def test_a_call_raises_what_its_function_raises_and_the_worker_goes_on(made: Made, error: BaseException) -> None:
    worker = made()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        worker.call(fail)
    assert caught.value is error
    assert worker.call(lambda: 7) == 7
    assert submit(worker, requests()[0]).wait().output == plain()[0]


# Closing.


def test_closing_ends_what_runs_and_what_waits(made: Made) -> None:
    drafter = OracleDrafter(whole(9))
    worker = made(engine_of(drafter, 4, model(context=1 << 20), max_sequences=2))
    callers = [submit(worker, endless(number)) for number in range(5)]
    assert callers[0].started.wait(HANGS)
    worker.close()
    assert [(caller.wait().finish_reason, caller.ends) for caller in callers] == [("abort", 1)] * 5
    assert drafter.closed == 1
    worker.close()
    assert drafter.closed == 1


def test_a_closed_worker_refuses_and_says_what_to_do(made: Made) -> None:
    worker = made()
    caller = Caller()
    ticket: Ticket = worker.submit(requests()[0], caller.take)
    caller.wait()
    worker.close()
    ticket.cancel()
    for asks in (lambda: submit(worker, requests()[0]), lambda: worker.call(lambda: None)):
        with pytest.raises(BackendError, match="closed: load it again"):
            asks()


def test_a_worker_that_never_ran_closes_its_engine_too(made: Made) -> None:
    drafter = OracleDrafter({})
    worker = made(engine_of(drafter))
    worker.close()
    assert drafter.closed == 1


def test_what_takes_results_may_close_the_worker(made: Made) -> None:
    drafter = OracleDrafter(whole(9))
    worker = made(engine_of(drafter, 4, model(context=1 << 20)))
    caller = Caller(lambda caller, result: worker.close() if len(caller.tokens) > 20 else None)
    submit(worker, endless(), caller)
    assert (caller.wait().finish_reason, caller.ends) == ("abort", 1)


def test_closing_from_several_threads_returns_to_all(made: Made) -> None:
    worker = made()
    callers = [submit(worker, endless(number)) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for closed in [threads.submit(worker.close) for _ in range(4)]:
            closed.result(HANGS)
    assert [caller.wait().finish_reason for caller in callers] == ["abort"] * 4


def test_an_engine_that_cannot_be_closed_hangs_nobody(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = made()
    caller = submit(worker, endless())
    assert caller.started.wait(HANGS)

    def fail() -> None:
        raise OSError("on purpose")

    monkeypatch.setattr(worker.engine.target, "close", fail)
    worker.close()
    assert caller.wait().finish_reason == "abort"
    assert "could not be closed" in caplog.text


def test_a_worker_that_nobody_holds_closes_itself() -> None:
    """At the interpreter's exit too, since what drafters learned is to be written."""
    drafter = OracleDrafter(whole(9))
    worker = Worker(engine_of(drafter, 4, model(context=1 << 20)))
    caller = submit(worker, endless())
    assert caller.started.wait(HANGS)
    assert worker._close.atexit
    del worker
    gc.collect()
    assert caller.wait().finish_reason == "abort"
    assert drafter.closed == 1


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
