"""LogitSpec: the runners-up of the last row are guesses at the token after next, each continued by prompt lookup.

Liu et al. (2507.01449). The row that gave the root also ranked other tokens, and what nearly came next often comes
next after that. So below the root stand what prompt lookup says and those runners-up, in the order of their scores,
each with what prompt lookup finds after the root and it. Scores are hit rates learned as the text goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import EMPTY, Draft
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.drafters.base import Session, SessionDrafter
from forerun.drafters.growth import grow
from forerun.drafters.ngram import NgramIndex
from forerun.drafters.rates import Rates
from forerun.drafters.rows import last_row, leading

_SHORTEST, _LONGEST, _RUNNERS = 1, 4, 8

Place = tuple[tuple[int, ...], tuple[int, ...], int]  # path so far, what lookup says comes after it, its match length


class LogitSpecSession(Session):
    def __init__(self, drafter: LogitSpecDrafter, request: Request) -> None:
        super().__init__(request)
        self._drafter = drafter
        self._index = NgramIndex(_SHORTEST, _LONGEST)
        self._runners: list[int] = []
        self._ranked_for = -1  # the length of the text when they were ranked

    def propose_after(self, path: Sequence[int], budget: int) -> Draft:
        if budget <= 0:
            return EMPTY
        self._index.catch_up(self.request.tokens)
        start = (tuple(path), *self._look_up(path, budget))
        return grow(start, lambda place: self._children(place, budget), budget, "logitspec", floor=self._drafter.floor)

    def _look_up(self, path: Sequence[int], budget: int) -> tuple[tuple[int, ...], int]:
        length, tokens = self._index.follow(self.request.tokens, path, budget)
        return tuple(tokens), length

    def _children(self, place: Place, budget: int) -> list[tuple[int, float, Place]]:
        path, follows, length = place
        lookup, runners = self._drafter.lookup, self._drafter.runners
        found: list[tuple[int, float, Place]] = []
        if follows:
            found.append(
                (follows[0], lookup[length - 1], ((*path, follows[0]), follows[1:], min(length + 1, _LONGEST)))
            )
        if not path and self._ranked_for == len(self.request.tokens):
            for rank, token in enumerate(self._runners):
                if not follows or token != follows[0]:
                    found.append((token, runners[rank], ((token,), *self._look_up((token,), budget))))
            found.sort(key=lambda child: -child[1])
        return found

    def observe(self, result: StepResult) -> None:
        """Note how lookup and runners-up did on what was committed, then rank the new ones."""
        tokens, written = self.request.tokens, len(result.tokens)
        if self._ranked_for == len(tokens) - written and written:
            for rank, token in enumerate(self._runners):
                self._drafter.runners.note(rank, token == result.tokens[0])
        for at in range(len(tokens) - written, len(tokens)):
            self._index.catch_up(tokens, at)
            length, where = self._index.find(tokens, at)
            if length:
                self._drafter.lookup.note(length - 1, tokens[where] == tokens[at])
        if result.rows is not None and written:
            ids, _ = leading(result.rows[last_row(result)][: self._drafter.usable], _RUNNERS + 1)
            self._runners = [token for token in ids.tolist() if token != tokens[-1]][:_RUNNERS]
            self._ranked_for = len(tokens)


class LogitSpecDrafter(SessionDrafter[LogitSpecSession]):
    """Prompt lookup widened by the runners-up of the last row. `usable`: the target's ids that are tokens."""

    name = "logitspec"
    shares_memory = True

    def __init__(self, usable: int, *, floor: float = 0.02) -> None:
        self.usable, self.floor = usable, floor
        self.lookup = Rates([0.25, 0.4, 0.5, 0.6])
        self.runners = Rates([0.12, 0.08, 0.06, 0.05, 0.04, 0.035, 0.03, 0.025])

    def open(self, request: Request) -> LogitSpecSession:
        return LogitSpecSession(self, request)
