"""Streamed text is the decoded whole, and never holds half a character."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from forerun.models import resolve
from forerun.text.detokenizer import Detokenizer
from forerun.tokenizers.engine import LocalEngine
from forerun.tokenizers.loading import load_tokenizer
from forerun.tokenizers.tokenizer import Tokenizer, Vocabulary, byte_tokenizer

BYTES = byte_tokenizer()
PIECE_TOKENS = ["<s>", "\u2581hi", "\u2581", "x", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xE6>", "<0x20>", "\n\n"]


def pieces() -> Tokenizer:
    control = frozenset({0})
    vocabulary = Vocabulary(PIECE_TOKENS, control, control, "pieces", control, 0, add_bos=True, strips_space=True)
    return Tokenizer(LocalEngine(tokenizers.Tokenizer(tokenizers.models.BPE())), vocabulary)


PIECES = pieces()


@given(st.lists(st.integers(0, 260)), st.booleans())
def test_pieces_joined_are_the_decoded_whole(ids: list[int], skip: bool) -> None:
    stream = Detokenizer(BYTES, skip_special=skip)
    parts = [stream.push(i) for i in ids] + [stream.finish()]
    assert "".join(parts) == BYTES.decode(ids, skip_special=skip)


@given(st.lists(st.integers(0, len(PIECE_TOKENS) - 1)), st.booleans(), st.booleans())
def test_pieces_of_sentencepiece(ids: list[int], skip: bool, continues: bool) -> None:
    stream = Detokenizer(PIECES, skip_special=skip, continues=continues)
    text = "".join(map(stream.push, ids)) + stream.finish()
    assert text == PIECES.decode(ids, skip_special=skip, continues=continues)


@given(st.text())
def test_a_character_comes_with_its_last_byte(text: str) -> None:
    stream, shown = Detokenizer(BYTES), ""
    for i in text.encode():
        piece = stream.push(i)
        assert "\ufffd" not in piece or "\ufffd" in text
        assert len(piece) <= 1
        shown += piece
        assert text.startswith(shown)
    assert shown == text
    assert stream.finish() == ""


def test_a_character_that_is_never_completed() -> None:
    stream = Detokenizer(BYTES)
    assert [stream.push(i) for i in "😀".encode()[:3]] == ["", "", ""]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_a_space_at_the_start_is_stripped_once() -> None:
    stream = Detokenizer(PIECES)
    assert [stream.push(i) for i in (0, 2, 1, 1)] == ["", "", " hi", " hi"]
    assert Detokenizer(PIECES, continues=True).push(1) == " hi"
    assert Detokenizer(PIECES, skip_special=False).push(0) == "<s>"


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_real_vocabularies(name: str) -> None:
    tokenizer = load_tokenizer(resolve(name))
    text = "naïve 😀 日本語 👩‍💻\n\n\tdef f(x):  # ½\n" * 3
    ids = tokenizer.encode(text)
    stream = Detokenizer(tokenizer)
    parts = [stream.push(i) for i in ids]
    assert "".join(parts) == text
    assert "" in parts
    assert not any("\ufffd" in part for part in parts)
