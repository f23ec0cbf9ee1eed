"""Folders that transformers writes, and GGUF files that it reads, open here with the same numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.models import resolve
from forerun.weights import Weights, open_weights

pytestmark = pytest.mark.oracle
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SHAPE: dict[str, Any] = {
    "vocab_size": 80,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def folder_of(model: Any, path: Path, **how: Any) -> Weights:
    model.save_pretrained(path, **how)
    return open_weights(path)


def same_matrices(weights: Weights, model: Any) -> None:
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    seen = set()
    for i in range(weights.spec.layers):
        for ours, theirs in LAYER.items():
            for suffix, kind in (("", "weight"), ("_bias", "bias")):
                name = f"model.layers.{i}.{theirs}.{kind}"
                if name in state and not (ours == "attn_norm" and weights.spec.post_norms):
                    tensor = weights.tensors[f"layers.{i}.{ours}{suffix}"]
                    np.testing.assert_array_equal(tensor.dequantize(), state[name], err_msg=name)
                    seen.add(ours)
    assert {"q", "k", "v", "o", "gate", "up", "down"} <= seen
    np.testing.assert_array_equal(weights.tensors["embed"].dequantize(), state["model.embed_tokens.weight"])
    if not weights.spec.tied:
        np.testing.assert_array_equal(weights.tensors["head"].dequantize(), state["lm_head.weight"])


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True}),
        ("Llama", {"rope_parameters": YARN, "tie_word_embeddings": True}),
        ("Mistral", {"sliding_window": 32}),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}),
        ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_folders_of_transformers(tmp_path: Path, name: str, extra: dict[str, Any], dtype: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SHAPE | extra)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(getattr(torch, dtype))
    weights = folder_of(model, tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    same_matrices(weights, model)
    spec = weights.spec
    assert spec.architecture == name.lower()
    assert (spec.heads, spec.kv_heads, spec.head_dim) == (6, 2, model.model.layers[0].self_attn.head_dim)
    assert spec.tied == bool(extra.get("tie_word_embeddings"))
    assert spec.query_scale == pytest.approx(model.model.layers[0].self_attn.scaling)
    assert spec.norm_eps == config.rms_norm_eps
    assert spec.rope_base == config.rope_parameters["rope_theta"]
    scaling = config.rope_parameters["rope_type"]
    assert (spec.rope_scaling.kind if spec.rope_scaling else "default") == scaling
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * 3
    window = getattr(config, "sliding_window", None) or 0
    assert [spec.window(i) for i in range(3)] == [window if kind == "sliding_attention" else 0 for kind in types]


def test_folders_of_gemma(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(
        **SHAPE | {"num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 32}
    )
    model = transformers.Gemma3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    weights = folder_of(model, tmp_path)
    same_matrices(weights, model)
    spec = weights.spec
    layer = model.model.layers[6]
    assert [spec.window(i) for i in range(7)] == [32, 32, 32, 32, 32, 0, 32]
    assert spec.query_scale == pytest.approx(layer.self_attn.scaling)
    assert spec.embed_scale == pytest.approx(float(model.model.embed_tokens.embed_scale))
    assert (spec.rope_base, spec.rope_base_local) == (1_000_000.0, 10_000.0)
    assert spec.qk_norm
    assert spec.tied
    norms = {
        "attn_norm": layer.input_layernorm,
        "post_attn_norm": layer.post_attention_layernorm,
        "ffn_norm": layer.pre_feedforward_layernorm,
        "post_ffn_norm": layer.post_feedforward_layernorm,
        "q_norm": layer.self_attn.q_norm,
        "k_norm": layer.self_attn.k_norm,
    }
    for name, norm in norms.items():
        expected = 1 + norm.weight.detach().numpy()
        np.testing.assert_array_equal(weights.tensors[f"layers.6.{name}"].dequantize(), expected)


def test_the_older_config_means_the_same(tmp_path: Path) -> None:
    """The keys from before transformers 5, which most folders still have."""
    config = transformers.LlamaConfig(**SHAPE | {"rope_parameters": LLAMA3})
    newer = folder_of(transformers.LlamaForCausalLM(config), tmp_path).spec
    written = json.loads((tmp_path / "config.json").read_text())
    rope = written.pop("rope_parameters")
    written |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert open_weights(tmp_path).spec == newer


@pytest.mark.models
def test_rows_of_smollm2_are_unpaired_as_transformers_does_it() -> None:
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    weights = open_weights(resolve("smollm2-135m"))
    spec = weights.spec
    theirs = LlamaTensorProcessor(config={"num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads})
    for i in (0, 7, 29):
        for part in ("q", "k"):
            tensor = weights.tensors[f"layers.{i}.{part}"]
            stored = replace(tensor, interleaved_heads=0).dequantize()
            expected = theirs.process(stored, f"blk.{i}.attn_{part}.weight").weights
            np.testing.assert_array_equal(tensor.dequantize(), expected)
            assert not np.array_equal(stored, expected)
