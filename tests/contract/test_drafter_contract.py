"""Every drafter keeps every promise of `forerun.testing`: the suite a new drafter must pass; and the suite can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from forerun.core.draft import EMPTY, Draft
from forerun.core.protocols import Drafter
from forerun.core.transcript import Transcript
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

    def open(self, transcript: Transcript) -> BrokenSession:
        self.opened += 1
        return BrokenSession(self, transcript)

    def draft(self, session: BrokenSession, path: Sequence[int], nodes: int) -> Draft:
        session.asked += 1
        return self.says(session, nodes)


class BrokenSession(Session):
    def __init__(self, drafter: Broken, transcript: Transcript) -> None:
        super().__init__(transcript)
        self.drafter = drafter
        self.asked = 0


def drawn(session: BrokenSession, q: object) -> Draft:
    """A node with a q, where the text wants one."""
    draft = Draft.chain([1])
    keyed = session.transcript.keyed or session.transcript.request.sampling.greedy
    return draft if keyed else replace(draft, q=(q,))  # type: ignore[arg-type]


BROKEN: dict[str, Callable[[BrokenSession, int], Draft]] = {
    "were asked for": lambda session, nodes: Draft.chain([1] * (nodes + 1)),
    "outside the vocabulary": lambda session, nodes: Draft.chain([VOCAB]),
    "siblings repeat a token": lambda session, nodes: Draft((1, 1), (-1, -1)) if nodes > 1 else EMPTY,
    "scores are outside": lambda session, nodes: Draft((1,), (-1,), scores=(1.5,)),
    "q belongs to drafts that were drawn": lambda session, nodes: Draft.chain([1], [np.full(VOCAB, 1 / VOCAB)]),
    "q is a distribution": lambda session, nodes: drawn(session, np.full(VOCAB, 0.5)),
    "as wide as the target": lambda session, nodes: drawn(session, np.full(3, 1 / 3)),
    "impossible under q": lambda session, nodes: drawn(session, np.eye(VOCAB)[2]),
    "proposing twice": lambda session, nodes: Draft.chain([session.asked % VOCAB]),
    "other drafts|company changes|something else": lambda session, nodes: Draft.chain([session.drafter.opened]),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_drafter_is_told_what_it_broke(said: str) -> None:
    def make() -> Drafter:
        return Broken(BROKEN[said])

    with pytest.raises(AssertionError, match=said):
        check_drafter(make)


def test_the_first_broken_promise_is_named() -> None:
    with pytest.raises(AssertionError, match=r"every draft is safe whatever was accepted \(greedy, keyed\): "):
        check_drafter(lambda: Broken(lambda session, nodes: Draft.chain([99])))
