"""A draft's shape, and that cutting it keeps a tree of the same nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.draft import EMPTY, ROOT, Draft

#        ROOT
#       /    \
#      0      1
#     / \     |
#    2   3    4
#    |
#    5
TREE = Draft((10, 11, 12, 13, 14, 15), (-1, -1, 0, 0, 1, 2))


def test_tree() -> None:
    assert len(TREE) == 6
    assert TREE.depths == (1, 1, 2, 2, 2, 3)
    assert TREE.children(ROOT) == (0, 1)
    assert TREE.children(0) == (2, 3)
    assert TREE.children(5) == ()
    assert TREE.path_to(5) == (0, 2, 5)
    assert TREE.path_to(ROOT) == ()
    assert not TREE.is_chain


def test_chain() -> None:
    q = (np.array([1.0]), None)
    chain = Draft.chain(iter((3, 4)), q, "n-gram")
    assert chain == Draft((3, 4), (-1, 0), q, source="n-gram")
    assert chain.is_chain
    assert Draft.chain(()).parents == ()
    assert EMPTY.is_chain
    assert len(EMPTY) == 0
    assert EMPTY.depths == ()
    assert not Draft((1, 2), (-1, -1)).is_chain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": (1, 2), "parents": (-1,)}, "of 2 tokens has 1 parents"),
        ({"tokens": (1,), "parents": (-1,), "q": (None, None)}, "of 1 tokens has 2 q"),
        ({"tokens": (1,), "parents": (-1,), "annotations": ()}, "of 1 tokens has 0 annotations"),
        ({"tokens": (1,), "parents": (-1,), "scores": (0.1, 0.2)}, "of 1 tokens has 2 scores"),
        ({"tokens": (1,), "parents": (-1,), "sources": ()}, "of 1 tokens has 0 sources"),
        ({"tokens": (1,), "parents": (0,)}, "parents come first"),
        ({"tokens": (1, 2), "parents": (1, -1)}, "parents come first"),
        ({"tokens": (1,), "parents": (-2,)}, "parents come first"),
    ],
    ids=str,
)
def test_what_is_no_tree_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Draft(**arguments)  # type: ignore[arg-type]


def labeled() -> Draft:
    """TREE with everything a node can carry, so that cutting shows whether it carries all of it along."""
    q = tuple(np.full(2, float(node)) for node in range(6))
    return Draft(
        TREE.tokens,
        TREE.parents,
        q,
        True,
        "x",
        annotations=tuple(array + 100 for array in q),
        scores=tuple(node / 10 for node in range(6)),
        sources=tuple("abcdef"),
    )


def test_keep_carries_everything_along() -> None:
    kept = labeled().keep((1, 4))
    assert kept.tokens == (11, 14)
    assert kept.parents == (-1, 0)
    assert kept.q is not None
    assert [array[0] for array in kept.q if array is not None] == [1, 4]
    assert kept.annotations is not None
    assert [array[0] for array in kept.annotations] == [101, 104]
    assert kept.scores == (0.1, 0.4)
    assert kept.sources == ("b", "e")
    assert [kept.source_of(node) for node in (0, 1)] == ["b", "e"]
    assert kept.with_replacement
    assert kept.source == "x"
    assert TREE.keep(()) == EMPTY


def test_drawn_nodes_are_those_with_a_q() -> None:
    q = np.array([0.5, 0.5])
    draft = Draft((1, 0, 1), (-1, 0, 0), (None, q, q))
    assert [draft.drawn(node) for node in range(3)] == [False, True, True]
    assert draft.draws
    assert not draft.keep((0,)).draws
    assert not TREE.draws
    assert not TREE.drawn(0)


def test_what_arrays_hold_is_no_part_of_a_comparison() -> None:
    q = np.array([0.5, 0.5])
    assert Draft((1,), (-1,), (q,), annotations=(q,)) == Draft((1,), (-1,))
    assert Draft((1,), (-1,), scores=(0.5,)) != Draft((1,), (-1,))


def test_source_of_a_draft_with_one_source() -> None:
    assert Draft.chain((1,), source="suffix").source_of(0) == "suffix"


def test_fit() -> None:
    assert TREE.fit(nodes=6, depth=3, tree=True) is TREE
    assert TREE.fit(nodes=3, depth=9, tree=True) == TREE.keep((0, 1, 2))
    assert TREE.fit(nodes=9, depth=2, tree=True) == TREE.keep((0, 1, 2, 3, 4))
    assert TREE.fit(nodes=9, depth=9, tree=False) == TREE.keep((0, 2, 5))
    assert TREE.fit(nodes=2, depth=9, tree=False) == TREE.keep((0, 2))
    assert TREE.fit(nodes=0, depth=9, tree=True) == EMPTY
    assert TREE.fit(nodes=9, depth=0, tree=True) == EMPTY
    assert TREE.fit(nodes=-1, depth=-1, tree=True) == EMPTY
    assert EMPTY.fit(nodes=0, depth=0, tree=False) is EMPTY


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    count = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(count))
    return Draft(tuple(range(count)), parents)


@given(drafts(), st.integers(0, 12), st.integers(0, 6), st.booleans())
def test_fit_is_a_sub_tree_within_its_limits(draft: Draft, nodes: int, depth: int, tree: bool) -> None:
    cut = draft.fit(nodes=nodes, depth=depth, tree=tree)
    assert len(cut) <= nodes
    assert max(cut.depths, default=0) <= depth
    assert tree or cut.is_chain
    for node in range(len(cut)):  # the tokens of these drafts are their old indices
        assert [cut.tokens[n] for n in cut.path_to(node)] == list(draft.path_to(cut.tokens[node]))


@given(drafts(), st.integers(0, 12))
def test_fit_keeps_earlier_siblings_and_the_order(draft: Draft, nodes: int) -> None:
    """Rules that try siblings in order are exact only if none before a kept one was cut."""
    cut = draft.fit(nodes=nodes, depth=99, tree=True)
    kept = set(cut.tokens)
    assert list(cut.tokens) == sorted(kept)
    for node in kept:
        assert all(s in kept for s in draft.children(draft.parents[node]) if s < node)
