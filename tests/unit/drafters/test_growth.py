"""Best-first growth under a node budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from forerun.core.draft import ROOT
from forerun.drafters.growth import Growth, grow


def test_kept_nodes_are_the_best_and_a_tree() -> None:
    tree = Growth(3)
    a = tree.add(ROOT, 1, 0.6)
    b = tree.add(ROOT, 2, 0.3)
    c = tree.add(a, 3, 0.9)
    tree.add(b, 4, 0.9)
    assert tree.kept() == [a, b, c]
    draft = tree.draft("x")
    assert (draft.tokens, draft.parents, draft.scores) == ((1, 2, 3), (ROOT, ROOT, 0), (0.6, 0.3, 0.9))
    assert draft.q is None


def test_ties_keep_parents() -> None:
    tree = Growth(2)
    a = tree.add(ROOT, 1, 1.0)
    b = tree.add(a, 2, 1.0)
    tree.add(b, 3, 1.0)
    assert tree.kept() == [a, b]


def test_q_is_carried_and_shared() -> None:
    law = np.array([0.5, 0.5])
    tree = Growth(4)
    tree.add(ROOT, 0, 0.5, law)
    tree.add(ROOT, 1, 0.5, law)
    draft = tree.draft("x")
    assert draft.q is not None
    assert draft.q[0] is law
    assert draft.q[1] is law


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 9])
def test_growing_finds_the_nodes_of_greatest_reach(budget: int) -> None:
    """Against listing every node of a complete tree three levels deep."""
    chances = [0.5, 0.3, 0.15]

    def children(place: tuple[int, ...]) -> list[tuple[int, float, tuple[int, ...]]]:
        if len(place) == 3:
            return []
        return [(token, chance, (*place, token)) for token, chance in enumerate(chances)]

    start: tuple[int, ...] = ()
    draft = grow(start, children, budget, "x")
    every = [
        float(np.prod([chances[t] for t in path])) for n in (1, 2, 3) for path in itertools.product(range(3), repeat=n)
    ]
    found = [float(np.prod([chances[draft.tokens[n]] for n in draft.path_to(node)])) for node in range(len(draft))]
    assert sorted(found, reverse=True) == pytest.approx(sorted(every, reverse=True)[:budget])


def test_nothing_below_the_floor() -> None:
    draft = grow(0, lambda depth: [(1, 0.5, depth + 1), (2, 0.2, depth + 1)], 50, "x", floor=0.24)
    assert draft.tokens == (1, 1)
