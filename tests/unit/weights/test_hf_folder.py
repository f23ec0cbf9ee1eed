"""Hugging Face folders: both generations of config.json, single and sharded weights, and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.errors import ModelError, ModelFileError, UnsupportedModelError
from forerun.weights import RopeScaling, open_weights
from forerun.weights.hf_config import spec_from_config

Make = Callable[..., Any]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def spec_of(tiny: Any, **changes: Any) -> Any:
    config = {key: value for key, value in (tiny.config | changes).items() if value is not ...}
    return spec_from_config(config, Path("folder"))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_stay_as_they_are_stored(make_tiny: Make, tmp_path: Path, dtype: str) -> None:
    tiny = make_tiny("qwen3")
    weights = open_weights(tiny.write_folder(tmp_path, dtype=dtype))
    for ours, theirs in (("layers.1.q", "model.layers.1.self_attn.q_proj.weight"), ("head", "lm_head.weight")):
        tensor = weights.tensors[ours]
        assert tensor.kind == dtype
        assert not tensor.data.flags.writeable
        np.testing.assert_allclose(tensor.dequantize(), tiny.state[theirs], rtol=2**-7, atol=1e-7)


def test_the_one_is_added_to_norms_of_gemma(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("gemma3", tied=True)
    weights = open_weights(tiny.write_folder(tmp_path))
    norms = {
        "norm": "norm",
        "layers.0.attn_norm": "layers.0.input_layernorm",
        "layers.0.post_attn_norm": "layers.0.post_attention_layernorm",
        "layers.0.ffn_norm": "layers.0.pre_feedforward_layernorm",
        "layers.1.post_ffn_norm": "layers.1.post_feedforward_layernorm",
        "layers.1.q_norm": "layers.1.self_attn.q_norm",
        "layers.1.k_norm": "layers.1.self_attn.k_norm",
    }
    for ours, theirs in norms.items():
        expected = tiny.state[f"model.{theirs}.weight"] + np.float32(1)
        np.testing.assert_array_equal(weights.tensors[ours].dequantize(), expected, err_msg=ours)


def test_shards_are_one_model(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("llama")
    whole = open_weights(tiny.write_folder(tmp_path / "a"))
    parts = open_weights(tiny.write_folder(tmp_path / "b", shards=3))
    assert list(whole.tensors) == list(parts.tensors)
    assert whole.nbytes == parts.nbytes
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(tensor.data, parts.tensors[name].data)
    (tmp_path / "b" / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFileError, match="model-00002-of-00003"):
        open_weights(tmp_path / "b")


def test_an_index_cannot_lead_out_of_the_folder(make_tiny: Make, tmp_path: Path) -> None:
    folder = make_tiny("llama").write_folder(tmp_path / "m", shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../secret.safetensors"}}))
    with pytest.raises(ModelFileError, match="weight_map"):
        open_weights(folder)


def test_a_tied_head_is_left_out(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("llama")
    weights = open_weights(tiny.write_folder(tmp_path, config={"tie_word_embeddings": True}))
    assert weights.spec.tied
    assert "head" not in weights.tensors


def test_the_text_model_of_a_folder_with_an_image_encoder(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("gemma3", tied=True)
    plain = open_weights(tiny.write_folder(tmp_path / "plain"))
    for i, prefix in enumerate(("language_model.model.", "model.language_model.")):
        inner = tiny.config | {"model_type": "gemma3_text"}
        outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": inner, "tie_word_embeddings": True}
        state = {name.replace("model.", prefix, 1): array for name, array in tiny.state.items()}
        state["vision_tower.patch.weight"] = np.zeros((2, 2), np.float32)
        both = type(tiny)("gemma3", outer, state)
        weights = open_weights(both.write_folder(tmp_path / str(i)))
        assert list(weights.tensors) == list(plain.tensors)
        assert weights.spec.sliding == plain.spec.sliding


def test_rope_of_either_generation(make_tiny: Make) -> None:
    tiny = make_tiny("llama")
    expected = RopeScaling("llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
    older = spec_of(tiny, rope_scaling=LLAMA3)
    newer = spec_of(tiny, rope_theta=..., rope_parameters=LLAMA3 | {"rope_theta": 500_000.0})
    assert older.rope_scaling == newer.rope_scaling == expected
    assert older.rope_base == newer.rope_base == 500_000.0
    assert spec_of(tiny, rope_scaling={"type": "linear", "factor": 2.0}).rope_scaling == RopeScaling("linear", 2.0)
    assert spec_of(tiny, rope_scaling={"rope_type": "default"}).rope_scaling is None
    yarn = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}
    assert spec_of(tiny, rope_scaling=yarn).rope_scaling == RopeScaling(
        "yarn", 4.0, 128, mscale=1.0, mscale_all_dim=0.5, truncate=False
    )
    assert spec_of(tiny, rope_theta=...).rope_base == 10_000.0
    for unknown in ("dynamic", "longrope"):
        with pytest.raises(UnsupportedModelError, match=unknown):
            spec_of(tiny, rope_scaling={"rope_type": unknown, "factor": 2.0})
    with pytest.raises(UnsupportedModelError, match="part of each head"):
        spec_of(tiny, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    with pytest.raises(ModelFileError, match="factor is missing"):
        spec_of(tiny, rope_scaling={"type": "linear"})


def test_rope_of_gemma_has_two_bases(make_tiny: Make) -> None:
    tiny = make_tiny("gemma3")
    older = spec_of(tiny, rope_local_base_freq=20_000.0, rope_scaling={"factor": 8.0, "rope_type": "linear"})
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
    }
    newer = spec_of(tiny, rope_theta=..., rope_parameters=nested)
    for spec in (older, newer):
        assert (spec.rope_base, spec.rope_base_local) == (500_000.0, 20_000.0)
        assert spec.rope_scaling == RopeScaling("linear", 8.0)
    bare = spec_of(tiny, rope_theta=...)
    assert (bare.rope_base, bare.rope_base_local, bare.rope_scaling) == (1_000_000.0, 10_000.0, None)


def test_sliding_windows(make_tiny: Make) -> None:
    mistral, qwen, gemma = make_tiny("mistral"), make_tiny("qwen2"), make_tiny("gemma3")
    assert spec_of(mistral).sliding == ()
    assert spec_of(mistral, sliding_window=...).sliding == (4096, 4096)
    assert spec_of(mistral, sliding_window=32).sliding == (32, 32)
    assert spec_of(qwen, sliding_window=32).sliding == ()
    assert spec_of(qwen, sliding_window=32, use_sliding_window=True, max_window_layers=1).sliding == (0, 32)
    types = ["sliding_attention", "full_attention"]
    assert spec_of(qwen, sliding_window=32, use_sliding_window=True, layer_types=types).sliding == (32, 0)
    assert spec_of(gemma, layer_types=types).sliding == (8, 0)
    assert spec_of(gemma, sliding_window_pattern=2).sliding == (8, 0)
    assert spec_of(gemma, num_hidden_layers=6).sliding == (8, 8, 8, 8, 8, 0)
    with pytest.raises(ModelFileError, match="layer_types"):
        spec_of(gemma, layer_types=types[:1])
    with pytest.raises(UnsupportedModelError, match="chunked"):
        spec_of(gemma, layer_types=["chunked_attention", "full_attention"])


def test_scales(make_tiny: Make) -> None:
    gemma = make_tiny("gemma3", query_pre_attn_scalar=100)
    assert spec_of(gemma).query_scale == pytest.approx(0.1)
    assert spec_of(gemma).embed_scale == 8.0
    assert spec_of(make_tiny("llama")).query_scale == 0.25
    assert spec_of(make_tiny("llama"), head_dim=...).head_dim == 16
    assert spec_of(make_tiny("qwen3"), head_dim=...).head_dim == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not run by forerun.*Qwen3ForCausalLM"),
        ({"architectures": ..., "model_type": "rwkv"}, "rwkv"),
        ({"quantization_config": {"bits": 4}}, "quantization_config.*GGUF"),
        ({"hidden_act": "relu"}, "relu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ],
)
def test_variants_are_refused_by_name(make_tiny: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        spec_of(make_tiny("llama"), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "do not fit"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"rms_norm_eps": 0}, "above zero"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(make_tiny: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        spec_of(make_tiny("llama"), **changes)


def test_a_model_type_stands_in_for_the_class(make_tiny: Make) -> None:
    assert spec_of(make_tiny("qwen3"), architectures=..., model_type="qwen3").architecture == "qwen3"


def test_incomplete_folders(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("llama")
    folder = tiny.write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model\.safetensors"):
        open_weights(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match="pickled"):
        open_weights(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ModelFileError, match="not a JSON object"):
        open_weights(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match="not JSON"):
        open_weights(folder)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedModelError, match="give the folder"):
        open_weights(folder / "model.safetensors")


def test_tensors_must_be_those_of_the_config(make_tiny: Make, tmp_path: Path) -> None:
    tiny = make_tiny("llama", biases=True)
    state = tiny.state
    name = "model.layers.1.mlp.up_proj.weight"
    tiny.state = {key: value for key, value in state.items() if key != name}
    with pytest.raises(ModelFileError, match=r"layers\.1\.up missing"):
        open_weights(tiny.write_folder(tmp_path / "a"))
    tiny.state = state | {"model.layers.0.mlp.up_proj.bias": np.zeros(96, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"mlp\.up_proj\.bias"):
        open_weights(tiny.write_folder(tmp_path / "b"))
    tiny.state = state | {name: np.zeros((96, 32), np.float32)}
    with pytest.raises(ModelFileError, match=r"layers\.1\.up has shape \[96, 32\].*\[96, 64\]"):
        open_weights(tiny.write_folder(tmp_path / "c"))
    tiny.state = state | {"model.rotary_emb.inv_freq": np.zeros(8, np.float32)}
    assert "layers.1.k_bias" in open_weights(tiny.write_folder(tmp_path / "d")).tensors
    with pytest.raises(UnsupportedModelError, match="stored as F64"):
        open_weights(tiny.write_folder(tmp_path / "e", dtype="F64"))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "shorter than its header"),
        (b"not json", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"x": {"dtype": "F32"}}', "unknown way"),
        (b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 99999999]}}', "past its own end"),
        (b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}}', "past its own end"),
        (b'{"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', "shape"),
        (b'{"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}}', "not the size of its shape"),
        (b'{"a\\nb": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', "named"),
    ],
)
def test_hostile_safetensors(make_tiny: Make, tmp_path: Path, header: bytes, message: str) -> None:
    folder = make_tiny("llama").write_folder(tmp_path)
    size = len(header) if header else 2**62
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(ModelFileError, match=message):
        open_weights(folder)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), new=st.binary(min_size=1, max_size=6), cut=st.floats(0, 1))
def test_damage_never_escapes_as_another_error(
    make_tiny: Make, tmp_path: Path, place: float, new: bytes, cut: float
) -> None:
    folder = make_tiny("llama", vocab_size=8, hidden_size=16, intermediate_size=16, head_dim=4).write_folder(tmp_path)
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    end = int.from_bytes(raw[:8], "little") + 8
    at = int(place * end)
    raw[at : at + len(new)] = new
    path.write_bytes(raw[: int(cut * len(raw))] if cut < 0.9 else raw)
    try:
        tensors = open_weights(folder).tensors
    except ModelError:
        return
    assert tensors["layers.1.q"].dequantize().shape == (16, 16)
