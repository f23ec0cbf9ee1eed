"""Tokenizers rebuilt from GGUF vocabularies give the ids of the originals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.errors import ModelFileError, PromptError, UnsupportedModelError
from forerun.models import resolve
from forerun.tokenizers.gguf import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, gguf_tokenizer
from forerun.tokenizers.loading import load_tokenizer
from forerun.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from forerun.tokenizers.tokenizer import SPACE, Tokenizer

Load = Callable[[str], dict[str, Any]]
MODELS = ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma3-270m"]


def build(**metadata: Any) -> Tokenizer:
    keys = {
        f"tokenizer.ggml.{key}": np.array(v) if key in ("token_type", "scores") else v for key, v in metadata.items()
    }
    return gguf_tokenizer(Path("m.gguf"), keys)


def byte_level(frozen: dict[str, Any], kind: str, **changes: Any) -> Tokenizer:
    settings = {"model": "gpt2", "pre": kind, "tokens": frozen["tokens"], "token_type": frozen["types"]}
    return build(**settings | {"merges": frozen["merges"], "eos_token_id": 0, "bos_token_id": 0} | changes)


def pieces(frozen: dict[str, Any], kind: str, **changes: Any) -> Tokenizer:
    model = frozen[kind]
    # As converters write them: spaces of user-defined pieces are spaces.
    tokens = [
        t.replace(SPACE, " ") if k == USER_DEFINED else t for t, k in zip(model["tokens"], model["types"], strict=True)
    ]
    settings = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": model["types"]}
    settings |= {"scores": model["scores"], "add_space_prefix": kind == "prefix", "unknown_token_id": 0}
    return build(**settings | {"bos_token_id": 1, "eos_token_id": 2} | changes)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "default"])
def test_each_pre_tokenizer_splits_as_its_name_says(data: Load, pre: str) -> None:
    frozen = data("pretokenizers.json")
    tokenizer = byte_level(frozen, pre)
    for text, ids in zip(frozen["texts"], frozen["ids"][pre], strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, text


def test_the_frozen_texts_tell_the_kinds_apart(data: Load) -> None:
    frozen = data("pretokenizers.json")["ids"]
    assert len({str(ids) for ids in frozen.values()}) == len(frozen) == 6
    assert set(frozen) <= set(PRE_TOKENIZERS)


@pytest.mark.parametrize("kind", ["prefix", "plain"])
def test_sentencepiece(data: Load, kind: str) -> None:
    frozen = data("sentencepiece.json")
    tokenizer = pieces(frozen, kind)
    for text, ids, decoded in zip(frozen["texts"], frozen[kind]["ids"], frozen[kind]["decoded"], strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert tokenizer.decode(ids) == decoded
    assert list(tokenizer.tokens) == frozen[kind]["tokens"]


@pytest.mark.models
@pytest.mark.parametrize("name", MODELS)
def test_the_catalogue(data: Load, name: str) -> None:
    frozen = data("models.json")
    tokenizer = load_tokenizer(resolve(name))
    for special in (False, True):
        expected = frozen["special" if special else "text"][name]
        for text, ids in zip(frozen["texts"], expected, strict=True):
            assert tokenizer.encode(text, special=special, add_bos=False) == ids, text


@pytest.mark.models
def test_traps_of_the_catalogue() -> None:
    smollm, qwen, gemma = (
        load_tokenizer(resolve(name)) for name in ("smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m")
    )
    assert (smollm.vocab_size, qwen.vocab_size, gemma.vocab_size) == (49_152, 151_665, 262_144)
    assert (smollm.add_bos, qwen.add_bos, gemma.add_bos) == (False, False, True)
    assert (smollm.bos_id, qwen.bos_id, gemma.bos_id) == (1, 151_643, 2)
    assert smollm.eos_ids == {0, 2}
    assert qwen.eos_ids == {151_643, 151_645}
    assert gemma.eos_ids == {1, 106}
    assert gemma.encode("a") == [2, *gemma.encode("a", add_bos=False)]
    assert smollm.chat_template is not None
    assert gemma.chat_template is None
    assert qwen.encode("e\u0301") == qwen.encode("\u00e9")
    assert [gemma.id_to_token(i) for i in gemma.encode("\n\n\t  x", add_bos=False)] == ["\n\n", "\t", SPACE * 2, "x"]
    assert qwen.token_bytes(151_700) == b""
    assert qwen.id_to_token(151_700) == "[PAD151700]"


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"])
def test_the_middle_of_a_text_can_be_asked_for(name: str) -> None:
    qwen = load_tokenizer(resolve(name))
    prefix, middle, suffix = 151_659, 151_660, 151_661
    assert [qwen.id_to_token(i) for i in (prefix, middle, suffix)] == [
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
    ]
    before, after = "def add(a, b):\n    ", "\n    return total\n"
    prompt = f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"
    expected = [prefix, *qwen.encode(before), suffix, *qwen.encode(after), middle]
    assert qwen.encode(prompt, special=True) == expected
    assert not qwen.control_ids & set(qwen.encode(prompt))
    assert qwen.decode(qwen.encode(prompt), skip_special=False) == prompt


@pytest.mark.models
@pytest.mark.parametrize("name", MODELS)
def test_a_text_may_be_nothing_but_white_space(name: str) -> None:
    tokenizer = load_tokenizer(resolve(name))
    for text in ("\n\n", " ", "\t", "   \n", "\r\n", "\u00a0"):
        for special in (False, True):
            ids = tokenizer.encode(text, special=special, add_bos=False)
            assert ids
            assert tokenizer.decode(ids) == text


@pytest.mark.models
@pytest.mark.oracle
def test_qwen_is_the_tokenizer_of_transformers(data: Load) -> None:
    transformers = pytest.importorskip("transformers")
    from forerun.weights.gguf_header import read_header

    metadata = read_header(resolve("qwen2.5-coder-0.5b"), with_tensors=False).metadata
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"]) if i < 151_643}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    theirs = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    ours = load_tokenizer(resolve("qwen2.5-coder-0.5b"))
    for text in data("models.json")["texts"]:
        if not any(token in text for token in ("<|endoftext|>", "<tool_call>")):
            assert ours.encode(text) == theirs.encode(text), text


@pytest.mark.parametrize("kind", ["prefix", "plain"])
def test_control_tokens_are_text_unless_asked_for(data: Load, kind: str) -> None:
    tokenizer = pieces(data("sentencepiece.json"), kind)
    start, end = (tokenizer.tokens.index(token) for token in ("<start_of_turn>", "<end_of_turn>"))
    text = "<start_of_turn>user\nhi<end_of_turn>"
    plain, special = tokenizer.encode(text, add_bos=False), tokenizer.encode(text, special=True, add_bos=False)
    assert not {start, end} & set(plain)
    assert tokenizer.decode(plain) == text
    assert (special[0], special[-1]) == (start, end)
    assert special[1:-1] == tokenizer.encode("user\nhi", add_bos=False)
    assert tokenizer.decode(special) == "user\nhi"
    assert tokenizer.encode("hi") == [1, *tokenizer.encode("hi", add_bos=False)]


def test_control_tokens_of_byte_level(data: Load) -> None:
    tokenizer = byte_level(data("pretokenizers.json"), "qwen2")
    assert tokenizer.encode("<|im_end|>", special=True) == [2]
    assert 2 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.decode([2]) == ""
    assert tokenizer.decode([2], skip_special=False) == "<|im_end|>"
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.control_ids == {0, 1, 2}


def test_bos_is_added_where_the_file_or_the_kind_says_so(data: Load) -> None:
    frozen = data("pretokenizers.json")
    assert byte_level(frozen, "llama-bpe").add_bos
    assert not byte_level(frozen, "qwen2").add_bos
    assert not byte_level(frozen, "llama-bpe", add_bos_token=False).add_bos
    assert byte_level(frozen, "qwen2", add_bos_token=True).encode("a")[0] == 0
    assert pieces(data("sentencepiece.json"), "plain").add_bos
    without = byte_level(frozen, "qwen2", add_bos_token=True, bos_token_id=2**32 - 1)
    assert without.bos_id is None
    assert without.encode("a") == byte_level(frozen, "qwen2").encode("a")


def test_padding_is_no_part_of_the_vocabulary(data: Load) -> None:
    frozen = data("pretokenizers.json")
    size = len(frozen["tokens"])
    padded = {"tokens": [*frozen["tokens"], f"[PAD{size}]", f"[PAD{size + 1}]"]}
    tokenizer = byte_level(frozen, "qwen2", **padded, token_type=[*frozen["types"], UNUSED, UNUSED])
    assert tokenizer.vocab_size == size
    assert max(tokenizer.encode(f"[PAD{size}]")) < size
    assert byte_level(frozen, "qwen2", **padded, token_type=[*frozen["types"], NORMAL, NORMAL]).vocab_size == size + 2


def test_text_that_is_not_unicode_is_refused(data: Load) -> None:
    with pytest.raises(PromptError, match="half a character"):
        byte_level(data("pretokenizers.json"), "qwen2").encode("a\ud800")
    with pytest.raises(PromptError, match="half a character"):
        pieces(data("sentencepiece.json"), "prefix").encode("\udc00")


def test_a_tokenizer_larger_than_the_model_is_refused(make_tiny: Callable[..., Any], tmp_path: Path) -> None:
    from forerun.weights import open_weights

    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b"]}
    keys["tokenizer.ggml.tokens"] = [*"abcdefghi", "ab"]
    tiny = make_tiny("llama", vocab_size=10)
    assert load_tokenizer(open_weights(tiny.write_gguf(tmp_path / "a.gguf", keys=keys))).encode("abc") == [9, 2]
    tiny = make_tiny("llama", vocab_size=9)
    with pytest.raises(ModelFileError, match="10 tokens, the model rows for 9"):
        _ = load_tokenizer(open_weights(tiny.write_gguf(tmp_path / "b.gguf", keys=keys)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"pre": "carbon-x"}, UnsupportedModelError, "'carbon-x' is not known.*qwen2.*Hugging Face folder"),
        ({"model": "bert"}, UnsupportedModelError, "'bert' is not known"),
        ({"model": 7}, ModelFileError, "tokenizer.ggml.model"),
        ({"tokens": None}, ModelFileError, "tokens is missing"),
        ({"tokens": []}, ModelFileError, "tokens is missing"),
        ({"merges": None}, ModelFileError, "merges is missing"),
        ({"merges": ["nothing here"]}, ModelFileError, "does not fit together"),
        ({"merges": ["a b c"]}, ModelFileError, "does not fit together"),
        ({"token_type": [1, 1]}, ModelFileError, "token_type"),
        ({"eos_token_id": 99_999}, ModelFileError, "eos_token_id is 99999"),
        ({"bos_token_id": "x"}, ModelFileError, "bos_token_id"),
        ({"add_bos_token": 1}, ModelFileError, "add_bos_token"),
    ],
)
def test_vocabularies_that_do_not_fit_are_refused(
    data: Load, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        byte_level(data("pretokenizers.json"), "qwen2", **changes)


def test_pieces_that_do_not_fit_are_refused(data: Load) -> None:
    frozen = data("sentencepiece.json")
    with pytest.raises(ModelFileError, match="unknown_token_id"):
        pieces(frozen, "plain", unknown_token_id=10**6)
    with pytest.raises(ModelFileError, match="scores"):
        pieces(frozen, "plain", scores=[1.0])
    with pytest.raises(ModelFileError, match="a token is 1001 characters long"):
        build(model="llama", tokens=["<unk>", "a" * 1001], token_type=[UNKNOWN, NORMAL], scores=[0.0, 0.0])


def test_control_tokens_with_the_same_string_do_not_confuse(data: Load) -> None:
    tokens = ["a", "b", "ab", "<x>", "<x>", ""]
    types = [NORMAL, NORMAL, NORMAL, CONTROL, CONTROL, CONTROL]
    tokenizer = build(model="gpt2", pre="gpt-2", tokens=tokens, token_type=types, merges=["a b"])
    assert tokenizer.encode("ab<x>", special=True) == [2, 3]
    assert tokenizer.vocab_size == 6
    assert tokenizer.decode([2, 4, 5], skip_special=False) == "ab<x>"
