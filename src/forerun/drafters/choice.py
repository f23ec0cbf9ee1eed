"""`a|m`: a cheap drafter always, and a dear one (a model) only where it is worth more than the draft in hand.

The cheap draft costs next to nothing, so it is always made and its worth is known before anything is spent. The judge
compares the rate of the cheap draft, by its calibrated chances, with what the dear drafter has earned lately. The dear
draft is continued by the cheap drafter where it ends, and gets the cheap draft's nodes merged in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, cast

from forerun.core.draft import ROOT, Draft
from forerun.core.protocols import Drafter, DraftSession
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.drafters.base import unread
from forerun.drafters.compose import Composed, ComposedSession, continues, hang, merge, parts_of
from forerun.drafters.rows import last_row, sureness


class Judge(Protocol):
    """Knows what passes cost here and what drafts have earned (controllers.dear)."""

    def depths(self, requests: Sequence[Request], cheap: Sequence[Draft], unread: Sequence[int]) -> list[int]:
        """Per request, how many levels of the dear drafter are worth more than the draft in hand; 0 is none.

        unread: tokens of the text that it would have to read first.
        """
        ...

    def watches(self, request: Request) -> bool:
        """Whether it wants to know how sure the target is of this request's tokens."""
        ...

    def watched(self, request: Request, sureness: float) -> None:
        """The chance that the target gave its likeliest token, as often as `watches` says so."""
        ...

    def threshold(self) -> float:
        """The chance of being reached below which a node is not worth continuing."""
        ...

    def spent(self, requests: Sequence[Request], drafts: Sequence[Draft], read: Sequence[int], seconds: float) -> None:
        """What the dear drafter proposed, perhaps nothing, for the requests it was asked for, and in which time.

        read: tokens of each text that it read for it.
        """
        ...


class ChoiceSession(ComposedSession):
    """Tells the judge how sure the target is."""

    def __init__(self, choice: Choice, request: Request, parts: Sequence[DraftSession]) -> None:
        super().__init__(choice, request, parts)
        self._judge = choice.judge

    def observe(self, result: StepResult) -> None:
        super().observe(result)
        if result.rows is not None and self._judge.watches(self.request):
            # One row a round says enough, and looking at more would cost more.
            row = result.rows[last_row(result)]
            self._judge.watched(self.request, sureness(row, self.request.sampling.temperature))


class Choice(Composed):
    """`cheap|dear`, decided per request and round by a judge."""

    sign = "|"

    def __init__(self, cheap: Drafter, dear: Drafter, judge: Judge) -> None:
        super().__init__([cheap, dear])
        self.judge = judge

    def session(self, request: Request, parts: Sequence[DraftSession]) -> ChoiceSession:
        return ChoiceSession(self, request, parts)

    def propose_after(
        self, sessions: Sequence[DraftSession], paths: Sequence[Sequence[int]], budgets: Sequence[int]
    ) -> list[Draft]:
        cheap = self._ask(0, sessions, paths, budgets)
        requests = [cast(ComposedSession, session).request for session in sessions]
        asked = [index for index, budget in enumerate(budgets) if budget > 0]
        before = _unread(sessions)
        depths = self.judge.depths(*_chosen(asked, requests, cheap, before))
        wanted = [0] * len(budgets)
        for index, depth in zip(asked, depths, strict=True):
            wanted[index] = min(budgets[index], depth)
        if not any(wanted):
            return cheap
        limit_levels(self.parts[1], self.judge.threshold())
        started = time.perf_counter()
        dear = self._ask(1, sessions, paths, wanted)
        seconds = time.perf_counter() - started
        read = [max(0, was - still) for was, still in zip(before, _unread(sessions), strict=True)]
        ran = [index for index, levels in enumerate(wanted) if levels]
        self.judge.spent(*_chosen(ran, requests, dear, read), seconds)
        dear = self._extended(sessions, paths, dear, budgets)
        return [
            merge([own, free], budget, self.name) if len(own) else free
            for own, free, budget in zip(dear, cheap, budgets, strict=True)
        ]

    def _extended(
        self,
        sessions: Sequence[DraftSession],
        paths: Sequence[Sequence[int]],
        drafts: Sequence[Draft],
        budgets: Sequence[int],
    ) -> list[Draft]:
        """The dear drafts with the cheap drafter's continuation of their deepest node: it may find the text again there,
        after a word that only the dear one could know."""
        if not continues(self.parts[0]):
            return list(drafts)
        ends = [max(range(len(d)), key=d.depths.__getitem__, default=ROOT) for d in drafts]
        after = [
            (*path, *(draft.tokens[node] for node in draft.path_to(end)))
            for path, draft, end in zip(paths, drafts, ends, strict=True)
        ]
        left = [
            budget - len(draft) if len(draft) and draft.q is None else 0
            for budget, draft in zip(budgets, drafts, strict=True)
        ]
        found = self._ask(0, sessions, after, left)
        return [
            hang(draft, end, more, self.name) if len(more) else draft
            for draft, end, more in zip(drafts, ends, found, strict=True)
        ]


def _unread(sessions: Sequence[DraftSession]) -> list[int]:
    """Tokens that the dear drafter has yet to read."""
    return [unread(parts_of(session)[1]) for session in sessions]


def _chosen(
    which: Sequence[int], requests: Sequence[Request], drafts: Sequence[Draft], tokens: Sequence[int]
) -> tuple[list[Request], list[Draft], list[int]]:
    return [requests[i] for i in which], [drafts[i] for i in which], [tokens[i] for i in which]


def limit_levels(drafter: Drafter, threshold: float) -> None:
    """Tell every part that drafts level by level at which chance another level stops to pay."""
    if hasattr(drafter, "threshold"):
        drafter.threshold = threshold
    for part in getattr(drafter, "parts", ()):
        limit_levels(part, threshold)
