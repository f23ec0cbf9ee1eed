"""Two vocabularies: what they share, how a text is read again, and the drafters that work across them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from forerun.backends.toy import ToyModel, random_logits
from forerun.core.model import Floats, ModelInfo
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.transcript import Transcript
from forerun.drafters.bridge import SameIds, Shared, Translation
from forerun.drafters.model import ModelDrafter
from forerun.drafters.slem import SlemDrafter
from forerun.testing import draft_of
from tests.contract.drafters import OURS, THEIRS, VOCAB, pieces

TARGET = ModelInfo("target", "toy", VOCAB, VOCAB, 1000)


def text_of(tokens: Sequence[int], **options: Any) -> Transcript:
    return Transcript(Request(tokens, Sampling(**options)))


def ours(text: str) -> list[int]:
    return OURS.encode(text)


def theirs(text: str) -> list[int]:
    return THEIRS.encode(text)


def test_tokens_are_shared_by_the_bytes_they_stand_for() -> None:
    shared = Shared(OURS, THEIRS)
    pairs = {
        (OURS.token_bytes(int(i)), THEIRS.token_bytes(int(r))) for i, r in zip(shared.ids, shared.rows, strict=True)
    }
    assert pairs == {(p, p) for p in (b"</s>", b"a", b"b", b"c", b"d", b"e", b" ", b" a")}
    assert shared.overlap == pytest.approx(8 / 12)


def test_control_tokens_are_not_text_and_ends_are_paired() -> None:
    one, other = pieces("<end>", "a", "<eos>"), pieces("<eos>", "a")
    shared = Shared(one, other)
    assert shared.to_draft.tolist() == [0, 1, -1]


@pytest.mark.parametrize("start", [1, 3, 8])
def test_reading_in_steps_is_reading_at_once(start: int) -> None:
    """Whatever was fixed on the way, the text in their tokens spells the same; words stay whole."""
    text = ours("abc de abc ed abab a eabc cde")
    transcript = text_of(text[:start])
    reading = Translation(transcript, Shared(OURS, THEIRS))
    fixed: list[int] = []
    for token in text[start:]:
        transcript.add(token)
        assert list(reading.tokens[: len(fixed)]) == fixed
        fixed = list(reading.tokens)
        tail = reading.tail(())
        assert tail is not None
        spelled = b"".join(THEIRS.token_bytes(i) for i in (*fixed, *tail))
        assert spelled == b"".join(OURS.token_bytes(i) for i in transcript.tokens)
    assert [*reading.tokens, *(reading.tail(()) or ())] == theirs("abc de abc ed abab a eabc cde")


def test_long_words_are_cut_somewhere() -> None:
    transcript = text_of(ours("abcde" * 60))
    reading = Translation(transcript, Shared(OURS, THEIRS))
    assert len(reading.open) < 50
    for token in ours("abcde" * 60):
        transcript.add(token)
        assert len(reading.open) < 50


def test_paths_follow_in_shared_ids_or_are_read_again() -> None:
    reading = Translation(text_of(ours(" ab")), Shared(OURS, THEIRS))
    assert reading.tail(ours("e")) == (*theirs(" ab"), *theirs("e"))
    assert reading.tail(ours("bc")) == tuple(theirs(" abbc"))


def test_half_a_character_is_left_out() -> None:
    reading = Translation(text_of([*ours("a"), 11]), Shared(OURS, THEIRS))
    assert reading.tail(()) == tuple(theirs("a"))
    assert Translation(text_of([11]), Shared(OURS, THEIRS)).tail(()) is None


def test_same_ids_stop_at_a_row_that_is_missing() -> None:
    transcript = text_of([1, 2])
    reading = SameIds(transcript, 5)
    assert reading.tail((3, 4)) == (3, 4)
    assert reading.tail((5,)) is None
    transcript.add(7)
    assert reading.tail(()) is None


def spelling(text: str) -> ToyModel:
    """A model of the other vocabulary that always goes on in the same round of text."""
    ids = theirs(text)
    following = {ids[i]: ids[(i + 1) % len(ids)] for i in range(len(ids))}

    def logits(path: tuple[int, ...]) -> Floats:
        row = np.zeros(THEIRS.vocab_size, dtype=np.float32)
        if path:
            row[following.get(path[-1], 0)] = 9.0
        return row

    return ToyModel(THEIRS.vocab_size, 1, logits)


def spelled(tokens: Sequence[int]) -> str:
    return b"".join(OURS.token_bytes(token) for token in tokens).decode()


def test_slem_drafts_text_in_the_targets_tokens() -> None:
    drafter = SlemDrafter(spelling("abced "), VOCAB, Shared(OURS, THEIRS))
    session = drafter.open(text_of(ours("abc")))
    draft = draft_of(drafter, session, 4)
    assert spelled(draft.tokens).startswith("ed ")
    assert draft.tokens == tuple(ours("ed abc"))[:4]
    assert draft.q is None
    assert draft.scores is not None
    assert all(0.0 <= score <= 1.0 for score in draft.scores)
    assert draft_of(drafter, session, 2, ours("ed")).tokens == tuple(ours(" abc"))[:2]


def test_tli_draws_among_the_shared_tokens() -> None:
    model = ToyModel(THEIRS.vocab_size, 2, random_logits(THEIRS.vocab_size, 3))
    shared = Shared(OURS, THEIRS)
    transcript = Transcript(Request(ours("abc de"), Sampling(temperature=1.0)), keyed=False)
    drafter = ModelDrafter(model, TARGET, width=3, shared=shared)
    draft = draft_of(drafter, drafter.open(transcript), 12)
    assert draft.q is not None
    q = draft.q[0]
    assert q is not None
    assert set(np.flatnonzero(q)) == set(shared.ids.tolist())
    row = random_logits(THEIRS.vocab_size, 3)(tuple(theirs("abc de"))[-2:]).astype(np.float64)
    weights = np.exp(row[shared.rows])
    np.testing.assert_allclose(q[shared.ids], weights / weights.sum(), rtol=1e-6)


def test_tli_agrees_with_itself_after_any_commit() -> None:
    """Its KV is cut and filled across retokenization: a session that lived drafts as a fresh one does."""
    numbers = random.Random(5)
    model = ToyModel(THEIRS.vocab_size, 3, random_logits(THEIRS.vocab_size, 3))
    drafter = ModelDrafter(model, TARGET, width=2, shared=Shared(OURS, THEIRS), chunk=4)
    slem = SlemDrafter(model, VOCAB, Shared(OURS, THEIRS), chunk=4)
    transcript = text_of(ours("abc de ab"), temperature=0.7)
    living = drafter.open(transcript), slem.open(transcript)
    for _ in range(40):
        assert draft_of(drafter, living[0], 5) == draft_of(drafter, drafter.open(transcript), 5)
        assert draft_of(slem, living[1], 5) == draft_of(slem, slem.open(transcript), 5)
        for _ in range(numbers.randrange(1, 5)):
            transcript.add(numbers.randrange(1, VOCAB))
