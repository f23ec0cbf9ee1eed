"""What each family of models is, beyond the numbers that its files state: one record per family, and nothing else to add.

Readers of files and backends take all that they know of families from here; what a model came to is in its `Spec`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class Architecture:
    """A family of decoders.

    name: as in `Spec.architecture`, and what GGUF files call it.
    classes, model_types: what a folder's config.json calls it; the type counts where no class is named.
    paired_rows: whether GGUF files keep the rows of q and k in rotary pairs (dimension 2i beside 2i + 1).
    qk_norm: RMSNorm of q and k per head. post_norms: norms after attention and MLP as well as before.
    norm_offset: what a folder's norm weights leave out of the multiplier.
    activation: of the gated MLP, where a config does not say; activation_key: where it says so.
    scaled_embeddings: embeddings are multiplied by sqrt(width).
    sliding: which layers of a folder's model attend to a window: `none`; `all`; `upper`, those from max_window_layers
        on and only with use_sliding_window; `pattern`, all but every `sliding_period`-th. A GGUF file has a window only
        where one holds, on all layers or by the pattern, except that files of `upper` families repeat one that is off.
    rope_base_local: rotary base of sliding layers, where it differs from the others' and a file does not say.
    head_dim, rope_base, tied: what holds where a config leaves the key out (head_dim: width / heads if None).
    query_scalar: likewise the number whose root divides q.k; the size of a head if None.
    wide_query_layers: of a GGUF file with so many layers q.k is divided by sqrt(width / heads), which it does not say.
    """

    name: str
    classes: tuple[str, ...]
    model_types: tuple[str, ...]
    paired_rows: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    activation: Activation = "silu"
    activation_key: str = "hidden_act"
    scaled_embeddings: bool = False
    sliding: Literal["none", "all", "upper", "pattern"] = "none"
    sliding_period: int = 0
    rope_base_local: float | None = None
    head_dim: int | None = None
    rope_base: float = 10_000.0
    tied: bool = False
    query_scalar: float | None = None
    wide_query_layers: int | None = None

    def embed_scale(self, width: int) -> float:
        """Factor on embeddings. In fp32, as here, transformers takes the root itself; only in bf16 it is rounded first."""
        return math.sqrt(width) if self.scaled_embeddings else 1.0


ARCHITECTURES = {
    family.name: family
    for family in (
        Architecture("llama", ("LlamaForCausalLM",), ("llama",), paired_rows=True),
        Architecture("mistral", ("MistralForCausalLM",), ("mistral",), paired_rows=True, sliding="all"),
        Architecture("qwen2", ("Qwen2ForCausalLM",), ("qwen2",), sliding="upper"),
        Architecture("qwen3", ("Qwen3ForCausalLM",), ("qwen3",), sliding="upper", qk_norm=True, head_dim=128),
        Architecture(
            "gemma3",
            ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
            ("gemma3_text", "gemma3"),
            qk_norm=True,
            post_norms=True,
            norm_offset=1.0,
            activation="gelu_tanh",
            activation_key="hidden_activation",
            scaled_embeddings=True,
            sliding="pattern",
            sliding_period=6,
            rope_base_local=10_000.0,
            head_dim=256,
            rope_base=1_000_000.0,
            tied=True,
            query_scalar=256.0,
            wide_query_layers=62,
        ),
    )
}
BY_CLASS = {name: family for family in ARCHITECTURES.values() for name in family.classes}
BY_TYPE = {name: family for family in ARCHITECTURES.values() for name in family.model_types}
