"""Two more nodes after a draft that was accepted whole, one less after any other: transformers' "heuristic" schedule.

Each request has its own count, from `start` on (`num_assistant_tokens` there) and never below one. A round that drafted
nothing says nothing. Of a tree, accepted whole means down to its deepest level.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import Draft
from forerun.core.outcome import Outcome
from forerun.core.request import Request

_MORE, _LESS = 2, 1


class Heuristic:
    """Drafts more while drafts are right. most: nodes that a draft never goes past."""

    name = "heuristic"

    def __init__(self, start: int = 5, most: int = 64) -> None:
        self.start, self.most = start, most
        self._nodes: dict[int, int] = {}

    def budgets(self, live: Sequence[Request]) -> list[int]:
        return [self._nodes.get(id(request), self.start) for request in live]

    def trim(self, live: Sequence[Request], drafts: Sequence[Draft], seconds: float) -> list[Draft]:
        return list(drafts)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if len(outcome.draft):
                whole = outcome.accepted == max(outcome.draft.depths)
                nodes = self._nodes.get(id(outcome.request), self.start)
                nodes = min(self.most, nodes + _MORE) if whole else max(1, nodes - _LESS)
                self._nodes[id(outcome.request)] = nodes

    def forget(self, request: Request) -> None:
        self._nodes.pop(id(request), None)
