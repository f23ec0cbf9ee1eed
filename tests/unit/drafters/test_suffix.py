"""The suffix drafter: longest match, counts, the history, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.step import StepResult
from forerun.core.transcript import Transcript
from forerun.drafters.history import History
from forerun.drafters.suffix import SuffixDrafter, kind


def text_of(tokens: list[int], memory: str = "") -> Transcript:
    return Transcript(Request(tokens, memory=memory))


def proposed(drafter: SuffixDrafter, tokens: list[int], nodes: int, memory: str = "") -> Draft:
    return drafter.open(text_of(tokens, memory)).draft((), nodes)


def end(drafter: SuffixDrafter, prompt: list[int], *written: int, memory: str = "") -> None:
    """A request that wrote something and ended."""
    transcript = text_of(prompt, memory)
    session = drafter.open(transcript)
    for token in written:
        transcript.add(token)
    session.finish()
    session.close()
    session.close()


def test_the_longest_match_is_continued() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 3, 9, 9, 1, 2, 3]
    draft = proposed(SuffixDrafter(floor=0.0), text, 3)
    assert draft.tokens == (4, 5, 6)
    assert draft.is_chain


def test_both_continuations_are_drafted_the_frequent_one_first() -> None:
    text = [1, 2, 7, 0, 1, 2, 8, 0, 1, 2, 8, 5, 1, 2]
    draft = proposed(SuffixDrafter(floor=0.01), text, 6)
    assert [draft.tokens[node] for node in draft.children(-1)] == [8, 7]
    assert draft.scores is not None
    assert draft.scores[0] > draft.scores[1]


def test_the_draft_grows_with_the_match() -> None:
    body = list(range(10, 60))
    lengths = []
    for match in (1, 2, 5):
        drafter = SuffixDrafter(floor=0.0, stretch=2.0)
        lengths.append(len(proposed(drafter, [*body, 99, *body[5 - match : 5]], 40)))
    assert lengths == [2, 4, 10]


def test_unlikely_nodes_are_not_drafted() -> None:
    assert len(proposed(SuffixDrafter(floor=0.5), [1, 2, 3, 4, 1], 8)) == 0


def test_an_ended_request_helps_later_ones_of_its_memory_only() -> None:
    drafter = SuffixDrafter(floor=0.0)
    end(drafter, [1, 2, 3], 40, 41, 42, 43, memory="mine")
    assert proposed(drafter, [9, 3, 40], 3, "mine").tokens == (41, 42, 43)
    assert proposed(drafter, [9, 3, 40], 3, "yours").tokens == ()
    assert [report.texts for report in drafter.history.inspect()] == [1, 0]


def test_a_request_that_is_given_up_leaves_nothing() -> None:
    """Only texts that have come to their end are remembered."""
    drafter = SuffixDrafter()
    transcript = text_of([1, 2, 3])
    session = drafter.open(transcript)
    transcript.add(4)
    session.close()
    assert drafter.history.space().tokens == 0


def test_a_request_that_wrote_nothing_leaves_nothing() -> None:
    drafter = SuffixDrafter()
    end(drafter, [1, 2, 3])
    assert drafter.history.space().tokens == 0


def test_the_texts_own_match_wins_ties() -> None:
    history = History()
    history.space().add([1, 2, 3, 8, 8])
    assert proposed(SuffixDrafter(history, floor=0.0), [1, 2, 3, 7, 7, 1, 2, 3], 1).tokens == (7,)


def test_a_longer_match_in_the_history_wins() -> None:
    history = History()
    history.space().add([4, 5, 6, 1, 8, 8])
    assert proposed(SuffixDrafter(history, floor=0.0), [1, 7, 4, 5, 6, 1], 1).tokens == (8,)


def test_a_live_request_finds_texts_added_since_it_began() -> None:
    """Also when the history has turned over in between."""
    drafter = SuffixDrafter(History(40), floor=0.0)
    transcript = text_of([1, 2])
    session = drafter.open(transcript)
    assert len(session.draft((), 2)) == 0
    for start in (100, 200, 300):
        drafter.history.space().add(list(range(start, start + 15)))
    transcript.add(305)
    assert session.draft((), 2).tokens == (306, 307)


def test_scores_learn_from_guesses_that_were_never_proposed() -> None:
    """A text where single matches always mislead: their score falls although nothing was ever asked for."""
    drafter = SuffixDrafter()
    before = drafter.guesses_of(drafter.history.space()).score(0, 1, 1, 1)
    transcript = text_of([1, 2])
    session = drafter.open(transcript)
    for token in range(3, 60):
        transcript.add(1)
        transcript.add(token)
    session.observe(StepResult(transcript, (1,), tokens=(1, 59)))
    assert len(session.draft((), 1)) <= 1
    assert (
        drafter.guesses_of(drafter.history.space()).score(0, 1, 1, 1) < before
        or drafter.guesses_of(drafter.history.space()).score(0, 1, 1, 40) < 0.1
    )


def test_kinds_do_not_overlap() -> None:
    kinds = {
        kind(source, length, count, total)
        for source in (0, 1)
        for length in (1, 2, 3, 5, 7, 12, 40)
        for count, total in ((1, 1), (2, 2), (9, 9), (9, 10), (6, 10), (4, 10), (2, 10), (1, 10))
    }
    assert kinds == set(range(2 * 7 * 8))


@pytest.mark.parametrize("twice", [False, True])
def test_closing_writes_the_history(tmp_path: Path, twice: bool) -> None:
    drafter = SuffixDrafter(path=tmp_path / "memory.npz")
    end(drafter, [1, 2], 3, 4, 5)
    drafter.close()
    if twice:
        drafter.close()
    assert History.load(tmp_path / "memory.npz").space().texts()[0].tolist() == [1, 2, 3, 4, 5]
