"""A transformers model made from a `Spec` and its tensors: the same weights behind an independent implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.weights.spec import RopeScaling, Spec
from tests.unit.backends.tiny import Floats

# Configuration and model class of each architecture.
_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
}
_GLOBAL = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
_LAYER = {
    **{name: f"self_attn.{name}_proj.weight" for name in "qkvo"},
    **{f"{name}_bias": f"self_attn.{name}_proj.bias" for name in "qkvo"},
    **{name: f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "attn_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
}
_GEMMA = {
    "post_attn_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "post_ffn_norm": "post_feedforward_layernorm.weight",
}


def transformers_model(spec: Spec, tensors: Mapping[str, Floats]) -> Any:
    """A causal model in fp32 with exactly these weights."""
    import torch
    import transformers

    config = transformers_config(spec)
    state: dict[str, Any] = {}
    for name in tensors:
        # A copy: weights mapped from a file are read-only.
        values = torch.from_numpy(np.array(tensors[name], np.float32))
        if spec.architecture == "gemma3" and name.endswith("norm"):
            values = values - 1
        state[_translated(name, spec)] = values
    if spec.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    # From a state dict rather than from the configuration, which would first draw random weights.
    model, report = getattr(transformers, _CLASSES[spec.architecture][1]).from_pretrained(
        None,
        config=config,
        state_dict=state,
        attn_implementation="eager",
        dtype=torch.float32,
        output_loading_info=True,
    )
    assert not any(report.values()), report
    return model.eval()


def transformers_logits(model: Any, tokens: Sequence[int], last: int = 0) -> Floats:
    """`[tokens, vocab]`, or of the `last` tokens alone."""
    import torch

    with torch.no_grad():
        found: Floats = model(torch.tensor([list(tokens)]), logits_to_keep=last).logits[0].numpy()
    return found


def transformers_config(spec: Spec) -> Any:
    import transformers

    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.rope_base} | _scaling(spec.rope_scaling)
    options: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied,
        "rope_parameters": rope,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    kinds = ["sliding_attention" if spec.window(i) else "full_attention" for i in range(spec.layers)]
    if spec.architecture == "mistral":
        options["sliding_window"] = max(spec.sliding, default=0) or None
    elif spec.architecture in ("qwen2", "qwen3") and spec.sliding:
        options |= {"use_sliding_window": True, "sliding_window": max(spec.sliding), "layer_types": kinds}
    elif spec.architecture == "gemma3":
        options |= {
            "sliding_window": max(spec.sliding),
            "layer_types": kinds,
            "query_pre_attn_scalar": round(spec.query_scale**-2),
            "rope_parameters": {
                "full_attention": rope,
                "sliding_attention": {"rope_type": "default", "rope_theta": spec.rope_base_local},
            },
        }
    return getattr(transformers, _CLASSES[spec.architecture][0])(**options)


def _translated(name: str, spec: Spec) -> str:
    if name in _GLOBAL:
        return _GLOBAL[name]
    _, layer, part = name.split(".")
    names = _LAYER | (_GEMMA if spec.architecture == "gemma3" else {})
    return f"model.layers.{layer}.{names[part]}"


def _scaling(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {}
    found: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        found |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        found |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
        for key in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(scaling, key) is not None:
                found[key] = getattr(scaling, key)
    if scaling.kind in ("llama3", "yarn"):
        found["original_max_position_embeddings"] = scaling.original_context
    return found
