"""The header of a GGUF file: every type is read, and nothing in it is trusted."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forerun.errors import ModelError, ModelFileError, UnsupportedModelError
from forerun.tokenizers.loading import load_tokenizer
from forerun.weights import open_weights
from forerun.weights.gguf_header import read_header

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


def string(text: bytes) -> bytes:
    return U64.pack(len(text)) + text


def header(*, version: int = 3, tensors: int = 0, values: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + U32.pack(version) + U64.pack(tensors) + U64.pack(values) + rest


def test_every_type_of_value_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_float32("f32", 0.5)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "één 文")
    writer.add_array("numbers", [1.5, -2.5])
    writer.add_array("flags", [True, False])
    writer.add_array("words", ["a", "", "ü"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    values = read_header(tmp_path / "m.gguf").metadata
    assert values["u8"] == 200
    assert values["i8"] == -100
    assert values["u16"] == 60_000
    assert values["i16"] == -30_000
    assert values["u32"] == 4_000_000_000
    assert values["i32"] == -2_000_000_000
    assert values["f32"] == 0.5
    assert values["u64"] == 2**63
    assert values["i64"] == -(2**62)
    assert values["f64"] == 0.1
    assert values["yes"] is True
    assert values["text"] == "één 文"
    np.testing.assert_array_equal(values["numbers"], [1.5, -2.5])
    np.testing.assert_array_equal(values["flags"], [True, False])
    assert len(values["words"]) == 3
    assert list(values["words"]) == ["a", "", "ü"]
    assert values["words"][1:] == ["", "ü"]
    assert values["words"][-1] == "ü"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty"),
        (b"GG", "header"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"GGUF", "middle of its header"),
        (header()[:-1], "middle of its header"),
        (header(tensors=2**60, rest=bytes(64)), "more than the file can hold"),
        (header(values=2**63, rest=bytes(64)), "more than the file can hold"),
        (header(values=1, rest=U64.pack(2**62) + bytes(64)), "a key of"),
        (header(values=1, rest=string(b"k" * 30) + U32.pack(8) + U64.pack(2**63)), "middle of its header"),
        (header(values=1, rest=string(b"k" * 30) + U32.pack(99)), "unknown type 99"),
        (header(values=1, rest=string(b"k") + U32.pack(9) + U32.pack(8) + U64.pack(2**61)), "strings in 'k'"),
        (
            header(values=1, rest=string(b"k") + U32.pack(9) + U32.pack(8) + U64.pack(2) + string(b"ab" * 5)),
            "ends inside",
        ),
        (header(values=1, rest=string(b"k") + U32.pack(9) + U32.pack(4) + U64.pack(2**62)), "middle of its header"),
        (header(values=1, rest=string(b"k") + U32.pack(9) + U32.pack(9) + U64.pack(1) + bytes(9)), "element type 9"),
        (header(values=1, rest=string(b"\xff" * 40)), "not UTF-8"),
        (header(values=2, rest=(string(b"twice") + U32.pack(4) + U32.pack(7)) * 2), "twice"),
        (header(tensors=1, rest=string(b"t") + U32.pack(5) + bytes(64)), "5 dimensions"),
        (header(tensors=1, rest=string(b"t") + U32.pack(1) + U64.pack(0) + U32.pack(0) + bytes(8)), "rows of 0"),
        (header(tensors=1, rest=string(b"t") + U32.pack(1) + U64.pack(33) + U32.pack(8) + bytes(8)), "blocks of 32"),
        (header(tensors=1, rest=string(b"t") + U32.pack(1) + U64.pack(2**50) + U32.pack(0) + bytes(8)), "rows of"),
        (
            header(tensors=1, rest=string(b"t") + U32.pack(2) + U64.pack(4) + U64.pack(2**60) + U32.pack(0) + bytes(8)),
            "truncated",
        ),
        (header(tensors=1, rest=string(b"t") + U32.pack(1) + U64.pack(1) + U32.pack(0) + U64.pack(2**63)), "truncated"),
    ],
)
def test_hostile_headers_give_one_clear_error(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_other_versions_are_named(tmp_path: Path, version: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(version=version))
    with pytest.raises(UnsupportedModelError, match=f"version {version}"):
        read_header(path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        open_weights(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="neither config"):
        open_weights(tmp_path)


def test_a_folder_with_one_file_means_that_file(make_tiny: Callable[..., Any], tmp_path: Path) -> None:
    tiny = make_tiny("llama")
    tiny.write_gguf(tmp_path / "a.gguf")
    assert open_weights(tmp_path).path == tmp_path / "a.gguf"
    tiny.write_gguf(tmp_path / "b.gguf")
    with pytest.raises(ModelFileError, match=r"2 \.gguf files"):
        open_weights(tmp_path)


def whole_file(make_tiny: Callable[..., Any], path: Path) -> bytes:
    """A complete small model with a vocabulary."""
    tokens = [*"abcdefgh", "ab", "cd", "<|im_end|>"]
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 10 + [3],
        "tokenizer.ggml.merges": ["a b", "c d"],
        "tokenizer.ggml.eos_token_id": 10,
    }
    make_tiny("llama", vocab_size=16, hidden_size=32, intermediate_size=32, head_dim=8).write_gguf(path, keys=keys)
    return path.read_bytes()


def complaint(read: Callable[[], object]) -> str:
    """What is said, if anything; every error that is not ours gets through."""
    try:
        read()
    except ModelError as error:
        return str(error)
    return ""


def test_every_truncation_is_refused(make_tiny: Callable[..., Any], tmp_path: Path) -> None:
    raw = whole_file(make_tiny, tmp_path / "whole.gguf")
    path = tmp_path / "cut.gguf"
    assert load_tokenizer(open_weights(tmp_path / "whole.gguf")).encode("abcd") == [8, 9]
    header_size = raw.index(b"output_norm.weight")
    for size in [*range(0, header_size, 7), *range(header_size, len(raw) - 32, 997), len(raw) - 128]:
        path.write_bytes(raw[:size])
        with pytest.raises(ModelFileError):
            open_weights(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damage=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)), min_size=1, max_size=3
    )
)
@example([(0.4296875, b"\x00")])  # the tokenizers library says what is wrong in several lines
def test_damage_never_escapes_as_another_error(
    make_tiny: Callable[..., Any], tmp_path: Path, damage: list[tuple[float, bytes]]
) -> None:
    whole = tmp_path / "whole.gguf"
    raw = bytearray(whole.read_bytes() if whole.exists() else whole_file(make_tiny, whole))
    end = raw.index(b"output_norm.weight") + 50
    for place, new in damage:
        at = int(place * end)
        raw[at : at + len(new)] = new
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    for read in (
        lambda: open_weights(path).tensors["layers.1.q"].dequantize(),
        lambda: load_tokenizer(path).encode("abz"),
    ):
        assert "\n" not in complaint(read)
