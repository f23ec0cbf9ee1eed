"""A child answers within its limits, is ended where it exceeds them, and the next request is answered by another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import UserDict, UserList
from collections.abc import Iterator
from typing import Any

import pytest

from forerun.confined.frames import decoded, encoded
from forerun.confined.worker import ExceededError, Limits, Worker
from forerun.errors import ForerunError, PromptError

CHILD = "tests.unit.confined.obedient"
MB = 1 << 20
SMALL = Limits(seconds=0.2, memory=64 * MB, answer=1000)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(CHILD, {"echo": "hello"})
    yield made
    made.close()


def test_it_answers(worker: Worker) -> None:
    assert worker.opened() == "hello"
    values: list[Any] = [None, True, 1.5, "é😀\udc80", [1, [2]], {"a": {"b": "\n"}}, "x" * 1_000_000]
    for value in values:
        assert worker.ask({"echo": value}) == value
    assert worker.ask({"print": "noise"}) == "printed"
    pid = worker.ask("pid")
    assert worker.ask("pid") == pid != os.getpid()


def test_data_of_other_kinds_becomes_plain(worker: Worker) -> None:
    assert worker.ask({"echo": (1, UserList([2]), UserDict(a=range(2)), {3})}) == [1, [2], {"a": [0, 1]}, [3]]
    inside: list[Any] = []
    inside.append(inside)
    for value, what in ((object(), "a value of type object"), (b"x", "type bytes"), (inside, "inside itself")):
        with pytest.raises(TypeError, match=what):
            worker.ask({"echo": value})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="inside each other"):
        worker.ask({"echo": deep})
    assert worker.ask({"echo": 1}) == 1


def test_its_errors_are_ours_and_do_not_end_it(worker: Worker) -> None:
    pid = worker.ask("pid")
    with pytest.raises(PromptError, match=r"^no \\x1b$"):
        worker.ask({"refuse": "no \x1b"})
    with pytest.raises(ForerunError, match=r"^other$"):
        worker.ask({"fail": "other"})
    assert worker.ask("pid") == pid


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ("spin", r"takes more than 0\.2 s of processor time"),
        ({"say": 2000}, "writes more than"),
        ({"exit": 1}, r"breaks down \(status 1\)"),
        ({"exit": 0}, r"breaks down \(status 0\)"),
        ("bug", r"breaks down \(status 1\)"),
        pytest.param(
            {"allocate": 80 * MB},
            "takes more than 64 MB of memory",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="no other system limits the memory of a process"),
        ),
    ],
)
def test_what_exceeds_its_limits_ends_it_and_the_next_is_answered(
    request_: Any, what: str, monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> None:
    pid = worker.ask("pid")
    with monkeypatch.context() as patch:
        patch.setattr(Limits, "of", lambda _: SMALL)
        with pytest.raises(ExceededError, match=what):
            worker.ask(request_)
    assert worker.ask({"echo": "next"}) == "next"
    assert worker.ask("pid") != pid


@pytest.mark.skipif(sys.platform != "linux", reason="no other system limits the memory of a process")
def test_what_is_within_the_limits_is_not_held_against_later_requests(
    monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> None:
    monkeypatch.setattr(Limits, "of", lambda _: SMALL)
    pid = worker.ask("pid")
    for _ in range(4):
        assert worker.ask({"allocate": 40 * MB}) == 40 * MB
    assert worker.ask("pid") == pid


def test_limits_grow_with_the_request() -> None:
    small, large = Limits.of(100), Limits.of(4_000_000)
    assert small.seconds < large.seconds
    assert large.memory > 100 * 4_000_000
    assert large.answer > 10 * 4_000_000


def test_the_opening_is_limited_too() -> None:
    worker = Worker(CHILD, "spin", SMALL)
    for _ in range(2):
        with pytest.raises(ExceededError, match="processor time"):
            worker.ask({"echo": 1})


def test_an_opening_that_is_refused_is_refused_each_time() -> None:
    worker = Worker(CHILD, {"refuse": "no"})
    for _ in range(2):
        with pytest.raises(PromptError, match="no"):
            worker.opened()
        with pytest.raises(PromptError, match="no"):
            worker.ask({"echo": 1})
    worker.close()


def test_the_clock_ends_what_takes_no_processor_time(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> None:
    """The child is stopped, as it would be where it has no timer of its own."""
    pid = worker.ask("pid")
    monkeypatch.setattr(Limits, "of", lambda _: SMALL)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ExceededError, match="takes more than"):
        worker.ask({"echo": 1})


def test_a_child_that_has_gone_is_replaced(worker: Worker) -> None:
    pid = worker.ask("pid")
    os.kill(pid, signal.SIGKILL)
    assert worker._process is not None
    worker._process.wait()
    assert worker.ask("pid") != pid


def test_no_child_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ForerunError, match="ends at once, with status 1"):
        Worker("tests.unit.confined.no_such_module", None).opened()
    for python in ("/no/such/python", "", None):
        monkeypatch.setattr(sys, "executable", python)
        with pytest.raises(ForerunError, match="cannot be started"):
            Worker(CHILD, None).start()


def test_an_interrupt_does_not_leave_an_answer_for_the_next_request(
    monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> None:
    def interrupted(*_: Any) -> bytes:
        raise KeyboardInterrupt

    assert worker.opened() == "hello"
    with monkeypatch.context() as patch:
        patch.setattr("forerun.confined.worker.receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.ask({"echo": "stale"})
    assert worker.ask({"echo": "fresh"}) == "fresh"


def test_threads_get_their_own_answers(worker: Worker) -> None:
    found: dict[int, list[int]] = {}

    def work(i: int) -> None:
        found[i] = [worker.ask({"echo": i}) for _ in range(50)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: [i] * 50 for i in range(4)}


def test_it_ends_with_whoever_has_started_it() -> None:
    script = f"from forerun.confined.worker import Worker; w = Worker({CHILD!r}, None); print(w.ask('pid'))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(ran.stdout), 0)
    assert ran.stderr == ""


def test_a_dropped_worker_ends_its_child() -> None:
    worker = Worker(CHILD, None)
    pid = worker.ask("pid")
    del worker
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_a_child_of_its_own_and_leaves_its_parents_alone(worker: Worker) -> None:
    pid = worker.ask("pid")
    reading, writing = os.pipe()
    forked = os.fork()
    if not forked:
        other = worker.ask("pid")
        worker.close()
        os.write(writing, str(other).encode())
        os._exit(0)
    os.waitpid(forked, 0)
    other = int(os.read(reading, 20))
    os.close(reading)
    os.close(writing)
    assert other != pid
    assert worker.ask("pid") == pid


def test_frames_are_json() -> None:
    assert decoded(encoded({"a": [1, "\udc80"]})) == {"a": [1, "\udc80"]}
