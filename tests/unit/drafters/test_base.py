"""What a drafter gets for nothing by being made of sessions."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import EMPTY, Draft
from forerun.core.model import NOTHING
from forerun.core.protocols import DraftRequest
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter


class Counting(SessionDrafter[Session]):
    """Proposes the tokens after the last one."""

    name = "counting"

    def open(self, transcript: Transcript) -> Session:
        return Session(transcript)

    def draft(self, session: Session, path: Sequence[int], nodes: int) -> Draft:
        assert nodes > 0
        last = [*session.transcript.tokens, *path][-1]
        return Draft.chain(range(last + 1, last + 1 + nodes))


def test_each_text_is_drafted_for_on_its_own() -> None:
    drafter = Counting()
    sessions = [drafter.open(Transcript(Request([start]))) for start in (10, 20, 30)]
    drafts = drafter.propose(
        [
            DraftRequest(sessions[0], 2),
            DraftRequest(sessions[1], 1, path=(40,)),
            DraftRequest(sessions[2], 0),
            DraftRequest(sessions[0], 1),
        ]
    )
    assert [draft.tokens for draft in drafts] == [(11, 12), (41,), (), (11,)]
    assert drafts[2] is EMPTY
    assert drafter.propose([]) == []


def test_a_session_needs_nothing_more() -> None:
    drafter = Counting()
    assert drafter.needs is NOTHING
    session = drafter.open(Transcript(Request([1])))
    assert session.unread == 0
    session.observe(StepResult(session.transcript, (1,), tokens=(2,)))
    session.finish()
    for closing in (session, drafter):
        closing.close()
        closing.close()
