"""Prompt lookup: longest match first, then the most recent."""

from __future__ import annotations

import pytest

from forerun.core.request import Request
from forerun.core.transcript import Transcript
from forerun.drafters.ngram import NgramDrafter, NgramIndex
from forerun.errors import UsageError
from forerun.testing import draft_of


def propose(
    tokens: list[int], nodes: int, shortest: int = 1, longest: int = 3, path: tuple[int, ...] = ()
) -> tuple[int, ...]:
    drafter = NgramDrafter(shortest, longest)
    return draft_of(drafter, drafter.open(Transcript(Request(tokens))), nodes, path).tokens


def test_the_longest_match_wins_over_a_more_recent_short_one() -> None:
    assert propose([1, 2, 3, 7, 9, 3, 8, 1, 2, 3], 2) == (7, 9)


def test_of_equal_matches_the_most_recent_wins() -> None:
    assert propose([1, 2, 7, 0, 1, 2, 8, 0, 1, 2], 2) == (8, 0)


def test_nothing_seen_before_is_nothing_proposed() -> None:
    assert propose([1, 2, 3, 4], 5) == ()
    assert propose([1], 5) == ()


def test_matches_below_the_shortest_are_ignored() -> None:
    assert propose([1, 5, 2, 1], 3) == (5, 2, 1)
    assert propose([1, 5, 2, 1], 3, shortest=2) == ()


def test_a_continuation_is_cut_at_the_end_of_the_text() -> None:
    assert propose([1, 2, 3, 9, 1, 2], 9) == (3, 9, 1, 2)


def test_a_text_that_went_round_once_goes_round_again() -> None:
    assert propose([4, 7, 7], 5) == (7, 7, 7, 7, 7)
    assert propose([1, 2, 3, 1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)


def test_a_path_counts_as_text() -> None:
    assert propose([1, 2, 3, 4, 9], 2, path=(1, 2)) == (3, 4)
    assert propose([1, 2, 3, 4, 9], 2, path=(2,)) == (3, 4)
    assert propose([1, 2, 3, 4, 9], 2) == ()


def test_the_index_reads_each_token_once() -> None:
    """What was read is not read again: a text changed behind its back (which never happens) would go unnoticed."""
    tokens = [1, 2, 3, 1]
    index = NgramIndex(1, 2)
    index.catch_up(tokens)
    tokens[1] = 8
    tokens += [2]
    index.catch_up(tokens)
    assert index.find([2]) == (1, 2)
    assert index.find([8]) == (0, 0)


@pytest.mark.parametrize(("shortest", "longest"), [(0, 3), (3, 2), (-1, -1)])
def test_bad_lengths_are_refused(shortest: int, longest: int) -> None:
    with pytest.raises(UsageError, match="n-grams"):
        NgramDrafter(shortest, longest)
