"""What a drafter that runs a model costs per level, and how often it is still right at each depth."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.controllers.costs import CostCurve
from forerun.core.draft import ROOT, Draft

# How fast the running means move.
_RATE = 0.08
# Chance of a level before anything was seen: good enough to be tried.
_FIRST = 0.7
# A level that costs less than this share of a plain pass is not worth counting before it is spent.
_DEAR = 0.02


class Levels:
    """Running means of one drafter's seconds per level and of its survival by depth, `deepest` of them."""

    def __init__(self, deepest: int) -> None:
        self.cost = 0.0
        self.survival = [_FIRST ** (depth + 1) for depth in range(deepest)]

    def spent(self, seconds: float, drafts: Sequence[Draft]) -> None:
        """Learn what drafting took."""
        levels = max((max(draft.depths, default=0) for draft in drafts), default=0)
        self.cost += _RATE * (seconds / max(1, levels) - self.cost) if self.cost else seconds / max(1, levels)

    def dear(self, curve: CostCurve) -> bool:
        """Whether a level costs enough to be counted before it is spent."""
        return self.cost > _DEAR * curve(1)

    def best_depth(self, curve: CostCurve, requests: int) -> tuple[int, float]:
        """The depth of chains, the same for all requests, with the best tokens per second, and that rate; 0 is plain."""
        best, best_rate = 0, requests / curve(requests)
        expected = 1.0
        for depth, survives in enumerate(self.survival, start=1):
            expected += survives
            rate = requests * expected / (curve(requests * (1 + depth)) + self.cost * depth)
            if rate > best_rate:
                best, best_rate = depth, rate
        return best, best_rate

    def observe(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Compare a draft with the tokens written at its place: how deep it was right, as far as they tell."""
        if not len(draft):
            return
        on_path, reached = {ROOT}, 0
        for node, (token, parent, depth) in enumerate(zip(draft.tokens, draft.parents, draft.depths, strict=True)):
            if parent in on_path and depth <= len(tokens) and token == tokens[depth - 1]:
                on_path.add(node)
                reached = max(reached, depth)
        # A text that left the draft says of all deeper levels that they were wrong; one still on it says nothing of them.
        told = max(draft.depths) if reached < len(tokens) else reached
        for depth in range(1, min(told, len(self.survival)) + 1):
            self.survival[depth - 1] += _RATE * ((depth <= reached) - self.survival[depth - 1])
