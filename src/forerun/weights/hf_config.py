"""config.json of a Hugging Face folder as a `Spec`: both the older keys and those of transformers 5.

Raises UnsupportedModelError for settings that change the arithmetic and are not run here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.weights.architecture import BY_CLASS, BY_TYPE, Activation, Architecture
from forerun.weights.fields import Fields
from forerun.weights.layout import checked
from forerun.weights.spec import RopeScaling, Spec

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# What transformers assumes where a config leaves the key out.
_DEFAULT_EPS = 1e-6
_DEFAULT_WINDOW = 4096
_DEFAULT_WINDOW_LAYERS = 28


def spec_from_config(config: dict[str, Any], folder: Path) -> Spec:
    """The decoder described by a folder's config.json. Raises ModelFileError or UnsupportedModelError."""
    path = folder / "config.json"
    outer = Fields(path, config)
    family = _architecture(outer)
    fields = outer.inner("text_config") if outer.has("text_config") else outer
    _refuse_variants(outer, fields)
    width, heads, layers = (
        fields.integer(f"{key}") for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    head_dim = fields.integer("head_dim", family.head_dim or max(1, width // heads))
    context = fields.integer("max_position_embeddings")
    base, local, scaling = _rope(fields, family, context)
    scalar = family.query_scalar and fields.number("query_pre_attn_scalar", family.query_scalar)
    return checked(
        Spec(
            architecture=family.name,
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
            query_scale=1.0 / math.sqrt(scalar or head_dim),
            rope_scaling=scaling,
            rope_base_local=local,
            sliding=_sliding(fields, family, layers),
            qk_norm=family.qk_norm,
            post_norms=family.post_norms,
            activation=_activation(fields, family),
            embed_scale=family.embed_scale(width),
            tied=outer.flag("tie_word_embeddings", fields.flag("tie_word_embeddings", family.tied)),
        ),
        path,
    )


def _architecture(outer: Fields) -> Architecture:
    names = outer.values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelFileError(f"{outer.path}: architectures is not a list of names: the file is damaged")
    for name in names:
        if name in BY_CLASS:
            return BY_CLASS[name]
    if not names and outer.values.get("model_type") in BY_TYPE:
        return BY_TYPE[outer.text("model_type")]
    raise UnsupportedModelError(
        f"{outer.path}: architecture {', '.join(names) or outer.text('model_type', 'unnamed')!r} is not run by forerun "
        f"({', '.join(BY_CLASS)} are): choose another model"
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


def _activation(fields: Fields, family: Architecture) -> Activation:
    if not fields.has(family.activation_key):
        return family.activation
    name = fields.text(family.activation_key)
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{fields.path}: activation {name!r} is not run ({', '.join(_ACTIVATIONS)} are): choose another model"
        )
    return _ACTIVATIONS[name]


def _sliding(fields: Fields, family: Architecture, layers: int) -> tuple[int, ...]:
    """Window per layer, from `layer_types` where it is spelled out, else by the family's own rule."""
    window = fields.integer("sliding_window", 0, least=0)
    if "sliding_window" not in fields.values:
        window = _DEFAULT_WINDOW
    if family.sliding == "none" or (family.sliding == "upper" and not fields.flag("use_sliding_window", False)):
        window = 0
    if not window:
        return ()
    types = fields.values.get("layer_types")
    if family.sliding == "all":
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
    if family.sliding == "pattern":
        stated = fields.integer("_sliding_window_pattern", family.sliding_period)
        period = fields.integer("sliding_window_pattern", stated)
        return tuple(window if (i + 1) % period else 0 for i in range(min(layers, 10_000)))
    full = fields.integer("max_window_layers", _DEFAULT_WINDOW_LAYERS, least=0)
    return tuple(window if i >= full else 0 for i in range(min(layers, 10_000)))


def _rope(fields: Fields, family: Architecture, context: int) -> tuple[float, float | None, RopeScaling | None]:
    """(base, base of sliding layers, scaling). transformers 5 nests what used to be two keys, and once more where sliding
    layers have a base of their own."""
    nested = fields.inner("rope_parameters")
    older = fields.inner("rope_scaling")
    if family.rope_base_local is not None:
        whole = nested.inner("full_attention") if nested.has("full_attention") else (nested if nested.values else older)
        near = nested.inner("sliding_attention")
        if near.text("rope_type", "default") != "default":
            raise UnsupportedModelError(f"{fields.path}: scaled rotary embedding of sliding layers is not run")
        base = whole.number("rope_theta", fields.number("rope_theta", family.rope_base))
        local = near.number("rope_theta", fields.number("rope_local_base_freq", family.rope_base_local))
        return base, local, _scaling(whole, context)
    whole = nested if nested.values else older
    return whole.number("rope_theta", fields.number("rope_theta", family.rope_base)), None, _scaling(whole, context)


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
