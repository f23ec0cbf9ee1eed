"""Vocabularies are compared by strings; sizes may be padded."""

from __future__ import annotations

import pytest
import tokenizers

from forerun.models import resolve
from forerun.tokenizers.engine import LocalEngine
from forerun.tokenizers.loading import load_tokenizer
from forerun.tokenizers.tokenizer import Tokenizer, Vocabulary
from forerun.tokenizers.vocabulary import Difference, compare


def tokenizer(tokens: list[str], *, bos: int | None = 0, eos: int = 1) -> Tokenizer:
    engine = LocalEngine(tokenizers.Tokenizer(tokenizers.models.BPE()))
    ends = frozenset({eos})
    return Tokenizer(engine, Vocabulary(tokens, ends, ends, "bytes", ends, bos, add_bos=False, eos_id=eos))


def test_the_same_vocabulary() -> None:
    report = compare(tokenizer(list("abcd")), tokenizer(list("abcd")))
    assert report.shared
    assert report.same_bos
    assert report.same_eos
    assert report.overlap == 1.0
    assert report.common == 4
    assert "100.0%" in report.describe()
    assert "can use" in report.describe()


def test_another_vocabulary() -> None:
    report = compare(tokenizer(list("abcdefgh")), tokenizer(list("abxxxxxxz"), bos=3, eos=2))
    assert not report.shared
    assert (report.target_size, report.draft_size, report.common, report.differing) == (8, 9, 8, 6)
    assert report.differences == tuple(Difference(i, c, "x") for i, c in zip(range(2, 7), "cdefg", strict=True))
    assert report.overlap == 0.25
    assert not report.same_bos
    assert not report.same_eos
    text = report.describe()
    for part in (
        "8 tokens against 9",
        "25.0%",
        "6 ids differ",
        "2: 'c' / 'x'",
        "begin-of-text",
        "end tokens",
        "cannot use",
    ):
        assert part in text
    assert "\n" not in text


def test_sizes_may_differ_where_nothing_is_unreadable() -> None:
    small, large = tokenizer(list("abcd")), tokenizer(list("abcdef"))
    assert compare(small, large).shared
    assert compare(small, large).common == 4
    assert not compare(large, small).shared
    assert compare(large, small, draft_rows=8).shared
    assert not compare(large, small, draft_rows=5).shared


def test_nothing_in_common() -> None:
    assert not compare(tokenizer([""]), tokenizer(["a"])).shared
    moved = compare(tokenizer(list("ab")), tokenizer(list("ba")))
    assert moved.overlap == 1.0
    assert not moved.shared


@pytest.mark.models
def test_the_catalogue_pairs_what_belongs_together() -> None:
    large, small, other = (
        load_tokenizer(resolve(name)) for name in ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m")
    )
    assert compare(large, small).shared
    report = compare(large, other)
    assert not report.shared
    assert 0.1 < report.overlap < 0.5
    assert report.differences[0] == Difference(0, "!", "<|endoftext|>")
