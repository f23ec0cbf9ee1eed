"""One description of a decoder, whatever file it came from; shared by every backend that runs weights itself.

Canonical names of tensors (`i` is the layer; matrices are `[out, in]`, row-major, as in Hugging Face files):

    embed [vocab, width] · head [vocab, width] (absent when tied) · norm [width]
    layers.i.attn_norm · layers.i.q|k|v|o (and .q_bias|.k_bias|.v_bias|.o_bias) · layers.i.q_norm|k_norm [head_dim]
    layers.i.post_attn_norm (Gemma) · layers.i.ffn_norm · layers.i.gate|up|down · layers.i.post_ffn_norm (Gemma)

Rotary embedding is always of the half-split kind (dimension d pairs with d + head_dim/2): readers reorder the rows of q
and k of files that interleave pairs. Norm weights are the multiplier itself: readers add Gemma's 1 where the file
leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from forerun.weights.architecture import Activation


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched past the trained context.

    kind: `linear` (divide by factor), `llama3` (by wavelength: low_freq_factor, high_freq_factor, original_context)
        or `yarn` (ramp between beta_fast and beta_slow, 2309.00071; attention_factor scales cos and sin).
    frequency_factors: divisors per pair `[head_dim/2]` spelled out by the file (GGUF's rope_freqs), instead of a rule.
    """

    kind: Literal["linear", "llama3", "yarn", "factors"]
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Spec:
    """The shape of a decoder and every number its arithmetic needs.

    architecture: the name of its family in `weights.architecture`.
    sliding: per layer, the width of its attention window in tokens (a token sees itself and `window - 1` before it),
        0 for full attention.
    rope_base_local: base of sliding layers where it differs (Gemma 3: 10,000, never scaled), else None.
    activation: of the gated MLP: `silu` or `gelu_tanh`.
    head_rows: rows of `head` where they stand for some ids only (weights.derive), else 0: one for each id.
    embed_scale: factor on embeddings (Gemma: sqrt(width) rounded to bfloat16 where the source does so), else 1.
    query_scale: factor on q.k, usually head_dim ** -0.5.
    """

    architecture: str
    name: str
    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    norm_eps: float
    rope_base: float
    query_scale: float
    rope_scaling: RopeScaling | None = None
    rope_base_local: float | None = None
    sliding: tuple[int, ...] = field(default=())
    qk_norm: bool = False
    post_norms: bool = False
    activation: Activation = "silu"
    embed_scale: float = 1.0
    tied: bool = False
    head_rows: int = 0

    def window(self, layer: int) -> int:
        """Attention window of a layer in tokens; 0 is full attention."""
        return self.sliding[layer] if self.sliding else 0
