"""config.json of a Hugging Face folder as a `Spec`: both the older keys and those of transformers 5.

Raises UnsupportedModelError for settings that change the arithmetic and are not run here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.weights.fields import Fields
from forerun.weights.layout import checked
from forerun.weights.spec import RopeScaling, Spec

# Class named in config.json -> architecture; where a folder names only its model_type, that is used.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
}
_BY_TYPE = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
}
_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# What transformers assumes where a config leaves the key out.
_DEFAULT_EPS = 1e-6
_DEFAULT_WINDOW = 4096
_DEFAULT_WINDOW_LAYERS = 28
_DEFAULT_HEAD_DIM = {"qwen3": 128, "gemma3": 256}


def spec_from_config(config: dict[str, Any], folder: Path) -> Spec:
    """The decoder described by a folder's config.json. Raises ModelFileError or UnsupportedModelError."""
    path = folder / "config.json"
    outer = Fields(path, config)
    arch = _architecture(outer)
    fields = outer.inner("text_config") if outer.has("text_config") else outer
    _refuse_variants(outer, fields)
    width, heads, layers = (
        fields.integer(f"{key}") for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    head_dim = fields.integer("head_dim", _DEFAULT_HEAD_DIM.get(arch, max(1, width // heads)))
    context = fields.integer("max_position_embeddings")
    base, local, scaling = _rope(fields, arch, context)
    pre_scale = fields.number("query_pre_attn_scalar", 256.0) if arch == "gemma3" else float(head_dim)
    return checked(
        Spec(
            architecture=arch,
            name=outer.text("_name_or_path", "") or folder.resolve().name,
            vocab_size=fields.integer("vocab_size"),
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            ffn=fields.integer("intermediate_size"),
            context=context,
            norm_eps=fields.number("rms_norm_eps", _DEFAULT_EPS),
            rope_base=base,
            query_scale=1.0 / math.sqrt(pre_scale),
            rope_scaling=scaling,
            rope_base_local=local,
            sliding=_sliding(fields, arch, layers),
            qk_norm=arch in ("qwen3", "gemma3"),
            post_norms=arch == "gemma3",
            activation=_activation(fields, arch),
            # In fp32, as here, transformers multiplies by the root itself; only in bf16 does it round it first.
            embed_scale=math.sqrt(width) if arch == "gemma3" else 1.0,
            tied=outer.flag("tie_word_embeddings", fields.flag("tie_word_embeddings", arch == "gemma3")),
        ),
        path,
    )


def _architecture(outer: Fields) -> str:
    names = outer.values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelFileError(f"{outer.path}: architectures is not a list of names: the file is damaged")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if not names and outer.values.get("model_type") in _BY_TYPE:
        return _BY_TYPE[outer.text("model_type")]
    raise UnsupportedModelError(
        f"{outer.path}: architecture {', '.join(names) or outer.text('model_type', 'unnamed')!r} is not run by forerun "
        f"({', '.join(ARCHITECTURES)} are): choose another model"
    )


def _refuse_variants(outer: Fields, fields: Fields) -> None:
    for key, advice in {
        "quantization_config": "use the unquantized folder, or a GGUF file",
        "attn_logit_softcapping": "choose another model",
        "final_logit_softcapping": "choose another model",
        "use_bidirectional_attention": "choose another model",
        "mlp_bias": "choose another model",
    }.items():
        if outer.values.get(key) or fields.values.get(key):
            raise UnsupportedModelError(f"{outer.path}: {key} is not run by forerun: {advice}")


def _activation(fields: Fields, arch: str) -> Literal["silu", "gelu_tanh"]:
    key = "hidden_activation" if arch == "gemma3" else "hidden_act"
    name = fields.text(key, "gelu_pytorch_tanh" if arch == "gemma3" else "silu")
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{fields.path}: activation {name!r} is not run ({', '.join(_ACTIVATIONS)} are): choose another model"
        )
    return _ACTIVATIONS[name]


def _sliding(fields: Fields, arch: str, layers: int) -> tuple[int, ...]:
    """Window per layer, from `layer_types` where it is spelled out, else by each architecture's own rule."""
    window = fields.integer("sliding_window", 0, least=0)
    if "sliding_window" not in fields.values:
        window = _DEFAULT_WINDOW
    if arch == "llama" or (arch in ("qwen2", "qwen3") and not fields.flag("use_sliding_window", False)):
        window = 0
    if not window:
        return ()
    types = fields.values.get("layer_types")
    if arch == "mistral":
        return (window,) * min(layers, 10_000)
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise ModelFileError(f"{fields.path}: layer_types is not one name per layer: the file is damaged")
        unknown = [kind for kind in types if kind not in ("sliding_attention", "full_attention")]
        if unknown:
            raise UnsupportedModelError(
                f"{fields.path}: layers of type {unknown[0]!r} are not run: choose another model"
            )
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)
    if arch == "gemma3":
        pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
        return tuple(window if (i + 1) % pattern else 0 for i in range(min(layers, 10_000)))
    full = fields.integer("max_window_layers", _DEFAULT_WINDOW_LAYERS, least=0)
    return tuple(window if i >= full else 0 for i in range(min(layers, 10_000)))


def _rope(fields: Fields, arch: str, context: int) -> tuple[float, float | None, RopeScaling | None]:
    """(base, base of sliding layers, scaling). transformers 5 nests what used to be two keys, Gemma's once more."""
    nested = fields.inner("rope_parameters")
    older = fields.inner("rope_scaling")
    if arch == "gemma3":
        whole = nested.inner("full_attention") if nested.has("full_attention") else (nested if nested.values else older)
        near = nested.inner("sliding_attention")
        if near.text("rope_type", "default") != "default":
            raise UnsupportedModelError(f"{fields.path}: scaled rotary embedding of sliding layers is not run")
        base = whole.number("rope_theta", fields.number("rope_theta", 1_000_000.0))
        local = near.number("rope_theta", fields.number("rope_local_base_freq", 10_000.0))
        return base, local, _scaling(whole, context)
    whole = nested if nested.values else older
    return whole.number("rope_theta", fields.number("rope_theta", 10_000.0)), None, _scaling(whole, context)


def _scaling(rope: Fields, context: int) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(f"{rope.path}: rotary embedding of a part of each head is not run")
    if kind == "default":
        return None
    original = rope.integer("original_max_position_embeddings", context)
    if kind == "linear":
        return RopeScaling("linear", factor=rope.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            factor=rope.number("factor"),
            original_context=original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            factor=rope.number("factor", context / original),
            original_context=original,
            beta_fast=rope.number("beta_fast", 32.0),
            beta_slow=rope.number("beta_slow", 1.0),
            attention_factor=rope.maybe_number("attention_factor"),
            mscale=rope.maybe_number("mscale"),
            mscale_all_dim=rope.maybe_number("mscale_all_dim"),
            truncate=rope.flag("truncate", True),
        )
    raise UnsupportedModelError(
        f"{rope.path}: rotary scaling {kind!r} is not run (linear, llama3 and yarn are): choose another model"
    )
