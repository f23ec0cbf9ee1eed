"""The suffix automaton against looking for every substring."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forerun.drafters.automaton import START, SuffixAutomaton

Texts = list[list[int]]
texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=4)


def build(given_texts: Texts) -> tuple[SuffixAutomaton, int]:
    index, state = SuffixAutomaton(), START
    for text in given_texts:
        state = START
        for token in text:
            state = index.extend(state, token)
    return index, state


def substrings(given_texts: Texts) -> Counter[tuple[int, ...]]:
    return Counter(tuple(t[a:b]) for t in given_texts for a in range(len(t)) for b in range(a + 1, len(t) + 1))


def walk(index: SuffixAutomaton, tokens: tuple[int, ...]) -> int:
    state = START
    for token in tokens:
        state = index.step(state, token)
        if state == START:
            return START
    return state


@given(texts)
def test_it_knows_exactly_the_substrings_and_how_often_they_occur(given_texts: Texts) -> None:
    index, _ = build(given_texts)
    occurred = substrings(given_texts)
    for tokens, count in occurred.items():
        state = walk(index, tokens)
        assert state != START
        assert index.count[state] == count
        assert index.length[index.link[state]] < len(tokens) <= index.length[state]
        for token in range(3):
            assert (index.step(state, token) != START) == ((*tokens, token) in occurred)


@given(texts)
def test_the_link_of_the_end_is_the_longest_suffix_seen_before(given_texts: Texts) -> None:
    index, last = build(given_texts)
    text = given_texts[-1]
    occurred = substrings(given_texts)
    longest = next((n for n in range(len(text) - 1, 0, -1) if occurred[tuple(text[-n:])] > 1), 0)
    if len(given_texts) == 1:
        assert index.length[index.link[last]] == longest


@given(texts, st.lists(st.integers(0, 3), max_size=12))
def test_following_a_text_keeps_its_longest_match(given_texts: Texts, other: list[int]) -> None:
    index, _ = build(given_texts)
    occurred = substrings(given_texts)
    state, length = START, 0
    for end, token in enumerate(other, 1):
        state, length = index.follow(state, length, (token,))
        assert length == next((n for n in range(end, 0, -1) if tuple(other[end - n : end]) in occurred), 0)
        assert state == walk(index, tuple(other[end - length : end]))


@given(texts, st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_a_match_survives_what_is_added_later(given_texts: Texts, other: list[int]) -> None:
    index, _ = build(given_texts[:1])
    state, length = index.follow(START, 0, other)
    matched = tuple(other[len(other) - length :])
    for text in given_texts:
        at = START
        for token in text:
            at = index.extend(at, token)
    assert index.settle(state, length) == (walk(index, matched), length)


def test_the_most_frequent_comes_first_then_the_most_recent() -> None:
    index, _ = build([[1, 5, 1, 6, 1, 6, 1, 7, 1, 5, 1, 8]])
    state = walk(index, (1,))
    followed = index.likeliest(state, 3)
    assert [(token, count) for count, token, _ in followed] == [(5, 2), (6, 2), (8, 1)]
    assert index.likeliest(walk(index, (8,)), 3) == []
