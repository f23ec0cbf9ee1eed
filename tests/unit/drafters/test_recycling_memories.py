"""Recycling by memory: what one name has learned no other drafts from, and only the nameless one is kept on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forerun.core.protocols import DraftRequest
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.recycling import RecyclingDrafter, RecyclingSession


def session(drafter: RecyclingDrafter, memory: str) -> RecyclingSession:
    return drafter.open(Transcript(Request([1, 2], memory=memory)))


def teach(drafter: RecyclingDrafter, memory: str, following: int) -> None:
    """The target has found one token likely after 2."""
    row = np.full((1, 20), -9.0, dtype=np.float32)
    row[0, following] = 9.0
    learns = session(drafter, memory)
    learns.observe(StepResult(learns.transcript, (2,), tokens=(following,), rows=row))


def drafted(drafter: RecyclingDrafter, memory: str) -> tuple[int, ...]:
    [draft] = drafter.propose([DraftRequest(session(drafter, memory), 1)])
    return draft.tokens


def test_each_memory_has_a_matrix_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "matrix.npz"
    drafter = RecyclingDrafter(20, path=path)
    teach(drafter, "anna", 5)
    assert drafted(drafter, "anna") == (5,)
    assert drafted(drafter, "ben") == drafted(drafter, "") == ()
    drafter.close()
    assert not path.exists()
    teach(drafter, "", 7)
    assert drafted(drafter, "") == (7,)
    assert drafted(drafter, "anna") == (5,)
    drafter.close()
    assert path.exists()


def test_of_too_many_the_one_used_longest_ago_is_forgotten() -> None:
    drafter = RecyclingDrafter(20)
    teach(drafter, "first", 5)
    for number in range(15):
        teach(drafter, f"memory {number}", 6)
    assert drafted(drafter, "first") == (5,)
    teach(drafter, "another", 6)
    assert drafted(drafter, "memory 0") == ()
    assert drafted(drafter, "first") == (5,)
