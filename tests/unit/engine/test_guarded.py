"""A drafter may do anything: it costs its drafts, is said once, and ends nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from forerun.controllers import Fixed
from forerun.core.draft import EMPTY, Draft
from forerun.core.model import NOTHING
from forerun.core.protocols import DraftRequest
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.engine import Engine, Method
from forerun.engine.guarded import GuardedDrafter
from forerun.errors import BackendError
from forerun.verifiers.keyed import Keyed
from forerun.verifiers.rejection import Rejection
from tests.unit.engine.toys import VOCAB, model, outputs, plain, requests, run

Proposes = Callable[[Sequence[DraftRequest]], Any]


def right(requests: Sequence[DraftRequest]) -> list[Draft]:
    return [Draft.chain([1] * request.nodes, source="wild") for request in requests]


class WildSession:
    def __init__(self, drafter: Wild, transcript: Transcript) -> None:
        self.drafter, self.transcript = drafter, transcript
        self.closed = 0

    @property
    def unread(self) -> int:
        self.drafter.reach("unread", self.transcript)
        return 0

    def observe(self, result: StepResult) -> None:
        self.drafter.reach("observe", self.transcript)

    def finish(self) -> None:
        self.drafter.reach("finish", self.transcript)

    def close(self) -> None:
        self.closed += 1
        self.drafter.reach("session.close", self.transcript)


class Wild:
    """Raises `error` where it is told to, for texts of some requests or for all; proposes what `proposes` says."""

    name = "wild"
    needs = NOTHING

    def __init__(
        self,
        where: str = "",
        error: BaseException | None = None,
        proposes: Proposes = right,
        only: str | None = None,
    ) -> None:
        self._where, self._error, self._proposes, self._only = where, error, proposes, only
        self.reached: list[str] = []
        self.sessions: list[WildSession] = []

    def reach(self, where: str, *transcripts: Transcript) -> None:
        self.reached.append(where)
        concerned = self._only is None or any(one.request.id == self._only for one in transcripts)
        if where == self._where and self._error is not None and concerned:
            raise self._error

    def open(self, transcript: Transcript) -> WildSession:
        self.reach("open", transcript)
        self.sessions.append(WildSession(self, transcript))
        return self.sessions[-1]

    def propose(self, requests: Sequence[DraftRequest]) -> Any:
        sessions = [request.session for request in requests]
        assert all(isinstance(session, WildSession) for session in sessions)
        self.reach("propose", *(session.transcript for session in sessions))  # type: ignore[attr-defined]
        return self._proposes(requests)

    def close(self) -> None:
        self.reach("close")


def engine_with(drafter: Any, *, as_model: bool = False) -> Engine:
    method = Method(model=drafter) if as_model else Method(cheap=drafter)
    return Engine(model(), {"wild": method}, [Keyed(), Rejection()], Fixed(4))


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]


WHERE = ["open", "propose", "observe", "finish", "session.close", "close", "unread"]
ERRORS = [ZeroDivisionError("on purpose"), SystemExit(3), AssertionError(), RecursionError("deep")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", WHERE)
def test_whatever_it_raises_wherever_the_text_is_the_same(
    where: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = Wild(where, error)
    engine = engine_with(drafter, as_model=where == "unread")
    sequences = run(engine, requests(3))
    assert outputs(sequences) == plain(3)
    assert [sequence.finish_reason for sequence in sequences] == ["length"] * 3
    engine.close()
    assert where in drafter.reached
    assert engine.speculator.failures() == {"wild": error}
    [said] = warnings(caplog)
    assert "the drafter wild failed" in said
    assert type(error).__name__ in said
    # It was not asked again, but released.
    at = drafter.reached.index(where)
    assert [name for name in drafter.reached[at + 1 :] if name != "close"] == []
    assert drafter.reached.count("close") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=["interrupt", "memory"])
@pytest.mark.parametrize("where", [where for where in WHERE if where != "close"])
def test_what_it_is_not_to_blame_for_passes_through(where: str, error: BaseException) -> None:
    """Ctrl-C in the middle of drafting is Ctrl-C; the step can be made again."""
    drafter = Wild(where, error)
    engine = engine_with(drafter, as_model=where == "unread")
    sequences = [engine.add(request) for request in requests(2)]
    interrupts = 0
    for _ in range(400):
        if engine.idle:
            break
        try:
            engine.step()
        except type(error):
            interrupts += 1
            drafter._error = None
    assert interrupts == 1
    assert engine.speculator.failures() == {}
    assert outputs(sequences) == plain(2)


def count(number: int) -> Proposes:
    return lambda requests: [EMPTY] * number


def says(draft: Draft) -> Proposes:
    return lambda requests: [draft for _ in requests]


Q = np.full(VOCAB, 1.0 / VOCAB)


@pytest.mark.parametrize(
    "proposes",
    [
        lambda requests: None,
        lambda requests: 7,
        lambda requests: [None] * len(requests),
        lambda requests: [[1, 2]] * len(requests),
        count(0),
        count(7),
        says(Draft.chain([1.5])),  # type: ignore[list-item]
        says(Draft.chain(["1"])),  # type: ignore[list-item]
        says(Draft.chain([1], [np.array([1.0])])),
        says(Draft.chain([1], [Q[:-1]])),
    ],
    ids=["nothing", "a number", "no drafts", "lists", "too few", "too many", "floats", "texts", "short q", "shorter q"],
)
def test_what_is_no_draft_ends_its_drafting(proposes: Proposes, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_with(Wild(proposes=proposes))
    assert outputs(run(engine, requests(3))) == plain(3)
    assert list(engine.speculator.failures()) == ["wild"]
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    "proposes",
    [
        lambda requests: [Draft.chain([1] * (request.nodes + 90)) for request in requests],
        says(Draft.chain([VOCAB, 1, 2])),
        says(Draft.chain([-5])),
        says(Draft((1, 99, 2, 3), (-1, 0, 1, 0))),
        says(Draft.chain([2**70])),
        says(Draft.chain(np.array([1, 2]))),
        says(Draft.chain([1], [Q])),
    ],
    ids=["too many nodes", "padding", "negative", "below what is no token", "huge", "numpy", "with a q"],
)
def test_what_can_be_verified_of_a_draft_is(proposes: Proposes, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_with(Wild(proposes=proposes))
    results: list[StepResult] = []
    sequences = [engine.add(request) for request in requests(3)]
    while not engine.idle:
        results += engine.step()
    assert outputs(sequences) == plain(3)
    assert engine.speculator.failures() == {}
    assert warnings(caplog) == []
    assert all(len(result.draft) <= 4 for result in results)
    assert all(type(token) is int and 0 <= token < VOCAB for result in results for token in result.draft.tokens)


def test_nodes_below_one_that_is_no_token_go_with_it() -> None:
    guarded = GuardedDrafter(Wild(proposes=says(Draft((1, 99, 2, 3), (-1, 0, 1, 0)))), model().info)
    [sequence] = run(engine_with(Wild()), requests(1))
    session = guarded.session(sequence)
    assert session is not None
    [draft] = guarded.propose([sequence], [DraftRequest(session, 9)])
    assert (draft.tokens, draft.parents) == ((1, 3), (-1, 0))


# Failures of its model.


@pytest.mark.parametrize("where", ["open", "propose", "observe", "finish", "unread"])
def test_a_failing_model_silences_the_text_concerned_and_no_other(where: str, caplog: pytest.LogCaptureFixture) -> None:
    drafter = Wild(where, BackendError("past its context"), only="1")
    engine = engine_with(drafter, as_model=where == "unread")
    sequences = run(engine, requests(3))
    assert outputs(sequences) == plain(3)
    assert engine.speculator.failures() == {}
    drafted = [sequence.stats.drafted > 0 for sequence in sequences]
    # What fails only after a text's steps has drafted for it until then.
    assert drafted == [True, where in ("observe", "finish"), True]
    [said] = warnings(caplog)
    assert "says nothing for a text" in said
    assert "past its context" in said


def test_of_several_that_fail_together_each_is_tried_alone(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    def proposes(requests: Sequence[DraftRequest]) -> list[Draft]:
        asked.append(len(requests))
        return right(requests)

    drafter = Wild("propose", BackendError("out of memory"), proposes, only="1")
    engine = engine_with(drafter)
    for request in requests(3):
        engine.add(request)
    engine.step()
    assert asked == [1, 1]
    engine.step()
    assert asked == [1, 1, 2]
    assert len(warnings(caplog)) == 1


def test_a_text_that_was_silenced_is_forgotten_when_it_ends() -> None:
    guarded = GuardedDrafter(Wild("open", BackendError("no room")), model().info)
    [sequence] = run(engine_with(Wild()), requests(1))
    assert guarded.session(sequence) is None
    assert guarded._silent == {sequence.number}
    guarded.finish(sequence)
    assert guarded._silent == set()


# Sessions.


def test_a_session_is_opened_when_it_is_first_asked_for_and_closed_once() -> None:
    drafter = Wild()
    engine = engine_with(drafter)
    sequences = [engine.add(request) for request in requests(3)]
    assert drafter.sessions == []
    engine.step()
    assert len(drafter.sessions) == 3
    engine.abort(sequences[0])
    assert drafter.sessions[0].closed == 1
    while not engine.idle:
        engine.step()
    engine.close()
    assert [session.closed for session in drafter.sessions] == [1, 1, 1]
    assert drafter.reached.count("finish") == 3


def test_a_drafter_of_two_methods_has_one_session_for_a_text_and_is_closed_once() -> None:
    drafter = Wild()
    engine = Engine(
        model(), {"a": Method(cheap=drafter), "b": Method(cheap=drafter, model=drafter)}, [Keyed()], Fixed(4)
    )
    run(engine, requests(2))
    engine.close()
    assert len(drafter.sessions) == 2
    assert drafter.reached.count("close") == 1
