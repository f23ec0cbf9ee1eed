"""Draft trees grown best-first: the nodes most likely to be reached, whatever their depth, under a budget of nodes.

How likely a node is to be reached is the product of the scores from the root down to it, its *reach*, so it never exceeds
its parent's: the best nodes by reach always form a tree. Ties go by the place in the tree (Draft.best_first), not by
when a node was found, so a draft does not depend on the way that it was found.

Keeping the best is exact for drawn nodes too, under every rule (see controllers.trimming): the score of a drawn node is
known before it is drawn and does not rise along siblings, so neither its own token, nor what is found below it, nor its
later siblings and what is below them can displace it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from numpy.typing import NDArray

from forerun.core.draft import EMPTY, ROOT, Draft

Place = TypeVar("Place")


class TreeBuilder:
    """Nodes found so far, of which the best `nodes` are the draft."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.reach: list[float] = []
        self.depths: list[int] = []
        self._places: list[tuple[int, ...]] = []  # of each node: which child to take on the way down from the root
        self._children: dict[int, int] = {}
        self._q: list[NDArray[Any] | None] = []
        self._annotations: list[Any] = []
        self._sources: list[str] = []

    def add(
        self,
        parent: int,
        token: int,
        score: float,
        q: NDArray[Any] | None = None,
        annotation: Any = None,
        source: str = "",
    ) -> int:
        """A new node. Siblings are added in order, with scores that do not rise. source: where it differs by node."""
        above = 1.0 if parent == ROOT else self.reach[parent]
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.reach.append(above * score)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        number = self._children.get(parent, 0)
        self._children[parent] = number + 1
        self._places.append((*(() if parent == ROOT else self._places[parent]), number))
        self._q.append(q)
        self._annotations.append(annotation)
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
        """The best `nodes` nodes, in ascending order, closed under parents."""
        if len(self.tokens) <= self.nodes:
            return list(range(len(self.tokens)))
        ranked = sorted(range(len(self.tokens)), key=lambda node: (-self.reach[node], self._level_order(node)))
        return sorted(ranked[: self.nodes])

    def draft(self, source: str) -> Draft:
        """The kept nodes, level by level."""
        nodes = sorted(self.kept(), key=self._level_order) if self.nodes > 0 else []
        if not nodes:
            return EMPTY
        number = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        sources = tuple(self._sources[node] for node in nodes)
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(number[self.parents[node]] for node in nodes),
            _some(self._q[node] for node in nodes),
            source=source,
            scores=tuple(self.scores[node] for node in nodes),
            sources=sources if any(sources) else None,
            annotations=_some(self._annotations[node] for node in nodes),
        )

    def _level_order(self, node: int) -> tuple[int, tuple[int, ...]]:
        return self.depths[node], self._places[node]


def _some(values: Iterable[Any]) -> tuple[Any, ...] | None:
    kept = tuple(values)
    return kept if any(value is not None for value in kept) else None


def grow(
    start: Place,
    children: Callable[[Place], Iterable[tuple[int, float, Place]]],
    nodes: int,
    source: str,
    *,
    floor: float = 0.0,
) -> Draft:
    """The `nodes` nodes of greatest reach in the tree that `children` unfolds from `start`; none below `floor`.

    children: the (token, score, place) of each child of a place, best first.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    # (minus reach, order of finding, parent, token, score, place): the heap gives the best, the first found of equals.
    waiting: list[tuple[float, int, int, int, float, Place]] = []
    found, node, reach, place = 0, ROOT, 1.0, start
    while len(tokens) < nodes:
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
