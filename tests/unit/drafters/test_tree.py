"""Best-first growth under a node budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from forerun.core.draft import ROOT
from forerun.drafters.tree import TreeBuilder, grow


def test_kept_nodes_are_the_best_and_a_tree() -> None:
    tree = TreeBuilder(3)
    a = tree.add(ROOT, 1, 0.6)
    b = tree.add(ROOT, 2, 0.3)
    c = tree.add(a, 3, 0.9)
    tree.add(b, 4, 0.9)
    assert tree.kept() == [a, b, c]
    draft = tree.draft("x")
    assert (draft.tokens, draft.parents, draft.scores) == ((1, 2, 3), (ROOT, ROOT, 0), (0.6, 0.3, 0.9))
    assert draft.q is None


def test_ties_keep_parents() -> None:
    tree = TreeBuilder(2)
    a = tree.add(ROOT, 1, 1.0)
    b = tree.add(a, 2, 1.0)
    tree.add(b, 3, 1.0)
    assert tree.kept() == [a, b]


def test_q_is_carried_and_shared() -> None:
    q = np.array([0.5, 0.5])
    tree = TreeBuilder(4)
    tree.add(ROOT, 0, 0.5, q)
    tree.add(ROOT, 1, 0.5, q)
    draft = tree.draft("x")
    assert draft.q is not None
    assert draft.q[0] is q
    assert draft.q[1] is q


@pytest.mark.parametrize("nodes", [0, 1, 2, 5, 9])
def test_growing_finds_the_nodes_of_greatest_reach(nodes: int) -> None:
    """Against listing every node of a complete tree three levels deep."""
    scores = [0.5, 0.3, 0.15]

    def children(place: tuple[int, ...]) -> list[tuple[int, float, tuple[int, ...]]]:
        if len(place) == 3:
            return []
        return [(token, score, (*place, token)) for token, score in enumerate(scores)]

    start: tuple[int, ...] = ()
    draft = grow(start, children, nodes, "x")
    every = [
        float(np.prod([scores[t] for t in path])) for n in (1, 2, 3) for path in itertools.product(range(3), repeat=n)
    ]
    found = [float(np.prod([scores[draft.tokens[n]] for n in draft.path_to(node)])) for node in range(len(draft))]
    assert sorted(found, reverse=True) == pytest.approx(sorted(every, reverse=True)[:nodes])


def test_nothing_below_the_floor() -> None:
    draft = grow(0, lambda depth: [(1, 0.5, depth + 1), (2, 0.2, depth + 1)], 50, "x", floor=0.24)
    assert draft.tokens == (1, 1)
