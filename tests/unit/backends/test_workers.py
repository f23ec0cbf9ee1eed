"""Threads that share the work and never outlive an exception."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest

from forerun.backends.cores import usable_cores
from forerun.backends.reference.workers import Workers


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_every_task_runs_once(threads: int) -> None:
    workers = Workers(threads)
    done: list[int] = []
    workers.run([lambda i=i: done.append(i) for i in range(50)])  # type: ignore[misc]
    assert sorted(done) == list(range(50))
    workers.close()
    workers.run([lambda: done.append(50)])
    assert len(done) == 51


def test_several_threads_work_at_once() -> None:
    workers = Workers(2)
    meet = threading.Barrier(2, timeout=10)
    workers.run([meet.wait, meet.wait])  # type: ignore[list-item]
    workers.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_task_raises_is_raised(threads: int) -> None:
    workers = Workers(threads)

    def fail() -> None:
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        workers.run([fail] * 5)
    done: list[int] = []
    workers.run([lambda: done.append(1)] * 3)
    assert len(done) == 3
    workers.close()


def test_broken_numbers_are_no_warnings_in_any_thread() -> None:
    workers = Workers(2)
    meet = threading.Barrier(2, timeout=10)

    def task() -> None:
        meet.wait()
        np.exp(np.full(64, 1e4, np.float32))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        workers.run([task, task])
    workers.close()


def test_as_many_threads_as_cores() -> None:
    workers = Workers()
    assert workers.threads == usable_cores() >= 1
    workers.close()
