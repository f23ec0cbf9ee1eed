"""A draft: a flat token tree hanging off the root, parents first.

Node `i` proposes `tokens[i]` to follow node `parents[i]`; parent `ROOT` (-1) is the last committed token, which the
target has not read yet. Siblings keep the order in which they were proposed: multi-draft rules try them in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

ROOT = -1
# The score of a node whose drafter gives none.
UNSCORED = 0.5


@dataclass(frozen=True)
class Draft:
    """A token tree of `n` nodes.

    tokens: token ids, `n` of them.
    parents: index of each node's parent, ROOT or an earlier node.
    q: per node, the distribution `[vocab]` from which the node's siblings were drawn (siblings share one array), or
        None where the node was proposed deterministically, which every rule treats as a one-hot q. None altogether
        when no node has one.
    with_replacement: whether siblings were drawn independently from q (so repeats can occur), or one after the other
        without replacement.
    source: which drafter made it, for traces and calibration; sources: the same per node, where they differ.
    scores: per node, the drafter's own estimate in [0, 1] that the node is accepted given that its parent is; None
        where it has none. Where q is given, a node's score depends on its ancestors and earlier siblings alone, and what is
        before it in `best_first` is not there, or missing, because of its token or of what was found below it.
    annotations: per node, whatever else a drafter tells a verifier about it; carried along by every cut and merge.

    q and annotations hold arrays, so they are left out of comparisons.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: tuple[NDArray[Any] | None, ...] | None = field(default=None, compare=False)
    with_replacement: bool = False
    source: str = ""
    scores: tuple[float, ...] | None = None
    sources: tuple[str, ...] | None = None
    annotations: tuple[Any, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for what in ("parents", "q", "scores", "sources", "annotations"):
            given = getattr(self, what)
            if given is not None and len(given) != len(self.tokens):
                raise ValueError(f"a draft of {len(self.tokens)} tokens has {len(given)} {what}")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: parents come first")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Iterable[int], q: Sequence[NDArray[Any] | None] | None = None, source: str = "") -> Draft:
        """One path: each token follows the one before it."""
        kept = tuple(tokens)
        return cls(kept, tuple(range(-1, len(kept) - 1)), None if q is None else tuple(q), source=source)

    def source_of(self, node: int) -> str:
        """Which drafter proposed a node."""
        return self.source if self.sources is None else self.sources[node]

    @cached_property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each node from the root: 1 for a child of the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in found.items()}

    def children(self, node: int) -> tuple[int, ...]:
        """Children of a node (or of ROOT) in the order in which they were proposed."""
        return self._children.get(node, ())

    def path_to(self, node: int) -> tuple[int, ...]:
        """Node indices from the root's child down to `node`; empty for ROOT."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def score(self, node: int) -> float:
        """The drafter's estimate that a node is accepted given that its parent is."""
        return UNSCORED if self.scores is None else self.scores[node]

    def together(self, parent: int) -> bool:
        """Whether the children of a node are kept all or none: drawn with replacement, since K-SEQ looks at their number."""
        return self.with_replacement and any(map(self.drawn, self.children(parent)))

    @cached_property
    def best_first(self) -> tuple[int, ...]:
        """All nodes by *reach*, the product of scores from the root down, the largest first; of equals the one nearest to the
        root, then the one below the earlier sibling. A node comes after its parent, and a drawn one after the siblings drawn
        before it; siblings drawn with replacement stand together.

        Which of two nodes comes first follows from their scores and their ancestors' alone. So all that keep a start of this
        order agree, and keeping one is exact for drawn nodes, under every rule (see controllers.trimming).
        """
        keys: list[tuple[float, int, tuple[int, ...]]] = []
        for node, parent in enumerate(self.parents):
            above, depth, place = (-1.0, 0, ()) if parent == ROOT else keys[parent]
            siblings = self.children(parent)
            at = siblings.index(node)
            reach = -above * self.score(node)
            if at and self.together(parent):
                reach = -keys[siblings[0]][0]
            elif at and self.drawn(node):
                reach = min([reach, *(-keys[before][0] for before in siblings[:at] if self.drawn(before))])
            keys.append((-reach, depth + 1, (*place, at)))
        return tuple(sorted(range(len(self)), key=keys.__getitem__))

    def drawn(self, node: int) -> bool:
        """Whether a node was drawn from a distribution, and not proposed deterministically."""
        return self.q is not None and self.q[node] is not None

    @cached_property
    def draws(self) -> bool:
        """Whether any node was drawn from a distribution."""
        return self.q is not None and any(q is not None for q in self.q)

    def keep(self, nodes: Sequence[int]) -> Draft:
        """The sub-tree of the given nodes, which must be closed under parents and in ascending order."""
        renumbered = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}

        def kept(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
            return None if values is None else tuple(values[node] for node in nodes)

        return replace(
            self,
            tokens=tuple(self.tokens[node] for node in nodes),
            parents=tuple(renumbered[self.parents[node]] for node in nodes),
            q=kept(self.q),
            scores=kept(self.scores),
            sources=kept(self.sources),
            annotations=kept(self.annotations),
        )

    def fit(self, *, nodes: int, depth: int, tree: bool) -> Draft:
        """The part a target can verify: the best `nodes` nodes of at most `depth` levels, only first children without `tree`.

        Exact for drawn nodes, under every rule (see `best_first`).
        """
        if len(self) <= nodes and (not self.depths or max(self.depths) <= depth) and (tree or self.is_chain):
            return self
        kept: set[int] = set()
        for node in self.best_first:
            siblings = self.children(self.parents[node])
            if self.depths[node] > depth or not (self.parents[node] == ROOT or self.parents[node] in kept):
                continue
            taken = siblings if tree and self.together(self.parents[node]) else (node,)
            if (tree or node == siblings[0]) and len(kept.union(taken)) <= nodes:
                kept.update(taken)
        return self.keep(sorted(kept))


EMPTY = Draft()
