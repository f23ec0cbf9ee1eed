"""Every drafter keeps every promise of `forerun.testing`: the suite a new drafter must pass; and the suite can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from forerun.core.draft import EMPTY, Draft
from forerun.core.protocols import Drafter
from forerun.core.request import Request
from forerun.drafters.base import Session, SessionDrafter
from forerun.testing import CHECKS, VOCAB, check_drafter
from tests.contract.drafters import DRAFTERS


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_promise(drafter: str, check: str) -> None:
    CHECKS[check](DRAFTERS[drafter])


class Broken(SessionDrafter["BrokenSession"]):
    """Proposes what a function says."""

    name = "broken"

    def __init__(self, says: Callable[[BrokenSession, int], Draft]) -> None:
        self.says = says
        self.opened = 0

    def open(self, request: Request) -> BrokenSession:
        self.opened += 1
        return BrokenSession(self, request)


class BrokenSession(Session):
    def __init__(self, drafter: Broken, request: Request) -> None:
        super().__init__(request)
        self.drafter = drafter
        self.asked = 0

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        self.asked += 1
        return self.drafter.says(self, budget) if budget else EMPTY


def drawn(session: BrokenSession, budget: int, q: object) -> Draft:
    """A node with a q, where the request wants one."""
    draft = Draft.chain([1])
    keyed = session.request.shares_noise or session.request.sampling.greedy
    return draft if keyed else replace(draft, q=(q,))  # type: ignore[arg-type]


BROKEN: dict[str, Callable[[BrokenSession, int], Draft]] = {
    "the budget was": lambda session, budget: Draft.chain([1] * (budget + 1)),
    "outside the vocabulary": lambda session, budget: Draft.chain([VOCAB]),
    "siblings repeat a token": lambda session, budget: Draft((1, 1), (-1, -1)) if budget > 1 else EMPTY,
    "scores are outside": lambda session, budget: Draft((1,), (-1,), scores=(1.5,)),
    "q belongs to drafts that were drawn": lambda session, budget: Draft.chain([1], [np.full(VOCAB, 1 / VOCAB)]),
    "q is a law": lambda session, budget: drawn(session, budget, np.full(VOCAB, 0.5)),
    "as wide as the target": lambda session, budget: drawn(session, budget, np.full(3, 1 / 3)),
    "q gives no chance": lambda session, budget: drawn(session, budget, np.eye(VOCAB)[2]),
    "proposing twice": lambda session, budget: Draft.chain([session.asked % VOCAB]),
    "other drafts|company changes|something else": lambda session, budget: Draft.chain([session.drafter.opened]),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_drafter_is_told_what_it_broke(said: str) -> None:
    def make() -> Drafter:
        return Broken(BROKEN[said])

    with pytest.raises(AssertionError, match=said):
        check_drafter(make)


def test_the_first_broken_promise_is_named() -> None:
    with pytest.raises(AssertionError, match=r"every draft is safe whatever was accepted \(greedy, keyed\): "):
        check_drafter(lambda: Broken(lambda session, budget: Draft.chain([99])))
