"""Two more nodes after a draft that was accepted whole, one less after any other: transformers' "heuristic" schedule.

Each request has its own count, from `start` on (`num_assistant_tokens` there) and never below one. A round that drafted
nothing says nothing. Of a tree, accepted whole means down to its deepest level.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.step import StepResult

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

    def observe(self, results: Sequence[StepResult]) -> None:
        for result in results:
            if len(result.draft):
                whole = result.accepted == max(result.draft.depths)
                nodes = self._nodes.get(id(result.request), self.start)
                nodes = min(self.most, nodes + _MORE) if whole else max(1, nodes - _LESS)
                self._nodes[id(result.request)] = nodes

    def forget(self, request: Request) -> None:
        self._nodes.pop(id(request), None)
