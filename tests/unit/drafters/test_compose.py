"""Several drafters in one tree, on drafters that say what they are told to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forerun.core.draft import EMPTY, Draft
from forerun.core.model import Needs
from forerun.core.protocols import DraftRequest
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.compose import Merge, merge, union
from forerun.errors import CompositionError
from forerun.testing import draft_of


class SayingSession(Session):
    def __init__(self, transcript: Transcript, unread: int) -> None:
        super().__init__(transcript)
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.observed = self.finished = self.closed = 0
        self._unread = unread

    @property
    def unread(self) -> int:
        return self._unread

    def observe(self, result: StepResult) -> None:
        self.observed += 1

    def finish(self) -> None:
        self.finished += 1

    def close(self) -> None:
        self.closed += 1


class Saying(SessionDrafter[SayingSession]):
    def __init__(
        self, says: Draft, hidden: tuple[int, ...] = (), *, name: str = "saying", unread: int = 0, fails: bool = False
    ) -> None:
        self._says, self._unread, self._fails = says, unread, fails
        self.name, self.needs = name, Needs(hidden)
        self.sessions: list[SayingSession] = []
        self.closed = 0

    def open(self, transcript: Transcript) -> SayingSession:
        if self._fails:
            raise RuntimeError("no room")
        self.sessions.append(SayingSession(transcript, self._unread))
        return self.sessions[-1]

    def draft(self, session: SayingSession, path: Sequence[int], nodes: int) -> Draft:
        session.asked.append((tuple(path), nodes))
        return self._says

    def close(self) -> None:
        self.closed += 1


def tree(tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], source: str = "") -> Draft:
    return Draft(tuple(tokens), tuple(parents), scores=tuple(scores), source=source)


def text() -> Transcript:
    return Transcript(Request([1, 2, 3]))


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(draft.tokens[node] for node in draft.path_to(leaf)) for leaf in range(len(draft))}


def test_one_tree_with_shared_starts() -> None:
    one = tree((5, 6, 9), (-1, 0, 0), (0.9, 0.8, 0.1))
    other = tree((5, 6, 7, 4), (-1, 0, 1, -1), (0.5, 0.9, 0.9, 0.3))
    merged = merge([one, other], 10, "x")
    assert paths(merged) == {(5,), (5, 6), (5, 6, 7), (5, 9), (4,)}
    assert merged.scores is not None
    by_path = {
        tuple(merged.tokens[n] for n in merged.path_to(node)): merged.scores[node] for node in range(len(merged))
    }
    assert by_path[5,] == 0.9
    assert by_path[5, 6] == 0.9
    assert paths(merge([one, other], 3, "x")) == {(5,), (5, 6), (5, 6, 7)}


def test_the_surest_of_those_that_made_a_guess_is_its_source() -> None:
    one = tree((5, 6), (-1, 0), (0.9, 0.2), "one")
    other = tree((5, 6), (-1, 0), (0.5, 0.8), "other")
    merged = merge([one, other], 10, "x")
    assert (merged.source, merged.sources) == ("x", ("one", "other"))


def test_unscored_drafts_merge_too() -> None:
    assert paths(merge([Draft.chain((1, 2)), Draft.chain((1, 3))], 5, "x")) == {(1,), (1, 2), (1, 3)}
    assert merge([EMPTY, EMPTY], 5, "x") == EMPTY
    assert merge([EMPTY, Draft.chain((1,))], 5, "x") == Draft.chain((1,))


def test_where_one_part_draws_the_others_proposals_are_left_out() -> None:
    """Siblings that were drawn stay as they were drawn, whatever the others say and whatever they think of them."""
    q = np.array([0.25] * 4)
    drawn = Draft((2, 3), (-1, -1), (q, q), scores=(0.4, 0.2), source="drawn")
    other = tree((3, 1, 0), (-1, 0, -1), (0.99, 0.9, 0.8), "other")
    for order in ([drawn, other], [other, drawn]):
        merged = merge(order, 10, "x")
        assert [merged.tokens[node] for node in merged.children(-1)] == [2, 3]
        assert merged.q is not None
        assert merged.scores is not None
        assert [merged.q[node] is q for node in merged.children(-1)] == [True, True]
        assert [merged.scores[node] for node in merged.children(-1)] == [0.4, 0.2]
        # Nor may the source of a drawn node depend on which token was drawn.
        assert [merged.source_of(node) for node in merged.children(-1)] == ["drawn", "drawn"]
        # Nor may anything stand below them: what a drawn tree left out depends on what was drawn.
        assert merged is drawn


def test_below_the_end_of_a_drawn_chain_other_proposals_go_on() -> None:
    q = np.array([0.25] * 4)
    drawn = Draft((2, 3), (-1, 0), (q, q), scores=(0.4, 0.2), source="drawn")
    other = tree((2, 3, 1, 0), (-1, 0, 1, -1), (0.99, 0.9, 0.8, 0.7), "other")
    for order in ([drawn, other], [other, drawn]):
        merged = merge(order, 10, "x")
        assert paths(merged) == {(2,), (2, 3), (2, 3, 1)}
        assert merged.q is not None
        assert [merged.q[node] is q for node in range(3)] == [True, True, False]
        assert [merged.source_of(node) for node in range(3)] == ["drawn", "drawn", "other"]


def test_siblings_drawn_with_replacement_stand_alone() -> None:
    """They may repeat a token, which a tree of several drafts cannot hold."""
    q = np.array([0.5, 0.5])
    drawn = Draft((1, 1), (-1, -1), (q, q), True, scores=(0.4, 0.4))
    other = tree((0,), (-1,), (0.9,))
    assert merge([drawn, other], 5, "x") is drawn
    assert merge([other, drawn], 5, "x") is drawn


def test_annotations_are_carried_along() -> None:
    note = np.array([1.0])
    one = Draft((1, 2), (-1, 0), scores=(0.5, 0.5), annotations=(note, None))
    merged = merge([tree((1, 3), (-1, 0), (0.9, 0.9)), one], 9, "x")
    assert merged.annotations is not None
    assert [note is told for told in merged.annotations] == [True, False, False]


def test_each_part_is_asked_once_for_all_texts() -> None:
    parts = [Saying(Draft.chain((1,)), name="a"), Saying(Draft.chain((2,)), name="b")]
    whole = Merge(parts)
    sessions = [whole.open(text()) for _ in range(2)]
    drafts = whole.propose([DraftRequest(sessions[0], 3, path=(9,)), DraftRequest(sessions[1], 1)])
    assert [paths(draft) for draft in drafts] == [{(1,), (2,)}, {(1,)}]
    for part in parts:
        assert [session.asked for session in part.sessions] == [[((9,), 3)], [((), 1)]]
    assert drafts[0].source == "a+b"


def test_every_part_observes_finishes_and_closes_and_their_needs_add_up() -> None:
    parts = [Saying(Draft.chain((1,)), (2, 5), unread=3), Saying(EMPTY, (2, -1), unread=4)]
    whole = Merge(parts)
    assert whole.needs == Needs((-1, 2, 5))
    session = whole.open(text())
    assert session.unread == 7
    session.observe(StepResult(text(), (1,)))
    session.finish()
    session.close()
    whole.close()
    for part in parts:
        own = part.sessions[0]
        assert (own.observed, own.finished, own.closed, part.closed) == (1, 1, 1, 1)
    assert union([Needs(), Needs(every_row=True)]) == Needs((), True)
    assert union([]) == Needs()


def test_a_part_that_cannot_open_closes_the_others() -> None:
    first = Saying(EMPTY)
    with pytest.raises(RuntimeError):
        Merge([first, Saying(EMPTY, fails=True)]).open(text())
    assert first.sessions[0].closed == 1


def test_whether_memory_is_shared_is_told_by_the_parts() -> None:
    class Sharing(Saying):
        shares_memory = True

    assert not Merge([Saying(EMPTY), Saying(EMPTY)]).shares_memory
    assert Merge([Saying(EMPTY), Sharing(EMPTY)]).shares_memory


def test_names_show_the_parts() -> None:
    inner = Merge([Saying(EMPTY, name="a"), Saying(EMPTY, name="b")])
    assert Merge([inner, Saying(EMPTY, name="c")]).name == "a+b+c"
    with pytest.raises(CompositionError, match="two drafters"):
        Merge([Saying(EMPTY)])


def test_a_merge_of_merges_drafts_as_one() -> None:
    inner = Merge([Saying(Draft.chain((1,))), Saying(Draft.chain((2,)))])
    whole = Merge([inner, Saying(Draft.chain((3,)))])
    assert paths(draft_of(whole, whole.open(text()), 9)) == {(1,), (2,), (3,)}
