"""Two more nodes after a draft that was accepted whole, one less after any other: transformers' "heuristic" schedule.

Each text has its own count, from `start` on (`num_assistant_tokens` there) and never below one. A step that drafted nothing
says nothing. Of a tree, accepted whole means down to its deepest level.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.controllers.fixed import Untimed
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript

# Nodes, from transformers' `num_assistant_tokens_schedule="heuristic"`.
_MORE = 2
_LESS = 1


class Heuristic(Untimed):
    """Drafts more while drafts are right. most: nodes that a draft never goes past."""

    name = "heuristic"

    def __init__(self, start: int = 5, most: int = 64) -> None:
        self.start, self.most = start, most
        self._nodes: dict[Transcript, int] = {}

    def nodes(self, transcript: Transcript) -> int:
        return self._nodes.get(transcript, self.start)

    def observe(self, results: Sequence[StepResult]) -> None:
        for result in results:
            if len(result.draft):
                whole = result.accepted == max(result.draft.depths)
                nodes = self.nodes(result.sequence)
                self._nodes[result.sequence] = min(self.most, nodes + _MORE) if whole else max(1, nodes - _LESS)

    def forget(self, transcript: Transcript) -> None:
        self._nodes.pop(transcript, None)
