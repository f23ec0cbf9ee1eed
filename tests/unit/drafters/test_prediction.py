"""The caller's prediction: followed, left, and found again."""

from __future__ import annotations

from forerun.core.request import Request
from forerun.core.transcript import Transcript
from forerun.drafters.prediction import PredictionDrafter, PredictionSession

EXPECTED = list(range(100, 140))


def session_of(expected: list[int], prompt: tuple[int, ...] = (1, 2)) -> PredictionSession:
    return PredictionDrafter(1000).open(Transcript(Request(prompt, prediction=expected)))


def write(session: PredictionSession, *tokens: int) -> None:
    for token in tokens:
        session.transcript.add(token)


def test_without_a_prediction_there_is_nothing() -> None:
    assert len(session_of([]).draft((), 5)) == 0


def test_it_starts_at_the_beginning_and_follows() -> None:
    session = session_of(EXPECTED)
    assert session.draft((), 4).tokens == (100, 101, 102, 103)
    write(session, 100, 101)
    draft = session.draft((), 3)
    assert draft.tokens == (102, 103, 104)
    assert draft.scores is not None
    assert list(draft.scores) == sorted(draft.scores)


def test_a_replaced_or_inserted_token_are_both_guessed() -> None:
    session = session_of(EXPECTED)
    write(session, 100, 101, 7)
    draft = session.draft((), 6)
    assert {draft.tokens[node] for node in draft.children(-1)} == {103, 102}


def test_it_is_put_back_after_an_insertion_a_deletion_and_a_rewrite() -> None:
    session = session_of(EXPECTED)
    write(session, 100, 101, 7, 8, 9, 102)
    assert session.draft((), 2).tokens == (103, 104)
    write(session, 103, 108)
    assert session.draft((), 2).tokens == (109, 110)
    write(session, *range(500, 530), 131, 132)
    assert session.draft((), 2).tokens == (133, 134)


def test_a_common_token_does_not_throw_it_far_ahead() -> None:
    expected = [*range(100, 120), 5, *range(120, 150), 5, 777]
    session = session_of(expected)
    write(session, *range(100, 122 - 20), 9, 5)
    assert 777 not in session.draft((), 4).tokens


def test_it_ends_with_the_prediction() -> None:
    session = session_of(EXPECTED)
    write(session, *EXPECTED[:-1])
    assert session.draft((), 5).tokens == (139,)
    write(session, 139)
    assert len(session.draft((), 5)) == 0


def test_ids_that_the_target_does_not_have_are_not_proposed() -> None:
    session = PredictionDrafter(101).open(Transcript(Request([1], prediction=EXPECTED)))
    assert session.draft((), 5).tokens == (100,)


def test_a_path_moves_the_pointer_for_that_draft_only() -> None:
    session = session_of(EXPECTED)
    assert session.draft((100, 101), 2).tokens == (102, 103)
    assert session.draft((), 1).tokens == (100,)
