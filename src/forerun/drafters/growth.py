"""A draft tree grown best-first: the nodes most likely to be reached, whatever their depth, under a node budget.

A node's *reach* is the product of the scores from the root down to it, so it never exceeds its parent's: the best
`budget` nodes by reach always form a tree. Ties go to the node found first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from numpy.typing import NDArray

from forerun.core.draft import EMPTY, ROOT, Draft

Place = TypeVar("Place")
Law = NDArray[Any] | None


class Growth:
    """Nodes found so far, of which the best `budget` are the draft."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.reach: list[float] = []
        self.depths: list[int] = []
        self._q: list[Law] = []
        self._beliefs: list[Law] = []
        self._sources: list[str] = []

    def add(self, parent: int, token: int, score: float, q: Law = None, belief: Law = None, source: str = "") -> int:
        """A new node. Siblings are added in order, with scores that do not rise. source: where it differs by node."""
        above = 1.0 if parent == ROOT else self.reach[parent]
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.reach.append(above * score)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self._q.append(q)
        self._beliefs.append(belief)
        self._sources.append(source)
        return len(self.tokens) - 1

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`; empty for ROOT."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def kept(self) -> list[int]:
        """The best `budget` nodes, in ascending order, closed under parents."""
        if len(self.tokens) <= self.budget:
            return list(range(len(self.tokens)))
        ranked = sorted(range(len(self.tokens)), key=lambda node: (-self.reach[node], node))
        return sorted(ranked[: self.budget])

    def draft(self, source: str) -> Draft:
        """The kept nodes."""
        if not self.tokens or self.budget <= 0:
            return EMPTY
        whole = Draft(
            tuple(self.tokens),
            tuple(self.parents),
            _laws(self._q),
            source=source,
            beliefs=_laws(self._beliefs),
            scores=tuple(self.scores),
            sources=tuple(self._sources) if any(self._sources) else None,
        )
        return whole.keep(self.kept()) if len(self.tokens) > self.budget else whole


def _laws(laws: list[Law]) -> tuple[Law, ...] | None:
    return tuple(laws) if any(law is not None for law in laws) else None


def grow(
    start: Place,
    children: Callable[[Place], Iterable[tuple[int, float, Place]]],
    budget: int,
    source: str,
    *,
    floor: float = 0.0,
) -> Draft:
    """The `budget` nodes of greatest reach in the tree that `children` unfolds from `start`; none below `floor`.

    children: the (token, score, place) of each child of a place, best first.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    # (minus reach, order of finding, parent, token, score, place): the heap gives the best, the first found of equals.
    waiting: list[tuple[float, int, int, int, float, Place]] = []
    found, node, reach, place = 0, ROOT, 1.0, start
    while len(tokens) < budget:
        for token, score, below in children(place):
            if reach * score < floor:
                break
            heapq.heappush(waiting, (-reach * score, found, node, token, score, below))
            found += 1
        if not waiting:
            break
        less, _, parent, token, score, place = heapq.heappop(waiting)
        reach = -less
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        scores.append(score)
    return Draft(tuple(tokens), tuple(parents), source=source, scores=tuple(scores)) if tokens else EMPTY
