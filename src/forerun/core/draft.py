"""A draft: a flat token tree hanging off the root, parents first.

Node `i` proposes `tokens[i]` to follow node `parents[i]`; parent `ROOT` (-1) is the last committed token, which the
target has not read yet. Siblings keep the order in which they were proposed: multi-draft rules try them in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = -1


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
    beliefs: per node, the drafter's distribution at temperature 1 without truncation, of which q is what sampling makes;
        only for rules that want it (cascades), and None where it is q itself.
    scores: per node, the drafter's own estimate in [0, 1] that the node is accepted given that its parent is; None
        where it has none. Where q is given, a node's score depends on its ancestors and earlier siblings alone and never
        rises along siblings, so cutting the nodes of lowest product of scores keeps every rule exact.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: tuple[NDArray[Any] | None, ...] | None = None
    with_replacement: bool = False
    source: str = ""
    beliefs: tuple[NDArray[Any] | None, ...] | None = None
    scores: tuple[float, ...] | None = None
    sources: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"draft has {len(self.tokens)} tokens but {len(self.parents)} parents")
        if self.q is not None and len(self.q) != len(self.tokens):
            raise ValueError(f"draft has {len(self.tokens)} tokens but {len(self.q)} distributions")
        if self.scores is not None and len(self.scores) != len(self.tokens):
            raise ValueError(f"draft has {len(self.tokens)} tokens but {len(self.scores)} scores")
        if self.sources is not None and len(self.sources) != len(self.tokens):
            raise ValueError(f"draft has {len(self.tokens)} tokens but {len(self.sources)} sources")
        if self.beliefs is not None and len(self.beliefs) != len(self.tokens):
            raise ValueError(f"draft has {len(self.tokens)} tokens but {len(self.beliefs)} beliefs")
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

    def ancestors_mask(self) -> NDArray[np.bool_]:
        """`[n, n]`: row i is true at i and at each of i's ancestors, the nodes that i may attend to."""
        mask = np.zeros((len(self), len(self)), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                mask[node] = mask[parent]
            mask[node, node] = True
        return mask

    def keep(self, nodes: Sequence[int]) -> Draft:
        """The sub-tree of the given nodes, which must be closed under parents and in ascending order."""
        renumbered = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(renumbered[self.parents[node]] for node in nodes),
            None if self.q is None else tuple(self.q[node] for node in nodes),
            self.with_replacement,
            self.source,
            None if self.beliefs is None else tuple(self.beliefs[node] for node in nodes),
            None if self.scores is None else tuple(self.scores[node] for node in nodes),
            None if self.sources is None else tuple(self.sources[node] for node in nodes),
        )

    def fit(self, *, nodes: int, depth: int, tree: bool) -> Draft:
        """The part a target can verify: at most `nodes` nodes, `depth` levels, and only first children without `tree`.

        Cutting looks at positions in the tree only, never at the values of drawn tokens, so it keeps every rule exact.
        """
        if len(self) <= nodes and (not self.depths or max(self.depths) <= depth) and (tree or self.is_chain):
            return self
        kept: list[int] = []
        held = {ROOT}
        for node, parent in enumerate(self.parents):
            first = self.children(parent)[0] == node
            if len(kept) < nodes and parent in held and self.depths[node] <= depth and (tree or first):
                kept.append(node)
                held.add(node)
        return self.keep(kept)


EMPTY = Draft()
