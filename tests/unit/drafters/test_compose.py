"""Chain, Merge and Extend on drafters that say what they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from forerun.core.draft import EMPTY, Draft
from forerun.core.protocols import Needs
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.step import StepResult
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.compose import Chain, Extend, Merge, hang, merge

Says = Callable[[Sequence[int], int], Draft]


class SayingSession(Session):
    def __init__(self, request: Request, says: Says) -> None:
        super().__init__(request)
        self._says = says
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.observed = self.closed = 0

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        self.asked.append((tuple(path), budget))
        return self._says(path, budget)

    def observe(self, result: StepResult) -> None:
        self.observed += 1

    def close(self) -> None:
        self.closed += 1


class Saying(SessionDrafter[SayingSession]):
    def __init__(self, says: Says | Draft, hidden: tuple[int, ...] = (), fails: bool = False) -> None:
        self._says = (lambda path, budget: says) if isinstance(says, Draft) else says
        self.name, self.needs, self._fails = "saying", Needs(hidden), fails
        self.sessions: list[SayingSession] = []

    def open(self, request: Request) -> SayingSession:
        if self._fails:
            raise RuntimeError("no room")
        self.sessions.append(SayingSession(request, self._says))
        return self.sessions[-1]


def tree(tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float]) -> Draft:
    return Draft(tuple(tokens), tuple(parents), scores=tuple(scores))


def request() -> Request:
    return Request([1, 2, 3], Sampling())


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(draft.tokens[node] for node in draft.path_to(leaf)) for leaf in range(len(draft))}


def test_a_chain_asks_the_next_only_where_the_first_is_silent() -> None:
    speaks = {0: Draft.chain((7,)), 1: EMPTY}
    first = Saying(lambda path, budget: speaks[budget % 2])
    second = Saying(Draft.chain((8,)))
    chain = Chain([first, second])
    sessions = [chain.open(request()), chain.open(request()), chain.open(request())]
    drafts = chain.propose(sessions, [2, 3, 0])
    assert [draft.tokens for draft in drafts] == [(7,), (8,), ()]
    assert [len(session.asked) for session in second.sessions] == [0, 1, 0]


def test_a_merge_is_one_tree_with_shared_prefixes() -> None:
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


def test_unscored_drafts_merge_too() -> None:
    assert paths(merge([Draft.chain((1, 2)), Draft.chain((1, 3))], 5, "x")) == {(1,), (1, 2), (1, 3)}
    assert merge([EMPTY, EMPTY], 5, "x") == EMPTY
    assert merge([EMPTY, Draft.chain((1,))], 5, "x") == Draft.chain((1,))


def test_where_one_part_draws_the_others_proposals_are_left_out() -> None:
    """A drawn sibling set stays as it was drawn, whatever the others say and whatever they think of it."""
    law = np.array([0.25] * 4)
    drawn = Draft((2, 3), (-1, -1), (law, law), scores=(0.4, 0.2))
    other = tree((3, 1, 0), (-1, 0, -1), (0.99, 0.9, 0.8))
    for order in ([drawn, other], [other, drawn]):
        merged = merge(order, 10, "x")
        assert [merged.tokens[node] for node in merged.children(-1)] == [2, 3]
        assert merged.q is not None
        assert merged.scores is not None
        assert [merged.q[node] is law for node in merged.children(-1)] == [True, True]
        assert [merged.scores[node] for node in merged.children(-1)] == [0.4, 0.2]
        assert paths(merged) == {(2,), (3,), (3, 1)}
        assert [node for node in range(len(merged)) if merged.q[node] is None] == [2]


def test_an_extension_hangs_off_the_likeliest_leaf_first() -> None:
    base = tree((5, 6), (-1, -1), (0.2, 0.7))
    more = Saying(lambda path, budget: Draft.chain(range(10, 10 + min(2, budget))))
    extend = Extend([Saying(base), more])
    draft = extend.open(request()).propose(5)
    assert paths(draft) == {(5,), (6,), (6, 10), (6, 10, 11), (5, 10)}
    assert more.sessions[0].asked == [((6,), 3), ((5,), 1)]
    assert draft.scores == (0.2, 0.7, 0.5, 0.5, 0.5)


def test_an_extension_of_silence_stands_alone() -> None:
    more = Saying(Draft.chain((9,)))
    extend = Extend([Saying(EMPTY), more])
    session = extend.open(request())
    assert session.propose(3).tokens == (9,)
    assert session.propose_after((4,), 3).tokens == (9,)
    assert more.sessions[0].asked == [((), 3), ((4,), 3)]


def test_a_full_draft_is_not_extended() -> None:
    more = Saying(Draft.chain((9,)))
    extend = Extend([Saying(Draft.chain((1, 2))), more])
    assert extend.open(request()).propose(2).tokens == (1, 2)
    assert more.sessions[0].asked == []


def test_extensions_chain_and_carry_q() -> None:
    law = np.array([0.5, 0.5])
    base = Draft((1,), (-1,), (law,), scores=(0.9,))
    draft = hang(base, 0, Draft.chain((4, 5)), "x")
    assert draft.q is not None
    assert (draft.tokens, draft.parents) == ((1, 4, 5), (-1, 0, 1))
    assert draft.q[0] is law
    assert draft.q[1:] == (None, None)
    three = Extend([Saying(Draft.chain((1,))), Saying(Draft.chain((2,))), Saying(Draft.chain((3,)))])
    assert three.open(request()).propose(9).tokens == (1, 2, 3)


@pytest.mark.parametrize("kind", [Chain, Merge, Extend])
def test_every_part_observes_and_closes_and_their_needs_add_up(kind: type[Chain] | type[Merge] | type[Extend]) -> None:
    parts = [Saying(Draft.chain((1,)), (2, 5)), Saying(EMPTY, (2, -1))]
    whole = kind(parts)
    assert set(whole.needs.hidden) == {2, 5, -1}
    session = whole.open(request())
    session.observe(StepResult(request(), (1,)))
    session.close()
    assert [(p.sessions[0].observed, p.sessions[0].closed) for p in parts] == [(1, 1), (1, 1)]


def test_a_part_that_cannot_open_closes_the_others() -> None:
    first = Saying(EMPTY)
    with pytest.raises(RuntimeError):
        Chain([first, Saying(EMPTY, fails=True)]).open(request())
    assert first.sessions[0].closed == 1


def test_names_show_what_binds() -> None:
    a, b = Saying(EMPTY), Saying(EMPTY)
    assert Merge([Chain([a, b]), a]).name == "(saying,saying)+saying"
