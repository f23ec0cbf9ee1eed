"""The byte tokenizer, and what every tokenizer promises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from forerun.tokenizers.tokenizer import byte_alphabet, byte_tokenizer

TOKENIZER = byte_tokenizer()


def test_the_alphabet_is_that_of_byte_level_tokenizers() -> None:
    assert set(byte_alphabet()) == set(ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == [bytes([i]) for i in range(256)]
    assert byte_alphabet()["Ġ"] == b" "
    assert byte_alphabet()["Ċ"] == b"\n"


@given(st.text())
def test_bytes_are_their_own_ids(text: str) -> None:
    assert TOKENIZER.encode(text) == list(text.encode())
    assert TOKENIZER.decode(list(text.encode())) == text


@given(st.lists(st.integers(0, 256)))
def test_decoding_replaces_what_is_not_utf8(ids: list[int]) -> None:
    text = TOKENIZER.decode(ids)
    assert text == bytes(i for i in ids if i < 256).decode("utf-8", "replace")
    assert b"".join(TOKENIZER.token_bytes(i) for i in ids if i < 256) == bytes(i for i in ids if i < 256)


def test_its_tokens() -> None:
    assert TOKENIZER.vocab_size == 257
    assert TOKENIZER.eos_ids == {256}
    assert TOKENIZER.eos_id == 256
    assert TOKENIZER.bos_id is None
    assert TOKENIZER.encode("a<|endoftext|>", special=True) == [97, 256]
    assert TOKENIZER.encode("a", add_bos=True) == [97]
    assert TOKENIZER.id_to_token(256) == "<|endoftext|>"
    assert TOKENIZER.id_to_token(300) == "[PAD300]"
    assert TOKENIZER.token_bytes(300) == b""
    with pytest.raises(IndexError):
        TOKENIZER.id_to_token(-1)


def test_threads_do_not_see_each_others_control_tokens() -> None:
    text = "<|endoftext|>" * 3

    def encode(i: int) -> list[int]:
        return TOKENIZER.encode(text, special=i % 2 == 0)

    with ThreadPoolExecutor(2) as pool:
        for i, ids in enumerate(pool.map(encode, range(400))):
            assert ids == ([256] * 3 if i % 2 == 0 else list(text.encode()))
