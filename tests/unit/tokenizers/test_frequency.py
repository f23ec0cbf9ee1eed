"""The ranking of tokens: complete, without structure, frequent ones first."""

from __future__ import annotations

import numpy as np

from forerun.tokenizers.frequency import library_texts, ranking
from forerun.tokenizers.tokenizer import byte_tokenizer


def test_what_ends_a_text_and_bytes_come_first_then_the_frequent() -> None:
    tokenizer = byte_tokenizer()
    found = ranking(tokenizer, ["zzzzyyyx"]).tolist()
    assert sorted(found) == list(range(257))
    # All of this vocabulary are bytes or the end; among them the text decides, then the id.
    assert found[:3] == [ord("z"), ord("y"), 0]
    assert found.index(ord("x")) < found.index(ord("a"))


def test_without_text_the_ids_decide() -> None:
    assert ranking(byte_tokenizer(), []).tolist() == list(range(257))


def test_the_library_has_texts() -> None:
    texts = list(library_texts())
    assert 1_000_000 < sum(map(len, texts)) <= 3_000_000
    counts = np.bincount(np.frombuffer("".join(texts).encode("ascii", "ignore"), np.uint8), minlength=128)
    assert counts[ord("e")] > counts[ord("q")]
