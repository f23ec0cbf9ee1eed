"""How likely a node is to be accepted, learned from what happened to nodes like it.

A drafter's own score (a match length, a count, a probability) orders its nodes well but is seldom a probability. Nodes
are grouped by source, depth and score, and each group's observed rate is shrunk toward the rate of its source and score
at any depth, and that toward the score itself:

    rate(group) = (accepted + strength * prior) / (seen + strength)

Old observations fade, so that the rates follow the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.draft import ROOT, Draft

# Groups of scores, equally wide.
_BINS = 12
# Depths, in levels, that are told apart; deeper nodes count as the last.
_DEEPEST = 4
# How many observations a prior counts as.
_STRENGTH = 6.0
# What is left of an old observation after each new one of its group: the last 100 or so count.
_FADE = 0.99


@dataclass(slots=True)
class Tally:
    accepted: float = 0.0
    seen: float = 0.0

    def add(self, accepted: bool) -> None:
        self.accepted = self.accepted * _FADE + accepted
        self.seen = self.seen * _FADE + 1.0

    def rate(self, prior: float) -> float:
        return (self.accepted + _STRENGTH * prior) / (self.seen + _STRENGTH)


class Calibration:
    """Acceptance rates by source, score and depth."""

    def __init__(self) -> None:
        # Of each source and group of scores: at any depth, then by depth.
        self._tallies: dict[tuple[str, int], list[Tally]] = {}

    def accepted(self, draft: Draft) -> list[float]:
        """Per node, the probability that it is accepted given that its parent is."""
        rates = []
        for node, depth in enumerate(draft.depths):
            score, tallies = draft.score(node), self._tallies.get(_kind(draft, node))
            rate = score if tallies is None else tallies[min(depth, _DEEPEST)].rate(tallies[0].rate(score))
            rates.append(min(max(rate, 0.0), 1.0))
        return rates

    def reached(self, draft: Draft) -> list[float]:
        """Per node, the probability that it is accepted: the product along its path."""
        rates = self.accepted(draft)
        for node, parent in enumerate(draft.parents):
            if parent != ROOT:
                rates[node] *= rates[parent]
        return rates

    def observe(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Compare a draft, verified or not, with the tokens that the target then wrote at its place.

        Only nodes whose whole path was written tell anything: of those, the ones the text went through were right.
        """
        on_path = {ROOT}
        for node, (token, parent, depth) in enumerate(zip(draft.tokens, draft.parents, draft.depths, strict=True)):
            if parent in on_path and depth <= len(tokens):
                right = token == tokens[depth - 1]
                tallies = self._of(draft, node)
                tallies[0].add(right)
                tallies[min(depth, _DEEPEST)].add(right)
                if right:
                    on_path.add(node)

    def _of(self, draft: Draft, node: int) -> list[Tally]:
        kind = _kind(draft, node)
        found = self._tallies.get(kind)
        if found is None:
            found = self._tallies[kind] = [Tally() for _ in range(1 + _DEEPEST)]
        return found


def _kind(draft: Draft, node: int) -> tuple[str, int]:
    """A node's source, and the group of its score."""
    return draft.source_of(node), min(_BINS - 1, max(0, int(draft.score(node) * _BINS)))
