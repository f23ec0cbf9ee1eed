"""GGUF files become the canonical description, for every architecture that is run."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.models import resolve
from forerun.weights import RopeScaling, open_weights
from forerun.weights.architecture import ARCHITECTURES

Make = Callable[..., Any]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_equals_the_folder_it_was_made_from(make_tiny: Make, tmp_path: Path, architecture: str, tied: bool) -> None:
    tiny = make_tiny(architecture, tied=tied, num_hidden_layers=7 if architecture == "gemma3" else 2)
    folder, file = (
        open_weights(tiny.write_folder(tmp_path / "m")),
        open_weights(tiny.write_gguf(tmp_path / "m.gguf")),
    )
    assert (folder.format, file.format) == ("safetensors", "gguf")
    expected = replace(folder.spec, name="tiny", norm_eps=file.spec.norm_eps)
    assert file.spec == expected
    assert file.spec.norm_eps == pytest.approx(folder.spec.norm_eps)
    assert file.spec.tied is tied
    assert list(folder.tensors) == list(file.tensors)
    for name, tensor in file.tensors.items():
        np.testing.assert_array_equal(tensor.dequantize(), folder.tensors[name].dequantize(), err_msg=name)
        assert tensor.shape == tensor.dequantize().shape


def test_rows_of_q_and_k_are_unpaired(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("llama", biases=True)
    weights = open_weights(tiny.write_gguf(tmp_path / "m.gguf"))
    for part in ("q", "k"):
        tensor, original = (
            weights.tensors[f"layers.1.{part}"],
            tiny.state[f"model.layers.1.self_attn.{part}_proj.weight"],
        )
        np.testing.assert_array_equal(tensor.dequantize(), original)
        assert not np.array_equal(tensor.stored, tensor.data)
        bias = tiny.state[f"model.layers.1.self_attn.{part}_proj.bias"]
        np.testing.assert_array_equal(weights.tensors[f"layers.1.{part}_bias"].dequantize(), bias)
    assert weights.tensors["layers.1.v"].data is weights.tensors["layers.1.v"].stored


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "F16", "BF16"])
def test_quantized_rows_are_unpaired_without_decoding(make_tiny: Make, tmp_path: Path, kind: str) -> None:
    import gguf

    tiny = make_tiny("llama")
    tensor = open_weights(tiny.write_gguf(tmp_path / "m.gguf", kind=kind)).tensors["layers.0.q"]
    original = tiny.state["model.layers.0.self_attn.q_proj.weight"]
    encoding = gguf.GGMLQuantizationType[kind]
    straight = gguf.quants.quantize(original, encoding)
    np.testing.assert_array_equal(tensor.data, straight.view(np.uint8))
    np.testing.assert_array_equal(tensor.dequantize(), gguf.quants.dequantize(straight, encoding))
    assert tensor.kind == kind


def test_data_is_a_view_of_the_file(make_tiny: Make, tmp_path: Path) -> None:
    path = make_tiny("qwen2").write_gguf(tmp_path / "m.gguf", kind="Q8_0")
    tensor = open_weights(path).tensors["layers.0.q"]
    assert tensor.data.base is not None
    assert not tensor.data.flags.writeable
    assert tensor.data.shape == (64, 64 // 32 * 34)


def test_a_layer_in_six_of_gemma_is_global(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("gemma3", tied=True, num_hidden_layers=7)
    spec = open_weights(tiny.write_gguf(tmp_path / "m.gguf")).spec
    assert spec.sliding == (8, 8, 8, 8, 8, 0, 8)
    assert (spec.window(0), spec.window(5)) == (8, 0)
    assert spec.rope_base_local == 10_000.0
    assert spec.embed_scale == 8.0
    assert spec.query_scale == pytest.approx(32**-0.5)
    assert spec.activation == "gelu_tanh"
    assert spec.post_norms
    listed = open_weights(
        tiny.write_gguf(tmp_path / "n.gguf", keys={".attention.sliding_window_pattern": [True, False] * 3 + [True]})
    ).spec
    assert listed.sliding == (8, 0, 8, 0, 8, 0, 8)


def test_27b_divides_by_the_width_of_a_share(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("gemma3", tied=True, num_hidden_layers=62, vocab_size=32, intermediate_size=32)
    spec = open_weights(tiny.write_gguf(tmp_path / "m.gguf")).spec
    assert spec.query_scale == pytest.approx((64 / 4) ** -0.5)


def test_rope_scaling(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("llama")

    def scaling(**keys: Any) -> RopeScaling | None:
        dotted = {f".rope.scaling.{key}": value for key, value in keys.items()}
        return open_weights(tiny.write_gguf(tmp_path / "m.gguf", keys=dotted)).spec.rope_scaling

    assert scaling() is None
    assert scaling(type="none", factor=4.0) is None
    assert scaling(type="linear", factor=4.0) == RopeScaling("linear", factor=4.0)
    assert scaling(type="yarn", factor=4.0, original_context_length=32) == RopeScaling(
        "yarn", factor=4.0, original_context=32
    )
    stretched = scaling(type="yarn", factor=4.0, original_context_length=32, attn_factor=2.0, yarn_beta_fast=16.0)
    assert stretched is not None
    assert stretched.beta_fast == 16.0
    assert stretched.attention_factor == pytest.approx(2.0 * (0.1 * math.log(4.0) + 1.0))
    with pytest.raises(UnsupportedModelError, match="longrope"):
        scaling(type="longrope", factor=4.0)


def test_rope_factors_come_from_their_tensor(make_tiny: Make, tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    tiny = make_tiny("llama")
    weights = open_weights(tiny.write_gguf(tmp_path / "m.gguf", extra={"rope_freqs.weight": factors}))
    assert weights.spec.rope_scaling == RopeScaling("factors", frequency_factors=tuple(factors.tolist()))
    assert not [name for name in weights.tensors if "rope" in name]
    for wrong in (factors[:4], np.zeros(8, np.float32), np.full(8, np.nan, np.float32)):
        with pytest.raises(ModelFileError, match="rope_freqs"):
            open_weights(tiny.write_gguf(tmp_path / "w.gguf", extra={"rope_freqs.weight": wrong}))


def test_mistral_slides_where_the_file_says_so(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("mistral")
    path = tiny.write_gguf(tmp_path / "m.gguf", keys={".attention.sliding_window": 16})
    assert open_weights(path).spec.sliding == (16, 16)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({".attention.head_count_kv": 3}, "do not fit"),
        ({".block_count": 3}, "layers.2.attn_norm"),
        ({".block_count": 2**31}, "block_count"),
        ({".block_count": 4_000_000}, "4000000 layers"),
        ({".embedding_length": 65}, "shape"),
        ({".feed_forward_length": 95}, r"layers.0.gate has shape \[96, 64\].*\[95, 64\]"),
        ({".attention.head_count": 0}, "head_count"),
        ({".attention.layer_norm_rms_epsilon": ...}, "layer_norm_rms_epsilon is missing"),
        ({".attention.layer_norm_rms_epsilon": float("nan")}, "above zero"),
        ({".context_length": "long"}, "context_length"),
        ({".rope.freq_base": -1.0}, "freq_base"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    make_tiny: Make, tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        open_weights(make_tiny("llama").write_gguf(tmp_path / "m.gguf", keys=keys))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"general.architecture": "mamba"}, "'mamba' is not run by forerun.*llama"),
        ({".expert_count": 8}, "mixtures of experts"),
        ({".rope.dimension_count": 8}, "part of each head"),
        ({".attention.value_length": 8}, "different sizes"),
        ({".attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ],
)
def test_variants_are_refused_by_name(make_tiny: Make, tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    import gguf

    path = tmp_path / "m.gguf"
    if "general.architecture" in keys:
        writer = gguf.GGUFWriter(path, keys["general.architecture"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    else:
        make_tiny("llama").write_gguf(path, keys=keys)
    with pytest.raises(UnsupportedModelError, match=message):
        open_weights(path)


def test_missing_and_unknown_tensors_are_named(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("llama")
    with pytest.raises(ModelFileError, match=r"tensor layers\.1\.down missing"):
        open_weights(tiny.write_gguf(tmp_path / "a.gguf", leave_out=["blk.1.ffn_down.weight"]))
    with pytest.raises(ModelFileError, match="embed missing"):
        open_weights(tiny.write_gguf(tmp_path / "b.gguf", leave_out=["token_embd.weight"]))
    extra = {"blk.0.ffn_gate_inp.weight": np.zeros((4, 64), np.float32)}
    with pytest.raises(UnsupportedModelError, match="ffn_gate_inp"):
        open_weights(tiny.write_gguf(tmp_path / "c.gguf", extra=extra))


def test_encodings_that_are_not_run_are_named(make_tiny: Make, tmp_path: Path) -> None:
    import gguf

    tiny = make_tiny("llama")
    path = tmp_path / "m.gguf"
    number = gguf.GGMLQuantizationType.I8.to_bytes(4, "little")
    tiny.write_gguf(path)
    raw = path.read_bytes()
    entry = b"blk.0.attn_v.weight" + (2).to_bytes(4, "little") + (64).to_bytes(8, "little") + (32).to_bytes(8, "little")
    at = raw.index(entry) + len(entry)
    path.write_bytes(raw[:at] + number + raw[at + 4 :])
    with pytest.raises(UnsupportedModelError, match=r"attn_v\.weight is stored as I8.*Q8_0"):
        open_weights(path)
    path.write_bytes(raw[:at] + (250).to_bytes(4, "little") + raw[at + 4 :])
    with pytest.raises(UnsupportedModelError, match="unknown encoding 250"):
        open_weights(path)


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-1.5b", "gemma3-270m"])
def test_opening_reads_the_header_and_not_the_weights(name: str) -> None:
    path = resolve(name)
    tracemalloc.start()
    try:
        weights = open_weights(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert weights.nbytes > 0.9 * path.stat().st_size
    assert peak < 5e6
