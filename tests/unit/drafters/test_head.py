"""A head of some ids, widened by the ids of the text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from forerun.backends.reference import ReferenceModel
from forerun.backends.toy import ToyModel, random_logits
from forerun.core.draft import Draft
from forerun.core.request import Request
from forerun.core.sampling import Sampling
from forerun.core.transcript import Transcript
from forerun.drafters import head as module
from forerun.drafters.head import Head, Widened
from forerun.drafters.model import ModelDrafter
from forerun.testing import draft_of
from forerun.weights import Weights
from forerun.weights.derive import head_vectors, with_head
from tests.unit.backends.tiny import spec_of
from tests.unit.backends.tiny_cpu import WIDE, encoded

VOCAB = 12
IDS = np.array([8, 1, 5, 2])
LOGITS = random_logits(VOCAB, 3, 3.0)


def text(tokens: Sequence[int], sampling: Sampling = Sampling()) -> Transcript:
    return Transcript(Request(tokens, sampling))


def proposed(drafter: ModelDrafter, transcript: Transcript, nodes: int) -> Draft:
    return draft_of(drafter, drafter.open(transcript), nodes)


def vectors(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.outer(ids, [1.0, 0.5]).astype(np.float32)


def test_ids_of_the_text_are_scored_as_they_come_up() -> None:
    transcript = text([1, 9, 3, 9])
    widened = Widened(Head(IDS, VOCAB, vectors), transcript)
    wide = np.full(VOCAB, -np.inf, dtype=np.float32)
    widened.fill(wide, np.array([2.0, 4.0], dtype=np.float32))
    assert {int(i): float(wide[i]) for i in np.flatnonzero(np.isfinite(wide))} == {3: 12.0, 9: 36.0}
    transcript.add(7)
    transcript.add(9)
    widened.fill(wide, np.array([1.0, 0.0], dtype=np.float32))
    assert {int(i): float(wide[i]) for i in np.flatnonzero(np.isfinite(wide))} == {3: 3.0, 7: 7.0, 9: 9.0}
    assert sorted(widened.ids.tolist()) == [3, 7, 9]


def test_ids_that_the_head_does_not_know_at_all_are_left_out() -> None:
    widened = Widened(Head(IDS, 6, vectors), text([4, 11, 0]))
    wide = np.full(6, -np.inf, dtype=np.float32)
    widened.fill(wide, np.ones(2, dtype=np.float32))
    assert sorted(widened.ids.tolist()) == [0, 4]


def test_a_text_of_very_many_ids_is_widened_by_some_of_them() -> None:
    many = module._MOST + 50
    widened = Widened(Head(IDS, 2 * many, vectors), text(range(many)))
    wide = np.full(2 * many, -np.inf, dtype=np.float32)
    widened.fill(wide, np.ones(2, dtype=np.float32))
    assert len(widened.ids) == module._MOST


def test_a_text_of_all_ids_makes_up_for_the_head() -> None:
    """Every id is in the text, so each is scored; the draft is that of the whole head."""
    spec = spec_of("llama", **WIDE)
    weights = Weights(Path("tiny.gguf"), "gguf", spec, encoded(spec, "F32"), {})
    whole = ReferenceModel.from_weights(weights, threads=1)
    cut = ReferenceModel.from_weights(with_head(weights, IDS), threads=1)
    prompt = np.random.default_rng(0).permutation(spec.vocab_size).tolist()
    head = Head(IDS, spec.vocab_size, partial(head_vectors, weights))
    for sampling in (Sampling(), Sampling(temperature=0.7, seed=3)):
        wanted, found = (
            proposed(drafter, text(prompt, sampling), 8)
            for drafter in (ModelDrafter(whole, whole.info, width=2), ModelDrafter(cut, whole.info, width=2, head=head))
        )
        assert (found.tokens, found.parents) == (wanted.tokens, wanted.parents)
        assert set(found.tokens) - set(IDS.tolist())
        alone = ModelDrafter(cut, whole.info, width=2, head=Head(IDS, spec.vocab_size))
        assert set(proposed(alone, text(prompt, sampling), 8).tokens) <= set(IDS.tolist())


def test_ids_that_only_the_head_has_are_not_proposed() -> None:
    cut = ToyModel(VOCAB, 2, lambda path: LOGITS(path)[IDS])
    narrow = ToyModel(6, 2, random_logits(6, 1)).info
    draft = proposed(ModelDrafter(cut, narrow, width=4, head=Head(IDS, 6)), text([1, 5]), 9)
    assert len(draft) > 0
    assert set(draft.tokens) <= {1, 5, 2}
