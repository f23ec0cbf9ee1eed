"""`a|m`: the cheap draft always, the dear one where the judge says so, one tree of both."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import EMPTY, Draft
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.choice import Choice


class SayingSession(Session):
    def __init__(self, request: Request, drafter: Saying) -> None:
        super().__init__(request)
        self._drafter = drafter

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        self._drafter.asked.append(budget)
        return self._drafter.says.fit(nodes=budget, depth=budget, tree=True)


class Saying(SessionDrafter[SayingSession]):
    def __init__(self, says: Draft, name: str) -> None:
        self.says, self.name = says, name
        self.asked: list[int] = []
        self.threshold = 0.0

    def open(self, request: Request) -> SayingSession:
        return SayingSession(request, self)


class Judging:
    """Wants as many levels as the request has tokens, and notes what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.told: list[tuple[int, tuple[int, ...]]] = []

    def depth(self, request: Request, cheap: Draft) -> int:
        self.seen.append(cheap.tokens)
        return len(request.tokens) - 1

    def threshold(self) -> float:
        return 0.25

    def spent(self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> None:
        assert seconds >= 0.0
        self.told += [(len(r.tokens), d.tokens) for r, d in zip(requests, drafts, strict=True)]


CHEAP = Draft.chain((5, 6))
DEAR = Draft((5, 7, 8), (-1, 0, 1), scores=(0.9, 0.8, 0.7))


def test_the_dear_drafter_runs_where_it_is_wanted_and_the_cheap_draft_is_merged_in() -> None:
    cheap, dear, judge = Saying(CHEAP, "cheap"), Saying(DEAR, "dear"), Judging()
    choice = Choice(cheap, dear, judge)
    requests = [Request([1] * n, Sampling()) for n in (1, 3, 9)]
    drafts = choice.propose([choice.open(request) for request in requests], [6, 6, 2])
    assert choice.name == "cheap|dear"
    assert judge.seen == [(5, 6)] * 3
    assert drafts[0] == CHEAP
    assert {tuple(drafts[1].tokens[n] for n in drafts[1].path_to(i)) for i in range(len(drafts[1]))} == {
        (5,),
        (5, 6),
        (5, 7),
    }
    assert dear.asked == [2, 2]  # never past the budget, nor deeper than is wanted
    assert len(drafts[2]) == 2
    assert dear.threshold == 0.25
    assert judge.told == [(1, ()), (3, (5, 7)), (9, (5, 7))]


def test_nothing_dear_is_wanted_where_there_is_no_budget() -> None:
    cheap, dear, judge = Saying(CHEAP, "cheap"), Saying(DEAR, "dear"), Judging()
    choice = Choice(cheap, dear, judge)
    assert choice.open(Request([1] * 5, Sampling())).propose(0) == EMPTY
    assert (cheap.asked, dear.asked, judge.seen, judge.told) == ([], [], [], [])


def test_a_silent_dear_drafter_leaves_the_cheap_draft() -> None:
    choice = Choice(Saying(CHEAP, "cheap"), Saying(EMPTY, "dear"), Judging())
    assert choice.open(Request([1] * 5, Sampling())).propose(4) == CHEAP
