"""Opens a GGUF file as `Weights`: ggml's names and key-values become the canonical description.

What differs from the canonical form and is undone here: llama-type files keep the rows of q and k in rotary pairs; a
missing `output.weight` means that the head is the embedding. Norms of Gemma files hold the added 1 already.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from forerun.errors import ModelFileError, UnsupportedModelError
from forerun.weights.architecture import ARCHITECTURES, Architecture
from forerun.weights.fields import Fields
from forerun.weights.gguf_header import Header, TensorEntry, read_header
from forerun.weights.layout import checked, validate
from forerun.weights.shards import shards_of
from forerun.weights.spec import RopeScaling, Spec
from forerun.weights.tensors import Tensor, Weights

# What Tensor.dequantize decodes, itself or through the gguf package.
PLAIN = ("F32", "F16", "BF16")
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")

_GLOBAL = {"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"}
_LAYER = {
    "attn_norm.weight": "attn_norm",
    "attn_q.weight": "q",
    "attn_k.weight": "k",
    "attn_v.weight": "v",
    "attn_output.weight": "o",
    "attn_q.bias": "q_bias",
    "attn_k.bias": "k_bias",
    "attn_v.bias": "v_bias",
    "attn_output.bias": "o_bias",
    "attn_q_norm.weight": "q_norm",
    "attn_k_norm.weight": "k_norm",
    "post_attention_norm.weight": "post_attn_norm",
    "ffn_norm.weight": "ffn_norm",
    "ffn_gate.weight": "gate",
    "ffn_up.weight": "up",
    "ffn_down.weight": "down",
    "post_ffw_norm.weight": "post_ffn_norm",
}
_IN_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,4})\.(.+)")
_FREQUENCIES = "rope_freqs.weight"


def open_gguf(path: Path) -> Weights:
    """A GGUF file, or all files of a model that is split, as weights, mapped into memory.

    Raises ModelFileError or UnsupportedModelError.
    """
    header = _read_model(path)
    tensors = _canonical(header)
    spec = _spec(header, tensors)
    if ARCHITECTURES[spec.architecture].paired_rows:
        tensors = {name: _paired(tensor, spec) for name, tensor in tensors.items()}
    return Weights(header.path, "gguf", spec, validate(spec, tensors, header.path), header.metadata)


def _read_model(path: Path) -> Header:
    """The header of a whole model, whichever of its files is given; its path is that of the first.

    Raises ModelFileError, also for a part that is missing or of another model, and UnsupportedModelError.
    """
    header = read_header(path)
    count = Fields(path, header.metadata).integer("split.count", 1, least=0)
    if count <= 1:
        return header
    files = shards_of(path)
    if len(files) != count:
        raise ModelFileError(
            f"{path}: is one of {count} parts of a model, which are found by their names: name them "
            f"NAME-00001-of-{count:05}.gguf and so on, or join them with `llama-gguf-split --merge`"
        )
    for missing in (file for file in files if not file.exists()):
        raise ModelFileError(
            f"{missing}: is missing, one of {count} parts of the model: put all of them into one folder"
        )
    parts = [header if file == path else read_header(file) for file in files]
    tensors = {name: entry for part in parts for name, entry in part.tensors.items()}
    for number, part in enumerate(parts):
        fields = Fields(part.path, part.metadata)
        if (fields.integer("split.no", -1, least=-1), fields.integer("split.count", 1, least=0)) != (number, count):
            raise ModelFileError(f"{part.path}: is not part {number + 1} of {count} of the model: download it again")
    whole = Fields(files[0], parts[0].metadata).integer("split.tensors.count", len(tensors), least=0)
    if not len(tensors) == sum(len(part.tensors) for part in parts) == whole:
        raise ModelFileError(f"{files[0]}: its {count} parts do not belong together: download all of them again")
    return Header(files[0], parts[0].metadata, tensors)


def _canonical(header: Header) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, entry in header.tensors.items():
        if name == _FREQUENCIES:
            continue
        inside = _IN_LAYER.fullmatch(name)
        known = f"layers.{inside[1]}.{_LAYER[inside[2]]}" if inside and inside[2] in _LAYER else _GLOBAL.get(name, name)
        if entry.kind not in (PLAIN if len(entry.shape) == 1 else PLAIN + BLOCKS):
            raise UnsupportedModelError(
                f"{header.path}: tensor {name} is stored as {entry.kind}, which forerun does not run: "
                "use a file in Q4_K_M or Q8_0"
            )
        tensors[known] = Tensor(known, entry.shape, entry.kind, entry.data)
    return tensors


def _paired(tensor: Tensor, spec: Spec) -> Tensor:
    part = tensor.name.rpartition(".")[2]
    heads = {"q": spec.heads, "q_bias": spec.heads, "k": spec.kv_heads, "k_bias": spec.kv_heads}.get(part, 0)
    return Tensor(tensor.name, tensor.shape, tensor.kind, tensor.stored, heads)


def _spec(header: Header, tensors: dict[str, Tensor]) -> Spec:
    path = header.path
    fields = Fields(path, header.metadata)
    arch = fields.text("general.architecture")
    family = ARCHITECTURES.get(arch)
    if family is None:
        raise UnsupportedModelError(
            f"{path}: architecture {arch!r} is not run by forerun ({', '.join(ARCHITECTURES)} are): choose another model"
        )
    _refuse_variants(fields, arch)
    embed = tensors.get("embed")
    if embed is None or len(embed.shape) != 2:
        raise ModelFileError(f"{path}: tensor embed missing: the file is incomplete, download it again")
    width, heads = fields.integer(f"{arch}.embedding_length"), fields.integer(f"{arch}.attention.head_count")
    kv_heads, layers = fields.integer(f"{arch}.attention.head_count_kv", heads), fields.integer(f"{arch}.block_count")
    head_dim = fields.integer(f"{arch}.attention.key_length", max(1, width // heads))
    if fields.integer(f"{arch}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: keys and values of different sizes are not run: choose another model")
    if fields.integer(f"{arch}.rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModelError(f"{path}: rotary embedding of a part of each head is not run: choose another model")
    return checked(
        Spec(
            architecture=arch,
            name=fields.text("general.name", path.stem),
            vocab_size=embed.shape[0],
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn=fields.integer(f"{arch}.feed_forward_length"),
            context=fields.integer(f"{arch}.context_length"),
            norm_eps=fields.number(f"{arch}.attention.layer_norm_rms_epsilon"),
            rope_base=fields.number(f"{arch}.rope.freq_base", 10_000.0),
            query_scale=_query_scale(fields, family, head_dim, width // heads, layers),
            rope_scaling=_rope_scaling(fields, arch, header.tensors.get(_FREQUENCIES), head_dim),
            rope_base_local=family.rope_base_local
            and fields.number(f"{arch}.rope.freq_base_swa", family.rope_base_local),
            sliding=_sliding(fields, family, layers),
            qk_norm=family.qk_norm,
            post_norms=family.post_norms,
            activation=family.activation,
            embed_scale=family.embed_scale(width),
            tied="head" not in tensors,
        ),
        path,
    )


def _refuse_variants(fields: Fields, arch: str) -> None:
    """Settings that change the arithmetic and are not run here; silence would be another model's text."""
    if fields.integer(f"{arch}.expert_count", 0, least=0):
        raise UnsupportedModelError(f"{fields.path}: mixtures of experts are not run: choose a dense model")
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv", "logit_scale"):
        if fields.values.get(f"{arch}.{key}"):
            raise UnsupportedModelError(f"{fields.path}: {arch}.{key} is not run: choose another model")


def _query_scale(fields: Fields, family: Architecture, head_dim: int, share: int, layers: int) -> float:
    if fields.values.get(f"{family.name}.attention.scale"):
        return fields.number(f"{family.name}.attention.scale")
    return 1.0 / math.sqrt(share if layers == family.wide_query_layers else head_dim)


def _sliding(fields: Fields, family: Architecture, layers: int) -> tuple[int, ...]:
    """Window per layer."""
    window = fields.integer(f"{family.name}.attention.sliding_window", 0, least=0)
    if not window or family.sliding == "upper":
        return ()
    pattern = fields.values.get(f"{family.name}.attention.sliding_window_pattern", family.sliding_period)
    if isinstance(pattern, int):
        return tuple(window if not pattern or (i + 1) % pattern else 0 for i in range(min(layers, 10_000)))
    if len(pattern) != layers:
        raise ModelFileError(
            f"{fields.path}: the sliding window pattern is not one flag per layer: the file is damaged"
        )
    return tuple(window if slides else 0 for slides in pattern)


def _rope_scaling(fields: Fields, arch: str, frequencies: TensorEntry | None, head_dim: int) -> RopeScaling | None:
    kind = fields.text(f"{arch}.rope.scaling.type", "linear" if fields.has(f"{arch}.rope.scale_linear") else "none")
    factor = fields.number(f"{arch}.rope.scaling.factor", fields.number(f"{arch}.rope.scale_linear", 1.0))
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(f"{fields.path}: rotary scaling {kind!r} is not run: choose another model")
    scaled = kind != "none" and factor != 1.0
    if frequencies is not None:
        if scaled:
            raise UnsupportedModelError(f"{fields.path}: two rotary scalings at once are not run: choose another model")
        return RopeScaling("factors", frequency_factors=_factors(frequencies, head_dim, fields.path))
    if not scaled:
        return None
    if kind == "linear":
        return RopeScaling("linear", factor=factor)
    # The file's factor multiplies YaRN's own, 0.1 ln(factor) + 1.
    extra = fields.number(
        f"{arch}.rope.scaling.attn_factor", fields.number(f"{arch}.rope.scaling.yarn_attn_factor", 1.0)
    )
    return RopeScaling(
        "yarn",
        factor=factor,
        original_context=fields.integer(
            f"{arch}.rope.scaling.original_context_length", fields.integer(f"{arch}.context_length")
        ),
        beta_fast=fields.number(f"{arch}.rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number(f"{arch}.rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=extra * (0.1 * math.log(factor) + 1.0) if extra != 1.0 and factor > 1 else None,
    )


def _factors(entry: TensorEntry, head_dim: int, path: Path) -> tuple[float, ...]:
    if entry.kind != "F32" or entry.shape != (head_dim // 2,):
        raise ModelFileError(f"{path}: {entry.name} is not one fp32 number per rotary pair: the file is damaged")
    factors = tuple(float(x) for x in Tensor(entry.name, entry.shape, entry.kind, entry.data).dequantize())
    if not all(0 < x < math.inf for x in factors):
        raise ModelFileError(f"{path}: {entry.name} holds factors that are not above zero: the file is damaged")
    return factors
